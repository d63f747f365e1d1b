"""The report: one HTML page about a result of ``deconditional downscale``, read and checked.

The page holds its figures and its style, needs no network and runs no script.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from deconditional import __version__
from deconditional.errors import UsageError, one_line
from deconditional.report.page import render
from deconditional.report.plots import require_matplotlib
from deconditional.report.result import Result
from deconditional.report.sections import sections
from deconditional.report.truth import align_truth
from deconditional.saving.outputs import output_folder, write_atomically
from deconditional.scores.marginals import KINDS

REMEDY = "name a file that deconditional downscale wrote."


def write_report(
    result: xr.Dataset, out: Path, truth: xr.DataArray | xr.Dataset | None = None
) -> Path:
    """Write a result as one HTML page.

    Parameters
    ----------
    result
        What ``deconditional downscale`` wrote, as read from its file.
    out
        The file to write; its folder is made if need be.
    truth
        The fine field, on the grid of the result or a larger one, in any order; of a dataset, the
        variable of the target's name is taken.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    UsageError
        Where the dataset is no such result, or the truth does not fit it.

    Examples
    --------
    >>> import json, tempfile
    >>> import numpy as np, xarray as xr
    >>> field = xr.DataArray(np.eye(3), {"y": [1, 2, 3], "x": [1, 2, 3]}, ("y", "x"))
    >>> facts = json.dumps({"target": "t2m", "model": "cmp"})
    >>> result = xr.Dataset({"mean": field, "std": field + 1}, attrs={"deconditional": facts})
    >>> with tempfile.TemporaryDirectory() as here:
    ...     page = write_report(result, Path(here) / "report.html").read_text(encoding="utf-8")
    >>> page.count("<h2>"), page.count("<img ")
    (8, 2)
    """
    try:
        require_matplotlib()
    except ImportError as error:
        raise UsageError(str(error)) from None
    out = Path(out)
    if out.is_dir():
        raise UsageError(f"the output {str(out)!r} is a folder; name a file, such as report.html.")
    checked = read_result(result)
    output_folder(out.parent)
    if truth is not None:
        checked = replace(checked, truth=align_truth(truth, checked.mean, checked.target))
    note = f"Written by deconditional {__version__}."
    try:
        with np.errstate(all="ignore"):  # of values as large as numbers can be
            if checked.scored is not None and not checked.scored[0].size:
                raise UsageError(
                    "the truth has no value in any cell that was predicted; give one that overlaps."
                )
            page = render(checked.name, sections(checked), note)
    except (UsageError, MemoryError):
        raise
    except Exception as error:  # facts may be of any kind, each a stumbling block of its own
        raise UsageError(
            f"no page can be made of what the result says of itself ({one_line(error)}); {REMEDY}"
        ) from error
    write_atomically(out, page)
    return out


# ---------------------------------------------------------------------- reading


def read_result(data: xr.Dataset) -> Result:
    """A dataset as a result, once it is known to be one."""
    file = data.encoding.get("source")
    shown = "the dataset" if file is None else repr(os.path.basename(file))
    absent = [f"no variable {name!r}" for name in ("mean", "std") if name not in data]
    if "deconditional" not in data.attrs:
        absent.append("no attribute 'deconditional'")
    if absent:
        listed = " and ".join([", ".join(absent[:-1])] * (len(absent) > 1) + absent[-1:])
        raise UsageError(
            f"{shown} is no result of deconditional downscale: it has {listed}; {REMEDY}"
        )
    result = Result(data, _facts(data.attrs["deconditional"], shown))
    if result.distribution not in KINDS:
        raise UsageError(
            f"{shown} has marginals of the kind {result.distribution!r}; this version knows "
            f"{', '.join(KINDS)}. Read it with the version that wrote it."
        )
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
