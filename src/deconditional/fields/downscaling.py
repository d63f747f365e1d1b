"""Downscaling in one call: one field, or many that differ in time, member or option."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import xarray as xr
from rich.console import Console

from deconditional.errors import UsageError
from deconditional.fields.axes import span
from deconditional.fields.downscaler import Downscaler
from deconditional.fields.mapped import Slices
from deconditional.fields.predict import quantile_levels
from deconditional.fields.sides import FineSide, two_sides
from deconditional.saving.resume import Checkpoint, opened


def downscale(
    fine: xr.Dataset | Sequence[xr.Dataset],
    coarse: Any,
    target: str | None = None,
    covariates: Sequence[str] = (),
    mediators: Sequence[str] = (),
    *,
    on: xr.Dataset | None = None,
    quantiles: Sequence[float] = (),
    samples: int = 0,
    exceedance: Sequence[float] = (),
    times: str | None = None,
    map_over: str | Mapping[str, Sequence[Any]] | None = None,
    store: str | Path | None = None,
    jobs: int = 1,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    command: str = "dc.downscale",
    **options: Any,
) -> xr.Dataset:
    """Downscale a coarse target to the fine grid of its covariates.

    Parameters
    ----------
    fine
        Covariates on the fine grid, NaN where unknown. Of several datasets the others are brought
        to the grid of the first.
    coarse
        Target and mediators on the coarse grid, NaN where unknown; or a GeoDataFrame of polygons or
        points with these as columns.
    target, covariates, mediators
        Names of variables; see :class:`Downscaler`.
    on
        Where to predict, if not at the fine cells whose covariates are known: another dataset
        with the same covariates.
    quantiles, samples
        Levels of quantiles and number of samples to add to the result.
    exceedance
        Levels of the target: the probability that each cell is above them is added.
    times
        Use these times only, on both sides: ``"2000-01"``, or ``"2000-01/2000-06"``.
    map_over
        Make one downscaling, with a fit of its own, for every value of a dimension of the coarse
        data, such as ``"time"`` or ``"member"``, or of an option, as in ``{"seed": range(10)}``.
        They go to the workers of the active Dask cluster, if there is one.
    store
        With `map_over`: a folder that keeps what is done, so that the same call goes on after a
        crash. Without it nothing is kept.
    jobs
        With `map_over` and no cluster: processes of a Dask cluster that is made for this call.
    checkpoint
        Without `map_over`: a file that keeps how far learning is; see :meth:`Downscaler.fit`. It is
        removed when the result is there.
    command
        What the history says.
    **options
        Further arguments of :class:`Downscaler`: ``model``, ``transform``, ``bounds``,
        ``consistency`` and so on.

    Returns
    -------
    xr.Dataset
        See :meth:`Downscaler.predict`.

    Examples
    --------
    >>> import deconditional as dc
    >>> fields = dc.datasets.synthetic_fields(n_lat=12, n_lon=24)
    >>> data = dc.datasets.split_cells(
    ...     fields, "tas", ["altitude"], ["water_vapour"], block=3, matched=1.0
    ... )
    >>> out = dc.downscale(data.fine, data.coarse, "tas", ["altitude"], quantiles=[0.05, 0.95])
    >>> sorted(out.data_vars)[-3:]
    ['mean', 'quantiles', 'std']
    """
    if times is not None:
        fine, coarse, on = at_times(times, fine, coarse, on)
    asked: dict[str, Any] = {"target": target, "covariates": covariates, "mediators": mediators}
    downscaler = new_downscaler(**asked, **options)
    quantile_levels(quantiles)
    if map_over is not None:
        if checkpoint is not None:
            raise UsageError(
                "checkpoint belongs to a single downscaling; with map_over, store keeps the "
                "slices that are done."
            )
        gridded = isinstance(fine, xr.Dataset) and isinstance(coarse, xr.Dataset)
        if exceedance or not gridded:
            raise UsageError("map_over goes over gridded data, without exceedance; leave it out.")
        asked |= {"quantiles": quantiles, "samples": samples, "command": command, **options}
        assert isinstance(fine, xr.Dataset)
        return _mapped(fine, coarse, on, map_over, store, jobs, downscaler, asked)
    if store is not None or jobs != 1:
        raise UsageError("store and jobs belong to map_over; leave them out, or add it.")
    sides = two_sides(fine, coarse, downscaler.question())
    where = sides[0] if on is None else FineSide.of(on, sides[0].question)
    downscaler.check_consistency(where)
    with opened(checkpoint) as kept:
        downscaler.learn(downscaler.prepare(*sides), checkpoint=kept)
        wanted: dict[str, Any] = {"quantiles": quantiles, "samples": samples}
        return downscaler.predict(where, exceedance=exceedance, command=command, **wanted)


def _mapped(
    fine: xr.Dataset,
    coarse: xr.Dataset,
    on: xr.Dataset | None,
    map_over: str | Mapping[str, Sequence[Any]],
    store: str | Path | None,
    jobs: int,
    downscaler: Downscaler,
    asked: Mapping[str, Any],
) -> xr.Dataset:
    """One downscaling for every value of a dimension, or of an option."""
    if jobs < 1:
        raise UsageError(f"the number of jobs must be at least 1, not {jobs}.")
    if isinstance(map_over, Mapping):
        for name, choices in map_over.items():
            for choice in choices:
                given = downscaler.get_params(deep=False) | {name: choice}
                new_downscaler(**given).question()
    slices = Slices.of((fine, coarse, on), map_over, {**asked, "progress": False})
    console = Console(stderr=True, quiet=not downscaler.progress)
    with ExitStack() as stack:
        folder = store or stack.enter_context(TemporaryDirectory())
        return slices.carried_out(folder, downscale, jobs, console)


def new_downscaler(*names: Any, **options: Any) -> Downscaler:
    """A downscaler, or an error that names the option it does not have."""
    try:
        return Downscaler(*names, **options)
    except TypeError as error:
        raise UsageError(f"{str(error).replace('Downscaler.__init__() got an ', '')}.") from None


def at_times(
    times: str, fine: Any, coarse: Any, on: Any, option: str = "times"
) -> tuple[Any, Any, Any]:
    """Fine and coarse data, and where to predict, at the times that a text names."""
    if not isinstance(fine, xr.Dataset) or not isinstance(coarse, xr.Dataset):
        raise UsageError(f"{option} chooses among times of gridded data; leave it out.")
    named = {"fine": fine, "coarse": coarse} | ({} if on is None else {"prediction": on})
    chosen = {which: select_time(data, times, which) for which, data in named.items()}
    if all(chosen[which] is data for which, data in named.items()):
        raise UsageError(f"{option} {times} was given, but nothing has times; leave it out.")
    return chosen["fine"], chosen["coarse"], chosen.get("prediction")


def select_time(dataset: xr.Dataset, times: str, which: str) -> xr.Dataset:
    """The times of a dataset that a text names; a dataset without time stays as it is."""
    dates = pd.DatetimeIndex | xr.CFTimeIndex
    found = [d for d in dataset.dims if isinstance(dataset.indexes.get(d), dates)]
    found += [d for d in dataset.dims if "time" in str(d).lower()]
    if not found:
        return dataset
    dim = found[0]
    first, _, last = times.partition("/")
    try:
        chosen = dataset.sortby(dim).sel({dim: slice(first, last or first)})
    except (KeyError, ValueError, TypeError) as error:
        raise UsageError(
            f"cannot select time {times!r} of the {which} data ({error}); write 2001-07, say, or "
            "2001-06/2001-08."
        ) from None
    if not chosen.sizes[dim]:
        raise UsageError(
            f"the {which} data has no time {times!r}; its times are {span(dataset[dim].values)}."
        )
    return chosen
