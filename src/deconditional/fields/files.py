"""Datasets in files: netCDF and Zarr, read with clear errors, written all or not at all."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import xarray as xr

from deconditional.outputs import UsageError

__all__ = ["check_output", "open_fields", "write_fields"]

NETCDF = (".nc", ".nc4", ".cdf", ".netcdf")


def open_fields(paths: str | Path | Sequence[str | Path], which: str) -> xr.Dataset:
    """One dataset from a file, a Zarr store, or several of these (globs included).

    Parameters
    ----------
    paths
        Files or patterns such as ``"data/tas_*.nc"``.
    which
        What to call the data in errors.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    files = [file for path in given for file in _matching(str(path), which)]
    parts = [_open(file, which) for file in files]
    if len(parts) == 1:
        return parts[0]
    try:
        combined = xr.combine_by_coords(
            parts,
            combine_attrs="drop_conflicts",
            join="outer",
            compat="no_conflicts",
            data_vars="all",
        )
        assert isinstance(combined, xr.Dataset)
        return combined
    except (ValueError, xr.MergeError) as error:
        raise UsageError(
            f"the {len(files)} {which} files do not fit together: {_one_line(error)}"
        ) from None


def _matching(path: str, which: str) -> list[str]:
    if any(sign in path for sign in "*?["):
        found = sorted(glob.glob(path))
        if not found:
            raise UsageError(f"no {which} file matches {path!r}.")
        return found
    if not os.path.exists(path):
        raise UsageError(f"the {which} file {path!r} does not exist.")
    return [path]


def _open(path: str, which: str) -> xr.Dataset:
    is_store = os.path.isdir(path)
    try:
        with xr.open_dataset(
            path,
            engine="zarr" if is_store else None,
            decode_coords="all",
            decode_timedelta=False,
            chunks=None,
        ) as data:
            return data.load()
    except ImportError as error:
        raise UsageError(
            f"reading {path!r} needs {error.name}: pip install 'deconditional[zarr]'."
        ) from None
    except MemoryError:
        raise UsageError(f"the {which} file {path!r} does not fit into memory.") from None
    except Exception as error:
        kind = "a Zarr store" if is_store else "a netCDF file"
        raise UsageError(
            f"cannot read the {which} file {path!r} as {kind} ({_one_line(error)})."
        ) from None


def check_output(path: str | Path, overwrite: bool = False) -> Path:
    """The path, once it is known that a result can be written there."""
    out = Path(path)
    if out.suffix not in (*NETCDF, ".zarr"):
        raise UsageError(f"the output {str(out)!r} must end in .nc or .zarr.")
    if out.suffix == ".zarr":
        try:
            import zarr  # noqa: F401
        except ImportError:
            raise UsageError("writing Zarr needs: pip install 'deconditional[zarr]'.") from None
    if out.exists() and not overwrite:
        raise UsageError(f"the output {str(out)!r} exists; name another, or add --overwrite.")
    if out.is_dir() and out.suffix != ".zarr":
        raise UsageError(f"the output {str(out)!r} is a folder; name a file.")
    if out.exists() and out.is_file() and out.suffix == ".zarr":
        raise UsageError(f"the output {str(out)!r} is a file, not a Zarr store; name another.")
    folder = out.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"the folder {str(folder)!r} does not exist; make it first.")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"the folder {str(folder)!r} cannot be written to; name another.")
    return out


def write_fields(dataset: xr.Dataset, path: Path) -> Path:
    """Write so that the file is, at every moment, either what it was or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if path.suffix == ".zarr":
            _remove(part)
            dataset.to_zarr(part, mode="w", consolidated=False)
            _swap_folders(part, path)
        else:
            encoding = {
                name: {"zlib": True, "complevel": 1, "shuffle": True}
                for name in dataset.data_vars
                if dataset[name].ndim >= 2
            }
            dataset.to_netcdf(part, engine="netcdf4", encoding=encoding)
            with part.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(part, path)
    except (OSError, RuntimeError) as error:
        raise UsageError(
            f"could not write {str(path)!r} ({_one_line(error)}); nothing that was there has "
            "changed."
        ) from None
    finally:
        _remove(part)
    return path


def _swap_folders(new: Path, path: Path) -> None:
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    if path.exists():
        os.replace(path, old)
    try:
        os.replace(new, path)
    except OSError:
        if old.exists():
            os.replace(old, path)
        raise
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _one_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")[:200]
