"""Objects as JSON and arrays, and back, by walking their fields.

An object of a class that :mod:`~deconditional.saving.registry` names is saved as that name and its
fields: those of a dataclass, of a module of Equinox or of a named tuple, and the attributes of an
estimator. What its fields hold is saved in the same way, down to the values of
:mod:`~deconditional.saving.kinds`; an object that is met twice is saved once. Kernels of other
classes are saved by their fields too, and whoever reads them gives the classes. Reading goes the
same way back, and no constructor runs but those of distributions, which only store. Fields must fit
their annotations (:mod:`~deconditional.saving.hints`), and a class that knows more of what its
objects must be says so in a method ``__loaded__``, which returns the object to use, or raises.

Metadata of a dataclass's field may say that it is not saved: ``{"saved": False}`` gives it its
default again, ``{"left_behind": "the chunked data"}`` something that raises when it is used.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import jax.numpy as jnp
from gpjax.kernels.base import AbstractKernel
from jax import Array

from deconditional.errors import SavedModelError
from deconditional.saving.container import Archive, ArrayWriter, refuse
from deconditional.saving.hints import misfit
from deconditional.saving.kinds import KINDS, LeftBehind
from deconditional.saving.registry import class_of, name_of_class


class ObjectWriter:
    """Writes values as JSON, their arrays beside it."""

    arrays: ArrayWriter

    def __init__(self, arrays: ArrayWriter):
        self.arrays = arrays
        self._place: list[str] = []
        self._known: dict[int, tuple[Any, int]] = {}  # the object too, so that its id stays its own
        self._open: set[int] = set()

    def write(self, value: Any) -> Any:
        """What the JSON has for a value."""
        if value is None or type(value) in (bool, str):
            return value
        if type(value) is float and math.isfinite(value):
            return value
        if type(value) is int:
            if not -(2**63) <= value < 2**63:
                raise SavedModelError(f"{self._here} is a number too large to be saved.")
            return value
        if type(value) is list:
            return [self.write(each) for each in value]
        name = name_of_class(type(value))
        if name is not None:
            return self._object("object", value, name)
        if isinstance(value, AbstractKernel):
            return self._object("own kernel", value, type(value).__qualname__)
        for word, kind in KINDS.items():
            if kind.applies(value):
                return {word: kind.write(value, self)}
        raise SavedModelError(
            f"{self._here} is a {type(value).__name__}, which cannot be saved; only objects of "
            "this package, numbers, texts and dates can."
        )

    def fields(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON of every value, each at a place of its own."""
        nodes = {}
        for name, value in values.items():
            self._place.append(name)
            nodes[name] = self.write(value)
            self._place.pop()
        return nodes

    def _object(self, word: str, value: Any, name: str) -> Any:
        if id(value) in self._known:
            return {"same": self._known[id(value)][1]}
        if id(value) in self._open:
            raise SavedModelError(f"{self._here} has itself among its parts.")
        self._open.add(id(value))
        node = {word: [name, self.fields(_fields_of(value))]}
        self._open.discard(id(value))
        self._known[id(value)] = (value, len(self._known))
        return node

    @property
    def _here(self) -> str:
        """The place that is being written, in words."""
        return ".".join(self._place) or "this"


def _fields_of(value: Any) -> dict[str, Any]:
    """What of an object is saved, by name."""
    if hasattr(value, "_asdict"):
        return dict(value._asdict())
    if hasattr(value, "get_params") or not dataclasses.is_dataclass(value):
        return dict(vars(value))
    fields = {}
    for field in dataclasses.fields(value):
        if field.name not in vars(value):  # a default that belongs to the class
            continue
        content = getattr(value, field.name)
        left_behind = field.metadata.get("left_behind")
        if left_behind is not None and content is not None:
            content = LeftBehind(left_behind, "fit again")
        if field.metadata.get("saved", True):
            fields[field.name] = content
    return fields


class ObjectReader:
    """Reads values from the JSON of a file and its arrays.

    Whatever does not fit raises: an error of this package, or one that the archive makes one of.
    """

    archive: Archive

    def __init__(self, archive: Archive, own_kernels: Sequence[type] = ()):
        self.archive = archive
        self._own = {kind.__qualname__: kind for kind in own_kernels}
        self._place: list[str] = []
        self._made: list[Any] = []
        self._shared: dict[str, Array] = {}

    def read(self, node: Any) -> Any:
        """The value that the JSON stands for."""
        if node is None or isinstance(node, bool | int | float | str):
            return node
        if isinstance(node, list):
            return [self.read(each) for each in node]
        if not isinstance(node, dict) or len(node) != 1:
            refuse(f"{self._here} is not understood")
        ((word, content),) = node.items()
        if word == "object":
            return self._object(class_of(content[0]), content[1])
        if word == "own kernel":
            return self._object(self._own_kernel(content[0]), content[1])
        if word == "same":
            if type(content) is not int or not 0 <= content < len(self._made):
                refuse(f"{self._here} is another object that is not there")
            return self._made[content]
        if word not in KINDS:
            refuse(f"{self._here} has {word[:40]!r}, which has no meaning there")
        return KINDS[word].read(content, self)

    def fields(self, nodes: Mapping[str, Any]) -> dict[str, Any]:
        """The values of nodes by name."""
        values = {}
        for name, node in nodes.items():
            self._place.append(name[:60])
            values[name] = self.read(node)
            self._place.pop()
        return values

    def jax_array(self, name: str) -> Array:
        """An array of JAX; equal ones share their memory."""
        if name not in self._shared:
            self._shared[name] = jnp.asarray(self.archive.array(name))
        return self._shared[name]

    def _own_kernel(self, name: str) -> type:
        """The class of a kernel that no table has."""
        if name not in self._own:
            refuse(
                f"{self._here} is a {name[:60]}, which is no kernel of GPJax or of this package; "
                f"give the class, as in load(path, own_kernels=[{name[:60]}])"
            )
        return self._own[name]

    def _object(self, kind: type, nodes: Mapping[str, Any]) -> Any:
        """The object of a class with these fields, once it is known to be one."""
        values = self.fields(nodes)
        made = _built(kind, values)
        if made is None:
            refuse(f"{self._here} does not have the fields of a {kind.__name__}")
        wrong = misfit(kind, values)
        if wrong is not None:
            refuse(f"{self._here}.{wrong} is not what a {kind.__name__} has there")
        if hasattr(made, "__loaded__"):
            made = made.__loaded__()
        self._made.append(made)
        return made

    @property
    def _here(self) -> str:
        """The place that is being read, in words."""
        return ".".join(self._place) or "its content"


def _built(kind: type, values: dict[str, Any]) -> Any:
    """An object with these fields, as unpickling would make it; None where they are not its own."""
    if issubclass(kind, tuple):
        return kind(**values)
    made = object.__new__(kind)
    names = set()
    if hasattr(kind, "get_params"):  # an estimator: its options, and what it was fitted to
        names = {n for n in values if n[:2] != "__" and not callable(getattr(kind, n, None))}
        names |= set(inspect.signature(kind).parameters)
    elif dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            if not field.metadata.get("saved", True):
                object.__setattr__(made, field.name, field.default)
            elif field.name in values or not hasattr(kind, field.name):
                names.add(field.name)
    if set(values) != names:
        return None
    for name, value in values.items():
        object.__setattr__(made, name, _usual(kind, name, value))
    return made


def _usual(kind: type, name: str, value: Any) -> Any:
    """Replace a part without state by the one that constructors have, as compiled code knows it."""
    if getattr(value, "__dict__", None) != {} or dataclasses.is_dataclass(value):
        return value
    usual = next((d[name] for d in map(_defaults, kind.__mro__) if name in d), None)
    return usual if type(usual) is type(value) else value


@cache
def _defaults(kind: type) -> dict[str, Any]:
    """What a constructor of the class's own has for an argument that is not given."""
    if "__init__" not in vars(kind):
        return {}
    parameters = inspect.signature(vars(kind)["__init__"]).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}
