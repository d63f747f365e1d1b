"""Kinds of values that files have, but for objects: numbers, arrays, texts, dates and datasets."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as npd

from deconditional.errors import SavedModelError, UsageError
from deconditional.saving.registry import DISTRIBUTIONS, constant, name_of_constant

if TYPE_CHECKING:
    from deconditional.saving.objects import ObjectReader, ObjectWriter

UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns")
KEYS = ("threefry2x32", "rbg", "unsafe_rbg")


class Kind(NamedTuple):
    """Kind of values: how to recognise, write and read them."""

    applies: Callable[[Any], bool]  # whether a value is of the kind
    # write, read: to what JSON has and back, with the writer or reader for what is inside.
    write: Callable[[Any, ObjectWriter], Any]
    read: Callable[[Any, ObjectReader], Any]


@dataclass(frozen=True)
class LeftBehind:
    """Stands for what is not in a file; predictions do without, whatever else needs it raises.

    Examples
    --------
    >>> LeftBehind("the prior MyPrior()", "give it again").log_prob(1.0)
    Traceback (most recent call last):
    deconditional.errors.UsageError: this needs the prior MyPrior(), which was not saved with ...
    """

    what: str
    remedy: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UsageError(
            f"this needs {self.what}, which was not saved with the model; {self.remedy}."
        )


def _left_behind(value: Any) -> list[str]:
    """A stand-in, or a prior of a class that nobody knows."""
    if isinstance(value, LeftBehind):
        return [value.what, value.remedy]
    return [f"the prior {value!r:.1000}", "give it again with set_params(priors={...})"]


def _one_of(word: Any, words: tuple[str, ...]) -> str:
    if word not in words:
        raise SavedModelError(f"it has {str(word)[:40]!r}, which nobody knows.")
    return str(word)


# --------------------------------------------------------------------------- arrays


def _is_array_of(*kinds: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, np.ndarray) and value.dtype.kind in kinds


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _is_weak(value: Any) -> bool:
    """Whether JAX made a scalar from a Python number, which decides the precision it leads to."""
    return isinstance(value, jax.Array) and value.weak_type and value.ndim == 0


def _read_key(content: Any, reader: ObjectReader) -> Any:
    kind, data = content
    data = jnp.asarray(reader.read(data), dtype=jnp.uint32)
    return jax.random.wrap_key_data(data, impl=_one_of(kind, KEYS))


def _write_dates(values: Any, writer: ObjectWriter) -> list[Any]:
    return [np.datetime_data(values.dtype)[0], writer.write(np.asarray(values).astype(np.int64))]


def _read_dates(content: Any, reader: ObjectReader) -> Any:
    unit, counts = content
    return reader.read(counts).astype(f"datetime64[{_one_of(unit, UNITS)}]")[()]


def _write_objects(values: np.ndarray, writer: ObjectWriter) -> list[Any]:
    return [list(values.shape), writer.write(values.ravel().tolist())]


def _read_objects(content: Any, reader: ObjectReader) -> np.ndarray:
    shape, parts = content
    values = np.empty(len(parts), dtype=object)
    for k, each in enumerate(parts):  # at once, tuples would become an axis
        values[k] = reader.read(each)
    return values.reshape(shape)


# --------------------------------------------------------------------------- datasets


def _is_dataset(value: Any) -> bool:
    return type(value).__name__ == "Dataset" and type(value).__module__.startswith("xarray.")


def _write_dataset(data: Any, writer: ObjectWriter) -> dict[str, Any]:
    variables = {
        str(name): [list(map(str, v.dims)), writer.write(v.values), writer.write(_legible(v.attrs))]
        for name, v in data.variables.items()
    }
    return {
        "variables": variables,
        "coordinates": list(map(str, data.coords)),
        "attributes": writer.write(_legible(data.attrs)),
    }


def _read_dataset(content: Any, reader: ObjectReader) -> Any:
    import xarray as xr

    variables = {
        name: (dims, reader.read(values), reader.read(attributes))
        for name, (dims, values, attributes) in content["variables"].items()
    }
    coords = {name: variables.pop(name) for name in content["coordinates"]}
    return xr.Dataset(variables, coords=coords, attrs=reader.read(content["attributes"]))


def _legible(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes, of which what is neither text nor number becomes text."""
    legible: dict[str, Any] = {}
    for key, value in attributes.items():
        value = value.item() if isinstance(value, np.generic) else value
        plain = isinstance(value, bool | int | float | str)
        numeric = isinstance(value, np.ndarray | list | tuple) and (
            np.asarray(value).dtype.kind in "fiu"
        )
        legible[str(key)] = value if plain else np.asarray(value) if numeric else str(value)
    return legible


# --------------------------------------------------------------------------- distributions, dates


def _is_distribution(value: Any) -> bool:
    name = type(value).__name__
    return name in DISTRIBUTIONS and type(value) is getattr(npd, name)


def _write_distribution(value: Any, writer: ObjectWriter) -> list[Any]:
    arguments = {name: getattr(value, name) for name in value.arg_constraints}
    return [type(value).__name__, writer.write(arguments)]


def _read_distribution(content: Any, reader: ObjectReader) -> Any:
    name, arguments = content
    return getattr(npd, _one_of(name, DISTRIBUTIONS))(**reader.read(arguments))


def _write_cftime(t: Any, writer: ObjectWriter) -> list[Any]:
    return [t.calendar, t.year, t.month, t.day, t.hour, t.minute, t.second, t.microsecond]


def _read_cftime(content: Any, reader: ObjectReader) -> Any:
    import cftime

    calendar, *parts = content
    return cftime.datetime(*parts, calendar=calendar)


NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

KINDS: dict[str, Kind] = {
    "float": Kind(
        lambda v: type(v) is float,
        lambda v, writer: repr(v),
        lambda c, reader: NOT_FINITE[c],
    ),
    "tuple": Kind(
        lambda v: type(v) is tuple,
        lambda v, writer: writer.write(list(v)),
        lambda c, reader: tuple(reader.read(c)),
    ),
    "mapping": Kind(
        lambda v: isinstance(v, dict | MappingProxyType) and all(type(key) is str for key in v),
        lambda v, writer: writer.fields(v),
        lambda c, reader: reader.fields(c),
    ),
    "pairs": Kind(
        lambda v: isinstance(v, dict | MappingProxyType),
        lambda v, writer: [[writer.write(key), writer.write(each)] for key, each in v.items()],
        lambda c, reader: {reader.read(key): reader.read(each) for key, each in c},
    ),
    "key": Kind(
        _is_key,
        lambda v, writer: [
            str(jax.random.key_impl(v)),
            writer.write(np.asarray(jax.random.key_data(v))),
        ],
        _read_key,
    ),
    "weak": Kind(
        _is_weak,
        lambda v, writer: writer.write(v.item()),
        lambda c, reader: jnp.asarray(reader.read(c)),
    ),
    "jax": Kind(
        lambda v: isinstance(v, jax.Array),
        lambda v, writer: writer.arrays.add(v),
        lambda c, reader: reader.jax_array(c),
    ),
    "scalar": Kind(
        lambda v: isinstance(v, np.generic) and v.dtype.kind in "fiubc",
        lambda v, writer: writer.arrays.add(v),
        lambda c, reader: reader.archive.array(c).reshape(())[()],
    ),
    "numpy": Kind(
        _is_array_of(*"fiubc"),
        lambda v, writer: writer.arrays.add(v),
        lambda c, reader: reader.archive.array(c).copy(),
    ),
    "dates": Kind(
        lambda v: isinstance(v, np.ndarray | np.datetime64) and v.dtype.kind == "M",
        _write_dates,
        _read_dates,
    ),
    "texts": Kind(
        _is_array_of("U"),
        _write_objects,
        lambda c, reader: _read_objects(c, reader).astype(str),
    ),
    "objects": Kind(_is_array_of("O"), _write_objects, _read_objects),
    "slice": Kind(
        lambda v: isinstance(v, slice),
        lambda v, writer: [v.start, v.stop, v.step],
        lambda c, reader: slice(*c),
    ),
    "datetime": Kind(
        lambda v: isinstance(v, datetime.datetime),
        lambda v, writer: v.isoformat(),
        lambda c, reader: datetime.datetime.fromisoformat(c),
    ),
    "date": Kind(
        lambda v: isinstance(v, datetime.date),
        lambda v, writer: v.isoformat(),
        lambda c, reader: datetime.date.fromisoformat(c),
    ),
    "cftime": Kind(lambda v: type(v).__module__.startswith("cftime"), _write_cftime, _read_cftime),
    "dataset": Kind(_is_dataset, _write_dataset, _read_dataset),
    "constant": Kind(
        lambda v: name_of_constant(v) is not None,
        lambda v, writer: name_of_constant(v),
        lambda c, reader: constant(c),
    ),
    "distribution": Kind(_is_distribution, _write_distribution, _read_distribution),
    "left behind": Kind(
        lambda v: isinstance(v, LeftBehind) or (hasattr(v, "log_prob") and hasattr(v, "sample")),
        lambda v, writer: _left_behind(v),
        lambda c, reader: LeftBehind(str(c[0]), str(c[1])),
    ),
}
"""Kinds by the word that a file has for them; a value is of the first that applies."""
