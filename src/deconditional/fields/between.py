r"""Covariates that vary in space and in time, divided in two: within places, and between them.

What a covariate has to do with the target from place to place need not be what it has to do with it
from time to time: temperatures of two climate models agree on where it is warm, and have nothing in
common in which year is. With one slope for both, whichever the residuals leave more room for wins.
So with times such a covariate enters twice,

.. math:: x(s, t) \to \bigl(\bar x(s),\ x(s, t) - \bar x(s)\bigr),

as its mean over time at the place, and as the deviation from that (Mundlak 1978).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.axes import Grid


def means_over_time(dataset: xr.Dataset, grid: Grid, names: Sequence[str]) -> xr.Dataset:
    """The means over time of those variables that vary both from place to place and in time."""
    varying = [name for name in names if dataset[name].sizes.get(grid.time or "", 1) > 1]
    if not varying:
        return xr.Dataset()
    known = dataset[varying].astype(float)
    known = known.where(np.isfinite(known))
    about = xr.Dataset(
        {
            **{f"mean {name}": known[name].mean(grid.time) for name in varying},
            **{f"high {name}": known[name].max(grid.time) for name in varying},
            **{f"low {name}": known[name].min(grid.time) for name in varying},
        }
    ).compute()
    found = {}
    for name in varying:
        mean, changes = about[f"mean {name}"], about[f"high {name}"] > about[f"low {name}"]
        if bool(changes.any()) and float(mean.max()) > float(mean.min()):
            found[name] = mean
    return xr.Dataset(found)


def same_means(dataset: xr.Dataset, grid: Grid, stored: xr.Dataset, learnt: Grid) -> xr.Dataset:
    """The means that a fit has, for cells it knows; for others, means over the times there are."""
    if grid.at(None, None).same_as(learnt.at(None, None)):
        return stored
    names = [str(name) for name in stored.data_vars]
    lines = [name for name in grid.spatial if name in stored.indexes and name in dataset.indexes]
    inside = all(np.isin(dataset[name], stored[name]).all() for name in lines)
    if inside and len(lines) == len(grid.spatial):
        return stored.sel({name: dataset[name].values for name in lines})
    if grid.n_times < 2:
        raise UsageError(
            f"{names[0]!r} was learnt from as its mean over time and the deviation from that, and "
            "its mean in these cells is not known: predict on several times of it at once."
        )
    known = dataset[names].astype(float)
    return known.where(np.isfinite(known)).mean(grid.time).compute()
