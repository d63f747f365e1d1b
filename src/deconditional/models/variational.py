"""What every variational model shares: a basis of the field and two ways to learn with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array

from deconditional.bags import Bags
from deconditional.fitting.interrupts import current
from deconditional.fitting.map import Optimum
from deconditional.fitting.parameters import IDENTITY, Parameter
from deconditional.fitting.priors import Flat
from deconditional.inference.basis import FLOAT32_JITTER, Basis, InducingBasis
from deconditional.inference.residual import AllPairs, FourierPairs, SampledPairs
from deconditional.inference.stochastic import Climb, Options, maximise_elbo
from deconditional.inference.trend import Trend
from deconditional.inference.variational import VariationalProblem
from deconditional.kernels.layout import BagSampler
from deconditional.kernels.linalg import JITTER
from deconditional.kernels.radial import spectral_features
from deconditional.kernels.within_bags import own_pairs
from deconditional.models.base import BagModel
from deconditional.models.checks import check_count
from deconditional.models.inducing import inducing_points

__all__ = ["VariationalModel"]

EXACT_TRACE_POINTS = 8_000
"""Points up to which trace="auto" takes all pairs; or eight times the size of the basis."""

DISAGREEMENT = 0.1
"""Nats by which the bound in float32 may differ from that in float64."""


class VariationalModel(BagModel):
    """Base of the models with variational inference."""

    n_inducing: int | None
    inducing: Any
    learn_inducing: bool
    features: int | None
    inference: str
    trace: str
    inference_options: Mapping[str, Any] | None

    # ------------------------------------------------------------------ options

    def _check_options(self) -> None:
        super()._check_options()
        if self.inference not in ("collapsed", "stochastic"):
            raise ValueError(
                f"inference must be 'collapsed' or 'stochastic', not {self.inference!r}."
            )
        if self.trace not in ("auto", "exact", "subsample", "features"):
            raise ValueError(
                f"trace must be one of auto, exact, subsample, features, not {self.trace!r}."
            )
        for name in ("n_inducing", "features"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.method == "nuts" and self.inference == "stochastic":
            raise ValueError("method='nuts' needs inference='collapsed'.")
        if self.method == "nuts" and self.learn_inducing:
            raise ValueError(
                "inducing points are no parameters of the model, so NUTS cannot sample them; use "
                "learn_inducing=False."
            )
        if self.features is not None:
            given = [
                name
                for name, value, default in (
                    ("n_inducing", self.n_inducing, None),
                    ("learn_inducing", self.learn_inducing, False),
                    ("trace", self.trace, "auto"),
                )
                if value != default
            ]
            if given or not isinstance(self.inducing, str) or self.inducing != "kmeans":
                named = ", ".join(given) or "inducing"
                raise ValueError(f"features take the place of inducing points; leave {named} out.")
        self._options()

    def _options(self) -> tuple[Options, int, int]:
        """Those of the stochastic climb, and the sizes of the estimates of the trace."""
        given = dict(self.inference_options or {})
        points, features = given.pop("trace_points", 16), given.pop("trace_features", 1000)
        check_count("trace_points", points)
        check_count("trace_features", features)
        if points > 128 or points & (points - 1):
            raise ValueError(f"trace_points must be a power of two up to 128, not {points}.")
        known = [f.name for f in fields(Options)]
        for name in given:
            if name not in known:
                raise ValueError(
                    f"inference_options names {name!r}; the options are "
                    f"{', '.join(['trace_points', 'trace_features', *known])}."
                )
        if given and self.inference == "collapsed":
            raise ValueError(
                f"inference_options {', '.join(given)} belong to inference='stochastic'."
            )
        return Options(**given), int(points), int(features)

    # ------------------------------------------------------------------ the problem

    def _problem(
        self,
        bags: Bags,
        z: np.ndarray,
        mediator: npt.ArrayLike | None,
        noise_std: npt.ArrayLike | None,
        noise_cov: npt.ArrayLike | None,
    ) -> VariationalProblem:
        parts = self._parts(bags, z, mediator, noise_std, noise_cov)
        _check_noise(parts)
        key = jax.random.key(self.seed)
        self._fit_notes: tuple[str, ...] = ()
        self._trace_used = "none, features are the prior"
        problem = VariationalProblem(
            **parts, locations=None, residual=None, key=key, n_features=self.features
        )
        if self.features is not None:
            values = problem.parameters.unpack(jnp.asarray(problem.parameters.start()))
            kernel = problem.kernel.with_values(values)
            spectral_features(kernel, self.features, key, bags.points.shape[1])
            return problem
        points, self._fit_notes = inducing_points(bags, self.inducing, self.n_inducing, self.seed)
        residual = self._residual(bags, problem, len(points))
        locations = (jnp.asarray(points) - problem.trend.centre) / problem.trend.scale
        if not self.learn_inducing:
            return replace(problem, locations=locations, residual=residual)
        start = np.asarray(locations)
        learnt = Parameter("inducing", start, Flat(start), IDENTITY, reach=np.inf)
        parameters = problem.parameters
        parameters = replace(parameters, learnt=(*parameters.learnt, learnt))
        return replace(problem, parameters=parameters, residual=residual)

    def _residual(
        self, bags: Bags, problem: VariationalProblem, n_basis: int
    ) -> AllPairs | SampledPairs | FourierPairs:
        """How to find what the basis leaves out, by the size of the data unless asked for."""
        _, points, features = self._options()
        diagonal = problem.is_local
        n = bags.n_points
        pairs = float((bags.sizes.astype(float) ** 2).sum()) if diagonal else float(n) ** 2
        how = self.trace
        if how == "auto":
            cheap = pairs <= n * max(EXACT_TRACE_POINTS, 8 * n_basis)
            how = "exact" if cheap else "subsample"
        which = "pairs within bags" if diagonal else "pairs"
        if how == "exact":
            self._trace_used = f"exact, all {pairs:.3g} {which}"
            return AllPairs(own_pairs(bags) if diagonal else None)
        if how == "subsample":
            self._trace_used = f"estimated from 2 x {points} points per bag"
            sampler = BagSampler.of(bags.points, bags.bag, bags.weights, bags.n_bags)
            return SampledPairs(sampler, points, diagonal)
        self._trace_used = f"estimated from {features} random Fourier features"
        return FourierPairs(features, diagonal)

    # ------------------------------------------------------------------ learning

    def _learn(self, problem: Any) -> tuple[Any, Optimum, list[tuple[Any, Any]]]:
        learn = self._climb if self.inference == "stochastic" else super()._learn
        self._retried = False
        for stale in ("bound_trace_", "inducing_"):
            self.__dict__.pop(stale, None)
        learnt = learn(problem)
        if problem.dtype != jnp.float32 or current().used:
            return learnt
        precise = replace(problem, dtype=jnp.float64)
        vector = jnp.asarray(learnt[1].vector)
        difference = abs(float(_bound(problem, vector)) - float(_bound(precise, vector)))
        if difference <= DISAGREEMENT:
            return learnt
        self._retried = True
        self._fit_notes = (
            *self._fit_notes,
            f"kernel tiles in float32 put the bound {difference:.2g} nats off, so the fit was "
            "repeated in float64. Set precision='float64' to begin there.",
        )
        return learn(precise)

    def _climb(self, problem: VariationalProblem) -> tuple[Any, Optimum, list[tuple[Any, Any]]]:
        """Maximise the uncollapsed bound by minibatches."""
        options, _, _ = self._options()
        with _progress(options) as report:
            climb: Climb = maximise_elbo(
                problem,
                options,
                n_restarts=self.n_restarts,
                seed=self.seed,
                starts=self._own_start(problem),
                report=report,
                section=self._section("climb", problem),
            )
        self.bound_trace_ = np.asarray(climb.trace)
        pieces, _ = problem.solve(jnp.asarray(climb.vector))
        best = Optimum(
            vector=climb.vector,
            log_posterior=climb.log_posterior,
            converged=climb.converged,
            iterations=climb.steps,
            evaluations=climb.steps,
            restarts=climb.restarts,
            compile_seconds=climb.compile_seconds,
        )
        return problem, best, [(pieces, climb.field)]

    @property
    def _unit(self) -> str:
        return "steps" if self.inference == "stochastic" else super()._unit

    def use_means(self, averaged: Callable[[Any], npt.ArrayLike]) -> Self:
        r"""Solve anew, at the parameters learnt, with means over other points of the same bags.

        Bags that were condensed for learning can so be replaced by all of their points: the
        posterior needs no more than :math:`\bar k(w)`, means of one function for each inducing
        point. Stochastic inference keeps what it found.

        Parameters
        ----------
        averaged
            Takes a function of points, (m, d) to (m, D), to its means over the bags, (N, D).
        """
        self._check_fitted()
        if self.inference == "stochastic":
            return self
        trend = self._problem_.trend
        solved = []
        for vector, (pieces, _) in zip(self._vectors_, self._solved_, strict=True):
            means = jnp.asarray(averaged(_BasisAndTrend(pieces.basis, trend)))
            n_trend = len(trend.prior_std)
            n_basis = means.shape[1] - n_trend
            self._problem_ = replace(self._problem_, trend_means=means[:, n_basis:])
            of_basis = pieces.basis.features_of(means[:, :n_basis])
            pieces = replace(pieces, means=self._problem_.with_trend(of_basis))
            values = self._problem_.parameters.unpack(jnp.asarray(vector))
            solved.append((pieces, self._problem_.field(values, pieces)))
        self._solved_ = solved
        return self

    # ------------------------------------------------------------------ the report

    def _describe(
        self,
        problem: Any,
        best: Optimum,
        vectors: np.ndarray,
        diagnostics: dict[str, Any] | None,
        seconds: float,
    ) -> None:
        basis = self._solved_[0][0].basis
        if isinstance(basis, InducingBasis):
            self.inducing_ = np.asarray(basis.locations)
        super()._describe(problem, best, vectors, diagnostics, seconds)

    def _details(self, problem: VariationalProblem) -> dict[str, str]:
        precision = jnp.dtype(problem.dtype).name + (" (retried)" if self._retried else "")
        details = {"inference": self.inference, "tiles": precision, "trace": self._trace_used}
        basis = self._solved_[0][0].basis
        if not isinstance(basis, InducingBasis):
            return {**details, "features": str(problem.n_features)}
        jitter = float(basis.jitter)
        least = FLOAT32_JITTER if problem.dtype == jnp.float32 else JITTER
        raised = f", raised from {least:.0e}" if jitter > 2 * least else ""
        together = len(self.inducing_) - len(np.unique(self.inducing_, axis=0))
        coincide = f" ({together} coincide)" if together else ""
        learnt = ", learnt" if self.learn_inducing else ""
        return {
            **details,
            "inducing points": f"{len(self.inducing_)}{coincide}{learnt}",
            "jitter": f"{jitter:.0e} of the variance{raised}",
        }

    def _effort(self) -> str:
        if self.inference == "collapsed":
            return super()._effort()
        return f"max_steps in inference_options (now {self._options()[0].max_steps})"

    def _notes(self, converged: bool, diagnostics: dict[str, Any] | None) -> tuple[str, ...]:
        return (*self._fit_notes, *super()._notes(converged, diagnostics))


class _BasisAndTrend(eqx.Module):
    """Values of a basis, followed by the trend functions, at points."""

    basis: Basis
    trend: Trend

    def __call__(self, x: Array) -> Array:
        return jnp.concatenate([self.basis.values(x), self.trend.features(x)], 1)


def _check_noise(parts: Mapping[str, Any]) -> None:
    """Raise where the observations have no noise at all: the bound divides by it."""
    parameters, known = parts["parameters"], np.asarray(parts["known_noise"])
    if any(p.name in ("noise_std", "fine_noise_std") for p in parameters.learnt):
        return
    fixed = float(parameters.fixed.get("noise_std", 0.0))
    fine = float(parameters.fixed.get("fine_noise_std", 0.0))
    least = (known if known.ndim == 1 else np.diag(known)).min() + fixed**2 + fine**2
    if least <= 0:
        raise ValueError(
            "an observation has no noise, and variational inference divides by it. Let noise_std "
            "be learnt, give a positive one, or use the exact model."
        )


@eqx.filter_jit
def _bound(problem: VariationalProblem, vector: Array) -> Array:
    return problem.log_posterior(vector)


@contextmanager
def _progress(options: Options) -> Iterator[Any]:
    """A function that moves a progress bar, or None where none is asked for."""
    if not options.progress:
        yield None
        return
    from rich.progress import Progress

    with Progress() as bar:
        task = bar.add_task("climbing", total=options.max_steps)

        def report(steps: int, bound: float) -> None:
            bar.update(task, advance=steps, description=f"bound {bound:.2f}")

        yield report
