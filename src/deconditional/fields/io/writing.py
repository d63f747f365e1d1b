"""Results in files: netCDF and Zarr, checked before any work, written whole or not at all."""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import shutil
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from deconditional.errors import UsageError, one_line
from deconditional.fields.io.attributes import understandable, writable
from deconditional.saving.outputs import check_name, check_target, replacing

GEOTIFF = (".tif", ".tiff")
OTHER_ENDINGS = (".nc4", ".cdf", ".netcdf", ".tiff")
KEPT = ("units", "calendar", "bounds", "climatology", "grid_mapping")
"""What a result takes over of the encoding of its coordinates."""

NETCDF_NAME = re.compile(r"[^\x00-/:-@\[-^`{-\x7f][^\x00-\x1f/\x7f]*(?<! )")
"""Names that netCDF allows: they begin with a letter, a digit or _, and have no slash."""


def protect_inputs(out: str | Path, inputs: Sequence[str | Path], what: str = "output") -> None:
    """Raise where an output, or what is made beside it, would replace one of the inputs.

    Inputs are files and stores, or patterns of them; `what` is what errors call the output.
    """
    check_name(Path(out), what)
    try:
        place = Path(os.path.realpath(out))
        files = [
            (given, file) for given in map(str, inputs) for file in glob.glob(given) or [given]
        ]
        lost = next((given for given, file in files if _endangers(place, file)), None)
    except ValueError as error:
        raise UsageError(f"a file cannot have a name with {one_line(error)}; correct it.") from None
    if lost is not None:
        raise UsageError(
            f"the {what} {str(out)!r} is also an input ({lost!r}), which would be lost; name "
            "another."
        )


def _endangers(place: Path, file: str) -> bool:
    """Whether a file is lost where something is written at a place, or beside it meanwhile."""
    source = Path(os.path.realpath(file))
    if os.path.exists(file) and os.path.exists(place) and os.path.samefile(place, file):
        return True
    if os.path.isdir(source) and source.suffix != ".zarr" and not _is_store(source):
        return False
    beside = source.parent == place.parent and source.name.startswith(f".{place.name}.")
    around = place.suffix == ".zarr" and source.is_relative_to(place)
    return beside or around or place.is_relative_to(source)


def check_output(path: str | Path, overwrite: bool = False) -> Path:
    """The path, once it is known that a result can be written there."""
    out = Path(path)
    check_target(out, "output", (".nc", ".zarr", ".tif", *OTHER_ENDINGS), overwrite)
    if out.suffix in GEOTIFF and importlib.util.find_spec("rioxarray") is None:
        raise UsageError("writing GeoTIFF needs: pip install 'deconditional[geo]'.")
    if out.suffix == ".zarr":
        if importlib.util.find_spec("zarr") is None:
            raise UsageError("writing Zarr needs: pip install 'deconditional[zarr]'.")
        if "::" in str(out.absolute()):
            raise UsageError(
                f"the output {str(out)!r} has '::' in its name, which Zarr takes for an address; "
                "name another."
            )
        if out.is_file():
            raise UsageError(f"the output {str(out)!r} is a file, not a Zarr store; name another.")
    if out.is_dir() and any(out.iterdir()) and not _is_store(out):
        raise UsageError(f"the folder {str(out)!r} is not a Zarr store; name another output.")
    # xarray takes a path that begins with ~ for a home folder; an absolute one cannot.
    return out.absolute() if str(out).startswith("~") else out


def _is_store(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("zarr.json", ".zgroup", ".zmetadata"))


def check_writable(dataset: xr.Dataset, path: Path, dims: Collection[str] | None = None) -> None:
    """Raise, before any work, where a coordinate that a result will have cannot be written.

    The result will have the dimensions `dims` of the dataset, without them all.
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
        if path.suffix in GEOTIFF:
            bands(dataset).rio.to_raster(
                part, driver="GTiff", compress="deflate", BIGTIFF="IF_SAFER"
            )
        elif path.suffix == ".zarr":
            encoded(dataset).to_zarr(part, mode="w")
        else:
            encoded(dataset).to_netcdf(part, engine="netcdf4")


def encoded(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset with fields compressed, and no mark of missing values where CF allows none.

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


def bands(dataset: xr.Dataset) -> xr.Dataset:
    """Fields of a result as bands of a raster, rows from the north; raises where they are none.

    Quantiles and samples are a band each; a mean that is a rate is one, by that name.
    """
    import rioxarray  # noqa: F401  (gives datasets their .rio)

    if "rate" in dataset:
        dataset = dataset.drop_vars("rate").rename(mean="rate")
    about = dataset["rate" if "rate" in dataset else "mean"]
    dims = list(about.dims)
    if len(dims) == 3 and about.sizes[dims[0]] == 1:
        dataset, dims = dataset.isel({dims[0]: 0}), dims[1:]
    if len(dims) != 2 or any(dataset[d].ndim != 1 for d in dims if d in dataset.coords):
        raise UsageError(
            f"a GeoTIFF has rows and columns, and this result has {', '.join(map(str, dims))}; "
            "choose one time, or write .nc or .zarr."
        )
    y, x = dims
    lines = [dataset[d].values for d in dims]
    steps = [np.diff(line) for line in lines]
    if any(np.ptp(s) > 1e-3 * np.abs(s).mean() for s in steps if len(s)):
        raise UsageError(
            f"the cells along {y!r} or {x!r} are of several sizes; write .nc or .zarr."
        )
    fields: dict[str, xr.DataArray] = {}
    for name, field in dataset.data_vars.items():
        if not set(dims) <= set(field.dims):
            continue
        extra = [d for d in field.dims if d not in dims]
        if not extra:
            fields[str(name)] = field
        for k in range(field.sizes[extra[0]] if extra else 0):
            value = f"{k + 1}"
            if extra[0] in ("quantile", "above"):
                value = f"{(100 if extra[0] == 'quantile' else 1) * float(field[extra[0]][k]):g}"
            fields[f"{name}_{value}"] = field.isel({extra[0]: k}, drop=True)
    out = xr.Dataset({n: v.transpose(y, x).astype("float32") for n, v in fields.items()})
    out = out.drop_vars(set(out.coords) - {x, y, "spatial_ref"}).rename({y: "y", x: "x"})
    if "spatial_ref" not in out.coords and abs(np.asarray(lines[0])).max() <= 90:
        degrees = dataset[y].attrs.get("units", "").startswith("degree")
        out = out.rio.write_crs("EPSG:4326") if degrees else out
    for name in out.data_vars:
        out[name].attrs, out[name].encoding = {"long_name": str(name)}, {}
        out[name] = out[name].rio.write_nodata(np.nan)
    out = out.sortby("y", ascending=False).sortby("x")
    out.attrs = {"deconditional": str(dataset.attrs.get("deconditional", ""))}
    return out


def swap_folders(new: Path, path: Path) -> None:
    """Put a folder in the place of another, which stays until the new one is there.

    A process that is killed between two steps leaves the old folder under a hidden name beside.
    """
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    try:
        if os.path.lexists(path):
            os.replace(path, old)
        os.replace(new, path)
    finally:  # an interrupt may come between the two
        if os.path.lexists(old) and not os.path.lexists(path):
            os.replace(old, path)
        remove(old)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
