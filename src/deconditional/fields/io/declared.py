"""What files say they hold, looked at before any of it is read.

A file of a few kilobytes can declare more cells than any memory has, and a Zarr store can name a
codec that runs what it finds. Both are seen in the metadata alone.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.io import netcdf_file

from deconditional.errors import UsageError
from deconditional.fields.io.memory import available_memory, shown_bytes

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

    @classmethod
    def of(cls, name: Any, variable: Any, attrs: Mapping[str, Any]) -> Declared:
        """A variable as a library shows it; raises where what links it with others is no text."""
        for key in LINKS:
            if key in attrs and not isinstance(attrs[key], str):
                raise ValueError(f"the attribute {key!r} of {name!r} is no text")
        try:
            itemsize = max(np.dtype(variable.dtype).itemsize, 1)
        except TypeError:  # texts of any length, and types that a file defines
            itemsize = 8
        return cls(str(name), tuple(variable.shape), itemsize)


def declared(place: str, is_store: bool) -> list[Declared]:
    """The variables that a netCDF file or a Zarr store declares."""
    if is_store:
        import zarr

        _refuse_pickles(place)
        arrays = zarr.open_group(place, mode="r").arrays()
        return [Declared.of(name, array, dict(array.attrs)) for name, array in arrays]
    import netCDF4

    check_whole(place)
    with netCDF4.Dataset(place) as file:
        return [Declared.of(name, v, v.__dict__) for name, v in file.variables.items()]


def check_whole(place: str) -> None:
    """Raise where a file of the classic format lacks its end, where netCDF4 would read zeros.

    SciPy maps every variable to where its header says it lies, and reads none. It does not know
    files of 64-bit data, which are believed.
    """
    with open(place, "rb") as file:
        if file.read(4) not in (b"CDF\x01", b"CDF\x02"):
            return
    try:
        netcdf_file(place, mmap=True).close()
    except Exception:  # whatever nonsense in a header leads to
        raise ValueError("it is cut short, or its header is damaged") from None


def _refuse_pickles(place: str) -> None:
    """Raise where a codec would run what it finds."""
    folders = [place, *(entry.path for entry in os.scandir(place) if entry.is_dir())]
    for path in (Path(f, n) for f in folders for n in ("zarr.json", ".zarray", ".zmetadata")):
        try:
            plain = json.dumps(json.loads(path.read_bytes()))  # one way to write every letter
        except (OSError, ValueError, RecursionError):  # whoever reads the store will complain
            continue
        if re.search(r'"(id|name)": "\s*([^"]*\.)?pickle\s*"', plain, re.IGNORECASE):
            raise UsageError(
                f"{str(path)!r} names pickled objects, which run code when they are read; nothing "
                "was read. Ask for the data in another form."
            )


def check_declared(variables: Sequence[Declared], path: str, which: str, lazily: bool) -> None:
    """Raise where a file is larger than memory.

    Parameters
    ----------
    variables
        As from :func:`declared`.
    path, which
        What the user calls the file, and what to call the data in errors.
    lazily
        Whether the data stays on disk; its coordinates come into memory all the same.
    """
    read = [v for v in variables if not lazily or len(v.shape) < 2]
    needed, memory = sum(v.nbytes for v in read), available_memory()
    if needed > memory:
        largest = max(read, key=lambda v: v.nbytes)
        shape = " x ".join(map(str, largest.shape)) or "one"
        raise UsageError(
            f"the {which} file {path!r} does not fit into memory: {shown_bytes(needed)} of values "
            f"({largest.name!r} has {shape} values), {shown_bytes(memory)} free; cut it to the "
            "region, times and variables that are needed."
        )
