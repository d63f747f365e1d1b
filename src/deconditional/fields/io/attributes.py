"""Attributes of datasets, which may hold anything: to be understood, and to be written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.errors import visible

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
    dataset = dataset.copy()
    described: list[Any] = [dataset, *dataset.variables.values()]
    for about in described:
        texts = {key: _text(about.attrs[key]) for key in TEXTS if key in about.attrs}
        about.attrs = {k: texts.get(k, v) for k, v in about.attrs.items() if texts.get(k, "") != ()}
    return dataset


def _text(value: Any) -> Any:
    """The text of a value; nothing, an empty tuple, where it is neither texts nor one number."""
    values = _array(value)
    if values.dtype.kind in "US" or (values.ndim == 0 and values.dtype.kind in "fiu"):
        return ", ".join(_listed(values))
    return ()


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
    kept_attrs = {}
    for key, value in attrs.items():
        name = visible(str(key)).replace("/", "_").strip()
        unwanted = not name or name in RESERVED or (is_time and name in ("units", "calendar"))
        if not unwanted and (kept := _value(value)) is not None:
            kept_attrs[name] = kept
    return kept_attrs


def _value(value: Any) -> Any:
    values = _array(value)
    if value is None or values.size == 0:
        return None
    if values.dtype.kind in "fiu":  # whole numbers too large for 64 bits are objects
        return value if values.ndim < 2 else values.ravel()
    if values.dtype.kind in "US":
        texts = [visible(text) for text in _listed(values)]
        return texts if values.ndim else texts[0]
    return visible(json.dumps(value, default=str))
