"""Files looked at before any of their values is read: whole, without code in them, not too large.

A file of a few kilobytes can declare more cells than any memory has, a classic one that was cut off
reads as zeros, and a Zarr store can name a codec that runs what it finds.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import xarray as xr
from scipy.io import netcdf_file

from deconditional.errors import UsageError
from deconditional.fields.io.memory import available_memory, shown_bytes


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


def refuse_pickles(place: str) -> None:
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


def check_memory(data: xr.Dataset, path: str, which: str) -> None:
    """Raise where the values of an open file do not fit into memory."""
    needed, memory = data.nbytes, available_memory()
    if needed > memory:
        largest = max(data.variables, key=lambda name: data[name].nbytes)
        shape = " x ".join(map(str, data[largest].shape)) or "one"
        raise UsageError(
            f"the {which} file {path!r} does not fit into memory: {shown_bytes(needed)} of values "
            f"({str(largest)!r} has {shape} values), {shown_bytes(memory)} free; cut it to the "
            "region, times and variables that are needed."
        )
