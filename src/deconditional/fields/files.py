"""Datasets in files: netCDF and Zarr, read with clear errors, written all or not at all."""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import warnings
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from deconditional.outputs import UsageError

__all__ = [
    "check_folder",
    "check_output",
    "encoded",
    "one_line",
    "open_fields",
    "protect_inputs",
    "remove",
    "swap_folders",
    "write_fields",
]

NETCDF = (".nc", ".nc4", ".cdf", ".netcdf")
KEPT = ("units", "calendar", "bounds", "climatology", "grid_mapping")
"""What a result takes over of the encoding of its coordinates."""


CHUNKED_BYTES = 2e9
"""Size of data from which on it is read chunk by chunk where nothing else was asked for."""


def open_fields(
    paths: str | Path | Sequence[str | Path], which: str, chunked: bool | None = False
) -> xr.Dataset:
    """One dataset from a file, a Zarr store, or several of these (globs included).

    Parameters
    ----------
    paths
        Files or patterns such as ``"data/tas_*.nc"``.
    which
        What to call the data in errors.
    chunked
        Whether to leave the data in its files, as Dask arrays; None goes by its size.
    """
    files = [file for path in _listed(paths) for file in _matching(str(path), which)]
    if chunked is None:
        chunked = _have_dask() and sum(_bytes(file, which) for file in files) > CHUNKED_BYTES
    parts = [_open(file, which, chunked) for file in files]
    if len(parts) == 1:
        return parts[0]
    try:
        _check_cells(parts)
        parts = _with_times(parts)
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


def _listed(paths: str | Path | Sequence[str | Path]) -> list[str | Path]:
    return [paths] if isinstance(paths, str | Path) else list(paths)


def _check_cells(parts: Sequence[xr.Dataset]) -> None:
    """Raise where coordinates interleave: joined, they would be a grid that no file has."""
    for name in {str(name) for part in parts for name in part.indexes}:
        found = [part[name].values for part in parts if name in part.indexes]
        lines = {line.tobytes(): line for line in found if line.dtype.kind in "fiu" and line.size}
        for one, other in combinations(lines.values(), 2):
            low, high = max(one.min(), other.min()), min(one.max(), other.max())
            shared = [np.sort(line[(line >= low) & (line <= high)]) for line in (one, other)]
            if not np.array_equal(shared[0], shared[1]):
                raise ValueError(f"their coordinates {name!r} differ where they overlap")


def _with_times(parts: Sequence[xr.Dataset]) -> list[xr.Dataset]:
    """With a date as dimension wherever it is one in another file."""
    dims = {dim for part in parts for dim in part.dims}
    found = []
    for part in parts:
        dates = [n for n, v in part.coords.items() if v.ndim == 0 and v.dtype.kind in "MO"]
        found.append(part.expand_dims([n for n in dates if n in dims]))
    return found


def _matching(path: str, which: str) -> list[str]:
    if any(sign in path for sign in "*?[") and not os.path.exists(path):
        found = sorted(glob.glob(path))
        if not found:
            raise UsageError(f"no {which} file matches {path!r}; check the pattern and its folder.")
        return found
    if not os.path.exists(path):
        raise UsageError(f"the {which} file {path!r} does not exist; check its name and folder.")
    return [path]


def _have_dask() -> bool:
    return importlib.util.find_spec("dask") is not None


def _bytes(path: str, which: str) -> int:
    """Size of the variables of a file once they are read."""
    return _open(path, which, None).nbytes


def _open(path: str, which: str, chunked: bool | None) -> xr.Dataset:
    """A dataset in memory, as Dask arrays, or, for None, neither: to look at."""
    is_store = os.path.isdir(path)
    options: dict[str, Any] = {"engine": "zarr" if is_store else None}
    try:
        # Files often name variables that are kept elsewhere (cell areas, say): no need to tell.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            chunks = "auto" if chunked else None
            data = xr.open_dataset(
                path, decode_coords="all", decode_timedelta=False, chunks=chunks, **options
            )
            if chunked:
                return data
            with data:
                return data if chunked is None else data.load()
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
        kind = "a Zarr store" if is_store else "a netCDF file"
        reason = one_line(error).split(". ")[0]
        raise UsageError(
            f"cannot read the {which} file {path!r} as {kind} ({reason}); check that it is one, "
            "and whole."
        ) from None


def protect_inputs(out: str | Path, inputs: Sequence[str | Path]) -> None:
    """Raise where an output would replace one of the inputs, which may be patterns."""
    place = Path(out).resolve()
    for given in inputs:
        for file in glob.glob(str(given)) or [str(given)]:
            same = place.exists() and os.path.exists(file) and os.path.samefile(place, file)
            if same or place.is_relative_to(Path(file).resolve()):
                raise UsageError(
                    f"the output {str(out)!r} is also an input ({str(given)!r}), which would be "
                    "lost; name another."
                )


def check_output(path: str | Path, overwrite: bool = False) -> Path:
    """The path, once it is known that a result can be written there."""
    out = Path(path)
    if out.suffix not in (*NETCDF, ".zarr"):
        raise UsageError(f"the output {str(out)!r} must end in .nc or .zarr; name another.")
    if out.suffix == ".zarr":
        try:
            import zarr  # noqa: F401
        except ImportError:
            raise UsageError("writing Zarr needs: pip install 'deconditional[zarr]'.") from None
    if out.is_dir() and out.suffix != ".zarr":
        raise UsageError(f"the output {str(out)!r} is a folder; name a file.")
    if out.is_file() and out.suffix == ".zarr":
        raise UsageError(f"the output {str(out)!r} is a file, not a Zarr store; name another.")
    if out.exists() and not overwrite:
        raise UsageError(f"the output {str(out)!r} exists; name another, or add --overwrite.")
    if out.is_dir() and any(out.iterdir()) and not _is_store(out):
        raise UsageError(f"the folder {str(out)!r} is not a Zarr store; name another output.")
    check_folder(out)
    return out


def _is_store(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("zarr.json", ".zgroup", ".zmetadata"))


def check_folder(path: Path) -> None:
    """Raise unless a file can be written here."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"the folder {str(folder)!r} does not exist; make it first.")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"the folder {str(folder)!r} cannot be written to; name another.")


def write_fields(dataset: xr.Dataset, path: Path) -> Path:
    """Write so that the file is, at every moment, either what it was or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        # Times that come from several files may need other units than the first file's.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if path.suffix == ".zarr":
                encoded(dataset).to_zarr(part, mode="w")
            else:
                encoded(dataset).to_netcdf(part, engine="netcdf4")
        if path.suffix == ".zarr":
            swap_folders(part, path)
        else:
            with part.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(part, path)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"could not write {str(path)!r} ({one_line(error)}); what was there has not changed. "
            "Make room, or name another place."
        ) from None
    finally:
        remove(part)
    return path


def encoded(dataset: xr.Dataset) -> xr.Dataset:
    """With fields compressed, and without the mark of missing values where CF allows none.

    How the inputs were stored does not matter here, except for units of time and links.
    """
    dataset = dataset.copy()
    about = [dataset[name] for name in dataset.coords]
    bounds = {v.attrs.get("bounds") or v.encoding.get("bounds") for v in about}
    for name, variable in dataset.variables.items():
        variable.encoding = {k: v for k, v in variable.encoding.items() if k in KEPT}
        if name in dataset.coords or name in bounds:
            variable.encoding["_FillValue"] = None
        elif variable.ndim >= 2:
            variable.encoding.update(zlib=True, complevel=1, shuffle=True)
    return dataset


def swap_folders(new: Path, path: Path) -> None:
    """Put a folder in the place of another, which stays until the new one is there."""
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    try:
        if path.exists():
            os.replace(path, old)
        os.replace(new, path)
    finally:  # an interrupt may come between the two
        if old.exists() and not path.exists():
            os.replace(old, path)
        remove(old)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def one_line(error: BaseException) -> str:
    """The beginning of what an error says."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")[:200]
