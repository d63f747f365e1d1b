"""What a fit tells about itself: its report, its warnings, and the attributes that users see."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from deconditional.bags import Bags
from deconditional.errors import Caution, FitWarning, tell_of
from deconditional.fitting.report import FitReport
from deconditional.inference.basis import InducingBasis
from deconditional.inference.learn import NO_HYPER, Fitted
from deconditional.models.cautions import of_fit
from deconditional.models.solvers import Posed
from deconditional.observations.kinds import Mediated
from deconditional.saving.resume import CheckpointPart


def learnt_attributes(
    fitted: Fitted, bags: Bags, priors: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Attributes of an estimator that was fitted, its report apart; `priors` are those given."""
    problem, values = fitted.problem, fitted.values()
    parameters = {k: np.median([v[k] for v in values], 0) for k in values[0]}
    every = {**problem.parameters.priors, **(priors or {})}
    learnt = [k for k in problem.parameters.priors if k not in NO_HYPER]
    found: dict[str, Any] = {
        "fitted_": fitted,
        "bags_": bags,
        "n_features_in_": bags.points.shape[1],
        "parameters_": parameters,
        "kernel_": problem.kernel.wrapped(parameters),
        "priors_": {k: every[k] for k in learnt},
        "log_evidence_": float(np.mean([float(f.log_evidence) for f in fitted.fields])),
    }
    if isinstance(problem.mediation, Mediated):
        found["mediator_kernel_"] = problem.mediation.kernel.wrapped(parameters)
    if fitted.diagnostics is not None:
        found["nuts_diagnostics_"] = fitted.diagnostics
    if len(values) > 1:
        found["parameter_draws_"] = {k: np.stack([v[k] for v in values]) for k in values[0]}
    pieces = fitted.pieces[0]
    if isinstance(getattr(pieces, "basis", None), InducingBasis):
        found["inducing_"] = np.asarray(pieces.basis.locations)
    if fitted.trace is not None:
        found["bound_trace_"] = fitted.trace
    return found


def take(
    model: Any, bags: Bags, fitted: Fitted, posed: Posed, at: CheckpointPart, began: float
) -> Any:
    """The model with the attributes of what was learnt, in place of those of a fit before.

    `at` is what was taken from a checkpoint, `began` when the fit did.
    """
    seen = learnt_attributes(fitted, bags, model.priors)
    report = _reported(model, fitted, posed, seen, at)
    for stale in [name for name in vars(model) if name.endswith("_")]:
        delattr(model, stale)
    seconds = time.perf_counter() - began
    model.__dict__.update(seen, fit_report_=replace(report, seconds=seconds))
    return model


def _reported(
    model: Any, fitted: Fitted, posed: Posed, seen: Mapping[str, Any], at: CheckpointPart
) -> FitReport:
    """The report of a fit, whose warnings are given; how long it took is not known yet."""
    if not np.isfinite(seen["log_evidence_"]):
        raise ValueError(
            "the fit has no finite answer: the covariance of the observations is not one, whatever "
            "is added to its diagonal. Check the values of fixed={...}, noise_std and noise_cov, "
            "and that observations and covariates are of a sensible size."
        )
    best, nuts = fitted.optimum, fitted.diagnostics
    converged, log_posterior = best.converged, best.log_posterior
    if nuts is not None:
        converged = nuts["divergences"] == 0 and nuts["r_hat"] < 1.05
        log_posterior = nuts["log_posterior"]
    bound = fitted.problem.parameters.at_bounds(best.vector)
    details = posed.details | fitted.problem.told(fitted.pieces[0], fitted.fields[0])
    texts = [*posed.notes]
    if fitted.float32_off:
        details["tiles"] += " (retried)"
        texts.append(
            f"kernel tiles in float32 put the bound {fitted.float32_off:.2g} nats off, so the fit "
            "was repeated in float64. Set precision='float64' to begin there."
        )
    if not converged and not (fitted.interrupted and nuts is None):
        texts.append(_unconverged(nuts, model, posed))
    if fitted.interrupted:
        texts.insert(0, _interrupted(fitted.interrupted, at.path))
    found = [*(Caution(FitWarning, text) for text in texts), *of_fit(fitted, seen["bags_"], bound)]
    tell_of(found)
    return FitReport(
        method="nuts" if nuts is not None else "draws" if len(fitted.vectors) > 1 else "map",
        converged=converged and not fitted.interrupted,
        iterations=best.iterations,
        evaluations=best.evaluations,
        log_evidence=seen["log_evidence_"],
        log_posterior=log_posterior,
        at_bounds=bound,
        restarts=best.restarts,
        seconds=0.0,
        compile_seconds=best.compile_seconds,
        parameters=seen["parameters_"],
        details={**details, **({"resumed": at.resumed} if at.resumed else {})},
        notes=tuple(caution.text for caution in found),
    )


def _unconverged(nuts: Mapping[str, Any] | None, model: Any, posed: Posed) -> str:
    if nuts is None:
        effort = f"max_iter (now {model.max_iter})"
        if posed.climb is not None:
            effort = f"max_steps in inference_options (now {posed.climb.max_steps})"
        return (
            f"the fit stopped before it converged. Raise {effort} or n_restarts, or fix some "
            "parameters with fixed={...}."
        )
    return (
        f"NUTS had {nuts['divergences']} divergences and R-hat {nuts['r_hat']:.2f}. Raise "
        "num_warmup and num_samples in method_options."
    )


def _interrupted(after: str, path: os.PathLike[str] | None) -> str:
    further = (
        "Fit again for more; with a checkpoint it would go on from there."
        if path is None
        else f"The same call goes on from {str(path)!r}."
    )
    return (
        f"the fit was interrupted after {after} and kept as it stood, with the best parameters so "
        f"far. {further}"
    )
