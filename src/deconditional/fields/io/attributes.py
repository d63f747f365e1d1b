"""Attributes of datasets, which may hold anything: to be understood, and to be written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.errors import visible

__all__ = ["understandable", "writable"]

TEXTS = (
    *("units", "calendar", "standard_name", "long_name", "axis", "positive", "cell_methods"),
    *("bounds", "climatology", "grid_mapping", "grid_mapping_name", "coordinates"),
    *("Conventions", "title", "source", "history"),
)
"""Attributes that conventions define as texts."""

RESERVED = {
    *("_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned"),
    *("_Netcdf4Dimid", "_Netcdf4Coordinates", "_NCProperties", "_nc3_strict", "_NoFill"),
    *("CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS"),
}
"""What says how a file is stored, and is the business of whoever writes it."""


def understandable(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset with texts where conventions want texts; what cannot be one is left out.

    Examples
    --------
    >>> odd = xr.Dataset({"a": ("x", [1.0], {"units": 1, "standard_name": [2.0, 3.0]})})
    >>> understandable(odd)["a"].attrs
    {'units': '1'}
    """
    if all(_is_plain(v.attrs) for v in dataset.variables.values()) and _is_plain(dataset.attrs):
        return dataset
    dataset = dataset.copy()
    dataset.attrs = _texts(dataset.attrs)
    for variable in dataset.variables.values():
        variable.attrs = _texts(variable.attrs)
    return dataset


def _is_plain(attrs: Mapping[Any, Any]) -> bool:
    return all(isinstance(attrs.get(key, ""), str) for key in TEXTS)


def _texts(attrs: Mapping[Any, Any]) -> dict[Any, Any]:
    found = dict(attrs)
    for key in (key for key in TEXTS if key in found):
        text = _text(found[key])
        if text is None:
            del found[key]
        else:
            found[key] = text
    return found


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    values = _array(value)
    if values.dtype.kind in "US" or (values.ndim == 0 and values.dtype.kind in "fiu"):
        return ", ".join(_listed(values))
    return None


def _array(value: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError:  # rows of different lengths
        return np.asarray(None)


def _listed(values: npt.NDArray[Any]) -> list[str]:
    return [
        text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        for text in values.ravel().tolist()
    ]


def writable(attrs: Mapping[Any, Any], is_time: bool = False) -> dict[str, Any]:
    r"""Attributes that netCDF, Zarr and those who read them can take.

    Examples
    --------
    >>> writable({"long_name": "a\x00b", "flag": True, "about": {"a": None}, "none": None, 1: 2})
    {'long_name': 'a\\x00b', 'flag': 'true', 'about': '{"a": null}', '1': 2}
    """
    found = {}
    for key, value in attrs.items():
        name = visible(str(key)).replace("/", "_").strip()
        if not name or name in RESERVED or (is_time and name in ("units", "calendar")):
            continue
        kept = _value(value)
        if kept is not None:
            found[name] = kept
    return found


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, bytes):
        return visible(value.decode("utf-8", "replace"))
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 2**63 else str(value)
    values = _array(value)
    if values.size == 0:
        return None
    if values.dtype.kind in "fiu":
        return value if values.ndim < 2 else values.ravel()
    if values.dtype.kind in "US":
        return [visible(text) for text in _listed(values)]
    if values.dtype.kind == "b" and values.ndim == 0:
        return "true" if values else "false"
    return visible(json.dumps(value, default=str))
