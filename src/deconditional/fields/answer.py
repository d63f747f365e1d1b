"""The answer of a fit: a dataset, in memory or lazy, or written region by region."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import xarray as xr

from deconditional.errors import Caution, tell_of
from deconditional.fields import result as results
from deconditional.fields.description import Account, described
from deconditional.fields.io import write_fields
from deconditional.fields.predict import EXTRAPOLATION, Together, Wanted
from deconditional.fields.series import Windows
from deconditional.fields.sides import FineSide
from deconditional.fields.streaming import stream
from deconditional.fitting.progress import show
from deconditional.models.cautions import extrapolated


def answer(
    side: FineSide,
    source: Together | Windows,
    wanted: Wanted,
    account: Account,
    command: str,
    progress: bool,
) -> xr.Dataset:
    """The posterior on fine data, and what a result says of it.

    Parameters
    ----------
    side, source
        Where to predict, and what predicts there.
    wanted, account
        What is asked of the posterior, and all there is to say of the fit.
    command
        What the history says.
    progress
        Show how far the work is.
    """
    began = time.perf_counter()
    with show(progress) as stage:
        stage("predicting")
        named, means = source.predicted(wanted, stage)
    out = results.fine_part(side, named)
    if wanted.levels:
        out = out.assign_coords(quantile=("quantile", np.asarray(wanted.levels)))
    if wanted.above:
        out = out.assign_coords(above=("above", np.asarray(wanted.above)))
    if account.problem.pairing.question.family is not None:
        out["rate"] = out["mean"]
    out = out.merge(results.coarse_part(account.problem, means))
    timings = {**account.timings, "predicting": time.perf_counter() - began}
    result = described(out, side.grid, replace(account, timings=timings), command)
    if result[EXTRAPOLATION].chunks is None:
        tell_of(extrapolated(**results.extrapolation_summary(result[EXTRAPOLATION].values)))
    return result


def written_answer(
    out: Path,
    side: FineSide,
    source: Together | Windows,
    wanted: Wanted,
    account: Account,
    command: str,
    progress: bool,
    *,
    resume: bool,
) -> Path:
    """Write the answer in as little memory as a few chunks take; see :func:`answer`."""
    result = answer(side, source, wanted, account, command, progress)
    if result["mean"].chunks is None:
        return write_fields(result, out)
    fields = [name for name in result.data_vars if not str(name).startswith("coarse_")]
    cautions: list[Caution] = []

    def finish(written: xr.Dataset) -> xr.Dataset:
        """What cannot be known before all fields are written."""
        rest = result.drop_vars(fields)
        if rest["coarse_mean"].chunks is not None:
            rest = results.with_area_means(rest, source.area_means(written["mean"]))
        rest = rest.drop_vars([n for n in rest.coords if n in written.variables]).compute()
        facts = json.loads(result.attrs["deconditional"])
        facts["residuals"] = results.residual_summary(rest["coarse_residual"].values)
        facts["extrapolation"] = results.extrapolation_summary(written[EXTRAPOLATION])
        cautions.extend(extrapolated(**facts["extrapolation"]))
        return rest.assign_attrs(result.attrs, deconditional=results.as_json(facts))

    with show(progress) as stage:
        stage("predicting and writing")
        place = stream(result[fields], out, finish, resume=resume)
    tell_of(cautions)
    return place
