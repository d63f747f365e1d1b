"""How long a call takes when nothing disturbs it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax

__all__ = ["best_seconds"]


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
