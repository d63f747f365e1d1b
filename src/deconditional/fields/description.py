"""What is said of a fit: CF attributes, history, all facts as JSON, and what parameters mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import xarray as xr
from gpjax.kernels.base import ProductKernel

from deconditional.errors import VERSION
from deconditional.fields.axes import Floats, Grid
from deconditional.fields.frames import EARTH_RADIUS
from deconditional.fields.learn import STAGED, final_stage
from deconditional.fields.predict import EXTRAPOLATION, NOT_PREDICTED
from deconditional.fields.problem import Problem
from deconditional.models import CMP, MediatedGP
from deconditional.saving.identity import versions

WORDS = {
    "mean": "posterior mean of {}",
    "std": "posterior standard deviation of {}",
    "rate": "posterior mean of {}",
    "exceedance": "probability that {} is above a level",
    "quantiles": "posterior quantiles of {}",
    "samples": "posterior samples of {}",
    "latent_mean": "posterior mean of {} before its bounds",
    "latent_std": "posterior standard deviation of {} before its bounds",
    "coarse_observed": "observed {}",
    "coarse_mean": "area mean of the posterior mean of {}",
    "coarse_residual": "observed less area mean of {}",
}
"""The long name of every variable, from that of the target."""
EXTRAPOLATION_VALUES = np.arange(NOT_PREDICTED, 4, dtype=np.int8)
EXTRAPOLATION_FLAGS = "not_predicted inside outside_range prior_only outside_range_and_prior_only"
PACKAGES = ("jax", "gpjax", "numpy", "scipy", "xarray")


def described(
    out: xr.Dataset,
    grid: Grid,
    fit: Any,
    problem: Problem,
    timings: Mapping[str, float],
    command: str,
) -> xr.Dataset:
    """The result of a fitted downscaler with CF attributes, history, and all facts as JSON."""
    units, long_name = problem.units, problem.long_name
    question = problem.pairing.question
    family, per = question.family, question.exposure or question.amounts or "km2"
    standard = problem.target_attributes.get("standard_name")
    for name, text in WORDS.items():
        if name not in out:
            continue
        called = f"the rate of {long_name}" if family and "coarse" not in name else long_name
        attrs = {"long_name": text.format(called), "cell_methods": "area: mean"}
        if family:
            attrs["long_name"] = attrs["long_name"].replace(
                "area mean of the posterior mean of ", "fitted "
            )
        if name == "exceedance":
            attrs["units"] = "1"
        elif family and per and "coarse" not in name:
            attrs["units"] = f"per {per}"
        elif units:
            attrs["units"] = units
        if isinstance(standard, str) and standard and name != "coarse_residual":
            suffix = " standard_error" if name in ("std", "latent_std") else ""
            attrs["standard_name"] = f"{standard}{suffix}"
        out[name].attrs = attrs
    out[EXTRAPOLATION].attrs = extrapolation_attributes()
    if grid.mapping:
        for each in out.data_vars:
            if not str(each).startswith("coarse_"):
                out[each].attrs["grid_mapping"] = grid.mapping
    past = str(problem.coarse.attrs.get("history", "")).strip()
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    line = f"{now} deconditional {VERSION}: {command}"
    out.attrs = {
        "Conventions": "CF-1.11",
        "title": f"{long_name}, downscaled",
        "source": f"deconditional {VERSION}, {fit.model_name_}",
        "history": f"{line}\n{past}" if past else line,
        **{f"fit_{row['name'].replace('.', '_')}": row["value"] for row in fit.parameters_},
        **_skill(fit),
        "deconditional": as_json(_facts(fit, problem, timings) | _of_result(out)),
    }
    return out


def _of_result(out: xr.Dataset) -> dict[str, Any]:
    """Facts about values; of a lazy result, whoever reads it can have them."""
    residuals, flags = out["coarse_residual"], out[EXTRAPOLATION]
    left = None if residuals.chunks else residual_summary(residuals.values)
    flagged = None if flags.chunks else extrapolation_summary(flags.values)
    return {"residuals": left, "extrapolation": flagged}


def _facts(fit: Any, problem: Problem, timings: Mapping[str, float]) -> dict[str, Any]:
    """What a result says of the fitted downscaler behind it."""
    report, question = fit.fit_report_, problem.pairing.question
    is_matched = fit.learner_.is_matched(fit.model_name_)
    apart = ("target", "covariates", "mediators", "progress")
    low, high = problem.target.bounds
    return {
        "target": question.target,
        "units": problem.units,
        "long_name": problem.long_name,
        "covariates": list(question.covariates),
        "mediators": list(question.mediators),
        "model": fit.model_name_,
        "mediation": mediation(problem.pairing.matching, is_matched, fit.model_),
        "distribution": problem.target.distribution,
        "bounds": [low if np.isfinite(low) else None, high if np.isfinite(high) else None],
        "options": {k: v for k, v in fit.get_params(deep=False).items() if k not in apart},
        "understood": [list(line) for line in problem.pairing.understood],
        "parameters": fit.parameters_,
        "fit": {
            "converged": report.converged,
            "iterations": report.iterations,
            "log_evidence": report.log_evidence,
            "notes": list(report.notes),
            "details": dict(report.details),
        },
        "comparison": None if fit.comparison_ is None else _table(fit),
        "timings": {name: round(value, 2) for name, value in timings.items()},
        "versions": versions(*PACKAGES),
    }


def _skill(fit: Any) -> dict[str, str]:
    """Sentences on how the model does beside bilinear interpolation, and a doubt if no better."""
    name, comparison = fit.model_name_, fit.comparison_
    if comparison is None:
        return {}
    said = {"skill": comparison.skill(name), "doubt": comparison.doubt(name)}
    return {key: text for key, text in said.items() if text is not None}


def _table(fit: Any) -> dict[str, Any]:
    """The comparison of models as a result has it."""
    comparison = fit.comparison_
    return {
        "columns": list(comparison.columns),
        "rows": [list(row.values()) for row in comparison.rows],
        "chosen": fit.model_name_,
        "folds": comparison.how,
        "pit": comparison.pit.get(fit.model_name_),
        **_skill(fit),
    }


def mediation(matching: str, is_matched: bool, model: Any) -> str:
    """How observations were linked to bags, in words."""
    if is_matched:
        left = ", the others are left out" if matching != "matched" else ""
        return f"matched: every observation is the mean over its own bag{left}"
    how = "a conditional mean operator links observations to bags"
    if isinstance(model, STAGED):
        how = "a regression on the mediators gives bags pseudo-targets with their covariance"
    if isinstance(model, MediatedGP):
        how = "mediators measure means over coarse cells, by a regression of the observations"
    return f"{matching}: {how}"


# ---------------------------------------------------------------------- facts


def extrapolation_attributes() -> dict[str, Any]:
    """What the flags of cells far from the data mean."""
    return {
        "long_name": "how far a cell is from the data",
        "flag_values": EXTRAPOLATION_VALUES,
        "flag_meanings": EXTRAPOLATION_FLAGS,
        "comment": (
            "outside_range: an input beyond the range of the bags by over a tenth of it; "
            "prior_only: a variance of at least 95 % of that of the prior"
        ),
    }


def extrapolation_summary(flags: Any) -> dict[str, Any]:
    """Number of predicted cells, and the share of them that is flagged."""
    n, flagged = int((flags >= 0).sum()), int((flags > 0).sum())
    return {"n": n, "share": flagged / n if n else None}


def residual_summary(residual: Floats) -> dict[str, Any]:
    """Number, mean, root mean square and largest of what is left."""
    left = residual[np.isfinite(residual)]
    if not left.size:
        return {"n": 0, "mean": None, "rmse": None, "largest": None}
    return {
        "n": int(left.size),
        "mean": float(left.mean()),
        "rmse": float(np.sqrt(np.mean(left**2))),
        "largest": float(left[np.abs(left).argmax()]),
    }


def as_json(facts: Mapping[str, Any]) -> str:
    """Facts as one line of JSON; NumPy values become plain ones, what is not finite null."""
    return json.dumps(_plain(facts), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return repr(value)


SHAPES = {"Matern32": "smooth", "Matern12": "rough", "Matern52": "very smooth", "RBF": "Gaussian"}
NOISES = {
    "noise_std": "the noise of coarse observations",
    "fine_noise_std": "the noise of single fine cells",
    "measurement_noise_std": "what measured means over coarse cells miss beside the regression",
}


def meanings_of(model: Any, problem: Problem) -> list[dict[str, Any]]:
    """Name, value, unit and meaning of every parameter of a fitted model."""
    learnt, kernels = {}, {}
    if isinstance(model, STAGED):
        first = model.regressor_
        for key, value in first.parameters_.items():
            learnt[f"mediator_{key}" if key.startswith("kernel") else f"mediator.{key}"] = value
        kernels["mediator_kernel"] = first.kernel_
    last = final_stage(model)
    learnt.update(last.parameters_)
    if isinstance(last, MediatedGP) and "noise_std" in learnt:
        learnt["measurement_noise_std"] = learnt.pop("noise_std")
    kernels["kernel"] = last.kernel_
    if isinstance(last, CMP):
        kernels["mediator_kernel"] = last.mediator_kernel_
    return [meaning(name, learnt, kernels, problem) for name in learnt]


def meaning(
    name: str, learnt: Mapping[str, Any], kernels: Mapping[str, Any], problem: Problem
) -> dict[str, Any]:
    """Name, value, unit and meaning of one of the learnt parameters, beside the fitted kernels."""
    array, scale = np.asarray(learnt[name], dtype=float), problem.target.scale
    family, _, rest = name.partition(".")
    source = family.removeprefix("source")
    of_source = f" of source {int(source) + 1}" if source.isdigit() else ""
    if (own := rest if of_source else name.removeprefix("mediator.")) in NOISES:
        what = NOISES[own] + of_source
        stage = "mediation: " if family == "mediator" else ""
        row = (array * scale, _process_unit(problem), f"{stage}standard deviation of {what}")
    elif family in kernels and rest.endswith(("lengthscale", "variance")):
        row = _of_kernel(array, rest, kernels[family], problem, family == "mediator_kernel")
        # An operator leaves the scale of its kernel to the ridge, a regression none.
        if family == "mediator_kernel" and "ridge" in learnt and rest.endswith("variance"):
            row = (array, "1", f"{row[2]} (relative)")
        elif rest.endswith("variance"):
            name = f"{name.removesuffix('variance')}std"
    elif name == "ridge":
        row = (array, "1", "regularisation of the link between mediators and bags")
    elif family not in kernels:
        row = (array, "", f"parameter of how observations scatter{of_source}")
    else:
        row = (array, "", "parameter of a kernel of your own, in standardised inputs")
    shown = np.round(np.asarray(row[0], dtype=float), 6)
    return {"name": name, "value": shown.tolist(), "unit": row[1], "meaning": row[2]}


def _process_unit(problem: Problem) -> str:
    """Units of the target, or of its logarithm."""
    return f"log {problem.units}".strip() if problem.target.log else problem.units


def _of_kernel(
    value: np.ndarray, rest: str, kernel: Any, problem: Problem, of_mediators: bool
) -> tuple[np.ndarray, str, str]:
    """Value, unit and meaning of a length scale or variance of a part of a kernel."""
    pairing = problem.pairing
    scaling, names = problem.inputs, pairing.question.inputs
    stage, others = "", "covariates"
    if of_mediators:
        scaling, names = problem.mediators, pairing.question.mediators
        stage, others = "mediation: ", "mediators"
    n_places, spherical = (pairing.n_position, pairing.n_time), pairing.coarse.spherical
    *path, _ = rest.split(".")
    part, factors = kernel, []
    for index in path:
        if isinstance(part, ProductKernel):
            factors = part.kernels
        part = part.kernels[int(index)]
    what = _seen(part, n_places)
    kind = SHAPES.get(type(part).__name__, type(part).__name__)
    if rest.endswith("variance"):
        every = " and ".join(dict.fromkeys(_seen(each, n_places) for each in factors or [part]))
        text = f"{stage}spread of the {kind} part in {every.replace('covariates', others)}"
        return np.sqrt(value) * problem.target.scale, _process_unit(problem), text
    text = f"{stage}length scale of the {kind} part"
    if what == "position":
        scale = EARTH_RADIUS / 1000.0 if spherical else float(scaling.scale[0]) / 1000.0
        along = ", east, north and up" if spherical else ", along y and x"
        return value * scale, "km", f"{text} in position{along if value.ndim else ''}"
    if what == "time":
        return value * float(scaling.scale[n_places[0]]), "years", f"{text} in time"
    if what == "season":
        return value, "radii of the year's circle", f"{text} in season"
    if what == "covariates":
        chosen = ", ".join(names[d - sum(n_places)] for d in part.active_dims)
        text = f"{stage}length scales of the {kind} part in {chosen}"
        if value.ndim:
            return value * scaling.scale[part.active_dims], "units of each", text
    return value, "standard deviations", text


def _seen(part: Any, n_places: tuple[int, int]) -> str:
    """What the inputs of a part of a kernel are, in a word."""
    dims = part.active_dims if isinstance(part.active_dims, list) else None
    if dims is None:
        return "inputs"
    ends = np.cumsum([n_places[0], min(n_places[1], 1), max(n_places[1] - 1, 0)])
    kinds = {("position", "time", "season", "covariates")[k] for k in np.digitize(dims, ends)}
    return kinds.pop() if len(kinds) == 1 else "inputs"
