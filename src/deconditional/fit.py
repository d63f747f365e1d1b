"""Learning hyper-parameters: MAP by L-BFGS with restarts, or their full posterior by NUTS.

A problem offers ``parameters`` (a :class:`~deconditional.parameters.ParameterSet`) and
``log_posterior(vector)``; nothing here knows what the model is. Problems are pytrees, so one
compilation serves every data set of the same shape.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from deconditional.parameters import ParameterSet
from deconditional.progress import tell

__all__ = ["FitReport", "FitWarning", "Optimum", "maximise", "sample_posterior"]


TOLERANCE = 1e-7
"""Relative change of the loss that ends a run: millionths of a nat."""

FLOAT32_TOLERANCE = 1e-6
"""The same with float32 tiles, whose rounding hides smaller changes."""

FLOAT32_LINE_SEARCH = 10
"""Evaluations after which a line search with float32 tiles gives up: it meets nothing but noise."""


SHORT_EVALUATION = 0.01
"""Seconds; a longer evaluation uses the cores itself, and a second beside it slows both down."""


class FitWarning(UserWarning):
    """A fit that did not converge, or whose answer should not be trusted as it is."""


class Problem(Protocol):
    """What can be fitted."""

    parameters: ParameterSet

    def log_posterior(self, vector: Any) -> Any:
        """Log evidence plus log prior of an unconstrained vector."""


@dataclass(frozen=True)
class FitReport:
    """How a fit went.

    Attributes
    ----------
    method
        ``"map"`` or ``"nuts"``.
    converged
        Whether the optimiser met its tolerance (for NUTS: no divergence and R-hat below 1.05).
    iterations, evaluations
        Of the best restart, and of all restarts together.
    log_evidence, log_posterior
        At the parameters reported.
    at_bounds
        Entries of the parameter vector that ended on a bound.
    restarts
        Log posterior reached by each restart, best first.
    seconds
        Wall time, compilation included; `compile_seconds` is the first evaluation alone.
    parameters
        The values found (posterior medians under NUTS).
    details
        How the posterior was computed: inference, precision, inducing points and the like.
    notes
        What a user should know, each with its remedy.
    """

    method: str
    converged: bool
    iterations: int
    evaluations: int
    log_evidence: float
    log_posterior: float
    at_bounds: tuple[str, ...]
    restarts: tuple[float, ...]
    seconds: float
    compile_seconds: float
    parameters: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        state = "converged" if self.converged else "did NOT converge"
        lines = [
            f"{self.method} fit {state} in {self.iterations} iterations, "
            f"{self.evaluations} evaluations over {len(self.restarts)} restart(s), "
            f"{self.seconds:.1f} s ({self.compile_seconds:.1f} s of it compiling)",
            f"log evidence {self.log_evidence:.3f}, log posterior {self.log_posterior:.3f}",
        ]
        for name, value in self.parameters.items():
            shown = np.array2string(np.asarray(value), precision=4, threshold=8)
            lines.append(f"  {name} = {shown}")
        if self.details:
            lines.append("; ".join(f"{name}: {value}" for name, value in self.details.items()))
        if self.at_bounds:
            lines.append(f"at bounds: {', '.join(self.at_bounds)}")
        return "\n".join(lines + [f"note: {note}" for note in self.notes])


@eqx.filter_jit
def _loss_and_gradient(problem: Problem, vector: Any) -> tuple[Any, Any]:
    return jax.value_and_grad(lambda v: -problem.log_posterior(v))(vector)


class _Objective:
    """The loss for SciPy: float64 in and out, huge where the algebra breaks down."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.evaluations = 0

    def __call__(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        self.evaluations += 1
        value, gradient = _loss_and_gradient(self.problem, jnp.asarray(vector))
        value, gradient = float(value), np.asarray(gradient, dtype=float)
        tell("fit", self.evaluations, note=f"{self.evaluations} evaluations, {-value:.1f}")
        if not np.isfinite(value) or not np.isfinite(gradient).all():
            return 1e25, np.zeros_like(vector)
        return value, gradient


@dataclass(frozen=True)
class Optimum:
    """The best of the restarts."""

    vector: np.ndarray
    log_posterior: float
    converged: bool
    iterations: int
    evaluations: int
    restarts: tuple[float, ...]
    compile_seconds: float


def maximise(
    problem: Problem,
    *,
    n_restarts: int = 4,
    max_iter: int = 300,
    seed: int = 0,
    starts: tuple[np.ndarray, ...] = (),
    screening: int = 12,
) -> Optimum:
    """Maximise the log posterior.

    The first start is every prior's median, then come `starts` (a user's own values), then draws
    from the priors. All restarts run for `screening` iterations; the better half, and at least
    two, then run to convergence. Evaluations too short to keep every core busy by themselves run
    together on a pool of threads: XLA leaves Python's lock while it computes.
    """
    parameters = problem.parameters
    objective = _Objective(problem)
    began = time.perf_counter()
    first = parameters.start()
    objective(first)
    compile_seconds = time.perf_counter() - began
    began = time.perf_counter()
    objective(first)
    one_evaluation = time.perf_counter() - began
    if parameters.size == 0:
        value = -objective(first)[0]
        return Optimum(first, value, True, 0, objective.evaluations, (value,), compile_seconds)
    keys = jax.random.split(jax.random.key(seed), max(1, n_restarts))
    drawn = [parameters.draw(key, shrink=0.5) for key in keys]
    points = [first, *starts, *drawn][: max(1, n_restarts)]
    low, high = parameters.bounds()
    bounds = list(zip(low, high, strict=True))

    options: dict[str, Any] = {"ftol": TOLERANCE, "gtol": 1e-3, "maxcor": 20}
    if getattr(problem, "dtype", None) == jnp.float32:
        options |= {"ftol": FLOAT32_TOLERANCE, "maxls": FLOAT32_LINE_SEARCH}

    def run(start: np.ndarray, iterations: int) -> Any:
        return minimize(
            objective,
            np.clip(start, low, high),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": iterations, **options},
        )

    workers = os.cpu_count() or 1 if one_evaluation < SHORT_EVALUATION else 1
    with ThreadPoolExecutor(max_workers=min(len(points), workers)) as pool:
        if len(points) > 2:
            screened = sorted(
                pool.map(lambda p: run(p, screening), points), key=lambda result: result.fun
            )
            points = [result.x for result in screened[: max(2, len(points) // 2)]]
        results = sorted(pool.map(lambda p: run(p, max_iter), points), key=lambda r: r.fun)
    best = results[0]
    return Optimum(
        vector=best.x,
        log_posterior=-float(best.fun),
        converged=_converged(best, low, high),
        iterations=int(best.nit),
        evaluations=objective.evaluations,
        restarts=tuple(-float(r.fun) for r in results),
        compile_seconds=compile_seconds,
    )


def _converged(result: Any, low: np.ndarray, high: np.ndarray) -> bool:
    """Met a tolerance, or came so close that rounding of float32 tiles ended the line search."""
    step = np.clip(result.x - result.jac, low, high) - result.x
    return bool(result.success) or bool(np.abs(step).max() < 0.02)


def at_bounds(parameters: ParameterSet, vector: np.ndarray) -> tuple[str, ...]:
    """Names of the entries of the vector that lie on a bound."""
    low, high = parameters.bounds()
    touching = (vector - low < 1e-3) | (high - vector < 1e-3)
    return tuple(name for name, on in zip(parameters.names(), touching, strict=True) if on)


def sample_posterior(
    problem: Problem,
    start: np.ndarray,
    *,
    seed: int = 0,
    num_warmup: int = 200,
    num_samples: int = 200,
    num_chains: int = 1,
    max_tree_depth: int = 8,
    progress_bar: bool = False,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Draws from the posterior of the unconstrained vector by NUTS, and their diagnostics."""
    from numpyro.diagnostics import effective_sample_size, gelman_rubin, split_gelman_rubin
    from numpyro.infer import MCMC, NUTS

    if num_samples < 4 or num_warmup < 1 or num_chains < 1:
        raise ValueError("NUTS needs at least 4 samples, 1 warm-up step and 1 chain.")
    sampler = NUTS(
        potential_fn=lambda v: -problem.log_posterior(v),
        dense_mass=True,
        max_tree_depth=max_tree_depth,
        target_accept_prob=0.85,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chains = MCMC(
            sampler,
            num_warmup=num_warmup,
            num_samples=num_samples,
            num_chains=num_chains,
            chain_method="sequential",
            progress_bar=progress_bar,
        )
    key = jax.random.key(seed)
    spread = 0.05 * jax.random.normal(key, (num_chains, len(start)))
    init = jnp.asarray(start) + (spread if num_chains > 1 else spread[0])
    chains.run(key, init_params=init, extra_fields=("diverging", "potential_energy"))
    draws = np.asarray(chains.get_samples(group_by_chain=True))
    rhat = gelman_rubin(draws) if num_chains > 1 else split_gelman_rubin(draws)
    extra = chains.get_extra_fields()
    return draws.reshape(-1, draws.shape[-1]), {
        "divergences": int(np.sum(extra["diverging"])),
        "r_hat": float(np.max(rhat)),
        "effective_samples": float(np.min(effective_sample_size(draws))),
        "log_posterior": float(-np.min(extra["potential_energy"])),
    }
