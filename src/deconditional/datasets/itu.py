"""Global climatological fields on one grid, read from the data files of the package itur."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import numpy as np
import xarray as xr

from deconditional.datasets.cells import cell_axis, cf_attributes
from deconditional.fields.overlap import overlap_lengths

_STEP = 0.75
_ATTRS = {
    "tas": cf_attributes(
        "tas",
        "monthly mean temperature 2 m above the surface",
        cell_methods="time: mean",
        source="Recommendation ITU-R P.1510-1",
    ),
    "altitude": cf_attributes(
        "altitude",
        "altitude of the surface above mean sea level, 0 at sea",
        cell_methods="area: mean",
        source="Recommendation ITU-R P.1511-2, 1/12 degree",
    ),
    "rain": cf_attributes(
        "rain",
        "mean total rainfall of the month",
        cell_methods="area: mean time: mean",
        source="Recommendation ITU-R P.837-7, 0.25 degree",
    ),
    "cloud": {
        "long_name": "annual mean of the column of reduced cloud liquid water",
        "units": "kg m-2",
        "cell_methods": "time: mean",
        "source": "Recommendation ITU-R P.840-7, 1.125 degree",
    },
    "water_vapour": cf_attributes(
        "water_vapour",
        "annual mean of the column of water vapour",
        cell_methods="time: mean",
        source="Recommendation ITU-R P.836-6, 1.125 degree",
    ),
    "freezing_height": cf_attributes(
        "freezing_height",
        "annual mean altitude of the 0 degree Celsius isotherm",
        cell_methods="time: mean",
        source="Recommendation ITU-R P.839-4, 1.5 degree",
    ),
}
# The percentages of the year that have a map of the value exceeded.
_EXCEEDED = (0.1, 0.2, 0.3, 0.5, 1, 2, 3, 5, 10, 20, 30, 50, 60, 70, 80, 90, 95, 99)
_FROM_EXCEEDED = (
    "Mean over the maps of values exceeded 0.1 % to 99 % of the year. Missing values at 88.875 "
    "degrees north are the means of the rows on both sides."
)


def global_fields(month: int = 1) -> xr.Dataset:
    """Temperature, altitude, rain, cloud, water vapour and freezing height of the whole globe.

    The fields are climatologies of the radio propagation recommendations of the ITU-R, from the
    data files of the package itur. Temperature and rain belong to the month; cloud, water vapour
    and freezing height are annual means. All lie on the grid of the temperature, 240 x 480 cells of
    0.75 degrees around the points of that grid; the row at the south pole is left out, and the
    cells of the row at the north pole end there. Finer fields are averaged over the cells, coarser
    ones interpolated bilinearly.

    Parameters
    ----------
    month
        1 (January) to 12 (December).

    Returns
    -------
    xarray.Dataset
        ``tas`` (K), ``altitude`` (m), ``rain`` (mm per month), ``cloud`` (kg m-2),
        ``water_vapour`` (kg m-2) and ``freezing_height`` (m) on ``(lat, lon)``.

    Examples
    --------
    >>> fields = global_fields(month=7)
    >>> dict(fields.sizes)
    {'lat': 240, 'lon': 480, 'bnds': 2}
    >>> round(float(fields.tas.sel(lat=21.0, lon=0.0)))  # the Sahara in July
    309
    """
    if month not in range(1, 13):
        raise ValueError(f"month must be 1 (January) to 12 (December), not {month!r}.")
    folder = _data_folder()
    lat = np.arange(-89.25, 90.0 + _STEP / 2, _STEP)
    lon = np.arange(-180.0, 180.0 - _STEP / 2, _STEP)
    half = np.array([-_STEP / 2, _STEP / 2])
    lat_bnds, lon_bnds = np.minimum(lat[:, None] + half, 90.0), lon[:, None] + half

    def averaged(values: np.ndarray) -> np.ndarray:
        """Area means of a map of equal cells from the south pole and 180 degrees west."""
        rows, columns = values.shape
        by_lat = overlap_lengths(lat_bnds, _bounds(rows, 90.0), "latitude")
        by_lon = overlap_lengths(lon_bnds, _bounds(columns, 180.0), "longitude")
        return _shares(by_lat) @ values @ _shares(by_lon).T

    def interpolated(values: np.ndarray) -> np.ndarray:
        """Bilinear values of a map of points from the north pole and the Greenwich meridian."""
        rows, columns = values.shape
        by_lat = _interpolation(lat, np.linspace(-90.0, 90.0, rows))
        by_lon = _interpolation(lon % 360.0, np.linspace(0.0, 360.0, columns))
        return by_lat @ values[::-1] @ by_lon.T

    # The temperature repeats its first column; the finer maps have a margin of cells.
    maps = {
        "tas": _load(folder, f"1510/v1_t_month{int(month):02d}")[1:, :-1],
        "altitude": averaged(_load(folder, "1511/v2_topo")[2:-2, 2:-2][::-1]),
        "rain": averaged(_load(folder, f"837/v7_mt_month{int(month):02d}")[1:-1, 1:-1]),
        "cloud": interpolated(_annual_mean(folder, "840/v7_lred")),
        "water_vapour": interpolated(_annual_mean(folder, "836/v6_v")),
        "freezing_height": interpolated(1000.0 * _load(folder, "839/v4_esa0height")),
    }
    fields = xr.Dataset(
        {name: (("lat", "lon"), values, dict(_ATTRS[name])) for name, values in maps.items()},
        coords=cell_axis("lat", lat, lat_bnds) | cell_axis("lon", lon, lon_bnds),
        attrs={
            "Conventions": "CF-1.11",
            "title": f"Global climatological fields, month {int(month)} of 12",
            "source": "Recommendations ITU-R P.836, P.837, P.839, P.840, P.1510 and P.1511, from "
            f"the data files of itur {importlib.metadata.version('itur')}",
            "comment": "A climatology of the month (cloud, water_vapour and freezing_height: of "
            "the year), not a model run.",
        },
    )
    for name in ("cloud", "water_vapour"):
        fields[name].attrs["comment"] = _FROM_EXCEEDED
    return fields


def _data_folder() -> Path:
    # Looked up, not imported: importing itur takes astropy with it.
    spec = importlib.util.find_spec("itur")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(
            "global_fields reads the data files of itur; install it with "
            "pip install 'deconditional[demo]'."
        )
    return Path(spec.submodule_search_locations[0]) / "data"


def _load(folder: Path, name: str) -> np.ndarray:
    try:
        with np.load(folder / f"{name}.npz") as file:
            return np.asarray(file["arr_0"], dtype=float)
    except FileNotFoundError:
        raise ImportError(
            f"the installed itur has no data file {name}.npz; install a version that has it with "
            "pip install 'deconditional[demo]'."
        ) from None


def _annual_mean(folder: Path, stem: str) -> np.ndarray:
    """The mean from the maps of values exceeded, with the extreme maps held to 0 and 100 %."""
    middles = (np.array(_EXCEEDED[:-1]) + np.array(_EXCEEDED[1:])) / 2
    shares = np.diff(middles, prepend=0.0, append=100.0) / 100
    names = [f"{stem}_{percent}".replace(".", "") for percent in _EXCEEDED]
    mean = np.zeros(())
    for share, name in zip(shares, names, strict=True):
        mean = mean + share * _load(folder, name)
    rows, columns = np.nonzero(np.isnan(mean))
    mean[rows, columns] = (mean[rows - 1, columns] + mean[rows + 1, columns]) / 2
    return mean


def _bounds(cells: int, end: float) -> np.ndarray:
    """Bounds of so many equal cells from -end to end."""
    edges = np.linspace(-end, end, cells + 1)
    return np.stack([edges[:-1], edges[1:]], 1)


def _shares(overlap: np.ndarray) -> np.ndarray:
    return overlap / overlap.sum(1, keepdims=True)


def _interpolation(at: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The matrix that takes values at ascending points to linear interpolants."""
    return np.stack([np.interp(at, points, unit) for unit in np.eye(len(points))], 1)
