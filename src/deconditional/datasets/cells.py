"""Fields on a grid of cells: block means, and which coarse cells give what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from deconditional.fields.axes import Grid, Lattice
from deconditional.fields.bounds import bounds_names
from deconditional.fields.grids import LENGTHS, find_grid
from deconditional.fields.polygons import Polygons
from deconditional.fields.surface import Surface

QUANTITIES = {
    "lat": ("latitude", "degrees_north"),
    "lon": ("longitude", "degrees_east"),
    "y": ("projection_y_coordinate", "m"),
    "x": ("projection_x_coordinate", "m"),
    "tas": ("air_temperature", "K"),
    "altitude": ("surface_altitude", "m"),
    "cloud": ("cloud_area_fraction", "1"),
    "rain": ("rainfall_rate", "mm month-1"),
    "water_vapour": ("atmosphere_mass_content_of_water_vapor", "kg m-2"),
    "freezing_height": ("freezing_level_altitude", "m"),
}
"""Standard name and units of what datasets have, by the name of the variable."""


def cf_attributes(name: str, long_name: str = "", **more: str) -> dict[str, str]:
    """What the CF conventions say of a variable."""
    standard, units = QUANTITIES[name]
    long_name = long_name or standard.replace("_", " ")
    return {"standard_name": standard, "long_name": long_name, "units": units, **more}


class FieldsExample(NamedTuple):
    """Fields cut up so that covariates and target come from different coarse cells.

    Attributes
    ----------
    fine
        Covariates on the fine cells; NaN in the coarse cells that do not give them.
    coarse
        The target and the mediators on the coarse cells; the target is NaN where it is not given.
    truth
        The target on all fine cells.
    everywhere
        Covariates on all fine cells.
    """

    fine: xr.Dataset
    coarse: xr.Dataset
    truth: xr.DataArray
    everywhere: xr.Dataset


def cell_axis(
    name: str, centres: np.ndarray, bounds: np.ndarray, attrs: dict[Any, Any] | None = None
) -> dict[str, xr.Variable]:
    """The coordinate `name` and its ``(n, 2)`` cell bounds, as the CF conventions write them.

    Examples
    --------
    >>> axis = cell_axis("lat", np.array([15.0, 45.0]), np.array([[0.0, 30.0], [30.0, 60.0]]))
    >>> sorted(axis), axis["lat"].attrs["bounds"], axis["lat"].attrs["units"]
    (['lat', 'lat_bnds'], 'lat_bnds', 'degrees_north')
    """
    about = dict(cf_attributes(name) if attrs is None else attrs, bounds=f"{name}_bnds")
    return {
        name: xr.Variable((name,), np.asarray(centres, dtype=float), about),
        f"{name}_bnds": xr.Variable((name, "bnds"), np.asarray(bounds, dtype=float)),
    }


def coarsen(fields: xr.Dataset, block: int | tuple[int, int]) -> xr.Dataset:
    """Area-weighted means over blocks of cells.

    Every data variable on both axes is averaged over the fine cells where it has a value. A cell
    counts with its area. Axes, bounds and corners are found as :func:`~deconditional.downscale`
    finds them; where every cell has a place of its own (latitude and longitude on two dimensions),
    so has every block, with all corners of its outline. Variables on neither axis are kept; other
    variables are left out.

    Parameters
    ----------
    fields
        The fields; axes before the last two, such as time, are kept.
    block
        Fine cells to a coarse cell, along both axes or along each.

    Examples
    --------
    >>> from deconditional.datasets import synthetic_fields
    >>> fine = synthetic_fields(n_lat=24, n_lon=48)
    >>> coarse = coarsen(fine, (6, 12))
    >>> coarse.tas.shape, coarse.tas.attrs["cell_methods"]
    ((4, 4), 'area: mean')
    >>> coarse.lat_bnds.values[0]
    array([-90., -45.])
    """
    grid = _grid(fields)
    blocks = _blocks(grid, block)
    over, bounds = set(grid.spatial), bounds_names(fields, grid.coordinates)
    coords: dict[Any, Any] = {k: v for k, v in fields.coords.items() if not over & set(v.dims)}
    coords |= _of_axes(fields, grid, blocks) if isinstance(grid, Lattice) else {}
    coords |= _of_outlines(fields, grid, blocks) if isinstance(grid, Surface) else {}
    area = xr.DataArray(grid.areas.reshape(grid.shape), dims=grid.spatial)
    coarse = {
        name: _block_mean(field, area, blocks) if over <= set(field.dims) else field
        for name, field in fields.data_vars.items()
        if name not in bounds and (over <= set(field.dims) or not over & set(field.dims))
    }
    return xr.Dataset(coarse, coords=coords, attrs=fields.attrs)


def split_cells(
    fields: xr.Dataset,
    target: str,
    covariates: Sequence[str],
    mediators: Sequence[str],
    block: int | tuple[int, int],
    matched: float = 0.0,
    noise_std: float = 0.0,
    seed: int = 0,
) -> FieldsExample:
    """Coarse cells drawn at random to give fine covariates, a coarse target, or both.

    Of the cells in which some fine cell has all covariates, ``round(matched * cells)`` give both.
    Half of the others give covariates, the other half the target: with ``matched=0`` no cell gives
    both, with ``matched=1`` all do. The cells are the same at all times.

    Parameters
    ----------
    fields
        Fine fields on two axes, and on time or other axes before them.
    target, covariates, mediators
        Names of variables of the fields.
    block
        As for :func:`coarsen`.
    matched
        Share of the cells that give both.
    noise_std
        Standard deviation of the noise added to the coarse target, in its unit.
    seed
        Seed of the draw of cells and noise.

    Examples
    --------
    >>> from deconditional.datasets import synthetic_fields
    >>> fields = synthetic_fields(n_lat=24, n_lon=48)
    >>> example = split_cells(fields, "tas", ["altitude", "cloud"], ["water_vapour"], block=6)
    >>> int(example.coarse.tas.notnull().sum()), example.coarse.tas.size
    (16, 32)
    >>> int(example.fine.altitude.notnull().sum()) // 6**2
    16
    """
    _check_names(fields, (target,), "target")
    _check_names(fields, covariates, "covariates")
    _check_names(fields, mediators, "mediators")
    if not covariates:
        raise ValueError("covariates is empty; name at least one variable.")
    if not 0.0 <= matched <= 1.0:
        raise ValueError(f"matched is a share of the cells, 0 to 1, not {matched!r}.")
    if not noise_std >= 0.0:
        raise ValueError(f"noise_std must not be negative; it is {noise_std!r}.")
    grid = _grid(fields)
    axes = grid.spatial
    rows, columns = _blocks(grid, block).values()
    everywhere = _pick(fields, covariates, grid)
    coarse = coarsen(_pick(fields, [target, *mediators], grid), block)

    known = np.array(True)
    for name in covariates:
        ever = everywhere[name].notnull()
        ever = ever.any([dim for dim in ever.dims if dim not in axes])  # at some time
        known = known & ever.transpose(*axes).values
    some = known.reshape(known.shape[0] // rows, rows, -1, columns).any((1, 3))
    rng = np.random.default_rng(seed)
    cells = rng.permutation(np.flatnonzero(some))
    both = round(matched * len(cells))
    half = both + (len(cells) - both) // 2
    gives_covariates, gives_target = np.zeros(some.shape, bool), np.zeros(some.shape, bool)
    gives_covariates.flat[cells[:half]] = True
    gives_target.flat[np.concatenate([cells[:both], cells[half:]])] = True

    noise = noise_std * rng.standard_normal(coarse[target].shape)
    noisy = coarse[target].copy(data=coarse[target].values + noise)
    coarse[target] = noisy.where(xr.DataArray(gives_target, dims=axes))
    seen = xr.DataArray(gives_covariates.repeat(rows, 0).repeat(columns, 1), dims=axes)
    fine = everywhere.copy()
    for name in covariates:
        fine[name] = everywhere[name].where(seen)
    return FieldsExample(fine, coarse, fields[target], everywhere)


def _grid(fields: xr.Dataset) -> Grid:
    """The grid of fields, whose cells have neighbours."""
    grid = find_grid(fields, (), "fine")
    if len(grid.spatial) < 2:
        raise ValueError("the cells are in no order, so there are no blocks of neighbours.")
    return grid


def _blocks(grid: Grid, block: int | tuple[int, int]) -> dict[str, int]:
    """Cells of a block along each axis."""
    sizes = block if isinstance(block, tuple) else (block, block)
    for axis, size, n in zip(grid.spatial, sizes, grid.shape, strict=True):
        if size < 1 or n % size:
            raise ValueError(
                f"a block of {size} does not divide the {n} cells along {axis}; choose another "
                "block or cut the fields."
            )
    return dict(zip(grid.spatial, sizes, strict=True))


def _of_axes(fields: xr.Dataset, grid: Lattice, blocks: dict[str, int]) -> dict[Any, Any]:
    """The coordinates of blocks of a lattice, in the units and the order of those of its cells."""
    coords: dict[Any, Any] = {}
    for axis in (grid.y, grid.x):
        attrs = fields[axis.coordinate].attrs
        unit = 1.0 if axis.kind != "plane" else LENGTHS.get(str(attrs.get("units")), 1.0)
        ends = axis.bounds.reshape(-1, blocks[axis.name], 2) / unit
        outer = np.stack([ends[..., 0].min(1), ends[..., 1].max(1)], axis=1)
        falling = axis.centres[0] > axis.centres[-1]
        coords |= cell_axis(axis.name, outer.mean(1), outer[:, :: -1 if falling else 1], attrs)
    return coords


def _of_outlines(fields: xr.Dataset, grid: Surface, blocks: dict[str, int]) -> dict[Any, Any]:
    """The coordinates of blocks of cells that each have corners, in the units of the cells'."""
    rows, columns = blocks.values()
    outlines = grid.outlines(rows, columns)
    cells = Polygons(outlines.reshape(-1, *outlines.shape[2:]), grid.frame)
    middles = cells.middles.reshape(*outlines.shape[:2], 2)
    coords: dict[Any, Any] = {}
    for k, name in enumerate(grid.coordinates):
        attrs = dict(fields[name].attrs, bounds=f"{name}_bnds")
        unit = 1.0 if grid.frame.spherical else LENGTHS.get(str(attrs.get("units")), 1.0)
        coords[name] = (grid.spatial, middles[..., k] / unit, attrs)
        coords[f"{name}_bnds"] = ((*grid.spatial, "corner"), outlines[..., k] / unit)
    return coords


def _block_mean(field: xr.DataArray, area: xr.DataArray, blocks: dict[str, int]) -> xr.DataArray:
    """Area means over the cells of every block that have a value, and what the field is now."""
    bare = xr.DataArray(field.values, dims=field.dims)
    weight = area.where(bare.notnull(), 0.0).coarsen(blocks).sum()
    total = (bare.fillna(0.0) * area).coarsen(blocks).sum()
    attrs = dict(field.attrs)
    if "grid_mapping" in field.encoding:  # where xarray puts it when it decodes a file
        attrs["grid_mapping"] = field.encoding["grid_mapping"]
    before = str(attrs.get("cell_methods", ""))
    if "area: mean" not in before:
        attrs["cell_methods"] = f"{before} area: mean".strip()
    return (total / weight.where(weight > 0)).transpose(*field.dims).assign_attrs(attrs)


def _check_names(fields: xr.Dataset, names: Sequence[str], role: str) -> None:
    if isinstance(names, str):
        raise ValueError(f"{role} must be a list of variable names, not the text {names!r}.")
    unknown = [name for name in names if name not in fields.data_vars]
    if unknown:
        raise ValueError(
            f"{role}: the fields have no variable {unknown[0]!r}; they have "
            f"{sorted(map(str, fields.data_vars))}."
        )


def _pick(fields: xr.Dataset, names: Sequence[str], grid: Grid) -> xr.Dataset:
    """Dataset of some variables, with their coordinates, bounds and grid mapping."""
    kept = {*names, *bounds_names(fields, grid.coordinates)}
    kept |= {str(fields[name].attrs.get("grid_mapping")) for name in names}
    return fields.drop_vars([name for name in fields.data_vars if name not in kept])
