"""Objects as JSON and arrays, and back, by walking their fields.

An object of a class that :mod:`~deconditional.saving.registry` names is saved as that name and its
fields: those of a dataclass, of a module of Equinox or of a named tuple, and the parameters and
attributes of an estimator. What its fields hold is saved in the same way, down to numbers, texts
and arrays; an object that is met twice is saved once. Reading goes the same way back: no
constructor runs but those of estimators and distributions, which only store. Fields must fit their
annotations (:mod:`~deconditional.saving.hints`), and a class that knows more of what its objects
must be says so in a method ``__loaded__``, which returns the object to use, or raises.

Metadata of a dataclass's field may say that it is not saved: ``{"saved": False}`` gives it its
default again, ``{"left_behind": "the chunked data"}`` something that raises when it is used.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel
from jax import Array

from deconditional.errors import SavedModelError
from deconditional.saving.container import INLINE, NOT_FINITE, Archive, ArrayWriter, number, refuse
from deconditional.saving.foreign import CODECS, LeftBehind, is_key
from deconditional.saving.hints import misfit
from deconditional.saving.own_kernels import Supplied, custom_node, read_custom, role_of
from deconditional.saving.registry import class_of, name_of_class

__all__ = ["Reader", "Writer"]

Path = tuple[str, ...]


# --------------------------------------------------------------------------- writing


class Writer:
    """Writes values as JSON, their arrays beside it.

    Parameters
    ----------
    arrays
        Takes the arrays.
    own_kernels
        Whether kernels of classes that nobody knows may be written by their numbers.
    """

    def __init__(self, arrays: ArrayWriter, own_kernels: bool = True):
        self.arrays, self.own_kernels = arrays, own_kernels
        self.tried: set[str] = set()
        """Roles of kernels whose values at some points are in the file."""
        self._known: dict[int, tuple[Any, int]] = {}  # the object too, so that its id stays its own
        self._open: set[int] = set()

    def write(self, value: Any, path: Path = ()) -> Any:
        """The JSON of a value; `path` is where it is, for errors and to tell kernels apart."""
        if value is None or type(value) in (bool, str):
            return value
        if type(value) is int:
            if not -(2**63) <= value < 2**63:
                raise SavedModelError(f"{_named(path)} is a number too large to be saved.")
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": number(value)}
        if type(value) is list:
            return [self.write(each, path) for each in value]
        if type(value) is tuple:
            return {"tuple": [self.write(each, path) for each in value]}
        if isinstance(value, dict | MappingProxyType):
            return self._mapping(value, path)
        if _is_numeric(value):
            kind = "jax" if isinstance(value, Array) else "numpy"
            return {"scalar" if isinstance(value, np.generic) else kind: self.arrays.ref(value)}
        if isinstance(value, AbstractKernel) and not self._is_standard(value):
            return {"kernel": custom_node(value, role_of(path), self)}
        name = name_of_class(type(value))
        if name is not None:
            return self._object(value, name, path)
        for kind, codec in CODECS.items():
            if codec.applies(value):
                return {kind: codec.write(value, lambda each: self.write(each, path))}
        raise SavedModelError(
            f"{_named(path)} is a {type(value).__name__}, which cannot be saved; only objects of "
            "this package, numbers, texts and dates can."
        )

    def _mapping(self, value: Mapping[Any, Any], path: Path) -> Any:
        if all(type(key) is str for key in value):
            return {"mapping": {k: self.write(v, (*path, k)) for k, v in value.items()}}
        return {"pairs": [[self.write(k, path), self.write(v, path)] for k, v in value.items()]}

    def _object(self, value: Any, name: str, path: Path) -> Any:
        if id(value) in self._known:
            return {"same": self._known[id(value)][1]}
        if id(value) in self._open:
            raise SavedModelError(f"{_named(path)} has itself among its parts.")
        self._open.add(id(value))
        node: dict[str, Any]
        if hasattr(value, "get_params"):
            given = value.get_params(deep=False)
            rest = {k: v for k, v in vars(value).items() if k not in given}
            parts = [self._fields(each, path) for each in (given, rest)]
            node = {"estimator": [name, *parts]}
        else:
            node = {"object": [name, self._fields(_fields_of(value), path)]}
        self._open.discard(id(value))
        self._known[id(value)] = (value, len(self._known))
        return node

    def _fields(self, values: Mapping[str, Any], path: Path) -> dict[str, Any]:
        return {k: self.write(v, (*path, k)) for k, v in values.items() if "sklearn" not in k}

    def _is_standard(self, kernel: AbstractKernel) -> bool:
        """Whether a kernel is of classes and functions that a file can name."""
        if not self.own_kernels:
            return True
        try:
            Writer(ArrayWriter(), own_kernels=False).write(kernel)
        except SavedModelError:
            return False
        return True


def _is_numeric(value: Any) -> bool:
    if isinstance(value, Array):
        return not is_key(value)
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "fiubc"


def _fields_of(value: Any) -> dict[str, Any]:
    if hasattr(value, "_asdict"):
        return dict(value._asdict())
    if not dataclasses.is_dataclass(value):
        return dict(vars(value))
    found = {}
    for field in dataclasses.fields(value):
        if field.name not in vars(value):  # a default that belongs to the class
            continue
        content = getattr(value, field.name)
        left_behind = field.metadata.get("left_behind")
        if left_behind is not None and content is not None:
            content = LeftBehind(left_behind, "fit again")
        if field.metadata.get("saved", True):
            found[field.name] = content
    return found


def _named(path: Path) -> str:
    """A place in words."""
    return ".".join(path) or "this"


# --------------------------------------------------------------------------- reading


class Reader:
    """Reads values from the JSON of a file and its arrays.

    Whatever does not fit raises: an error of this package, or one that the archive makes one of.
    """

    def __init__(self, archive: Archive, supplied: Supplied | None = None):
        self.archive, self.supplied = archive, supplied or Supplied()
        self._made: list[Any] = []
        self._shared: dict[str, Array] = {}

    def read(self, node: Any, where: str = "content") -> Any:
        """The value of a node."""
        if node is None or isinstance(node, bool | int | float | str):
            return node
        if isinstance(node, list):
            return [self.read(each, where) for each in node]
        if not isinstance(node, dict) or len(node) != 1:
            refuse(f"{where} is not understood")
        ((kind, content),) = node.items()
        if kind in CODECS:
            return CODECS[kind].read(content, lambda each: self.read(each, where))
        if kind not in self._READERS:
            refuse(f"{where} has {kind[:40]!r}, which has no meaning there")
        return self._READERS[kind](self, content, where)

    def _float(self, content: Any, where: str) -> float:
        return NOT_FINITE[content]

    def _tuple(self, content: Any, where: str) -> tuple[Any, ...]:
        return tuple([self.read(each, where) for each in _checked(content, list, where)])

    def _mapping(self, content: Any, where: str) -> dict[Any, Any]:
        pairs = _checked(content, dict, where).items()
        return {key: self.read(each, f"{where}.{key[:60]}") for key, each in pairs}

    def _pairs(self, content: Any, where: str) -> dict[Any, Any]:
        return {self.read(k, where): self.read(v, where) for k, v in content}

    def _numpy(self, content: Any, where: str) -> np.ndarray:
        return self._array(content, where).copy()

    def _scalar(self, content: Any, where: str) -> np.generic:
        value: Any = self._array(content, where)[()]
        return value if isinstance(value, np.generic) else refuse(f"{where} is not a number")

    def _jax(self, content: Any, where: str) -> Array:
        """An array of JAX, weakly typed where it was; equal ones share their memory."""
        values = self._array(content, where)
        if content.get("weak") is True and values.ndim == 0:
            return jnp.asarray(values.item())
        name = content.get("array")
        if name is None:
            return jnp.asarray(values)
        return self._shared.setdefault(name, jnp.asarray(values))

    def _array(self, content: Any, where: str) -> np.ndarray:
        keys = set(_checked(content, dict, where)) - {"weak"}
        if keys == {"array"}:
            return self.archive.array(content["array"])
        if keys != {"shape", "values"} or len(content["values"]) > INLINE:
            refuse(f"{where} is not an array")
        values = [as_number(each, where) for each in content["values"]]
        return np.array(values, dtype=float).reshape(content["shape"])

    def _same(self, content: Any, where: str) -> Any:
        if type(content) is not int or not 0 <= content < len(self._made):
            refuse(f"{where} is another object that is not there")
        return self._made[content]

    def _kernel(self, content: Any, where: str) -> AbstractKernel:
        return read_custom(content, self)

    def _object(self, content: Any, where: str) -> Any:
        name, fields = content
        found = class_of(name)
        values = {k: self.read(v, f"{where}.{k[:60]}") for k, v in fields.items()}
        return self._finished(_built(found, values, where), found, values, where)

    def _estimator(self, content: Any, where: str) -> Any:
        name, *parts = content
        found = class_of(name)
        given, rest = (
            {k: self.read(v, f"{where}.{k[:60]}") for k, v in part.items()} for part in parts
        )
        for key in rest:
            if key.startswith("__") or callable(getattr(found, key, None)):
                refuse(f"{where} has {key[:40]!r}, which no {name} has")
        made = found(**given)
        vars(made).update(rest)
        return self._finished(made, found, {**given, **rest}, where)

    def _finished(self, made: Any, found: type, values: dict[str, Any], where: str) -> Any:
        """The object, once it is known to be one of its class."""
        wrong = misfit(found, values)
        if wrong is not None:
            refuse(f"{where}.{wrong} is not what a {found.__name__} has there")
        if hasattr(made, "__loaded__"):
            made = made.__loaded__()
        self._made.append(made)
        return made

    _READERS: ClassVar[dict[str, Any]] = {
        "float": _float,
        "tuple": _tuple,
        "mapping": _mapping,
        "pairs": _pairs,
        "numpy": _numpy,
        "scalar": _scalar,
        "jax": _jax,
        "same": _same,
        "kernel": _kernel,
        "object": _object,
        "estimator": _estimator,
    }


def _checked(value: Any, wanted: type, where: str) -> Any:
    if not isinstance(value, wanted):
        refuse(f"{where} is not a {wanted.__name__}")
    return value


def as_number(value: Any, where: str) -> float:
    """A number of the JSON."""
    if isinstance(value, str):
        return NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(f"{where} is not a number")
    return float(value)


def _built(found: type, values: dict[str, Any], where: str) -> Any:
    """An object with these fields, as unpickling would make it."""
    if issubclass(found, tuple):
        return found(**values)
    names = set()
    made = object.__new__(found)
    if dataclasses.is_dataclass(found):
        for field in dataclasses.fields(found):
            if not field.metadata.get("saved", True):
                object.__setattr__(made, field.name, field.default)
            elif field.name in values or not hasattr(found, field.name):
                names.add(field.name)
    if set(values) != names:
        refuse(f"{where} does not have the fields of a {found.__name__}")
    for name, value in values.items():
        value = _usual(found, name, value)
        object.__setattr__(made, name, value)
    return made


def _usual(found: type, name: str, value: Any) -> Any:
    """A part without state as constructors have it, so that nothing is compiled anew for it."""
    if getattr(value, "__dict__", None) != {} or dataclasses.is_dataclass(value):
        return value
    usual = next((d[name] for d in map(_defaults, found.__mro__) if name in d), None)
    return usual if type(usual) is type(value) else value


@cache
def _defaults(found: type) -> dict[str, Any]:
    """What a constructor of the class's own has for an argument that is not given."""
    if "__init__" not in vars(found):
        return {}
    parameters = inspect.signature(vars(found)["__init__"]).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}
