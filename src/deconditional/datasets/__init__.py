"""Data sets with known truth: surfaces cut into bags, and fields of the globe cut into cells."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from deconditional.datasets.surfaces import CutSurface, s_curve, swiss_roll

if TYPE_CHECKING:
    from deconditional.datasets.cells import FieldsExample, coarsen, split_cells
    from deconditional.datasets.homicides import CountsExample, us_homicides
    from deconditional.datasets.itu import global_fields
    from deconditional.datasets.made_up import synthetic_fields

__all__ = [
    "CountsExample",
    "CutSurface",
    "FieldsExample",
    "coarsen",
    "global_fields",
    "s_curve",
    "split_cells",
    "swiss_roll",
    "synthetic_fields",
    "us_homicides",
]

FIELDS = {
    "CountsExample": "homicides",
    "FieldsExample": "cells",
    "coarsen": "cells",
    "global_fields": "itu",
    "us_homicides": "homicides",
    "split_cells": "cells",
    "synthetic_fields": "made_up",
}
"""What needs xarray, and the modules that have it: imported when it is first used."""


def __getattr__(name: str) -> Any:
    if name not in FIELDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"deconditional.datasets.{FIELDS[name]}")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"fields need {error.name}; install it with pip install 'deconditional[fields]'."
        ) from None
    return getattr(module, name)
