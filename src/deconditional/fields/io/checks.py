"""Files looked at before any of their values is read: whole, without code in them, not too large.

A file of a few kilobytes can declare more cells than any memory has, a classic one that was cut off
reads as zeros, and a Zarr store can name a codec that runs what it finds.
"""

from __future__ import annotations

import json
import math
import os
import re
from contextlib import suppress
from pathlib import Path

import xarray as xr
from scipy.io import netcdf_file

from deconditional.errors import UsageError


def available_memory() -> float:
    """Bytes that can still be had, as far as the system says; infinite where it does not."""
    limits = [math.inf]
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits += [1024.0 * int(x.split()[1]) for x in lines if x.startswith("MemAvailable:")]
    if len(limits) == 1 and hasattr(os, "sysconf"):
        with suppress(OSError, ValueError):
            limits.append(float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    with suppress(OSError, ValueError):  # no limit, or no such system
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text(encoding="ascii"))
        limits.append(float(most - int((group / "memory.current").read_text(encoding="ascii"))))
    return min(limits)


def shown_bytes(n: float) -> str:
    """Size in bytes as people write it.

    Examples
    --------
    >>> shown_bytes(8e12), shown_bytes(1234)
    ('8 TB', '1.23 kB')
    """
    for power, unit in ((18, "EB"), (15, "PB"), (12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if n >= 10**power:
            return f"{n / 10**power:.3g} {unit}"
    return f"{n:.0f} B"


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


def check_room(needed: float, what: str, remedy: str) -> None:
    """Raise where memory has no room for something that takes so many bytes."""
    free = available_memory()
    if needed > free:
        raise UsageError(
            f"{what} does not fit into memory: {shown_bytes(needed)} of values, where "
            f"{shown_bytes(free)} are free; {remedy}."
        )


def check_memory(data: xr.Dataset, path: str, which: str) -> None:
    """Raise where the values of an open file do not fit into memory."""
    largest = max(data.variables, key=lambda name: data[name].nbytes, default="")
    shape = " x ".join(map(str, data[largest].shape if largest in data else ())) or "one"
    remedy = "cut it to the region, times and variables that are needed"
    what = f"the {which} file {path!r}"
    check_room(data.nbytes, what, f"{str(largest)!r} has {shape} values; {remedy}")
