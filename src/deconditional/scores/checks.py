"""Checks of what is to be scored: numbers, finite, one for each value of truth."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def matched(**arrays: npt.ArrayLike) -> tuple[Floats, ...]:
    """The arrays, flat, once they are finite and of one shape."""
    checked = {name: finite(name, values) for name, values in arrays.items()}
    shapes = {values.shape for values in checked.values()}
    if len(shapes) > 1:
        given = ", ".join(f"{name} {values.shape}" for name, values in checked.items())
        raise ValueError(f"one value is needed for each value of truth; the shapes are {given}.")
    return tuple(values.ravel() for values in checked.values())


def finite(name: str, values: npt.ArrayLike) -> Floats:
    """An array of numbers, once there are some and all are finite."""
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers.") from None
    if array.size == 0:
        raise ValueError(f"{name} is empty: there is nothing to score.")
    bad = ~np.isfinite(array)
    if bad.any():
        raise ValueError(
            f"{name} has {int(bad.sum())} missing or infinite value(s) of {array.size}, the first "
            f"at position {int(np.argmax(bad.ravel()))}. Drop these points from every argument."
        )
    return array


def not_negative(name: str, values: Floats) -> None:
    """Raise where a spread is negative."""
    if (values < 0).any():
        raise ValueError(f"{name} has a negative value ({values.min():g}); a spread has none.")
