"""Whether values fit the annotations of a class: what a file says is checked against them."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from jax import Array
from jaxtyping import jaxtyped
from paramax import AbstractUnwrappable

NUMBERS = {
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (int, float, np.integer, np.floating),
    str: (str,),
}


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """Annotations of a class by the name of the attribute; empty where they cannot be resolved."""
    try:
        return get_type_hints(kind)
    except (NameError, TypeError):  # of names that only type checkers see
        return {}


def misfit(kind: type, values: Mapping[str, Any]) -> str | None:
    """The name of an attribute whose value does not fit its annotation; None where all do.

    Dimensions that have a name, as in ``Float[Array, "N M"]``, must have one size in all of them.
    """
    hints = hints_of(kind)
    with jaxtyped("context"):
        return next((k for k, v in values.items() if k in hints and not _fits(v, hints[k])), None)


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in arguments)
    if origin is not None:
        return _fits_generic(value, origin, arguments)
    if hint is None or hint is types.NoneType:
        return value is None
    if hint in NUMBERS:
        wanted = isinstance(value, NUMBERS[hint])
        return wanted and (hint is bool or not isinstance(value, bool))
    if hint is AbstractUnwrappable:  # the kernels of a posterior have plain numbers instead
        return isinstance(value, AbstractUnwrappable | Array | np.ndarray | float | int)
    if hint is Array and isinstance(value, AbstractUnwrappable):  # a number that is held
        return True
    if hint is Any or not isinstance(hint, type) or getattr(hint, "_is_protocol", False):
        return True
    return isinstance(value, hint)


def _fits_generic(value: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return all(_fits(each, arguments[0]) for each in value)
        fits = zip(value, arguments, strict=False)
        return len(value) == len(arguments) and all(_fits(v, each) for v, each in fits)
    if origin in (list, Sequence):
        return isinstance(value, list | tuple) and all(_fits(each, arguments[0]) for each in value)
    if origin in (dict, Mapping):
        pairs = value.items() if isinstance(value, dict) else ()
        return isinstance(value, dict) and all(
            _fits(k, arguments[0]) and _fits(v, arguments[1]) for k, v in pairs
        )
    if origin is Callable:
        return callable(value)
    if origin is np.ndarray:
        return isinstance(value, np.ndarray) and _fits_dtype(value.dtype, arguments[-1])
    return not isinstance(origin, type) or isinstance(value, origin)


def _fits_dtype(dtype: np.dtype[Any], hint: Any) -> bool:
    """Whether an array has numbers of the kind that ``NDArray[...]`` asks for."""
    wanted = get_args(hint)
    if not wanted or not isinstance(wanted[0], type):
        return True
    return dtype.kind in {"f": "f", "i": "iu"}.get(np.dtype(wanted[0]).kind, dtype.kind)
