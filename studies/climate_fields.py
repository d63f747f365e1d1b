"""The fields of the climate study: read, cut to blocks, split into two halves, drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

import deconditional as dc
from deconditional.errors import UsageError
from deconditional.fields.axes import Lattice
from deconditional.fields.grids import find_grid
from deconditional.fields.io import open_fields
from deconditional.report.maps import Panel, map_grid
from deconditional.report.plots import save

__all__ = [
    "CLIMATOLOGY",
    "PUBLISHED",
    "Fields",
    "Split",
    "draw_data",
    "draw_posterior",
    "fields",
    "split",
]

Floats = npt.NDArray[np.float64]


class Layout(NamedTuple):
    """Which variable plays which part, and how many fine cells a coarse cell has each way."""

    target: str
    covariates: tuple[str, ...]
    mediator: str
    block: int


PUBLISHED = Layout("ttop", ("orog", "clt", "albisccp"), "pctisccp", 17)
"""The paper's CMIP6 file: temperature and pressure at cloud top, altitude, cloud cover, albedo."""

CLIMATOLOGY = Layout("tas", ("altitude", "rain", "cloud"), "water_vapour", 12)


@dataclass(frozen=True)
class Fields:
    """Fine fields, from south to north and west to east, and their block means.

    Attributes
    ----------
    layout
        Names of the variables, and the block.
    lat, lon
        Centres of the fine rows and columns, in degrees.
    covariates : (rows, columns, d)
        NaN where unknown.
    truth : (rows, columns)
        The target on fine cells.
    target, mediator : (rows / block, columns / block)
        Means over blocks.
    source, unit
        Where the fields are from, and the unit of the target.
    """

    layout: Layout
    lat: Floats
    lon: Floats
    covariates: Floats
    truth: Floats
    target: Floats
    mediator: Floats
    source: str
    unit: str

    @property
    def digest(self) -> str:
        """A name for the numbers themselves: another file of the same name has another."""
        made_of = (self.lat, self.lon, self.covariates, self.truth, self.mediator)
        return hashlib.sha256(b"".join(part.tobytes() for part in made_of)).hexdigest()[:10]


@lru_cache(maxsize=2)
def fields(data: str | Path | None = None, month: int = 3, thin: int = 1) -> Fields:
    """The fields of the experiment, cut to whole blocks.

    Parameters
    ----------
    data
        A netCDF file or Zarr store with the variables of :data:`PUBLISHED`; without it, the global
        fields of `month`.
    month
        Of the climatology.
    thin
        Average this many fine cells each way first, for a quick try.
    """
    if data is None:
        dataset, layout = dc.datasets.global_fields(month), CLIMATOLOGY
        source = f"global climatology of itur, month {month}"
    else:
        dataset, layout = open_fields(data, "climate"), PUBLISHED
        source = f"{Path(data).name}"
    names = (layout.target, *layout.covariates, layout.mediator)
    lat, lon, maps = _maps(dataset, names, source)
    lat, lon = (_block_means(axis, (thin,)) for axis in (lat, lon))
    maps = {name: _block_means(values, (thin, thin)) for name, values in maps.items()}
    block = layout.block
    rows, columns = len(lat) // block * block, len(lon) // block * block
    if rows // block * (columns // block) < 4:
        raise UsageError(
            f"{source}: a grid of {len(lat)} x {len(lon)} cells has fewer than four blocks of "
            f"{block} x {block}."
        )
    maps = {name: values[:rows, :columns] for name, values in maps.items()}
    truth = maps[layout.target]
    return Fields(
        layout,
        lat[:rows],
        lon[:columns],
        np.stack([maps[name] for name in layout.covariates], axis=-1),
        truth,
        _block_means(truth, (block, block)),
        _block_means(maps[layout.mediator], (block, block)),
        source,
        str(dataset[layout.target].attrs.get("units", "")),
    )


def _maps(
    dataset: Any, names: Sequence[str], source: str
) -> tuple[Floats, Floats, dict[str, Floats]]:
    """Latitudes, longitudes, and the variables, from south to north and west to east."""
    missing = [name for name in names if name not in dataset.data_vars]
    if missing:
        raise UsageError(
            f"{source} has no variable {missing[0]!r}; the experiment reads {', '.join(names)}."
        )
    grid = find_grid(dataset, names, "climate")
    assert isinstance(grid, Lattice)
    y, x = grid.y.name, grid.x.name
    maps = {}
    for name in names:
        field = dataset[name]
        other = [dim for dim in field.dims if dim not in (y, x)]
        long = [f"{field.sizes[dim]} steps of {dim}" for dim in other if field.sizes[dim] > 1]
        if long:
            raise UsageError(f"{source}: {name} has {long[0]}; the experiment takes a single one.")
        maps[name] = np.asarray(field.squeeze(other).transpose(y, x).values, dtype=float)
    lat, lon = grid.y.centres, grid.x.centres
    up, across = np.argsort(lat), np.argsort(lon)
    inner = np.ix_(up, across)
    return lat[up], lon[across], {name: values[inner] for name, values in maps.items()}


def _block_means(values: Floats, block: tuple[int, ...]) -> Floats:
    """Plain means over blocks of cells, of what is known; the rest past the last block is cut."""
    kept = [length // size for length, size in zip(values.shape, block, strict=True)]
    values = values[tuple(slice(k * size) for k, size in zip(kept, block, strict=True))]
    blocks = values.reshape([n for pair in zip(kept, block, strict=True) for n in pair])
    within = tuple(range(1, blocks.ndim, 2))
    known = np.isfinite(blocks).sum(within)
    total = np.nansum(blocks, within)
    return np.divide(total, known, out=np.full(total.shape, np.nan), where=known > 0)


@dataclass(frozen=True)
class Split:
    """One draw: bags of half of the cells, observations of the other half, standardised.

    Attributes
    ----------
    bags, z, mediator
        What mediated models learn from.
    matched
        Bags of the cells that give `z`: what a model may have that need not be mediated.
    gives_covariates, gives_target : (rows, columns) of coarse cells
        Which cells have their bags in `bags`, and which their targets in `z`.
    x
        Standardised inputs of all fine cells with covariates; `known` says which those are.
    """

    bags: dc.Bags
    z: Floats
    mediator: Floats
    matched: dc.Bags
    gives_covariates: npt.NDArray[np.bool_]
    gives_target: npt.NDArray[np.bool_]
    x: Floats
    known: npt.NDArray[np.bool_]
    z_mean: float
    z_std: float


def split(data: Fields, seed: int) -> Split:
    """Divide the cells at random, and standardise with what the two halves show."""
    size = data.layout.block
    rows, columns = data.target.shape
    known = np.asarray(np.isfinite(data.covariates).all(-1))
    usable = known.reshape(rows, size, columns, size).any((1, 3))
    usable &= np.isfinite(data.target) & np.isfinite(data.mediator)
    cells = np.random.default_rng(seed).permutation(np.flatnonzero(usable))
    if len(cells) < 4:
        raise UsageError(f"{data.source}: only {len(cells)} coarse cells have all variables.")
    half = len(cells) // 2
    covered, observed = np.sort(cells[:half]), np.sort(cells[half:])
    gives = np.zeros(usable.size, dtype=bool)
    gives[covered] = True

    cell_of = np.arange(usable.size).reshape(usable.shape).repeat(size, 0).repeat(size, 1)[known]
    position = np.stack(np.meshgrid(data.lat, data.lon, indexing="ij"), -1)
    x = np.concatenate([position, data.covariates], -1)[known]
    mine = gives[cell_of]
    spread = x[mine].std(0)
    names = ("lat", "lon", *data.layout.covariates)
    if not (spread > 0).all():
        constant = names[int(np.argmin(spread))]
        raise UsageError(f"{data.source}: {constant} is constant where covariates are given.")
    x = (x - x[mine].mean(0)) / spread

    centre_lat, centre_lon = (_block_means(axis, (size,)) for axis in (data.lat, data.lon))
    y = np.stack(np.meshgrid(centre_lat, centre_lon, indexing="ij"), -1).reshape(-1, 2)
    y = np.column_stack([y, data.mediator.ravel()])
    y = (y - y[usable.ravel()].mean(0)) / y[usable.ravel()].std(0)

    z = data.target.ravel()[observed]
    level, scale = float(z.mean()), float(z.std())
    return Split(
        _bags(x, cell_of, covered, y),
        (z - level) / scale,
        y[observed],
        _bags(x, cell_of, observed, y),
        gives.reshape(usable.shape),
        np.isin(np.arange(usable.size), observed).reshape(usable.shape),
        x,
        known,
        level,
        scale,
    )


def _bags(x: Floats, cell_of: npt.NDArray[np.int64], cells: Any, y: Floats) -> dc.Bags:
    members = np.isin(cell_of, cells)
    order = np.searchsorted(cells, cell_of[members])
    return dc.Bags.from_points(x[members], order, mediator=y[cells])


# ---------------------------------------------------------------------- maps


def draw_data(path: Path, data: Fields, drawn: Split) -> None:
    """The data of one draw: bags of covariates, mediator, coarse target, truth."""
    size, at = data.layout.block, partial(_placed, data)
    covered = drawn.gives_covariates.repeat(size, 0).repeat(size, 1)
    panels = [
        Panel(at(np.where(covered, data.covariates[..., place], np.nan)), name)
        for place, name in enumerate(data.layout.covariates)
    ]
    panels.append(Panel(at(data.mediator), f"{data.layout.mediator}, coarse, everywhere"))
    observed = np.where(drawn.gives_target, data.target, np.nan)
    panels.append(Panel(at(observed), f"{data.layout.target}, coarse, observed", data.unit))
    panels.append(Panel(at(data.truth), f"{data.layout.target}, truth", data.unit))
    figure = map_grid(panels, 2, f"Data of seed 0: {data.source}")
    save(figure, path)


def draw_posterior(path: Path, model: str, data: Fields, maps: Mapping[str, Floats]) -> None:
    """Mean, width of the 95% interval, squared and signed difference from the truth."""
    at, unit = partial(_placed, data), data.unit
    difference = data.truth - maps["mean"]
    limits = float(np.nanmin(data.truth)), float(np.nanmax(data.truth))
    panels = [
        Panel(at(maps["mean"]), "posterior mean", unit, limits=limits),
        Panel(at(2 * 1.96 * maps["std"]), "width of the 95% interval", unit, "spread"),
        Panel(at(difference**2), "squared difference", f"{unit}²", "spread"),
        Panel(at(difference), "truth − mean", unit, "difference"),
    ]
    figure = map_grid(panels, 2, f"{model}, seed 0")
    save(figure, path)


def _placed(data: Fields, values: Floats) -> xr.DataArray:
    """Values on fine or coarse cells, at their places."""
    size = len(data.lat) // len(values)
    lat, lon = (np.reshape(axis, (-1, size)).mean(1) for axis in (data.lat, data.lon))
    return xr.DataArray(values, {"lat": lat, "lon": lon}, ("lat", "lon"))
