"""The JSON of a saved model, read one checked value at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from deconditional.saving.container import INLINE, NOT_FINITE, Archive, refuse

__all__ = ["Node"]

LONGEST_TEXT = 1_000_000


class Node:
    """One object of the JSON.

    Sizes of arrays have names, which mean the same number everywhere within a model: an array
    asked for with ``"N M"`` fixes N and M if it is the first, and must agree if it is not.

    Parameters
    ----------
    value
        What the JSON has here; anything but an object is refused.
    where
        Its place, for errors.
    archive
        The file, for arrays.
    sizes
        Sizes known by name.
    """

    def __init__(self, value: Any, where: str, archive: Archive, sizes: dict[str, int]):
        if not isinstance(value, dict):
            refuse(f"{where} is not an object")
        self.value: dict[str, Any] = value
        self.where = where
        self.archive = archive
        self.sizes = sizes

    def only(self, *required: str, optional: Sequence[str] = ()) -> Node:
        """The node itself, once its keys are known to be these and no others."""
        missing = [key for key in required if key not in self.value]
        if missing:
            refuse(f"{self.where} lacks {missing[0]!r}")
        extra = [key for key in self.value if key not in required and key not in optional]
        if extra:
            refuse(f"{self.where} has {extra[0][:40]!r}, which has no meaning there")
        return self

    def __contains__(self, key: str) -> bool:
        return key in self.value

    def raw(self, key: str) -> Any:
        """What is there, unchecked."""
        if key not in self.value:
            refuse(f"{self.where} lacks {key!r}")
        return self.value[key]

    def wrong(self, key: str, wanted: str) -> Any:
        """Refuse the value of a key."""
        refuse(f"{self.where}.{key} is not {wanted}")

    def is_null(self, key: str) -> bool:
        """Whether there is nothing."""
        return self.raw(key) is None

    def text(self, key: str) -> str:
        """A text."""
        value = self.raw(key)
        if not isinstance(value, str) or len(value) > LONGEST_TEXT:
            self.wrong(key, "a text")
        return str(value)

    def choice(self, key: str, options: Sequence[str]) -> str:
        """One of some words."""
        value = self.raw(key)
        if not isinstance(value, str) or value not in options:
            self.wrong(key, f"one of {', '.join(options)}")
        return str(value)

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self.raw(key)
        if not isinstance(value, bool):
            self.wrong(key, "true or false")
        return bool(value)

    def whole(self, key: str, low: int = 0, high: int = 2**53) -> int:
        """A whole number between two others."""
        value = self.raw(key)
        if type(value) is not int or not low <= value <= high:
            self.wrong(key, f"a whole number from {low} to {high}")
        return int(value)

    def number(self, key: str) -> float:
        """A number, finite or not."""
        return as_number(self.raw(key), f"{self.where}.{key}")

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        value = self.raw(key)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            self.wrong(key, "a list of texts")
        return tuple(value)

    def items(self, key: str) -> list[Any]:
        """A list of anything."""
        value = self.raw(key)
        if not isinstance(value, list):
            self.wrong(key, "a list")
        return list(value)

    def node(self, key: str) -> Node:
        """The object of a key."""
        return self.at(self.raw(key), key)

    def at(self, value: Any, key: str) -> Node:
        """A value as an object below this one."""
        return Node(value, f"{self.where}.{key}", self.archive, self.sizes)

    def nodes(self, key: str) -> list[Node]:
        """A list of objects."""
        return [self.at(value, f"{key}[{k}]") for k, value in enumerate(self.items(key))]

    def maybe(self, key: str, read: Callable[[Node], Any]) -> Any:
        """What a function reads from the object of a key; None where there is none."""
        return None if self.is_null(key) else read(self.node(key))

    def named(self, key: str) -> Iterator[tuple[str, Any]]:
        """Names and values of the object of a key."""
        yield from self.node(key).value.items()

    # ------------------------------------------------------------------ arrays

    def array(self, key: str, sizes: str | None = None, kind: str = "f") -> np.ndarray:
        """An array of given sizes, separated by blanks; without `sizes` of any shape.

        Parameters
        ----------
        kind
            ``"f"`` for floating numbers, ``"i"`` for whole ones, ``"b"`` for true and false.
        """
        where = f"{self.where}.{key}"
        values = as_array(self.raw(key), where, self.archive)
        kinds = {"f": "f", "i": "iu", "b": "b"}[kind]
        if values.dtype.kind not in kinds:
            refuse(f"{where} has values of the wrong type")
        if sizes is not None:
            self._check_sizes(where, values.shape, sizes.split())
        return values

    def maybe_array(self, key: str, sizes: str | None = None, kind: str = "f") -> Any:
        """An array, or None."""
        return None if self.is_null(key) else self.array(key, sizes, kind)

    def jax(self, key: str, sizes: str | None = None, kind: str = "f") -> Array:
        """An array of JAX, weakly typed where it was."""
        values = self.array(key, sizes, kind)
        weak = self.raw(key).get("weak", False)
        return jnp.asarray(values.item()) if weak and values.ndim == 0 else jnp.asarray(values)

    def maybe_jax(self, key: str, sizes: str | None = None, kind: str = "f") -> Array | None:
        """The same, or None."""
        return None if self.is_null(key) else self.jax(key, sizes, kind)

    def matrix_or_diagonal(self, key: str, size: str) -> Array:
        """A square matrix, or the vector of its diagonal."""
        shape = as_array(self.raw(key), f"{self.where}.{key}", self.archive).shape
        return self.jax(key, f"{size} {size}" if len(shape) == 2 else size)

    def _check_sizes(self, where: str, shape: tuple[int, ...], names: list[str]) -> None:
        if len(shape) != len(names):
            refuse(f"{where} has {len(shape)} dimensions, not {len(names)}")
        for size, name in zip(shape, names, strict=True):
            known = int(name) if name.isdigit() else self.sizes.setdefault(name, size)
            if size != known:
                refuse(f"{where} has shape {shape}, which does not fit the rest of the model")


def as_number(value: Any, where: str) -> float:
    """A number of the JSON."""
    if isinstance(value, str) and value in NOT_FINITE:
        return NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(f"{where} is not a number")
    return float(value)


def as_array(value: Any, where: str, archive: Archive) -> np.ndarray:
    """An array of the JSON: its values, or the name of one of the file's arrays."""
    if not isinstance(value, dict) or not isinstance(value.get("weak", False), bool):
        refuse(f"{where} is not an array")
    keys = set(value) - {"weak"}
    if keys == {"array"}:
        return archive.array(value["array"])
    shape, values = value.get("shape"), value.get("values")
    if keys != {"shape", "values"} or not isinstance(shape, list) or not isinstance(values, list):
        refuse(f"{where} is not an array")
    if len(shape) > 8 or not all(type(n) is int and 0 <= n < 2**31 for n in shape):
        refuse(f"{where} has an impossible shape")
    if len(values) > INLINE or math.prod(shape) != len(values):
        refuse(f"{where} does not have as many values as its shape needs")
    return np.array([as_number(v, where) for v in values], dtype=float).reshape(shape)
