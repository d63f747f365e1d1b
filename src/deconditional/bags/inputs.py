"""What users give as bags (points, names, mediators), checked, with errors in their words."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from deconditional.errors import shortened

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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


def names_of(ids: Sequence[Hashable] | None, n_bags: int) -> tuple[Hashable, ...]:
    """Names of bags that are counted already: their ids, or 0 to N-1."""
    names = unique_names(range(n_bags) if ids is None else ids)
    if len(names) != n_bags:
        raise ValueError(f"{n_bags} bags came with {len(names)} ids; give one id per bag.")
    return names


def bags_of_labels(
    labels: npt.NDArray[Any], n_points: int, ids: Sequence[Hashable] | None, mediator: Any
) -> tuple[tuple[Hashable, ...], Ints]:
    """The names of the bags, and the bag of every point as an index into them."""
    if labels.shape != (n_points,):
        raise ValueError(
            f"bag_of must name one bag per point: {n_points} points came with "
            f"bag_of of shape {labels.shape}."
        )
    counted = ids is None and not isinstance(mediator, Mapping) and labels.dtype.kind in "iu"
    if counted and labels.min() >= 0 and labels.max() >= n_points:
        # Among more bags than points one is empty: found without counting all of them.
        empty = int(np.setdiff1d(np.arange(n_points), labels)[0])
        raise ValueError(
            f"bag {empty!r} is empty: no point belongs to it, but bag_of counts up to "
            f"{int(labels.max())}. Number bags from 0 without gaps, or pass ids=[...]."
        )
    names = _bag_names(labels, ids, mediator)
    index = {name: j for j, name in enumerate(names)}
    unknown = [label for label in dict.fromkeys(labels.tolist()) if label not in index]
    if unknown:
        raise ValueError(
            f"bag {unknown[0]!r} is used in bag_of but is not one of the {len(names)} bags "
            f"given ({some(names)}). Add it to `ids` and `mediator`, or drop its points."
        )
    bag = np.array([index[label] for label in labels.tolist()], dtype=np.int64)
    return names, bag


def _bag_names(
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


def some(items: Sequence[Any]) -> str:
    """The first few items, for a message."""
    return ", ".join(map(repr, items[:6])) + (", ..." if len(items) > 6 else "")


def points_of_list(
    bags: Sequence[npt.ArrayLike],
    weights: Sequence[npt.ArrayLike] | None,
    names: tuple[Hashable, ...],
) -> tuple[Floats, list[int], Floats | None]:
    """Points of a list of bags in one array, how many each bag has, and their weights."""
    if not bags:
        raise ValueError("no bags were given: the list is empty.")
    arrays: list[Floats] = []
    for name, values in zip(names, bags, strict=True):
        if getattr(values, "size", len(values) if isinstance(values, Sequence) else 1) == 0:
            raise ValueError(f"bag {name!r} is empty. Drop it, and its mediator, or fill it.")
        arrays.append(points_array(values, f"bag {name!r}"))
        if arrays[-1].shape[1] != arrays[0].shape[1]:
            raise ValueError(
                f"bag {name!r} has {arrays[-1].shape[1]} covariates, bag {names[0]!r} has "
                f"{arrays[0].shape[1]}; every bag needs the same covariates."
            )
    sizes = [len(array) for array in arrays]
    if weights is None:
        return np.concatenate(arrays), sizes, None
    if len(weights) != len(bags):
        raise ValueError(f"{len(bags)} bags came with weights for {len(weights)} bags.")
    for name, size, given in zip(names, sizes, weights, strict=True):
        if np.shape(given) != (size,):
            raise ValueError(
                f"bag {name!r} has {size} points but weights of shape {np.shape(given)}."
            )
    flat = np.concatenate([np.asarray(given, dtype=float) for given in weights])
    return np.concatenate(arrays), sizes, flat


def weights_within(
    x: Floats, bag: Ints, weights: npt.ArrayLike | None, names: tuple[Hashable, ...]
) -> Floats:
    """Weights that sum to one within each bag, once every bag is known to have sound points."""
    counts = np.bincount(bag, minlength=len(names))
    if not counts.all():
        raise ValueError(
            f"bag {names[int(np.argmin(counts))]!r} is empty: no point belongs to it. "
            "Drop it, and its mediator, or give it points."
        )
    finite = np.isfinite(x).all(axis=1)
    if not finite.all():
        worst = int(np.argmin(finite))
        raise ValueError(
            f"bag {names[bag[worst]]!r} has a point with a missing or infinite covariate "
            f"({x[worst].tolist()}). Drop such points first."
        )
    w = _by_point(weights, "weight", bag, names)
    totals = np.bincount(bag, weights=w, minlength=len(names))
    if not (totals > 0).all():
        raise ValueError(
            f"the weights of bag {names[int(np.argmin(totals))]!r} sum to zero, so its mean is "
            "undefined. Drop the bag or correct its weights."
        )
    return w / totals[bag]


def _by_point(
    values: npt.ArrayLike | None, what: str, bag: Ints, names: tuple[Hashable, ...]
) -> Floats:
    """Weights or exposures, one for each point; ones where none are given."""
    w = np.ones(len(bag)) if values is None else np.asarray(values, dtype=float)
    if w.shape != bag.shape:
        raise ValueError(
            f"{len(bag)} points came with {what}s of shape {w.shape}; give one to every point."
        )
    bad = ~(np.isfinite(w) & (w >= 0))
    if bad.any():
        worst = int(np.argmax(bad))
        raise ValueError(
            f"bag {names[bag[worst]]!r} has a point with {what} {w[worst]}; {what}s are finite and "
            "not negative."
        )
    return w


def amounts_within(
    bag: Ints,
    weights: npt.ArrayLike | None,
    exposure: npt.ArrayLike,
    names: tuple[Hashable, ...],
) -> tuple[Floats, Floats]:
    """Weights of points that have amounts, and the amount of every bag in all."""
    amount = _by_point(exposure, "exposure", bag, names)
    share = _by_point(weights, "weight", bag, names)
    totals = np.bincount(bag, amount * share, len(names)).astype(float)
    has_points = np.bincount(bag, minlength=len(names)) > 0
    if (has_points & (totals == 0)).any():
        raise ValueError(
            f"bag {names[int(np.argmax(has_points & (totals == 0)))]!r} has no exposure at all: "
            "that of each of its points is zero. Drop the bag and its observation, or correct its "
            "exposure."
        )
    return amount * share, totals


def check_possible(
    points: Floats,
    bag: Ints,
    weights: Floats,
    ids: tuple[Hashable, ...],
    mediator: Floats | None,
    point: Ints,
    exposure: Floats | None = None,
) -> None:
    """Raise where arrays that a file has cannot be those of bags."""
    counts = {len(each) for each in (points, bag, weights, point)}
    n = len(set(ids))
    if len(counts) > 1 or n != len(ids) or set(bag.tolist()) != set(range(n)):
        raise ValueError("its bags do not have a label each, or no points")
    if mediator is not None and (mediator.ndim, len(mediator)) != (2, n):
        raise ValueError("its bags do not have a mediator each")
    if exposure is not None and (exposure.shape != (n,) or not (exposure > 0).all()):
        raise ValueError("its bags do not have an exposure each")
    positive = np.isfinite(weights) & (weights >= 0)
    if points.ndim != 2 or not (np.isfinite(points).all() and positive.all()):
        raise ValueError("its bags have points or weights that are no numbers")


# --------------------------------------------------------------------------- tables


def columns_of(frame: Any, bag: str, columns: Sequence[str]) -> Floats:
    """Columns of a table as numbers, once it is known to have them and a bag for every row."""
    there = list(frame.columns)
    for name in [bag, *columns]:
        if name not in there:
            raise ValueError(f"the table has no column {name!r}; it has {some(there)}.")
        if there.count(name) > 1:
            raise ValueError(
                f"the table has {there.count(name)} columns {name!r}; rename all but one."
            )
    if not len(frame):
        raise ValueError("the table has no rows, so there are no bags.")
    if frame[bag].isna().any():
        raise ValueError(f"column {bag!r} has missing values: every point needs a bag.")
    return _numbers(frame, columns)


def constant_within(
    values: Floats, codes: npt.NDArray[Any], names: tuple[Hashable, ...], columns: Sequence[str]
) -> Floats:
    """One row of values for each bag, whose rows must agree."""
    first = np.unique(codes, return_index=True)[1]
    of_bag = values[first][codes]
    agrees = ((values == of_bag) | (np.isnan(values) & np.isnan(of_bag))).all(axis=1)
    if not agrees.all():
        raise ValueError(
            f"bag {names[codes[~agrees][0]]!r} has more than one value of its mediators "
            f"{list(columns)}; a bag has one mediator. Average it over the bag first."
        )
    return values[first]


def _numbers(frame: Any, columns: Sequence[str]) -> Floats:
    """Columns of a table as floats, or which of them has what else."""
    numbers = np.empty((len(frame), len(columns)))
    for k, name in enumerate(columns):
        values = frame[name]
        kind = getattr(values.dtype, "kind", "O")
        try:
            if kind in "cMm":
                raise TypeError(f"{values.dtype} values")
            numbers[:, k] = values.to_numpy(dtype=float, na_value=np.nan)
        except (TypeError, ValueError):
            odd = next((v for v in values.tolist() if not _is_number(v)), values.dtype)
            raise ValueError(
                f"column {name!r} must hold numbers, and has {shortened(repr(odd), 60)}; convert "
                "it, or drop its rows."
            ) from None
    return numbers


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
