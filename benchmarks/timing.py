"""Clocks of the benchmarks: the speed of `exp` and of products, processes of their own, memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deconditional.errors import UsageError
from studies.clock import best_seconds

__all__ = [
    "array_exp_rate",
    "available_cores",
    "device_name",
    "exp_on_tiles",
    "exp_rate",
    "in_own_process",
    "matmul_rate",
    "peak_bytes",
]


def exp_rate(dtype: Any, budget: float) -> float:
    """Values of `exp` per second, the best over two tile sizes; sums in place, nothing stored."""
    return max(_tile_exp_rate(dtype, shape, budget) for shape in ((256, 512), (512, 2048)))


def _tile_exp_rate(dtype: Any, shape: tuple[int, int], budget: float) -> float:
    call, values = exp_on_tiles(dtype, shape)
    return values / best_seconds(call, budget)


def exp_on_tiles(dtype: Any, shape: tuple[int, int] = (256, 512)) -> tuple[Any, int]:
    """A call of `exp` on one tile over and over, and how many values that makes."""
    start = jnp.asarray(np.random.default_rng(0).standard_normal(shape), dtype)
    # A GPU is done with a small number before its clock has begun.
    values = 2**25 if jax.default_backend() == "cpu" else 2**31
    repeats = max(1, values // start.size)

    @jax.jit
    def many(tile: jax.Array) -> jax.Array:
        def body(i: Any, total: jax.Array) -> jax.Array:
            return total + jnp.exp(tile - 1e-3 * i.astype(tile.dtype))

        return jax.lax.fori_loop(0, repeats, body, jnp.zeros_like(tile))

    return partial(many, start), start.size * repeats


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


def in_own_process(command: list[str], cores: int | None = None, cache: Path | None = None) -> str:
    """Standard output of a new Python process that shares no compiled code with this one.

    Parameters
    ----------
    command
        What follows ``python``.
    cores
        Keep it, and its threads, to so many of this process's cores.
    cache
        Folder for compiled code; none is read or written without it.
    """
    allowed = available_cores()
    threads = len(allowed) if cores is None else cores
    if threads > len(allowed):
        raise UsageError(f"{cores} cores were asked for; this process may use {len(allowed)}.")
    limited = threads < len(allowed)
    if limited and not hasattr(os, "sched_setaffinity"):
        raise UsageError("this system cannot keep a process to some cores; leave cores out.")
    environment = {**os.environ, "DECONDITIONAL_CACHE": "off"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    if cache is not None:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(cache)
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment[name] = str(threads)
    given = [sys.executable, *command]
    try:
        if limited:  # a child begins with its parent's cores, before it starts any thread
            os.sched_setaffinity(0, allowed[:threads])
        done = subprocess.run(given, capture_output=True, text=True, env=environment, check=False)
    finally:
        if limited:
            os.sched_setaffinity(0, allowed)
    if done.returncode:
        raise RuntimeError(
            f"python {' '.join(command)} failed with code {done.returncode}:\n{done.stderr}"
        )
    return done.stdout


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
