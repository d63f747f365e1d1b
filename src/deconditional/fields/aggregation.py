"""What a posterior says of zones that nobody observed: means and sums, jointly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from deconditional.bags import Bags
from deconditional.errors import UsageError
from deconditional.fields.clock import Clock
from deconditional.fields.downscaler import Downscaler
from deconditional.fields.fine_bags import FineBags
from deconditional.fields.predict import quantile_levels
from deconditional.fields.question import Question
from deconditional.fields.recipes import MOST_WHOLE
from deconditional.fields.series import Windows
from deconditional.fields.sides import FineSide
from deconditional.fields.zones.layer import Layer
from deconditional.inference.posterior import CoarsePosterior

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WHOLE = 20_000
"""Points of all zones together that are taken as they are; of more, some stand for each zone.

The covariance of means costs their square. Rates are drawn, at a cost that is linear in points, so
of them as many are taken as models of families learn from (:data:`MOST_WHOLE`).
"""

FEWEST, MOST = 16, 256
"""Points that stand for a zone."""


@dataclass(frozen=True)
class Aggregate:
    """Means, sums and their spread over zones.

    Attributes
    ----------
    table
        The zones with ``mean``, ``std`` and quantiles such as ``q05`` of the mean over each;
        ``amount``, what the mean is multiplied by for a sum; ``sum`` and so on, if these were asked
        for; and ``cover``, the share of the zone that has predictions. NaN where this is too small.
    draws : (n, zones)
        Joint draws of the means, from which anything else can be had: differences, ranks.
    counts : (n, zones)
        Joint draws of counts as they would be observed, if these were asked for.
    """

    table: Any
    draws: Floats
    counts: Floats | None = None

    @property
    def covariance(self) -> Any:
        """Covariance of the means of every two zones."""
        index = self.table.index
        return pd.DataFrame(
            np.cov(self.draws, rowvar=False).reshape(2 * (len(index),)), index, index
        )


def aggregate(
    source: Downscaler | xr.Dataset,
    zones: Any,
    *,
    fine: xr.Dataset | None = None,
    kind: str = "mean",
    exposure: str | None = None,
    quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    samples: int = 1000,
    min_cover: float = 0.5,
    seed: int = 0,
) -> Aggregate:
    """Means and sums over new polygons, with intervals that know how cells hang together.

    Parameters
    ----------
    source
        A :class:`Downscaler` that was fitted, or a result that has samples.
    zones
        A GeoDataFrame of polygons or points. Of a model with several times the table has a row for
        each zone at each of them, and a column ``time``.
    fine
        Covariates, and the exposure if there is one; by default those of the fit. Of a result, the
        dataset with the exposure.
    kind
        ``"mean"``; ``"sum"`` to add sums: means times exposure, or times square kilometres; or
        ``"count"`` to add counts as they would be observed, scatter included.
    exposure
        The fine variable that means are weighted by; by default that of the fit.
    quantiles
        Levels to add.
    samples
        Number of joint draws.
    min_cover
        Least share of a zone that must have predictions.
    seed
        Of the draws.

    Examples
    --------
    >>> import deconditional as dc
    >>> import geopandas, shapely
    >>> fields = dc.datasets.synthetic_fields(n_lat=12, n_lon=24)
    >>> data = dc.datasets.split_cells(
    ...     fields, "tas", ["altitude"], ["water_vapour"], block=3, matched=1.0
    ... )
    >>> model = dc.Downscaler("tas", ["altitude"], model="gpr").fit(data.fine, data.coarse)
    >>> box = geopandas.GeoDataFrame(
    ...     {"name": ["here"]}, geometry=[shapely.box(10, -20, 50, 20)], crs="EPSG:4326"
    ... )
    >>> found = dc.aggregate(model, box)
    >>> list(found.table.columns)
    ['name', 'geometry', 'mean', 'std', 'q05', 'q50', 'q95', 'amount', 'cover']
    """
    levels = quantile_levels(quantiles)
    if kind not in ("mean", "sum", "count"):
        raise UsageError(f"kind must be 'mean', 'sum' or 'count', not {kind!r}.")
    if isinstance(source, Downscaler):
        source._check_fitted()
    counted = isinstance(source, Downscaler) and source.pairing_.question.family is not None
    if kind == "count" and not counted:
        raise UsageError("kind='count' is for a fitted Downscaler with a family of counts.")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 2:
        raise UsageError(f"samples must be a whole number from 2 on, not {samples!r}.")
    if not isinstance(source, Downscaler):
        found = _Found.of(_side_of_result(source, fine, exposure), zones, exposure, min_cover)
        return found.aggregate(zones, _of_result(source, found), levels, kind)
    asked = exposure or source.pairing_.question.exposure
    found = _Found.of(_side_of_fit(source, fine), zones, asked, min_cover, source)
    posterior, counts = np.empty((2 + samples, len(found.bags.table.unit))), None
    if kind == "count":
        counts = np.empty((samples, posterior.shape[1]))
    for model, rows in _models(source, found):
        bags = _bags(model, found, rows, seed)
        if counts is None:
            posterior[:, rows] = np.vstack(_of_model(model, bags, samples, seed))
            continue
        seen = _counts(model, bags, found.amount[found.bags.table.unit[rows]], samples, seed)
        counts[:, rows] = seen.draws
        of_points = source.pairing_.question.family.overdispersion == "points"  # are in its rates
        drawn = _of_model(model, bags, samples, seed) if of_points else _moments(seen.rates)
        posterior[:, rows] = np.vstack(drawn)
    return found.aggregate(zones, (posterior[0], posterior[1], posterior[2:]), levels, kind, counts)


@dataclass(frozen=True)
class _Found:
    """Zones on the fine cells: bags of those that are covered enough, amounts and cover of all.

    Zones are units, or zones at times, one time after the other.
    """

    side: FineSide
    bags: FineBags
    amount: Floats
    cover: Floats

    @property
    def times(self) -> np.ndarray | None:
        """The times of the units; None where there is one at most."""
        grid = self.side.grid
        return grid.times if grid.n_times > 1 else None

    @classmethod
    def of(
        cls,
        side: FineSide,
        zones: Any,
        exposure: str | None,
        min_cover: float,
        model: Downscaler | None = None,
    ) -> _Found:
        """The zones on the cells of a side; raises where they have none."""
        question = replace(side.question, exposure=exposure, min_cover=min_cover)
        side = replace(side, question=question)
        grid = Layer.of(zones, [], side.grid).grid
        if model is not None:
            view = model.pairing_.coarse.view
            grid = replace(grid, seen=None if grid.frame.same_as(view) else view)
            side = _as_learnt(side, model)
        times = side.grid.n_times
        clock = Clock() if model is None else model.pairing_.clock
        parts = side.parts(grid, np.arange(times), times, clock, {})
        remedy = "check that they lie where the fine data is, or lower min_cover"
        bags = FineBags.of(parts, "predictions", remedy)
        unit = bags.table.unit
        plain = grid.is_point[unit % grid.n] | bool(exposure)
        amount = np.full(times * grid.n, np.nan)
        amount[unit] = bags.table.amount * np.where(plain, 1.0, grid.square_km)
        return cls(side, bags, amount, bags.cover)

    def aggregate(
        self,
        zones: Any,
        posterior: tuple[Floats, Floats, Floats],
        levels: Any,
        kind: str,
        counts: Floats | None = None,
    ) -> Aggregate:
        """The table of means, standard deviations and draws (n, kept), and of draws of counts."""
        mean, std, draws = posterior
        called = [f"q{100 * level:02.0f}" for level in levels]
        lines = self._every(np.stack([mean, std, *np.quantile(draws, levels, axis=0)]))
        of_mean = dict(zip(["mean", "std", *called], lines, strict=True))
        columns: dict[str, Any] = dict(of_mean)
        if kind != "mean":
            sums = {f"sum_{name}": line * self.amount for name, line in of_mean.items()}
            columns |= {"sum": sums.pop("sum_mean"), **sums}
        if counts is not None:
            lines = self._every(np.quantile(counts, levels, axis=0))
            columns |= {f"count_{q}": line for q, line in zip(called, lines, strict=True)}
        columns |= {"amount": self.amount, "cover": self.cover}
        if self.times is not None:
            columns = {"time": np.repeat(self.times, len(zones))} | columns
            zones = zones.iloc[np.tile(np.arange(len(zones)), len(self.times))]
        taken = [str(c) for c in zones.columns if c in columns]
        out = zones.rename(columns={c: f"{c}_given" for c in taken})
        of_counts = None if counts is None else self._every(counts)
        return Aggregate(out.assign(**columns), self._every(draws), of_counts)

    def _every(self, lines: Floats) -> Floats:
        """Lines of values of the zones that are covered enough as those of all, NaN of others."""
        every = np.full((len(lines), len(self.cover)), np.nan)
        every[:, self.bags.table.unit] = lines
        return every


# ---------------------------------------------------------------------- of a model


def _side_of_fit(model: Downscaler, fine: xr.Dataset | None) -> FineSide:
    """Fine data that was given, or that of the fit."""
    if fine is not None:
        return FineSide.of(fine, model.pairing_.question)
    side = model.learner_.side
    if not isinstance(side, FineSide):
        raise UsageError(
            "a model that was saved has left the fine data of its fit behind; give it, as in "
            "aggregate(model, zones, fine=fine)."
        )
    return side


def _as_learnt(side: FineSide, model: Downscaler) -> FineSide:
    """Fine data at the times of a fit, its covariates divided and its cells seen as they were."""
    pairing, learner = model.pairing_, model.learner_
    if pairing.n_time:
        side = side.repeated(
            pairing.coarse if learner.series is None else learner.series.coarse.grid
        )
    return side.split_as(learner.problem.means, pairing.fine).beside(pairing.coarse)


def _models(model: Downscaler, found: _Found) -> Iterator[tuple[Downscaler, Ints]]:
    """What has been learnt, and the rows of the bags it is asked for: of a series window by window.

    Windows are drawn from one by one, so draws at times that have different ones are independent.
    """
    unit, series = found.bags.table.unit, model.learner_.series
    if series is None:
        yield model, np.arange(len(unit))
        return
    windows = Windows.of(series, model.learner_, model.model_name_, model.model_, found.side)
    moment = unit // (len(found.cover) // found.side.grid.n_times)
    for times, places in windows.groups():
        one = copy(model)
        one.learner_, one.model_ = windows.conditioner.conditioned(*series.window(places))
        rows = np.flatnonzero(np.isin(moment, times))
        if len(rows):
            yield one, rows


def _of_model(model: Downscaler, bags: Bags, n: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """Mean, standard deviation and draws of means over zones."""
    target = model.target_scaling_
    if target.link is not None or (model.pairing_.sources and not target.bounded):
        bags = replace(bags, exposure=None)
        means = model.model_.predict_bags(bags, kind="mean", n_draws=n, seed=seed).draws
        return _moments(means if target.link is not None else target.physical(means))
    if target.log or target.bounded:
        return _by_samples(model, bags, n, seed)
    post: CoarsePosterior = model.model_.predict_bags(bags)
    draws = target.centre + target.scale * post.sample(n, seed)
    return target.centre + target.scale * post.mean, target.scale * post.std, draws


def _moments(draws: Any) -> tuple[Floats, Floats, Floats]:
    """Means and standard deviations of draws, and these."""
    return draws.mean(0), draws.std(0), draws


def _counts(model: Downscaler, bags: Bags, inside: Floats, n: int, seed: int) -> Any:
    """Draws of counts as they would be observed, with a scatter and an effect of their own."""
    bags = replace(bags, exposure=None)
    amounts = {model.pairing_.question.family.amount: inside}
    options: dict[str, Any] = {"kind": "sum", "noise": True, "n_draws": n, "seed": seed}
    return model.model_.predict_bags(bags, **options, **amounts)


def _bags(model: Downscaler, found: _Found, rows: Ints, seed: int) -> Bags:
    """Zones as the model sees them, with some points for each where there are many."""
    most = WHOLE if model.target_scaling_.link is None else MOST_WHOLE
    size = None
    if found.bags.table.count[rows].sum() > most:
        size = int(np.clip(most // len(rows), FEWEST, MOST))
    bags = found.bags.make(rows, size, seed)
    return replace(bags, points=model.input_scaling_(bags.points))


def _by_samples(model: Downscaler, bags: Bags, n: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """Means of functions of the process, from samples of it at all points."""
    posterior = model.model_.predict(bags.points)
    return _moments(bags.means(model.target_scaling_.physical(posterior.sample(n, seed)).T).T)


# ---------------------------------------------------------------------- of a result


def _side_of_result(result: xr.Dataset, fine: xr.Dataset | None, exposure: str | None) -> FineSide:
    """The samples of a result as covariates, beside the exposure."""
    if not isinstance(result, xr.Dataset) or "mean" not in result:
        raise UsageError(
            "aggregate takes a Downscaler that was fitted, or a result of downscale with samples, "
            f"not {type(result).__name__}."
        )
    if "samples" not in result:
        raise UsageError(
            "cells of a result hang together, and only samples say how: downscale with "
            "samples=200, or aggregate the fitted Downscaler."
        )
    data = result[["mean"]]
    if exposure is not None:
        if fine is None or exposure not in fine:
            raise UsageError(
                f"the exposure {exposure!r} is not in the result; give the fine data that has it, "
                "as in aggregate(result, zones, fine=fine, exposure=...)."
            )
        data = data.assign({exposure: fine[exposure]})
    return FineSide.of(data, Question("", ("mean",), (), position=False))


def _of_result(result: xr.Dataset, found: _Found) -> tuple[Floats, Floats, Floats]:
    """Means over zones of every sample."""
    cells, dims = found.bags.cells(), found.side.grid.dims
    lines = result["samples"].transpose("sample", *dims).values
    each = cells["weight"].to_numpy() * lines.reshape(len(lines), -1)[:, cells["cell"]]
    place = np.searchsorted(found.bags.table.unit, cells["unit"])
    return _moments(np.stack([np.bincount(place, row) for row in each]).astype(float))
