"""JAX set up for this package: importing this module does it, once, for everything that computes.

The small dense algebra needs 64-bit mode. Products of float32 matrices must keep all their digits:
an accelerator may round their factors to ten bits unless told otherwise. A user's own choice of
``jax_default_matmul_precision`` stays.

Compiled functions are kept on disk, so that the second process with problems of the same shapes
starts fast. The folder is ``deconditional/compiled`` in the user's cache folder
(``$XDG_CACHE_HOME``, else ``~/.cache``), bounded in size, with one part for every kind of
processor: machines that share a home need not understand each other's code. A user who sets
``JAX_COMPILATION_CACHE_DIR`` is obeyed, and ``DECONDITIONAL_CACHE=off`` keeps nothing.

A loop over kernel tiles keeps one core busy, however many there are. So JAX is told to make several
devices of the processor, over which :mod:`deconditional.kernels.devices` spreads large problems. It
makes them when it first looks for devices, which importing GPJax has it do: packages that import
GPJax import this module before. Other code in the process sees the devices in ``jax.devices()``,
and goes on computing on the first one. ``DECONDITIONAL_CORES`` is how many there are to be, and 1
leaves JAX as it is; so do settings of JAX's own for the same.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache
from threadpoolctl import threadpool_limits

from deconditional.errors import UsageError

SWITCH = "DECONDITIONAL_CACHE"
CORES = "DECONDITIONAL_CORES"
SIZE = "JAX_COMPILATION_CACHE_MAX_SIZE"
LEAST = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"

LARGEST = 128 * 2**20
"""Bytes; beyond, what has not been used for longest is dropped."""

SHORTEST = 0.05
"""Seconds of compilation worth keeping: a fit compiles many short functions."""

FLAG = "--xla_force_host_platform_device_count"

MOST_DEVICES = 8
"""Devices of a processor: 16 of 16 cores were slower, for devices wait for one another."""


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Where compiled functions go.

    Examples
    --------
    >>> cache_folder({"XDG_CACHE_HOME": "/big/cache"}).parent.as_posix()
    '/big/cache/deconditional/compiled'
    """
    given = (os.environ if environment is None else environment).get("XDG_CACHE_HOME", "")
    # The specification says that a relative path is to be ignored.
    home = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    kind = hashlib.sha256(_instructions().encode()).hexdigest()[:10]
    return home / "deconditional" / "compiled" / kind


def _instructions() -> str:
    """What the processor understands, as far as the system says."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    return "\n".join([platform.machine(), *sorted(set(found) or {platform.processor()})])


def keep_compiled() -> Path | None:
    """Have JAX keep what it compiles from here on; the folder, or None where nothing is kept.

    Nothing is kept where the folder cannot be written, or where filelock, which JAX needs to bound
    its size, is missing.
    """
    wanted = os.environ.get(SWITCH, "on").strip().lower()
    if wanted not in ("on", "off", ""):
        raise UsageError(f"{SWITCH} must be on or off, not {wanted!r}.")
    chosen_by_user = bool(jax.config.jax_compilation_cache_dir)  # type: ignore[attr-defined]
    if wanted == "off" or chosen_by_user or importlib.util.find_spec("filelock") is None:
        return None
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError):  # a user without a home has no folder either
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if SIZE not in os.environ:
        jax.config.update("jax_compilation_cache_max_size", LARGEST)
    if LEAST not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)
    compilation_cache.reset_cache()  # JAX decides once, at its first compilation, whether to keep
    return folder


def use_cores(n: int | None = None) -> int:
    """Have JAX make so many devices of the processor, one for every core by default; their number.

    Nothing changes where JAX has started, or was told otherwise.
    """
    given = os.environ.get(CORES, "").strip()
    if given and not (given.isdecimal() and int(given) > 0):
        raise UsageError(f"{CORES} must be a number of cores, not {given!r}.")
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    wanted = n or int(given or 0) or min(MOST_DEVICES, there or 1)
    if FLAG in os.environ.get("XLA_FLAGS", "") or "JAX_NUM_CPU_DEVICES" in os.environ:
        return 1
    try:
        jax.config.update("jax_num_cpu_devices", wanted)
    except RuntimeError:  # JAX has started
        return 1
    return wanted


def start_threads(n: int) -> None:
    """Start JAX in this process with n threads, which may run on any core.

    XLA starts its threads when JAX first looks for devices, and importing GPJax makes it look:
    nothing here may import it, and so what is sent to another process may name this module, but
    not one above.
    """
    threadpool_limits(n)
    use_cores(n)
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:n])
    try:
        jax.devices()
    finally:
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):
                os.sched_setaffinity(int(thread), cores)


jax.config.update("jax_enable_x64", True)
if jax.config.jax_default_matmul_precision is None:  # type: ignore[attr-defined]
    jax.config.update("jax_default_matmul_precision", "highest")
keep_compiled()
use_cores()
