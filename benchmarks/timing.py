"""What the benchmarks share: clocks, the speed of `exp`, processes of their own, output."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from deconditional.kernels.compilation_cache import without_cache
from rich.console import Console

from deconditional.errors import UsageError
from deconditional.saving.outputs import write_atomically

__all__ = [
    "array_exp_rate",
    "available_cores",
    "best_seconds",
    "console",
    "device_name",
    "exp_rate",
    "in_own_process",
    "matmul_rate",
    "peak_bytes",
    "write_json",
]


WIDTH = 120
"""Columns of a table that goes to a file or a pipe."""


def console() -> Console:
    """Where tables go; a pipe has no width, and 80 columns would break their words."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=max(WIDTH, plain.width))


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


def exp_rate(dtype: Any, budget: float) -> float:
    """Values of `exp` per second, the best over two tile sizes; sums in place, nothing stored."""
    return max(_tile_exp_rate(dtype, shape, budget) for shape in ((256, 512), (512, 2048)))


def _tile_exp_rate(dtype: Any, shape: tuple[int, int], budget: float) -> float:
    start = jnp.asarray(np.random.default_rng(0).standard_normal(shape), dtype)
    # A GPU is done with a small number before its clock has begun.
    values = 2**25 if jax.default_backend() == "cpu" else 2**31
    repeats = max(1, values // start.size)

    @jax.jit
    def many(tile: jax.Array) -> jax.Array:
        def body(i: Any, total: jax.Array) -> jax.Array:
            return total + jnp.exp(tile - 1e-3 * i.astype(tile.dtype))

        return jax.lax.fori_loop(0, repeats, body, jnp.zeros_like(tile))

    return start.size * repeats / best_seconds(partial(many, start), budget)


def array_exp_rate(dtype: Any, budget: float) -> float:
    """Values of `exp` per second over an array that does not fit in cache."""
    array = jnp.asarray(np.random.default_rng(0).standard_normal((4096, 4096)), dtype)
    return array.size / best_seconds(partial(jax.jit(jnp.exp), array), budget)


def matmul_rate(dtype: Any, budget: float) -> float:
    """Multiplications and additions per second in products of 4096 x 512 and 512 x 512."""
    rng = np.random.default_rng(0)
    left, right = (jnp.asarray(rng.standard_normal(s), dtype) for s in ((4096, 512), (512, 512)))
    return 2.0 * left.size * 512 / best_seconds(partial(jax.jit(jnp.matmul), left, right), budget)


def device_name() -> str:
    """What computes, with the number of cores or devices."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return f"CPU, {len(available_cores())} core(s)"
    count = len(jax.devices())
    return device.device_kind if count == 1 else f"{count} x {device.device_kind}"


def available_cores() -> list[int]:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def in_own_process(
    command: list[str],
    cores: int | None = None,
    cache: Path | None = None,
    extra: Mapping[str, str] | None = None,
) -> str:
    """Standard output of a new Python process that shares no compiled code with this one.

    Parameters
    ----------
    command
        What follows ``python``.
    cores
        Keep it, and its threads, to so many of this process's cores.
    cache
        Folder for compiled code; none is read or written without it.
    extra
        Further environment variables.
    """
    environment = without_cache(os.environ)
    if cache is not None:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(cache)
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    threads = len(available_cores()) if cores is None else cores
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment[name] = str(threads)
    environment |= extra or {}
    allowed = available_cores()
    if cores is not None and cores > len(allowed):
        raise UsageError(f"{cores} cores were asked for; this process may use {len(allowed)}.")
    limited = cores is not None and cores < len(allowed)
    if limited and not hasattr(os, "sched_setaffinity"):
        raise UsageError("this system cannot keep a process to some cores; leave cores out.")
    try:
        if limited:  # a child begins with its parent's cores, before it starts any thread
            os.sched_setaffinity(0, allowed[:cores])
        started = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
    finally:
        if limited:
            os.sched_setaffinity(0, allowed)
    with started:
        try:
            printed, complaint = started.communicate()
        except BaseException:
            started.kill()
            raise
    if started.returncode:
        raise RuntimeError(
            f"python {' '.join(command)} failed with code {started.returncode}:\n{complaint}"
        )
    return printed


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
