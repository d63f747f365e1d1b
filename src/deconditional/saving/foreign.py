"""Values of Python, NumPy, JAX, xarray and NumPyro that are saved in a form of their own."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as npd

from deconditional.errors import SavedModelError, UsageError
from deconditional.saving.registry import DISTRIBUTIONS, constant, name_of_constant

__all__ = ["CODECS", "Codec", "LeftBehind", "is_key"]

UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns")
KEYS = ("threefry2x32", "rbg", "unsafe_rbg")

Walk = Callable[[Any], Any]


class Codec(NamedTuple):
    """How values of a kind are saved.

    Attributes
    ----------
    applies
        Whether a value is of the kind.
    write, read
        To simpler values and back, each with the function that does it for parts.
    """

    applies: Callable[[Any], bool]
    write: Callable[[Any, Walk], Any]
    read: Callable[[Any, Walk], Any]


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


# --------------------------------------------------------------------------- dates


def _write_dates(values: Any, write: Walk) -> list[Any]:
    return [np.datetime_data(values.dtype)[0], write(np.asarray(values).astype(np.int64))]


def _read_dates(content: Any, read: Walk) -> Any:
    unit, counts = content
    if unit not in UNITS:
        raise SavedModelError("a date has no unit.")
    return read(counts).astype(f"datetime64[{unit}]")[()]


def _is_cftime(value: Any) -> bool:
    return type(value).__module__.startswith("cftime")


def _write_cftime(t: Any, write: Walk) -> list[Any]:
    return [t.calendar, t.year, t.month, t.day, t.hour, t.minute, t.second, t.microsecond]


def _read_cftime(content: Any, read: Walk) -> Any:
    import cftime  # type: ignore[import-untyped]

    calendar, *parts = content
    return cftime.datetime(*parts, calendar=calendar)


# --------------------------------------------------------------------------- arrays of other things


def _is_array_of(*kinds: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, np.ndarray) and value.dtype.kind in kinds


def _write_objects(values: np.ndarray, write: Walk) -> list[Any]:
    return [list(values.shape), [write(each) for each in values.ravel().tolist()]]


def _read_objects(content: Any, read: Walk) -> np.ndarray:
    shape, parts = content
    found = np.empty(len(parts), dtype=object)
    for k, each in enumerate(parts):
        found[k] = read(each)
    return found.reshape(shape)


# --------------------------------------------------------------------------- datasets


def _is_dataset(value: Any) -> bool:
    return type(value).__name__ == "Dataset" and type(value).__module__.startswith("xarray.")


def _write_dataset(data: Any, write: Walk) -> dict[str, Any]:
    variables = {
        str(name): [list(map(str, v.dims)), write(v.values), _write_attributes(v.attrs, write)]
        for name, v in data.variables.items()
    }
    return {
        "variables": variables,
        "coordinates": list(map(str, data.coords)),
        "attributes": _write_attributes(data.attrs, write),
    }


def _read_dataset(content: Any, read: Walk) -> Any:
    import xarray as xr

    variables = {
        name: (dims, read(values), read(attributes))
        for name, (dims, values, attributes) in content["variables"].items()
    }
    coords = {name: variables.pop(name) for name in content["coordinates"]}
    return xr.Dataset(variables, coords=coords, attrs=read(content["attributes"]))


def _write_attributes(attributes: Any, write: Walk) -> Any:
    """Attributes, of which what is neither text nor number becomes text."""
    found = {}
    for key, value in attributes.items():
        value = value.item() if isinstance(value, np.generic) else value
        plain = isinstance(value, bool | int | float | str)
        numeric = isinstance(value, np.ndarray | list | tuple) and (
            np.asarray(value).dtype.kind in "fiu"
        )
        found[str(key)] = value if plain else np.asarray(value) if numeric else str(value)
    return write(found)


# --------------------------------------------------------------------------- distributions, keys


def _is_distribution(value: Any) -> bool:
    name = type(value).__name__
    return name in DISTRIBUTIONS and type(value) is getattr(npd, name)


def _write_distribution(value: Any, write: Walk) -> list[Any]:
    arguments = {name: getattr(value, name) for name in value.arg_constraints}
    return [type(value).__name__, write(arguments)]


def _read_distribution(content: Any, read: Walk) -> Any:
    name, arguments = content
    if name not in DISTRIBUTIONS:
        raise SavedModelError("it has a distribution that nobody knows.")
    return getattr(npd, name)(**read(arguments))


def is_key(value: Any) -> bool:
    """Whether a value is a random key of JAX."""
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _write_key(key: Any, write: Walk) -> list[Any]:
    return [str(jax.random.key_impl(key)), write(np.asarray(jax.random.key_data(key)))]


def _read_key(content: Any, read: Walk) -> Any:
    kind, data = content
    if kind not in KEYS:
        raise SavedModelError("it has a random key of a kind that nobody knows.")
    return jax.random.wrap_key_data(jnp.asarray(read(data), dtype=jnp.uint32), impl=kind)


CODECS: dict[str, Codec] = {
    "dates": Codec(
        lambda v: isinstance(v, np.ndarray | np.datetime64) and v.dtype.kind == "M",
        _write_dates,
        _read_dates,
    ),
    "texts": Codec(
        _is_array_of("U"), _write_objects, lambda c, read: _read_objects(c, read).astype(str)
    ),
    "objects": Codec(_is_array_of("O"), _write_objects, _read_objects),
    "key": Codec(is_key, _write_key, _read_key),
    "slice": Codec(
        lambda v: isinstance(v, slice),
        lambda v, write: [v.start, v.stop, v.step],
        lambda c, read: slice(*c),
    ),
    "datetime": Codec(
        lambda v: isinstance(v, datetime.datetime),
        lambda v, write: v.isoformat(),
        lambda c, read: datetime.datetime.fromisoformat(c),
    ),
    "date": Codec(
        lambda v: isinstance(v, datetime.date),
        lambda v, write: v.isoformat(),
        lambda c, read: datetime.date.fromisoformat(c),
    ),
    "cftime": Codec(_is_cftime, _write_cftime, _read_cftime),
    "dataset": Codec(_is_dataset, _write_dataset, _read_dataset),
    "constant": Codec(
        lambda v: name_of_constant(v) is not None,
        lambda v, write: name_of_constant(v),
        lambda c, read: constant(c),
    ),
    "distribution": Codec(_is_distribution, _write_distribution, _read_distribution),
    "left behind": Codec(
        lambda v: isinstance(v, LeftBehind) or (hasattr(v, "log_prob") and hasattr(v, "sample")),
        lambda v, write: _left_behind(v),
        lambda c, read: LeftBehind(str(c[0]), str(c[1])),
    ),
}
"""Kinds of values, by the word that a file has for them."""
