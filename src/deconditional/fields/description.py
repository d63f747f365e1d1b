"""What a result says about itself: CF attributes, history, and all facts of the run as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from deconditional.fields import result as results
from deconditional.fields.grids import Grid
from deconditional.fields.prediction import EXTRAPOLATION

__all__ = ["described"]


def described(
    downscaler: Any, out: xr.Dataset, grid: Grid, timings: Mapping[str, float], command: str
) -> xr.Dataset:
    """The result with CF attributes, history, learnt parameters and all facts as JSON."""
    question = downscaler.pairing_.question
    source = downscaler.coarse_[question.target]
    units = str(source.attrs.get("units", ""))
    long_name = str(source.attrs.get("long_name", question.target))
    standard = source.attrs.get("standard_name")
    words = {
        "mean": f"posterior mean of {long_name}",
        "std": f"posterior standard deviation of {long_name}",
        "quantiles": f"posterior quantiles of {long_name}",
        "samples": f"posterior samples of {long_name}",
        "latent_mean": f"posterior mean of {long_name} before its bounds",
        "latent_std": f"posterior standard deviation of {long_name} before its bounds",
        "coarse_observed": f"observed {long_name}",
        "coarse_mean": f"area mean of the posterior mean of {long_name}",
        "coarse_residual": f"observed less area mean of {long_name}",
    }
    for name, text in words.items():
        if name not in out:
            continue
        attrs = {"long_name": text, "cell_methods": "area: mean"}
        if units:
            attrs["units"] = units
        if isinstance(standard, str) and standard and name != "coarse_residual":
            suffix = " standard_error" if name in ("std", "latent_std") else ""
            attrs["standard_name"] = f"{standard}{suffix}"
        if grid.mapping and not name.startswith("coarse_"):
            attrs["grid_mapping"] = grid.mapping
        out[name].attrs = attrs
    residuals = None  # of a lazy result, whoever reads it can have them
    if out["coarse_residual"].chunks is None:
        residuals = results.residual_summary(out["coarse_residual"].values)
    flags = out[EXTRAPOLATION]
    flags.attrs = results.extrapolation_attributes()
    if grid.mapping:
        flags.attrs["grid_mapping"] = grid.mapping
    flagged = None if flags.chunks is not None else results.extrapolation_summary(flags.values)
    facts = _facts(downscaler, units, long_name, residuals, timings) | {"extrapolation": flagged}
    past = str(downscaler.coarse_.attrs.get("history", "")).strip()
    line = results.history_line(command)
    out.attrs = {
        "Conventions": "CF-1.11",
        "title": f"{long_name}, downscaled",
        "source": f"deconditional {results.versions()['deconditional']}, {downscaler.model_name_}",
        "history": f"{line}\n{past}" if past else line,
        **{f"fit_{row['name'].replace('.', '_')}": row["value"] for row in downscaler.parameters_},
        "deconditional": results.as_json(facts),
    }
    return out


def _facts(
    downscaler: Any,
    units: str,
    long_name: str,
    residuals: Mapping[str, Any] | None,
    timings: Mapping[str, float],
) -> dict[str, Any]:
    question, report = downscaler.pairing_.question, downscaler.fit_report_
    asked = {
        name: value
        for name, value in downscaler.get_params(deep=False).items()
        if name not in ("target", "covariates", "mediators", "progress")
    }
    low, high = downscaler.target_scaling_.bounds
    comparison = None
    if downscaler.comparison_ is not None:
        table = downscaler.comparison_
        comparison = {
            "columns": list(table.columns),
            "rows": [list(row.values()) for row in table.rows],
            "chosen": table.chosen,
            "folds": table.how,
            "pit": table.pit[table.chosen],
        }
    return {
        "target": question.target,
        "units": units,
        "long_name": long_name,
        "covariates": list(question.covariates),
        "mediators": list(question.mediators),
        "model": downscaler.model_name_,
        "mediation": _mediation(downscaler),
        "distribution": downscaler.target_scaling_.distribution,
        "bounds": [low if np.isfinite(low) else None, high if np.isfinite(high) else None],
        "options": asked,
        "understood": [list(pair) for pair in downscaler.pairing_.understood],
        "parameters": downscaler.parameters_,
        "fit": {
            "converged": report.converged,
            "iterations": report.iterations,
            "log_evidence": report.log_evidence,
            "notes": list(report.notes),
            "details": dict(report.details),
        },
        "comparison": comparison,
        "residuals": residuals,
        "timings": {name: round(value, 2) for name, value in timings.items()},
        "versions": results.versions(),
    }


def _mediation(downscaler: Any) -> str:
    matching = downscaler.pairing_.matching
    if downscaler.is_matched(downscaler.model_name_):
        return "matched: every observation is the mean over its own bag"
    how = "a conditional mean operator links observations to bags"
    if hasattr(downscaler.model_, "regressor_"):
        how = "a regression on the mediators gives bags pseudo-targets with their covariance"
    members = getattr(downscaler.model_, "members_", ())
    if "unlinked" in members:
        how = "mediators predict no more than noise would, so the field has its prior"
    elif members:
        names = ", ".join(members)
        how = f"a regression on the mediators, read in several ways ({names}) that are mixed"
    return f"{matching}: {how}"
