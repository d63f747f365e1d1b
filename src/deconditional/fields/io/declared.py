"""What files say they hold, looked at before any of it is read.

A file of a few kilobytes can declare more cells than any memory has, and a Zarr store can name a
codec that runs what it finds. Both are seen in the metadata alone.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deconditional.errors import UsageError
from deconditional.fields.io.classic import is_classic, missing_bytes
from deconditional.fields.io.memory import available_memory, shown_bytes

__all__ = ["Declared", "check_declared", "declared"]

LEAST_SUSPECT = 500_000_000
"""Bytes of values below which nobody asks how much of them is on disk."""

EMPTIEST = {False: 1e4, True: 1e6}
"""Bytes declared per byte on disk, by whether it is a store: beyond, there is hardly any data.

Compression in netCDF files ends at about a thousand; stores leave out whole chunks."""


LINKS = (
    *("grid_mapping", "coordinates", "bounds", "climatology", "calendar"),
    *("cell_measures", "formula_terms", "ancillary_variables"),
)
"""Attributes that name other variables, or how to decode this one."""


class Declared(NamedTuple):
    """A variable of a file, unread."""

    name: str
    shape: tuple[int, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        """Size of its values in memory."""
        return math.prod(self.shape) * self.itemsize

    def __str__(self) -> str:
        return f"{self.name!r} has {' x '.join(map(str, self.shape)) or 'one'} values"


def declared(place: str, is_store: bool) -> list[Declared]:
    """The variables that a netCDF file or a Zarr store declares."""
    if is_store:
        return _of_store(place)
    import netCDF4

    if is_classic(place) and (missing := missing_bytes(place)):
        raise ValueError(f"it is cut short by {shown_bytes(missing)} at least")
    with netCDF4.Dataset(place) as file:
        found = file.variables.items()
        for name, v in found:
            _check_links(name, {key: v.getncattr(key) for key in LINKS if key in v.ncattrs()})
        return [Declared(str(name), tuple(v.shape), _itemsize(v.dtype)) for name, v in found]


def _of_store(place: str) -> list[Declared]:
    _refuse_pickles(place)
    import zarr

    found = list(zarr.open_group(place, mode="r").arrays())
    for name, array in found:
        _check_links(name, dict(array.attrs))
    return [Declared(str(name), tuple(a.shape), _itemsize(a.dtype)) for name, a in found]


def _check_links(name: str, attrs: Mapping[str, Any]) -> None:
    """Raise where what links variables with each other is no text."""
    for key in LINKS:
        if key in attrs and not isinstance(attrs[key], str):
            raise ValueError(f"the attribute {key!r} of {name!r} is no text")


def _refuse_pickles(place: str) -> None:
    """Raise where a codec would run what it finds; not every version of Zarr refuses to."""
    folders = [place, *(entry.path for entry in os.scandir(place) if entry.is_dir())]
    for folder in folders:
        for name in ("zarr.json", ".zarray", ".zmetadata"):
            try:
                about = json.loads(Path(folder, name).read_bytes())
            except (OSError, ValueError, RecursionError):  # whoever reads the store will complain
                continue
            if any(codec.rpartition(".")[2] == "pickle" for codec in _codecs(about)):
                raise UsageError(
                    f"{os.path.join(folder, name)!r} names pickled objects, which run code when "
                    "they are read; nothing was read. Ask for the data in another form."
                )


def _codecs(about: Any) -> Iterator[str]:
    """Names of all codecs in the metadata of an array, those within others too."""
    if isinstance(about, list):
        for each in about:
            yield from _codecs(each)
    elif isinstance(about, dict):
        yield from (str(about[key]).strip().lower() for key in ("id", "name") if key in about)
        for key, each in about.items():
            if key not in ("attributes", ".zattrs"):
                yield from _codecs(each)


def _itemsize(dtype: Any) -> int:
    try:
        return max(np.dtype(dtype).itemsize, 1)
    except TypeError:  # texts of any length, and types that a file defines
        return 8


def check_declared(
    variables: Sequence[Declared], place: str, path: str, which: str, lazily: bool
) -> None:
    """Raise where a file is larger than memory, or declares data that it does not have.

    Parameters
    ----------
    variables
        As from :func:`declared`.
    place, path
        Where the file is, and what the user calls it.
    which
        What the data is called in errors.
    lazily
        Whether the data stays on disk; its coordinates come into memory all the same.
    """
    if not variables:
        return
    total = sum(v.nbytes for v in variables)
    largest = max(variables, key=lambda v: v.nbytes)
    is_store = os.path.isdir(place)
    if total > LEAST_SUSPECT:
        suspect = int(total / EMPTIEST[is_store])
        stored = _stored_bytes(place, suspect)
        if stored < suspect:
            raise UsageError(
                f"the {which} file {path!r} declares {shown_bytes(total)} of values ({largest}) in "
                f"{shown_bytes(stored)} on disk, so hardly any were written; cut it to what is "
                "there."
            )
    needed = sum(v.nbytes for v in variables if not lazily or len(v.shape) < 2)
    memory = available_memory()
    if needed > memory:
        raise UsageError(
            f"the {which} file {path!r} does not fit into memory: {shown_bytes(needed)} of values "
            f"({largest}), {shown_bytes(memory)} free; cut it to the region, times and variables "
            "that are needed."
        )


def _stored_bytes(place: str, enough: int) -> int:
    """Size on disk; of a store, until it is known to be enough."""
    if not os.path.isdir(place):
        return os.path.getsize(place)
    total = 0
    for folder, _, names in os.walk(place):
        for name in names:
            total += os.lstat(os.path.join(folder, name)).st_size
            if total > enough:
                return total
    return total
