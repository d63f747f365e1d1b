"""Memory that can still be had, and sizes for reading."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path


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
