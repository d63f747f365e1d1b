"""Timing, machine description and output shared by the benchmarks."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from deconditional import __version__

__all__ = ["best_seconds", "machine", "write_json"]


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


def machine() -> dict[str, Any]:
    """What the numbers were measured on, and with which versions."""
    return {
        "date": date.today().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        "deconditional": __version__,
        **{name: version(name) for name in ("jax", "jaxlib", "gpjax", "numpy")},
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def write_json(result: dict[str, Any], out: str | Path | None) -> None:
    """Write a result atomically, if a path was given."""
    if out is None:
        return
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(result, indent=2) + "\n")
    os.replace(partial, path)
