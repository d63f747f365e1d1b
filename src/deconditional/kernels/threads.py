"""Threads of compiled code, where a process is given fewer than there are cores.

XLA starts its threads when JAX first looks for devices, and importing GPJax makes it look: nothing
here may import it, and so what is sent to another process may name this module, but not one above.
"""

from __future__ import annotations

import os
from contextlib import suppress

import jax
from threadpoolctl import threadpool_limits

from deconditional.kernels.jax_setup import use_cores


def start_threads(n: int) -> None:
    """Start JAX in this process with n threads, which may run on any core."""
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
