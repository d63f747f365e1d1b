"""Datasets from files: netCDF and Zarr, read with errors that name the file and the remedy."""

from __future__ import annotations

import glob
import importlib.util
import math
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from deconditional.errors import UsageError, one_line
from deconditional.fields.io.attributes import understandable
from deconditional.fields.io.checks import check_memory, check_room, check_whole, refuse_pickles
from deconditional.fields.io.geo import is_raster, open_raster

CHUNKED_BYTES = 2e9
"""Size of data from which on it is read chunk by chunk where nothing else was asked for."""


def open_fine(paths: Sequence[str], chunked: bool | None = False) -> xr.Dataset | list[xr.Dataset]:
    """Fine data: rasters one by one, as each may have a grid of its own, other files as one."""
    files = [file for path in paths for file in _matching(str(path), "fine")]
    rasters = [file for file in files if is_raster(file)]
    others = [file for file in files if not is_raster(file)]
    datasets = [open_raster(file, "fine", chunked) for file in rasters]
    if others:
        datasets.insert(0, open_fields(others, "fine", chunked))
    return datasets[0] if len(datasets) == 1 else datasets


def open_fields(
    paths: str | Path | Sequence[str | Path], which: str, chunked: bool | None = False
) -> xr.Dataset:
    """One dataset from a file, a Zarr store, or several of these (globs included).

    `which` is what errors call the data. It stays in its files, as Dask arrays, where it is to be
    `chunked`; None goes by its size.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    files = [file for path in given for file in _matching(str(path), which)]
    if chunked is None:
        size = sum(_size(file, which) for file in files)
        chunked = importlib.util.find_spec("dask") is not None and size > CHUNKED_BYTES
    parts = [_open(file, which, chunked) for file in files]
    if len(parts) == 1:
        return parts[0]
    try:
        _check_cells(parts)
        parts = _with_times(parts)
        if not chunked:
            _check_together(parts)
        # What has no time, such as altitude, gets none from being in several files.
        combined = xr.combine_by_coords(
            parts,
            combine_attrs="drop_conflicts",
            join="outer",
            compat="no_conflicts",
            data_vars="minimal",
            coords="minimal",
        )
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"the {len(files)} {which} files do not fit together: {one_line(error)}; put them into "
            "one file first."
        ) from None
    assert isinstance(combined, xr.Dataset)
    return combined


def _check_cells(parts: Sequence[xr.Dataset]) -> None:
    """Raise where coordinates interleave: joined, they would be a grid that no file has."""
    for name in {str(name) for part in parts for name in part.indexes}:
        coordinates = [part[name].values for part in parts if name in part.indexes]
        lines = {c.tobytes(): c for c in coordinates if c.dtype.kind in "fiu" and c.size}
        for one, other in combinations(lines.values(), 2):
            low, high = max(one.min(), other.min()), min(one.max(), other.max())
            shared = [np.sort(line[(line >= low) & (line <= high)]) for line in (one, other)]
            if not np.array_equal(shared[0], shared[1]):
                raise ValueError(f"their coordinates {name!r} differ where they overlap")


def _check_together(parts: Sequence[xr.Dataset]) -> None:
    """Raise where files that each fit into memory make a grid that does not."""
    lines: dict[str, pd.Index] = {}
    for name, index in (pair for part in parts for pair in part.indexes.items()):
        lines[str(name)] = index.union(lines[str(name)]) if str(name) in lines else index
    every = {name: variable for part in parts for name, variable in part.data_vars.items()}
    total = 0
    for variable in every.values():
        sizes = (len(lines[str(d)]) if d in lines else n for d, n in variable.sizes.items())
        total += 8 * math.prod(sizes)
    check_room(total, "the grid that all of them make", "cut them to a region")


def _with_times(parts: Sequence[xr.Dataset]) -> list[xr.Dataset]:
    """Datasets with a date as dimension wherever it is one in another file."""
    dims = {dim for part in parts for dim in part.dims}
    dated = []
    for part in parts:
        dates = [n for n, v in part.coords.items() if v.ndim == 0 and v.dtype.kind in "MO"]
        dated.append(part.expand_dims([n for n in dates if n in dims]))
    return dated


def _matching(path: str, which: str) -> list[str]:
    if "\0" in path:
        raise UsageError(f"the {which} file {path!r} cannot exist; correct its name.")
    if any(sign in path for sign in "*?[") and not os.path.exists(path):
        matches = sorted(glob.glob(path))
        if not matches:
            raise UsageError(f"no {which} file matches {path!r}; check the pattern and its folder.")
        return matches
    if not os.path.exists(path):
        raise UsageError(f"the {which} file {path!r} does not exist; check its name and folder.")
    if not os.path.isfile(path) and not os.path.isdir(path):
        raise UsageError(f"the {which} file {path!r} is a device or a pipe; name a file.")
    return [path]


def _size(path: str, which: str) -> int:
    """Bytes of all values of a file."""
    with _reading(path, which), _opened(path, which) as data:
        return data.nbytes


def _open(path: str, which: str, chunked: bool) -> xr.Dataset:
    """A dataset in memory, or as Dask arrays."""
    with _reading(path, which):
        data = _opened(path, which, "auto" if chunked else None)
        if chunked:
            return understandable(data)
        with data:
            check_memory(data, path, which)
            return understandable(data.load())


def _opened(path: str, which: str, chunks: str | None = None) -> xr.Dataset:
    """A file, open, with nothing read but its coordinates."""
    place, is_store = os.path.abspath(path), os.path.isdir(path)
    if is_store and "::" in place:
        raise UsageError(
            f"the {which} store {path!r} has '::' in its name, which Zarr takes for an address; "
            "rename it."
        )
    if is_store:
        refuse_pickles(place)
    else:
        check_whole(place)
    return xr.open_dataset(
        place,
        engine="zarr" if is_store else "netcdf4",
        decode_coords="all",
        decode_timedelta=False,
        chunks=chunks,
    )


@contextmanager
def _reading(path: str, which: str) -> Iterator[None]:
    """Turn whatever a damaged file makes libraries raise into a complaint about the file."""
    remedy = (
        "check that it is one, and whole, and the attributes of its variables, such as units, "
        "scale_factor and _FillValue."
    )
    kind = "a Zarr store" if os.path.isdir(path) else "a netCDF file"
    if path.lower().endswith((".csv", ".tsv", ".xlsx", ".parquet")):
        remedy = "gridded data is needed; of a table, make bags with deconditional.Bags.from_frame."
    try:
        # Files often name variables that are kept elsewhere (cell areas, say): no need to tell.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except UsageError:
        raise
    except ImportError as error:
        raise UsageError(
            f"reading {path!r} needs {error.name}: pip install 'deconditional[zarr]'."
        ) from None
    except MemoryError:
        raise UsageError(
            f"the {which} file {path!r} does not fit into memory; cut it to the region, times and "
            "variables that are needed."
        ) from None
    except Exception as error:
        text = getattr(error, "strerror", None) or one_line(error)
        reason = str(text).split(". ")[0]
        if "decode time" in str(error) or "calendar" in str(error):
            reason = _time_trouble(error)
            remedy = (
                "correct the units of its times, as in 'days since 2000-01-01', and their calendar."
            )
        raise UsageError(
            f"cannot read the {which} file {path!r} as {kind} ({reason}); {remedy}"
        ) from None


def _time_trouble(error: BaseException) -> str:
    """What is wrong with times, without advice on how to open a file in Python."""
    text = " ".join(str(error).split())
    trouble = re.search(r"unable to decode time units .*? with [^.]*", text)
    return (trouble.group() if trouble else text.split(". ")[0])[:200]
