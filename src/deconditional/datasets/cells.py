"""Fields on a grid of cells: block means, and which coarse cells give what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from deconditional.fields.axes import AxisKind, lengths
from deconditional.fields.bounds import cell_bounds, cell_centres

__all__ = ["FieldsExample", "cell_axis", "coarsen", "split_cells"]

# What the CF conventions say of an axis, by its name.
_AXES = {
    "lat": {"standard_name": "latitude", "long_name": "latitude", "units": "degrees_north"},
    "lon": {"standard_name": "longitude", "long_name": "longitude", "units": "degrees_east"},
    "y": {
        "standard_name": "projection_y_coordinate",
        "long_name": "y coordinate of projection",
        "units": "m",
    },
    "x": {
        "standard_name": "projection_x_coordinate",
        "long_name": "x coordinate of projection",
        "units": "m",
    },
}


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
    about = dict(_AXES.get(name, {}) if attrs is None else attrs, bounds=f"{name}_bnds")
    return {
        name: xr.Variable((name,), np.asarray(centres, dtype=float), about),
        f"{name}_bnds": xr.Variable((name, "bnds"), np.asarray(bounds, dtype=float)),
    }


def coarsen(
    fields: xr.Dataset, block: int | tuple[int, int], lat: str = "lat", lon: str = "lon"
) -> xr.Dataset:
    """Area-weighted means over blocks of cells.

    Every data variable on both axes is averaged over the fine cells where it has a value. A cell
    counts with its area: on a globe the difference of the sines of its latitudes times that of its
    longitudes, on a projected grid its sides' product. Bounds are taken from the fields, and lie
    halfway between the cells if there are none. Variables on neither axis are kept; other
    variables are left out.

    Parameters
    ----------
    fields
        The fields; axes before the last two, such as time, are kept.
    block
        Fine cells to a coarse cell, along both axes or along each.
    lat, lon
        Names of the two axes. Without axes of the default names, ``y`` and ``x`` are taken.

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
    axes = _axes(fields, lat, lon)
    blocks = _blocks(fields, axes, block)
    coords: dict[Any, Any] = {k: v for k, v in fields.coords.items() if not set(axes) & set(v.dims)}
    sides = []
    for axis, kind in zip(axes, _kinds(fields, axes[0]), strict=True):
        bounds, size = _bounds(fields, axis, kind), blocks[axis]
        outer = np.stack([bounds[::size, 0], bounds[size - 1 :: size, 1]], 1)
        coords |= cell_axis(axis, outer.mean(1), outer, fields[axis].attrs)
        sides.append(np.abs(lengths(bounds, kind)))
    area = xr.DataArray(np.outer(*sides), dims=axes)
    coarse = {
        name: _block_mean(field, area, blocks) if set(axes) <= set(field.dims) else field
        for name, field in fields.data_vars.items()
        if set(axes) <= set(field.dims) or not set(axes) & set(field.dims)
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
    lat: str = "lat",
    lon: str = "lon",
) -> FieldsExample:
    """Coarse cells drawn at random to give fine covariates, a coarse target, or both.

    Of the cells in which some fine cell has all covariates, ``round(matched * cells)`` give both.
    Half of the others give covariates, the other half the target: with ``matched=0`` no cell gives
    both, with ``matched=1`` all do. The cells are the same at all times.

    Parameters
    ----------
    fields
        Fine fields on `lat` and `lon`, and on time or other axes before them.
    target, covariates, mediators
        Names of variables of the fields.
    block, lat, lon
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
    axes = _axes(fields, lat, lon)
    rows, columns = _blocks(fields, axes, block).values()
    everywhere = _pick(fields, covariates, axes)
    coarse = coarsen(_pick(fields, [target, *mediators], axes), block, *axes)

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


def _axes(fields: xr.Dataset, lat: str, lon: str) -> tuple[str, str]:
    pairs = [(lat, lon), ("y", "x")] if (lat, lon) == ("lat", "lon") else [(lat, lon)]
    for pair in pairs:
        if set(pair) <= set(fields.dims):
            return pair
    raise ValueError(
        f"the fields have no axes {lat!r} and {lon!r}; name two of {sorted(map(str, fields.dims))} "
        "as lat and lon."
    )


def _blocks(
    fields: xr.Dataset, axes: tuple[str, str], block: int | tuple[int, int]
) -> dict[str, int]:
    """Cells of a block along each axis."""
    blocks = dict(zip(axes, block if isinstance(block, tuple) else (block, block), strict=True))
    for axis, size in blocks.items():
        if size < 1 or fields.sizes[axis] % size:
            raise ValueError(
                f"a block of {size} does not divide the {fields.sizes[axis]} cells along {axis}; "
                "choose another block or cut the fields."
            )
    return blocks


def _bounds(fields: xr.Dataset, axis: str, kind: AxisKind) -> np.ndarray:
    """The ``(n, 2)`` bounds of the cells along an axis, in the order of the axis."""
    centres = cell_centres(fields[axis], kind, 1.0, "fine")
    bounds, _ = cell_bounds(fields, axis, centres, kind, 1.0, "fine")
    rising = len(centres) < 2 or centres[1] > centres[0]
    return bounds[:, :: 1 if rising else -1]


def _kinds(fields: xr.Dataset, lat: str) -> tuple[AxisKind, AxisKind]:
    """Latitude and longitude, be they those of a rotated pole, or two axes of a plane."""
    units = fields[lat].attrs.get("units")
    degrees = lat in ("lat", "latitude") if units is None else str(units).startswith("degree")
    return ("latitude", "longitude") if degrees else ("plane", "plane")


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


def _pick(fields: xr.Dataset, names: Sequence[str], axes: tuple[str, str]) -> xr.Dataset:
    """Some variables, with all coordinates and the bounds and grid mapping they refer to."""
    kept = {*names, *(fields[axis].attrs.get("bounds", f"{axis}_bnds") for axis in axes)}
    kept |= {fields[name].attrs.get("grid_mapping") for name in names}
    return fields.drop_vars([name for name in fields.data_vars if name not in kept])
