"""Several sources of one field: districts, stations and coarse cells, each observed in its own way.

All of them are zones of one layer, one source after the other. The first is one without a bias: it
says what the field is, and its hidden zones are what models are compared on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.axes import Floats
from deconditional.fields.grids import find_grid, values_on
from deconditional.fields.question import Question, resolved
from deconditional.fields.zones.coverage import Rings
from deconditional.fields.zones.grid import DIM, Zones
from deconditional.fields.zones.layer import is_table, numbers
from deconditional.models.sources import Source
from deconditional.observations.families import Normal

AMOUNTS = "amounts of sources"
"""What rates of zones of several sources are multiplied by, where columns say so."""


@dataclass(frozen=True)
class Told:
    """How cells were observed, as many as `size` after those of the source before.

    `noise_std` is that of their errors, NaN where it is to be learnt.
    """

    size: int
    question: Question
    noise_std: Floats
    bias: str = "none"

    @property
    def is_normal_sum(self) -> bool:
        """Whether observations are divided by what is in their zones."""
        return self.question.family is None and self.question.kind == "sum"

    @property
    def learns_noise(self) -> bool:
        """Whether the noise is to be learnt."""
        return bool(np.isnan(self.noise_std).all())


def questions(given: Sequence[Any], question: Question, fine: Any) -> list[tuple[Source, Question]]:
    """What is asked of every source, one without a bias first."""
    kinds = [type(each).__name__ for each in given if not isinstance(each, Source)]
    if kinds or not given:
        raise UsageError(
            "several sources are a list, [dc.Source(districts, 'cases'), dc.Source(stations, "
            f"'rain')], of dc.Source, not {kinds[0] if kinds else 'an empty list'}."
        )
    if question.mediators:
        raise UsageError("mediators link observations of one coarse dataset; leave them out.")
    ordered = sorted(given, key=lambda each: each.bias != "none")
    asked = [_question(each, question, fine) for each in ordered]
    if question.target not in ("", asked[0].target):
        raise UsageError(f"sources have targets of their own; leave {question.target!r} out.")
    links = {"identity" if q.family is None else q.family.link for q in asked}
    if len(links) > 1 and "identity" in links:
        raise UsageError(
            "normal observations see the field itself and counts its exponential, so these sources "
            "are not of one field; give all of them families of counts or amounts, or none."
        )
    names = sorted({q.exposure for q in asked if q.exposure is not None})
    apart = [q.target for q in asked if names and q.kind == "sum" and q.exposure is None]
    if len(names) > 1 or apart:
        found = [*names, *(f"square kilometre ({target})" for target in apart[:1])]
        raise UsageError(
            f"sources are counted per {' and per '.join(found)}; a field has one exposure on the "
            "fine cells. Others can be columns of their zones."
        )
    exposure = names[0] if names else None
    return [(s, replace(q, exposure=exposure)) for s, q in zip(ordered, asked, strict=True)]


def _question(source: Source, question: Question, fine: Any) -> Question:
    """What is asked of one source; raises where it says what tables cannot have."""
    for name in ("exposure", "trials", "mediator", "task"):
        if getattr(source, name) is not None:
            raise UsageError(
                f"{name} of dc.Source is for arrays; of tables and grids the family names it, as "
                "in dc.Poisson(exposure='people')."
            )
    data, target = source.where, source.z
    if not (isinstance(data, xr.Dataset) or is_table(data)) or not isinstance(target, str):
        raise UsageError(
            "with fine covariates a source is dc.Source(zones, 'column'), a GeoDataFrame or an "
            "xarray Dataset and the name of its target."
        )
    family = question.family if source.family is None else source.family
    family, kind = None if isinstance(family, Normal) else family, source.kind
    if kind is not None and family is not None:
        raise UsageError(f"observations of dc.{type(family).__name__} are sums; leave kind out.")
    if kind is None and family is None:
        points = is_table(data) and data.geom_type.str.endswith("Point").all()
        kind = None if points else question.kind or (None if is_table(data) else "mean")
    return resolved(replace(question, target=target, family=family, kind=kind), fine, data)


def as_table(source: Source, question: Question) -> Any:
    """A table of zones as it is, and coarse cells as one: a polygon for each."""
    data, noise = source.where, source.noise_std
    if is_table(data):
        return data
    import geopandas
    import shapely

    names = [question.target, *([question.amounts] if question.amounts else [])]
    names += [noise] if isinstance(noise, str) else []
    grid = find_grid(data, names, "coarse", question.dims)
    corners, there = grid.corners(), grid.there
    if corners is None or grid.n_times > 1:
        raise UsageError(
            f"of several sources each is of one time, on cells with corners; {question.target!r} "
            f"has {grid.n_times} time(s), on {grid.describe_cells()}. Choose a time, as in "
            "ds.isel(time=0); of places make a GeoDataFrame of points."
        )
    places = [f"{a:.6g}, {b:.6g}" for a, b in grid.centres[there]]
    columns = {name: values_on(grid, data, name)[0][there] for name in names}
    shapes = shapely.polygons(corners[there][..., ::-1])
    table = geopandas.GeoDataFrame(columns, places, geometry=shapes, crs=grid.frame.crs)
    table.attrs = dict(data[question.target].attrs)
    return table


def joined(
    sources: Sequence[Source], tables: Sequence[Any], sides: Sequence[Any]
) -> tuple[xr.Dataset, Zones, tuple[tuple[str, str], ...], tuple[Told, ...]]:
    """The zones of all sources, one source after the other, and how each was observed."""
    first, grids = sides[0].dataset, [side.grid for side in sides]
    begin = np.cumsum([0, *(grid.n for grid in grids)])
    rings = Rings(
        np.concatenate([grid.rings.xy for grid in grids]),
        np.cumsum([0, *(size for grid in grids for size in grid.rings.sizes)]),
        np.concatenate([g.rings.owner + k for g, k in zip(grids, begin, strict=False)]),
    )
    points = np.concatenate([grid.points for grid in grids])
    grid = replace(grids[0], n=int(begin[-1]), rings=rings, points=points)
    names = [str(n) for side in sides for n in side.dataset[DIM].values]
    if len(set(names)) < len(names):
        names = [f"{k + 1}: {n}" for k, s in enumerate(sides) for n in s.dataset[DIM].values]
    coords = {
        name: (DIM, grid.centres[:, k], first[name].attrs)
        for k, name in enumerate(grid.coordinates)
    } | {DIM: (DIM, np.asarray(names, dtype=str))}
    values = np.concatenate([side.dataset[side.question.target].values for side in sides])
    data = {sides[0].question.target: (DIM, values, dict(first.attrs))}
    of_columns = [
        side.dataset[side.question.amounts].values
        if side.question.amounts
        else np.full(side.grid.n, np.nan)
        for side in sides
    ]
    data[AMOUNTS] = (DIM, np.concatenate(of_columns), {})
    told, said = [], []
    for source, table, side in zip(sources, tables, sides, strict=True):
        noise, question = source.noise_std, side.question
        noise = numbers(table, noise) if isinstance(noise, str) else noise
        noise = np.broadcast_to(np.nan if noise is None else noise, len(table)).astype(float)
        told.append(Told(len(table), question, noise, source.bias))
        kind = "" if question.kind is None else f", {question.kind}s"
        scatter = "normal" + kind if question.family is None else type(question.family).__name__
        bias = "" if source.bias == "none" else f", {source.bias} bias"
        lines = [f"{question.target}, {scatter}{bias}", *(text for _, text in side.understood)]
        said.append((f"source {len(told)}", "; ".join(lines)))
    return xr.Dataset(data, coords), grid, tuple(said), tuple(told)
