"""What users give as bags (points, names, mediators), checked, with errors in their words."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "bag_names", "mediator_array", "points_array", "some", "unique_names"]

Floats = npt.NDArray[np.float64]


def points_array(x: npt.ArrayLike, what: str = "the points") -> Floats:
    """Points by covariates, as floats."""
    try:
        array = np.asarray(x, dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} must be numbers: {error}") from None
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.size == 0:
        raise ValueError(
            f"{what} must be an array of points by covariates with at least one of each; "
            f"its shape is {array.shape}."
        )
    return array


def unique_names(ids: Any) -> tuple[Hashable, ...]:
    """Ids as given, each once."""
    names = tuple(ids)
    seen: set[Hashable] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"bag id {name!r} is given twice; ids must be unique.")
        seen.add(name)
    return names


def bag_names(
    labels: npt.NDArray[Any], ids: Sequence[Hashable] | None, mediator: Any
) -> tuple[Hashable, ...]:
    """The bags' names in the order of their mediators."""
    if ids is not None:
        return unique_names(ids)
    if isinstance(mediator, Mapping):
        return unique_names(mediator)
    if np.issubdtype(labels.dtype, np.integer):
        n_bags = int(labels.max(initial=-1)) + 1
        if labels.min(initial=0) < 0:
            raise ValueError(
                f"bag {int(labels.min())} is negative; whole-number bags count from 0."
            )
        return tuple(range(max(n_bags, 0 if mediator is None else len(mediator))))
    if np.issubdtype(labels.dtype, np.floating):
        raise ValueError("bag_of holds fractions; bags are whole numbers from 0 or labels.")
    names = tuple(sorted(dict.fromkeys(labels.tolist())))
    if mediator is not None:
        raise ValueError(
            "with labels as bags, say in which order the mediator comes: pass ids=[...], or "
            "mediator as a mapping from label to value."
        )
    return names


def mediator_array(mediator: Any, names: tuple[Hashable, ...]) -> Floats | None:
    """One row of mediators per bag."""
    if mediator is None:
        return None
    if isinstance(mediator, Mapping):
        absent = [name for name in names if name not in mediator]
        if absent:
            raise ValueError(f"bag {absent[0]!r} has no mediator.")
        mediator = [mediator[name] for name in names]
    array = np.asarray(mediator, dtype=float)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or len(array) != len(names):
        raise ValueError(
            f"{len(names)} bags came with mediators of shape {np.shape(mediator)}; give one row "
            "per bag."
        )
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"the mediator of bag {names[int(np.argmin(finite))]!r} is missing or infinite."
        )
    return array


def some(items: Sequence[Any], most: int = 6) -> str:
    """The first few items, for a message."""
    shown = ", ".join(repr(item) for item in items[:most])
    return shown + (", ..." if len(items) > most else "")
