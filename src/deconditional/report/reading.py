"""Results of ``deconditional downscale``, read from files and checked before anything is drawn."""

from __future__ import annotations

import json
import os
from typing import Any

import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.io import UnreadableError, open_fields
from deconditional.report.result import Result
from deconditional.scores.marginals import KINDS

REMEDY = "name a file that deconditional downscale wrote."


def load_result(path: str | os.PathLike[str]) -> xr.Dataset:
    """Open a result of ``deconditional downscale``.

    Raises
    ------
    UsageError
        Where the file cannot be read, or is something else.
    """
    shown = repr(str(path))
    if not os.path.isfile(path):
        raise UsageError(f"there is no file {shown}; name one that deconditional downscale wrote.")
    try:
        data = open_fields(os.fspath(path), "result")
    except UnreadableError as error:
        raise UsageError(
            f"{shown} cannot be read as netCDF ({error.reason}); name one that deconditional "
            "downscale wrote."
        ) from None
    read_result(data, shown)
    return data


def read_result(data: xr.Dataset, shown: str = "the dataset") -> Result:
    """A dataset as a result, once it is known to be one."""
    absent = [f"no variable {name!r}" for name in ("mean", "std") if name not in data]
    if "deconditional" not in data.attrs:
        absent.append("no attribute 'deconditional'")
    if absent:
        listed = " and ".join([", ".join(absent[:-1])] * (len(absent) > 1) + absent[-1:])
        raise UsageError(
            f"{shown} is no result of deconditional downscale: it has {listed}; {REMEDY}"
        )
    result = Result(data, _facts(data.attrs["deconditional"], shown))
    _check_distribution(result, shown)
    return result


def _facts(text: Any, shown: str) -> dict[str, Any]:
    """What a result says about itself."""
    try:
        facts = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise UsageError(f"the attribute 'deconditional' of {shown} is damaged; {REMEDY}")
    return facts


def _check_distribution(result: Result, shown: str) -> None:
    kind = result.distribution
    if kind not in KINDS:
        raise UsageError(
            f"{shown} has marginals of the kind {kind!r}; this version knows {', '.join(KINDS)}. "
            "Read it with the version that wrote it."
        )
    if kind == "rectified normal":
        absent = [name for name in ("latent_mean", "latent_std") if name not in result.data]
        if absent:
            raise UsageError(
                f"{shown} has rectified normal marginals, but no variable "
                f"{' and '.join(map(repr, absent))}; run deconditional downscale again."
            )
