"""Results larger than memory, written region by region so that a stopped run can go on.

Regions go into a hidden Zarr store beside the output, and a record says which are done. When all
are, the store takes the output's place, or is copied to a netCDF file. Killed at any moment, a run
loses the region it was working on; the same call carries on from there.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import xarray as xr

from deconditional.errors import UsageError, one_line
from deconditional.fields.io.writing import encoded, remove, swap_folders
from deconditional.fitting.progress import tell
from deconditional.saving.identity import digest
from deconditional.saving.outputs import replacing, write_atomically

CELLS_PER_REGION = 4_000_000
"""Chunks are written together up to this size: what a killed run has to do again."""


def stream(dataset: xr.Dataset, path: Path, finish: Callable[[xr.Dataset], xr.Dataset]) -> Path:
    """Write a dataset of Dask arrays region by region, from where a run of the same has stopped.

    The Dask arrays share their last dimensions and the chunks along them, as ``predict`` makes
    them; the path ends in ``.zarr`` or ``.nc``. `finish` takes the fields as they were written to
    all that is to be added to them, attributes included: what cannot be known before all of them
    are.
    """
    part, record = (path.with_name(f".{path.name}.{end}") for end in ("part", "progress.json"))
    whole = _uniform(dataset)
    cuts = regions(whole)
    identity = _identity(whole)
    done = _written(record, identity) if part.is_dir() else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if done is None:
                remove(record)
                remove(part)
                encoded(whole).to_zarr(part, mode="w", compute=False)
                done = set()
            for k, region in enumerate(cuts):
                if k not in done:
                    _bare(whole.isel(region)).to_zarr(part, region=region)
                    done.add(k)
                    content = {"identity": identity, "done": sorted(done)}
                    write_atomically(record, json.dumps(content))
                tell("regions", k + 1, len(cuts))
            with xr.open_zarr(part) as written:
                added = finish(written)
            encoded(added).to_zarr(part, mode="a")
            _deliver(part, path)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"could not write {str(path)!r} ({one_line(error)}); what was there has not changed, "
            "and the same command goes on where this one stopped. Make room, or name another place."
        ) from error
    remove(record)
    return path


def regions(dataset: xr.Dataset) -> list[dict[str, slice]]:
    """Blocks of chunks, as few as are of a fair size.

    Examples
    --------
    >>> field = xr.DataArray(np.zeros((6, 4)), dims=("y", "x")).chunk({"y": 2})
    >>> regions(field.to_dataset(name="mean"))
    [{'y': slice(0, 6, None), 'x': slice(0, 4, None)}]
    """
    first, cells = dataset["mean"], 1
    cuts: list[list[slice]] = []
    for sizes in reversed(first.chunks or ()):
        ends, most = np.cumsum(sizes), cells * max(sizes)
        together = min(max(CELLS_PER_REGION // most, 1), len(sizes))
        edges = np.unique([0, *ends[together - 1 :: together], ends[-1]]).tolist()
        cuts.insert(0, [slice(a, b) for a, b in pairwise(edges)])
        cells = together * most
    return [dict(zip(map(str, first.dims), cut, strict=True)) for cut in product(*cuts)]


def _uniform(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset in chunks of one size along each dimension, as Zarr wants them."""
    lines = {name: v.compute() for name, v in dataset.coords.items() if v.ndim < 2}
    dataset = dataset.assign_coords(lines)
    sizes = dataset.chunksizes
    uneven = {
        d: max(c) for d, c in sizes.items() if len(set(c[:-1])) > 1 or (len(c) > 1 and c[-1] > c[0])
    }
    return dataset.chunk(uneven) if uneven else dataset


def _bare(dataset: xr.Dataset) -> xr.Dataset:
    return dataset.drop_vars([str(name) for name in dataset.coords])


def _identity(dataset: xr.Dataset) -> str:
    """A digest of all that tells one run from another, the time it took apart."""
    facts = json.loads(dataset.attrs.get("deconditional", "{}"))
    facts.pop("timings", None)
    about = {
        "facts": facts,
        "variables": {str(n): [list(map(str, v.dims)), v.shape] for n, v in dataset.items()},
        "chunks": {str(d): list(c) for d, c in dataset.chunksizes.items()},
        "coordinates": {
            str(n): digest(v.values)
            for n, v in dataset.coords.items()
            if v.ndim == 1 and v.dtype.kind in "fiuM"
        },
    }
    return digest(json.dumps(about, sort_keys=True))


def _deliver(part: Path, path: Path) -> None:
    """Put the store in the place of the output, or a netCDF copy of it."""
    if path.suffix == ".zarr":
        swap_folders(part, path)
        return
    with replacing(path) as copy, xr.open_zarr(part) as written:
        encoded(written).to_netcdf(copy, engine="netcdf4")
    remove(part)


def _written(record: Path, identity: str) -> set[int] | None:
    """The regions that a record says are written; None where it is not of this work."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(record.read_text())
        if kept["identity"] == identity:
            return {int(piece) for piece in kept["done"]}
    return None
