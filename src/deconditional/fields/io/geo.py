"""Files of geographic information systems: rasters of any driver, and tables with geometry."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from deconditional.errors import UsageError, one_line
from deconditional.fields.io.checks import check_room

RASTERS = (".tif", ".tiff", ".vrt", ".img", ".asc", ".jp2")
TABLES = (".gpkg", ".geojson", ".json", ".shp", ".fgb", ".parquet", ".csv")
LONGITUDES, LATITUDES = ("longitude", "lon", "long", "x"), ("latitude", "lat", "y")
NEED = "reading {!r} needs {}: pip install 'deconditional[geo]'."


def is_raster(path: str | Path) -> bool:
    """Whether a file is a raster by its name."""
    return Path(path).suffix.lower() in RASTERS


def is_table_file(path: str | Path) -> bool:
    """Whether a file is a table with geometry, or with coordinates, by its name."""
    return Path(path).suffix.lower() in TABLES


def open_raster(path: str, which: str, chunked: bool | None = False) -> xr.Dataset:
    """A raster as a dataset, a variable a band: by the names of bands, or else that of the file."""
    try:
        import rioxarray
    except ImportError as error:
        raise UsageError(NEED.format(path, error.name)) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a raster without a place: it is an error below
            data = rioxarray.open_rasterio(
                os.path.abspath(path),
                masked=True,
                band_as_variable=True,
                chunks=True if chunked else None,
            )
    except Exception as error:  # of rasterio, whose errors have a root of their own
        raise UsageError(
            f"cannot read the {which} file {path!r} as a raster ({one_line(error)}); check that it "
            "is one, and whole."
        ) from None
    if not isinstance(data, xr.Dataset):
        raise UsageError(f"the {which} file {path!r} holds several rasters; extract one of them.")
    if data.rio.transform().is_identity:
        raise UsageError(
            f"the {which} file {path!r} says nothing of where its cells are; give it a "
            "georeference, as gdal_translate -a_ullr -a_srs does."
        )
    if not chunked:
        size = sum(8 * v.size for v in data.data_vars.values())
        remedy = "cut it to the region that is needed, or use --chunked yes"
        check_room(size, f"the {which} file {path!r}", remedy)
    stem, bands = Path(path).stem, list(data.data_vars)
    said = [str(data[band].attrs.get("long_name") or "").strip() for band in bands]
    own = len(bands) > 1 and len(set(said)) == len(said) and all(said)
    plain = [stem] if len(bands) == 1 else [f"{stem}_{k + 1}" for k in range(len(bands))]
    if data.rio.crs is not None:
        data = data.rio.write_coordinate_system()  # names and units of x and y
    data = data.rename(dict(zip(bands, said if own else plain, strict=True)))
    return data if chunked else data.load()


def open_table(path: str, which: str = "coarse") -> Any:
    """A GeoDataFrame from a file; of a CSV, points at its longitudes and latitudes."""
    if not os.path.exists(path):
        raise UsageError(f"the {which} file {path!r} does not exist; check its name and folder.")
    try:
        import geopandas
    except ImportError as error:
        raise UsageError(NEED.format(path, error.name)) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if path.lower().endswith(".csv"):
                return _points(path, which)
            if path.lower().endswith(".parquet"):
                return geopandas.read_parquet(path)
            return geopandas.read_file(path)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"cannot read the {which} file {path!r} as a table with geometry ({one_line(error)}); "
            "check that it is whole. GeoPackage, GeoJSON, shapefile and CSV of points are read."
        ) from None


def _points(path: str, which: str) -> Any:
    """Points of a CSV, by the usual names of columns."""
    import geopandas
    import pandas as pd

    table = pd.read_csv(path)
    by_name = {str(c).strip().lower(): c for c in table.columns}
    found = [
        next((by_name[n] for n in names if n in by_name), None) for names in (LONGITUDES, LATITUDES)
    ]
    if None in found:
        raise UsageError(
            f"the {which} file {path!r} has no columns lon and lat; it has "
            f"{', '.join(map(str, table.columns))}. Rename those with the coordinates."
        )
    x, y = (pd.to_numeric(table[name], errors="coerce").to_numpy(float) for name in found)
    wrong = ~(np.isfinite(x) & np.isfinite(y))
    if wrong.any():
        rows: Sequence[int] = (np.flatnonzero(wrong)[:5] + 2).tolist()
        raise UsageError(
            f"the {which} file {path!r} has no coordinates in line(s) {', '.join(map(str, rows))}; "
            "correct or drop them."
        )
    points = geopandas.points_from_xy(x, y)
    return geopandas.GeoDataFrame(table.drop(columns=found), geometry=points, crs="EPSG:4326")
