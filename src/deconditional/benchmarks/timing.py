"""Timing and output shared by the benchmarks."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from deconditional.outputs import write_atomically

__all__ = ["best_seconds", "peak_bytes", "write_json"]


def best_seconds(call: Callable[[], Any], budget: float = 3.0, least: int = 3) -> float:
    """The fastest of several calls, after one that compiles; `budget` bounds the time spent."""
    jax.block_until_ready(call())
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < least or (time.perf_counter() - began < budget and len(times) < 50):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return min(times)


def write_json(result: dict[str, Any], out: str | Path | None) -> None:
    """Write a result atomically, if a path was given."""
    if out is None:
        return
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(result, indent=2) + "\n")


def peak_bytes() -> int:
    """Peak resident memory of this process.

    Linux counts the parent's memory into ru_maxrss of a new process, but not into VmHWM.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    except (OSError, StopIteration):
        unit = 1024 if sys.platform.startswith("linux") else 1
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
