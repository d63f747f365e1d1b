"""Datasets in files: netCDF and Zarr, read with clear errors, written all or not at all."""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import math
import os
import re
import shutil
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.attributes import understandable, writable
from deconditional.fields.declared import (
    Declared,
    available_memory,
    check_declared,
    declared,
    shown_bytes,
)
from deconditional.saving.outputs import check_folder, check_name, check_place, replacing

__all__ = [
    "UnreadableError",
    "check_folder",
    "check_output",
    "check_writable",
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


NETCDF_NAME = re.compile(r"[^\x00-/:-@\[-^`{-\x7f][^\x00-\x1f/\x7f]*(?<! )")
"""Names that netCDF allows: they begin with a letter, a digit or _, and have no slash."""

AT_CWD, EXCHANGE = -100, 2
"""What Linux calls the folder of the process, and the exchange of two names."""

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
        size = sum(v.nbytes for file in files for v in _declared(file, which))
        chunked = _have_dask() and size > CHUNKED_BYTES
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


def _check_together(parts: Sequence[xr.Dataset]) -> None:
    """Raise where files that each fit into memory make a grid that does not."""
    values: dict[str, list[pd.Index]] = {}
    for part in parts:
        for name, index in part.indexes.items():
            values.setdefault(str(name), []).append(index)
    sizes = {name: len(reduce(lambda a, b: a.union(b), found)) for name, found in values.items()}
    total = 0
    for name in {name for part in parts for name in part.data_vars}:
        like = next(part[name] for part in parts if name in part.data_vars)
        total += 8 * math.prod(sizes.get(str(d), like.sizes[d]) for d in like.dims)
    if total > available_memory():
        raise ValueError(f"on one grid they would take {shown_bytes(total)}")


def _with_times(parts: Sequence[xr.Dataset]) -> list[xr.Dataset]:
    """With a date as dimension wherever it is one in another file."""
    dims = {dim for part in parts for dim in part.dims}
    found = []
    for part in parts:
        dates = [n for n, v in part.coords.items() if v.ndim == 0 and v.dtype.kind in "MO"]
        found.append(part.expand_dims([n for n in dates if n in dims]))
    return found


def _matching(path: str, which: str) -> list[str]:
    if "\0" in path:
        raise UsageError(f"the {which} file {path!r} cannot exist; correct its name.")
    if any(sign in path for sign in "*?[") and not os.path.exists(path):
        found = sorted(glob.glob(path))
        if not found:
            raise UsageError(f"no {which} file matches {path!r}; check the pattern and its folder.")
        return found
    if not os.path.exists(path):
        raise UsageError(f"the {which} file {path!r} does not exist; check its name and folder.")
    if not os.path.isfile(path) and not os.path.isdir(path):
        raise UsageError(f"the {which} file {path!r} is a device or a pipe; name a file.")
    return [path]


def _have_dask() -> bool:
    return importlib.util.find_spec("dask") is not None


class UnreadableError(UsageError):
    """A file that cannot be read; `reason` is what the library that tried has said."""

    def __init__(self, message: object, reason: str = ""):
        super().__init__(message)
        self.reason = reason


def _declared(path: str, which: str) -> list[Declared]:
    """The variables of a file, unread."""
    place, is_store = os.path.abspath(path), os.path.isdir(path)
    if is_store and "::" in place:
        raise UsageError(
            f"the {which} store {path!r} has '::' in its name, which Zarr takes for an address; "
            "rename it."
        )
    with _reading(path, which, "check that it is one, and whole."):
        return declared(place, is_store)


def _open(path: str, which: str, chunked: bool) -> xr.Dataset:
    """A dataset in memory, or as Dask arrays."""
    place, is_store = os.path.abspath(path), os.path.isdir(path)
    if is_store and importlib.util.find_spec("zarr") is None:
        raise UsageError(
            f"{path!r} is a Zarr store, which needs zarr: pip install 'deconditional[zarr]'."
        )
    check_declared(_declared(path, which), place, path, which, chunked)
    remedy = (
        "check that it is whole, and the attributes of its variables, such as units, scale_factor "
        "and _FillValue."
    )
    with _reading(path, which, remedy):
        data = xr.open_dataset(
            place,
            engine="zarr" if is_store else "netcdf4",
            decode_coords="all",
            decode_timedelta=False,
            chunks="auto" if chunked else None,
        )
        if chunked:
            return understandable(data)
        with data:
            return understandable(data.load())


@contextmanager
def _reading(path: str, which: str, remedy: str) -> Iterator[None]:
    """Turn whatever a damaged file makes libraries raise into a complaint about the file."""
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
        raise UnreadableError(
            f"cannot read the {which} file {path!r} as {kind} ({reason}); {remedy}", reason
        ) from None


def _time_trouble(error: BaseException) -> str:
    """What is wrong with times, without advice on how to open a file in Python."""
    text = " ".join(str(error).split())
    found = re.search(r"unable to decode time units .*? with [^.]*", text)
    return (found.group() if found else text.split(". ")[0])[:200]


def protect_inputs(out: str | Path, inputs: Sequence[str | Path], what: str = "output") -> None:
    """Raise where an output, or what is made beside it, would replace one of the inputs.

    Parameters
    ----------
    out
        The output.
    inputs
        Files and stores, or patterns of them.
    what
        What to call the output in errors.
    """
    check_name(Path(out), what)
    try:
        place = Path(out).resolve()
        for given in inputs:
            for file in glob.glob(str(given)) or [str(given)]:
                if _endangers(place, file):
                    raise UsageError(
                        f"the {what} {str(out)!r} is also an input ({str(given)!r}), which would "
                        "be lost; name another."
                    )
    except (OSError, RuntimeError) as error:  # names too long, links in a circle
        raise UsageError(
            f"the {what} {str(out)!r} cannot be used ({one_line(error)}); name another."
        ) from None
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"a file cannot have a name with {one_line(error)}; correct it.") from None


def _endangers(place: Path, file: str) -> bool:
    if place.exists() and os.path.exists(file) and os.path.samefile(place, file):
        return True
    try:
        source = Path(file).resolve()
        if source.is_dir() and source.suffix != ".zarr" and not _is_store(source):
            return False
    except (OSError, RuntimeError):  # a link in a circle, or a name too long, is no input
        return False
    beside = source.parent == place.parent and source.name.startswith(f".{place.name}.")
    around = place.suffix == ".zarr" and source.is_relative_to(place)
    return beside or around or place.is_relative_to(source)


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
        if "::" in str(out.absolute()):
            raise UsageError(
                f"the output {str(out)!r} has '::' in its name, which Zarr takes for an address; "
                "name another."
            )
    check_place(out, "output")
    if out.is_dir() and out.suffix != ".zarr":
        raise UsageError(f"the output {str(out)!r} is a folder; name a file.")
    if out.is_file() and out.suffix == ".zarr":
        raise UsageError(f"the output {str(out)!r} is a file, not a Zarr store; name another.")
    if os.path.lexists(out) and not overwrite:
        raise UsageError(f"the output {str(out)!r} exists; name another, or add --overwrite.")
    if out.is_dir() and any(out.iterdir()) and not _is_store(out):
        raise UsageError(f"the folder {str(out)!r} is not a Zarr store; name another output.")
    # xarray takes a path that begins with ~ for a home folder; an absolute one cannot.
    return out.absolute() if str(out).startswith("~") else out


def _is_store(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("zarr.json", ".zgroup", ".zmetadata"))


def check_writable(dataset: xr.Dataset, path: Path, dims: Collection[str] | None = None) -> None:
    """Raise, before any work, where a coordinate that a result will have cannot be written.

    Parameters
    ----------
    dataset
        Where predictions are wanted.
    path
        The output.
    dims
        Dimensions of the result; without them, all of the dataset.
    """
    for name, coordinate in dataset.coords.items():
        if dims is not None and not set(coordinate.dims) <= set(dims):
            continue
        values = coordinate.variable
        plain = values.dtype.kind in "fiubSUM" or not values.size
        if not plain:
            first = values[(0,) * values.ndim].values.item()
            plain = isinstance(first, str | bytes) or hasattr(first, "calendar")
        if not plain or (path.suffix != ".zarr" and not NETCDF_NAME.fullmatch(str(name))):
            what = "name" if plain else f"{values.dtype} values"
            raise UsageError(
                f"the coordinate {str(name)!r} cannot be written to {str(path)!r}, because of its "
                f"{what}; drop it, as in ds.drop_vars({str(name)!r}), or rename it."
            )


def write_fields(dataset: xr.Dataset, path: Path) -> Path:
    """Write so that the file is, at every moment, either what it was or the new one."""
    # xarray takes a path that begins with ~ for a home folder; an absolute one cannot.
    path = path.absolute() if str(path).startswith("~") else path
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if path.suffix == ".zarr":
            _store(dataset, part, path)
            swap_folders(part, path)
        else:
            with replacing(path) as part:
                _store(dataset, part, path)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"could not write {str(path)!r} ({one_line(error)}); what was there has not changed. "
            "Make room, or name another place."
        ) from None
    finally:
        remove(part)
    return path


def _store(dataset: xr.Dataset, part: Path, path: Path) -> None:
    """Write in the form that the path asks for; nothing that is there is followed or kept."""
    remove(part)
    # Times that come from several files may need other units than the first file's.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if path.suffix == ".zarr":
            encoded(dataset).to_zarr(part, mode="w")
        else:
            encoded(dataset).to_netcdf(part, engine="netcdf4")


def encoded(dataset: xr.Dataset) -> xr.Dataset:
    """With fields compressed, and without the mark of missing values where CF allows none.

    How the inputs were stored does not matter here, except for units of time and links.
    """
    dataset = understandable(dataset).copy()
    dataset.attrs = writable(dataset.attrs)
    about = [dataset[name] for name in dataset.coords]
    bounds = {v.attrs.get("bounds") or v.encoding.get("bounds") for v in about}
    for name, variable in dataset.variables.items():
        variable.attrs = writable(variable.attrs, variable.dtype.kind in "MO")
        variable.encoding = {k: v for k, v in variable.encoding.items() if k in KEPT}
        if name in dataset.coords or name in bounds:
            variable.encoding["_FillValue"] = None
        elif variable.ndim >= 2:
            variable.encoding.update(zlib=True, complevel=1, shuffle=True)
    return dataset


def swap_folders(new: Path, path: Path) -> None:
    """Put a folder in the place of another, which stays until the new one is there.

    Where the system can exchange two names in one step, no moment is without either; elsewhere a
    process that is killed between two steps leaves the old folder under a hidden name beside.
    """
    if os.path.lexists(path) and _exchange(new, path):
        remove(new)
        return
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    try:
        if path.exists():
            os.replace(path, old)
        os.replace(new, path)
    finally:  # an interrupt may come between the two
        if old.exists() and not path.exists():
            os.replace(old, path)
        remove(old)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; whether that was possible."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):  # not Linux
        return False
    return bool(rename(AT_CWD, os.fsencode(one), AT_CWD, os.fsencode(other), EXCHANGE) == 0)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def one_line(error: BaseException) -> str:
    """The beginning of what an error says."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")[:200]
