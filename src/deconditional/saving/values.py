"""Arguments of constructors, labels and times: plain values that JSON alone does not tell apart."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import numpy as np
from gpjax.kernels.base import AbstractKernel

from deconditional.errors import SavedModelError
from deconditional.saving.container import ArrayWriter, number, refuse
from deconditional.saving.kernels import (
    ROLES,
    Supplied,
    kernel_node,
    prior_node,
    read_kernel,
    read_prior,
)
from deconditional.saving.nodes import Node, as_number

__all__ = [
    "estimators",
    "labels_node",
    "options_node",
    "read_labels",
    "read_options",
    "read_times",
    "times_node",
]


def estimators() -> dict[str, Any]:
    """Classes that a file may name."""
    from deconditional import models

    return {name: getattr(models, name) for name in models.__all__}


# --------------------------------------------------------------------------- options


def options_node(
    estimator: Any,
    arrays: ArrayWriter,
    roles: Mapping[str, str] | None = None,
    inputs: Mapping[str, np.ndarray | None] | None = None,
) -> dict[str, Any]:
    """The arguments an estimator was made with."""
    found = {}
    for name, value in estimator.get_params(deep=False).items():
        role = (roles or {}).get(name, name if name in ROLES else "kernel")
        try:
            found[name] = _value_node(value, arrays, role, (inputs or {}).get(role))
        except SavedModelError as error:
            raise SavedModelError(
                f"the argument {name} of {type(estimator).__name__} cannot be saved: {error}"
            ) from None
    return found


def _value_node(value: Any, arrays: ArrayWriter, role: str, inputs: np.ndarray | None) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        found = number(value)
        return {"float": found} if isinstance(found, str) else found
    if isinstance(value, AbstractKernel):
        return {"kernel": kernel_node(value, role, arrays, inputs)}
    if eqx.is_array(value) or isinstance(value, np.ndarray):
        return {"numbers": arrays.ref(np.asarray(value))}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise SavedModelError("it is a mapping whose keys are not texts.")
        items = {
            k: _value_node(v, arrays, k if k in ROLES else role, None) for k, v in value.items()
        }
        return {"mapping": items}
    if isinstance(value, tuple):
        return {"tuple": [_value_node(v, arrays, role, None) for v in value]}
    if isinstance(value, list):
        return [_value_node(v, arrays, role, None) for v in value]
    for name, family in estimators().items():
        if type(value) is family:
            return {"estimator": {"class": name, "options": options_node(value, arrays)}}
    if hasattr(value, "log_prob") and hasattr(value, "sample"):
        return {"distribution": prior_node(value, arrays)}
    raise SavedModelError(f"it is a {type(value).__name__}.")


def read_options(node: Node, family: Any, supplied: Supplied) -> dict[str, Any]:
    """Keyword arguments of a class; those it does not have are refused."""
    known = family._get_param_names()
    unknown = [key for key in node.value if key not in known]
    if unknown:
        refuse(f"{node.where} has {unknown[0][:40]!r}, which {family.__name__} does not take")
    return {key: _read_value(node, key, value, supplied) for key, value in node.value.items()}


def _read_value(node: Node, key: str, value: Any, supplied: Supplied) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_read_value(node, key, v, supplied) for v in value]
    inner = node.at(value, key)
    if len(inner.value) != 1:
        refuse(f"{inner.where} is not understood")
    ((kind, content),) = inner.value.items()
    if kind == "float":
        return as_number(content, inner.where)
    if kind == "kernel":
        return read_kernel(inner.node(kind), supplied)
    if kind == "numbers":
        return _any_array(inner, kind)
    if kind == "mapping":
        return {k: _read_value(inner, k, v, supplied) for k, v in inner.named(kind)}
    if kind == "tuple":
        return tuple(_read_value(inner, key, v, supplied) for v in inner.items(kind))
    if kind == "estimator":
        return read_estimator(inner.node(kind).only("class", "options"), supplied)
    if kind == "distribution":
        return read_prior(inner.node(kind))
    refuse(f"{inner.where} is not understood")


def _any_array(node: Node, key: str) -> np.ndarray:
    from deconditional.saving.nodes import as_array

    return as_array(node.raw(key), f"{node.where}.{key}", node.archive)


def read_estimator(node: Node, supplied: Supplied) -> Any:
    """An estimator as its constructor makes it."""
    known = estimators()
    family = known[node.choice("class", tuple(known))]
    return family(**read_options(node.node("options"), family, supplied))


# --------------------------------------------------------------------------- labels and times


def labels_node(labels: tuple[Any, ...], arrays: ArrayWriter) -> dict[str, Any]:
    """Names of bags."""
    if all(type(label) is int and abs(label) < 2**63 for label in labels):
        return {"whole": arrays.ref(np.asarray(labels, dtype=np.int64))}
    return {"labels": [_label(label) for label in labels]}


def _label(label: Any) -> Any:
    if isinstance(label, np.datetime64):
        return {"datetime64": [str(label), np.datetime_data(label)[0]]}
    if isinstance(label, np.generic):
        label = label.item()
    if label is None or isinstance(label, bool | int | str):
        return label
    if isinstance(label, float):
        return {"float": number(label)}
    if isinstance(label, tuple):
        return {"tuple": [_label(part) for part in label]}
    if isinstance(label, datetime.datetime):
        return {"datetime": label.isoformat()}
    if isinstance(label, datetime.date):
        return {"date": label.isoformat()}
    raise SavedModelError(
        f"the label {label!r} of a bag is a {type(label).__name__}, which cannot be saved; name "
        "bags by texts, numbers or dates."
    )


def read_labels(node: Node) -> tuple[Any, ...]:
    """Names of bags, each once."""
    if "whole" in node:
        labels = tuple(node.only("whole").array("whole", "N", "i").tolist())
    else:
        labels = tuple(_read_label(node, v) for v in node.only("labels").items("labels"))
        if node.sizes.setdefault("N", len(labels)) != len(labels):
            node.wrong("labels", "one label for each bag")
    if len(set(labels)) != len(labels) or not labels:
        refuse(f"{node.where}: two bags have the same label, or there are none")
    return labels


def _read_label(node: Node, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    inner = node.at(value, "labels")
    if len(inner.value) != 1:
        refuse(f"{inner.where} is not understood")
    ((kind, content),) = inner.value.items()
    if kind == "float":
        return as_number(content, inner.where)
    if kind == "tuple":
        return tuple(_read_label(inner, part) for part in inner.items(kind))
    if kind == "datetime":
        return datetime.datetime.fromisoformat(inner.text(kind))
    if kind == "date":
        return datetime.date.fromisoformat(inner.text(kind))
    if kind == "datetime64":
        about = inner.texts(kind)
        if len(about) != 2 or about[1] not in UNITS:
            refuse(f"{inner.where} is not a date")
        return np.array(about[0], dtype=f"datetime64[{about[1]}]")[()]
    refuse(f"{inner.where} is not understood")


def times_node(times: np.ndarray | None, arrays: ArrayWriter) -> Any:
    """Values of a time coordinate."""
    if times is None:
        return None
    times = np.asarray(times)
    if times.dtype.kind == "M":
        unit = np.datetime_data(times.dtype)[0]
        return {"kind": "datetime64", "unit": unit, "counts": arrays.ref(times.astype(np.int64))}
    if times.dtype.kind in "fiu":
        return {"kind": "number", "values": arrays.ref(times)}
    if times.dtype.kind == "U":
        return {"kind": "text", "values": times.tolist()}
    calendars = {getattr(t, "calendar", None) for t in times}
    if len(calendars) != 1 or None in calendars:
        raise SavedModelError(
            f"times of {times.dtype} cannot be saved; convert them to dates of NumPy."
        )
    parts = [(t.year, t.month, t.day, t.hour, t.minute, t.second, t.microsecond) for t in times]
    return {
        "kind": "cftime",
        "calendar": calendars.pop(),
        "parts": arrays.ref(np.asarray(parts, dtype=np.int64)),
    }


UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns")


def read_times(node: Node | None) -> np.ndarray | None:
    """Values of a time coordinate; None where there is none."""
    if node is None:
        return None
    kind = node.choice("kind", ("datetime64", "number", "text", "cftime"))
    if kind == "datetime64":
        unit = node.only("kind", "unit", "counts").choice("unit", UNITS)
        counts = node.array("counts", kind="i").astype(np.int64)
        return counts.astype(f"datetime64[{unit}]")
    if kind == "text":
        return np.asarray(node.only("kind", "values").texts("values"), dtype=str)
    if kind == "number":
        return _any_array(node.only("kind", "values"), "values")
    import cftime  # type: ignore[import-untyped]

    node.only("kind", "calendar", "parts")
    parts, calendar = node.array("parts", kind="i"), node.text("calendar")
    if parts.ndim != 2 or parts.shape[1] != 7:
        node.wrong("parts", "seven numbers for each time")
    return np.array([cftime.datetime(*row, calendar=calendar) for row in parts.tolist()])
