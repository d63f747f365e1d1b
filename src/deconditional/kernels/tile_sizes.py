"""Sizes of kernel tiles: a table of what suits the device and the number of points.

A tile is what :mod:`deconditional.kernels.sweeps` works on at a time. Two cores want tiles that
stay in their caches and distances by matrix product; an accelerator wants tiles large enough to
fill it, and distances by differences, which it makes and reduces without writing them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

import deconditional.kernels.jax_setup  # noqa: F401

FORMS = ("product", "differences")


@dataclass(frozen=True)
class Tiles:
    """Points per tile of rows and of columns, and the form that distances take.

    Attributes
    ----------
    rows, columns
        One divides the other, and both are powers of two.
    form
        ``"product"`` or ``"differences"``; see :mod:`deconditional.kernels.tiles`.
    """

    rows: int
    columns: int
    form: str

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            size = getattr(self, name)
            if type(size) is not int or not 64 <= size <= 2**20 or size & (size - 1):
                raise ValueError(f"{name} must be a power of two from 64 to 2²⁰, not {size!r}.")
        if self.form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, not {self.form!r}.")

    @property
    def block(self) -> int:
        """The larger of the two: what the whole is a multiple of."""
        return max(self.rows, self.columns)


# --------------------------------------------------------------------------- the device


def _device() -> Any:
    """The device that a computation goes to by default."""
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined]
    if chosen is None:
        return jax.local_devices()[0]
    return jax.local_devices(backend=chosen)[0] if isinstance(chosen, str) else chosen


def is_accelerator() -> bool:
    """Whether computations go to something other than the processor."""
    return _device().platform != "cpu"


# --------------------------------------------------------------------------- the table


def tiles_for(n: int, accelerator: bool | None = None) -> Tiles:
    """Tiles that suit a number of points.

    Examples
    --------
    >>> tiles_for(5_000, accelerator=False)
    Tiles(rows=64, columns=128, form='product')
    >>> tiles_for(100_000, accelerator=True).form
    'differences'
    """
    if is_accelerator() if accelerator is None else accelerator:
        return Tiles(8192, 8192, "differences")
    # 64 KiB in the precision that such problems have by default, and next to no padding: all that
    # is made of a tile stays in the cache of one core. Larger tiles take a third longer.
    return Tiles(64, 128 if n <= 8192 else 256, "product")
