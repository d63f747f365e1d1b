"""What every model shares: checking data, building the problem, learning, predicting."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from deconditional.bags import Bags
from deconditional.errors import Caution, FitWarning, tell_of
from deconditional.fitting.interrupts import Stop, stoppable
from deconditional.fitting.map import Optimum, at_bounds, maximise
from deconditional.fitting.nuts import sample_posterior
from deconditional.fitting.parameters import Parameter, ParameterSet, kernel_template, positive
from deconditional.fitting.priors import Prior, SplitLogNormal
from deconditional.fitting.report import FitReport
from deconditional.inference.field import Field
from deconditional.inference.posterior import CoarsePosterior, Gaussians, Posterior
from deconditional.inference.problem import BagProblem, ExactProblem, Matched, Mediated, SpreadPrior
from deconditional.inference.trend import Trend
from deconditional.models.cautions import check_finite, jitter_level, of_fit
from deconditional.models.checks import (
    check_bags,
    check_count,
    check_kernel,
    known_covariance,
    observations,
    query_points,
)
from deconditional.saving.resume import Checkpoint, Part, Section, digest, opened, plain

__all__ = ["BagModel"]

FLOAT32_FROM = 3_000
"""Points from which precision="auto" makes kernel tiles in float32."""


class _Stages:
    """The sections of a fit in its part of a checkpoint."""

    def __init__(self, part: Part, bags: Bags):
        self.part, self.bags = part, bags
        self._sections: list[Section] = []

    def section(self, name: str, identity: str) -> Section:
        """The section of a stage."""
        self._sections.append(self.part.section(name, identity))
        return self._sections[-1]

    @property
    def resumed(self) -> str:
        """What was taken from the checkpoint, in words."""
        return ", ".join(each.resumed for each in self._sections if each.resumed)


class BagModel(BaseEstimator):
    """Base of the models; inference is exact unless a model says otherwise."""

    kernel: AbstractKernel | None
    trend: str
    fine_noise: bool
    learn_noise: bool | None
    fixed: Mapping[str, Any] | None
    priors: Mapping[str, Any] | None
    method: str
    method_options: Mapping[str, Any] | None
    n_restarts: int
    max_iter: int
    points_per_bag: int | None
    precision: str
    seed: int
    fit_report_: FitReport

    # ------------------------------------------------------------------ learning

    @staticmethod
    def _length_scale_prior(mode: np.ndarray) -> Prior:
        """What is known of a length scale before any data."""
        return SplitLogNormal(mode)

    _stages: _Stages | None = None
    """Where the stages of a fit keep how far they are, while it runs."""

    def _fit(
        self,
        bags: Bags,
        z: npt.ArrayLike,
        mediator: npt.ArrayLike | None,
        noise_std: npt.ArrayLike | None,
        noise_cov: npt.ArrayLike | None,
        checkpoint: str | os.PathLike[str] | Checkpoint | Part | None = None,
    ) -> Self:
        began = time.perf_counter()
        self._check_options()
        check_bags(bags)
        with opened(checkpoint) as kept:
            if self.points_per_bag is not None:
                bags = bags.subsample(self.points_per_bag, seed=self.seed)
            z = observations(z)
            problem = self._problem(bags, z, mediator, noise_std, noise_cov)
            if self.method == "nuts" and problem.parameters.size == 0:
                raise ValueError(
                    "every parameter is fixed, so NUTS has nothing to sample; use 'map'."
                )
            self._stages = None if kept is None else _Stages(kept, bags)
            try:
                with stoppable() as stop:
                    self._finish(bags, *self._learn(problem), stop, began)
            finally:
                del self._stages
        return self

    def _finish(
        self,
        bags: Bags,
        problem: Any,
        best: Optimum,
        solved: list[tuple[Any, Any]],
        stop: Stop,
        began: float,
    ) -> None:
        """Sample, if that is asked for, and take on what was learnt."""
        diagnostics: dict[str, Any] = {}
        vectors = best.vector[None] if best.draws is None else best.draws
        interrupted = f"{best.evaluations} {self._unit}" if stop.used else ""
        if self.method == "nuts" and not interrupted:
            options = {"num_warmup": 200, "num_samples": 200, **(self.method_options or {})}
            draws, diagnostics = sample_posterior(
                problem,
                best.vector,
                seed=self.seed,
                section=self._section("nuts", problem),
                **options,
            )
            if stop.used:
                wanted = options["num_samples"] * options.get("num_chains", 1)
                interrupted = f"{len(draws) or 'too few'} of {wanted} draws"
            if len(draws):
                vectors, solved = draws, [problem.solve(jnp.asarray(v)) for v in draws]
        for stale in ("nuts_diagnostics_", "parameter_draws_"):
            self.__dict__.pop(stale, None)
        self.bags_ = bags
        self.n_features_in_ = bags.points.shape[1]
        self._problem_ = problem
        self._vectors_ = vectors
        self._solved_: list[tuple[Any, Any]] = solved
        told = replace(best, converged=best.converged or bool(interrupted))
        seconds = time.perf_counter() - began
        self._describe(problem, told, vectors, diagnostics or None, seconds)
        if self._stages is not None and self._stages.resumed:
            details = {**self.fit_report_.details, "resumed": self._stages.resumed}
            self.fit_report_ = replace(self.fit_report_, details=details)
        if interrupted:
            path = None if self._stages is None else self._stages.part.path
            note = interrupted_note(interrupted, path)
            self.fit_report_ = replace(
                self.fit_report_,
                method="nuts" if diagnostics else "map",
                converged=False,
                notes=(note, *self.fit_report_.notes),
            )
            tell_of([Caution(FitWarning, note)])

    def _learn(self, problem: Any) -> tuple[Any, Optimum, list[tuple[Any, Any]]]:
        """The problem that was solved in the end, its optimum and the posterior there."""
        best = self._optimum(problem)
        return problem, best, [problem.solve(jnp.asarray(best.vector))]

    def _learnt_by(self) -> tuple[Any, Any, Any]:
        """The problem that parameters were learnt by, and what it was solved to at the first."""
        return (self._problem_, *self._solved_[0])

    def _optimum(self, problem: Any) -> Optimum:
        """The most probable hyper-parameters."""
        return maximise(
            problem,
            n_restarts=self.n_restarts,
            max_iter=self.max_iter,
            seed=self.seed,
            starts=self._own_start(problem),
            section=self._section("map", problem),
        )

    @property
    def _unit(self) -> str:
        """What the effort of a fit is counted in."""
        return "evaluations"

    def _section(self, name: str, problem: Any) -> Section | None:
        """The section of a stage in the checkpoint, if there is one."""
        if self._stages is None:
            return None
        name = f"{name} in {jnp.dtype(problem.dtype).name}"
        return self._stages.section(name, self._identity(self._stages.bags, problem))

    def _identity(self, bags: Bags, problem: Any) -> str:
        """What a checkpoint has to agree with: data, model, options and version."""
        from deconditional import __version__

        parameters, mediation = problem.parameters, problem.mediation
        linked: list[Any] = []
        if isinstance(mediation, Mediated):
            linked = [mediation.bag_mediator, mediation.observed_mediator, mediation.own_bag]
        fixed = [np.asarray(value) for _, value in sorted(parameters.fixed.items())]
        return digest(
            f"{__version__} {type(self).__name__} {plain(self.get_params(deep=False))}",
            f"{parameters.names()} {sorted(parameters.fixed)}",
            *(bags.points, bags.bag, bags.weights, problem.z, problem.known_noise),
            *(getattr(problem, "locations", None), *linked, *fixed),
            *(parameters.start(), *parameters.bounds()),
        )

    def _check_options(self) -> None:
        choices = {
            "trend": ("none", "constant", "linear"),
            "method": ("map", "nuts"),
            "precision": ("auto", "float32", "float64"),
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}.")
        for name in ("n_restarts", "max_iter"):
            check_count(name, getattr(self, name))
        if self.method == "map" and self.method_options:
            raise ValueError("method_options belong to method='nuts'; method='map' takes none.")

    def _own_start(self, problem: BagProblem) -> tuple[np.ndarray, ...]:
        """A user's kernel is a start of its own, beside the data-driven one."""
        own: dict[str, Any] = {p.name: p.start for p in problem.parameters.learnt}
        if self.kernel is not None:
            own.update(problem.kernel.own_values())
        mediator_kernel = getattr(self, "mediator_kernel", None)
        if mediator_kernel is not None and isinstance(problem.mediation, Mediated):
            own.update(problem.mediation.kernel.own_values())
        start = np.asarray(problem.parameters.pack(own))
        if np.array_equal(start, problem.parameters.start()) or not np.isfinite(start).all():
            return ()
        return (start,)

    def _problem(
        self,
        bags: Bags,
        z: np.ndarray,
        mediator: npt.ArrayLike | None,
        noise_std: npt.ArrayLike | None,
        noise_cov: npt.ArrayLike | None,
    ) -> Any:
        problem = ExactProblem(**self._parts(bags, z, mediator, noise_std, noise_cov))
        return replace(problem, spread=self._spread_prior(problem))

    def _spread_prior(self, problem: ExactProblem) -> SpreadPrior | None:
        """What is known of how much bag means vary, if anything is."""
        return None

    def _parts(
        self,
        bags: Bags,
        z: np.ndarray,
        mediator: npt.ArrayLike | None,
        noise_std: npt.ArrayLike | None,
        noise_cov: npt.ArrayLike | None,
    ) -> dict[str, Any]:
        """What a problem of any inference is made of."""
        variance = self._typical_variance(z)
        kernel = self.kernel if self.kernel is not None else default_kernel(bags.points.shape[1])
        check_kernel("kernel", kernel, bags.points)
        template = kernel_template(
            kernel,
            "kernel",
            self._typical_points(bags),
            variance,
            length_scale_prior=self._length_scale_prior,
        )
        mediation, mediation_parameters = self._mediation(bags, z, mediator)
        known, learn_noise = self._known_noise(z, noise_std, noise_cov)
        parameters: list[Parameter] = [*template.parameters, *mediation_parameters]
        if learn_noise:
            parameters.append(positive("noise_std", 0.2 * np.sqrt(variance), 1.0, reach=6.0))
        if self.fine_noise:
            parameters.append(positive("fine_noise_std", 0.3 * np.sqrt(variance), 1.0, reach=6.0))
        q = {"none": 0, "constant": 1, "linear": 1 + bags.points.shape[1]}[self.trend]
        trend = Trend(
            self.trend,
            jnp.asarray(bags.points.mean(0)),
            jnp.asarray(np.where(np.ptp(bags.points, axis=0) > 0, bags.points.std(0), 1.0)),
            jnp.asarray(_trend_std(z, q)),
        )
        overlap = (
            (bags.overlap() if bags.share_points else 1.0 / bags.effective_sizes)
            if self.fine_noise
            else None
        )
        return {
            "layout": bags.layout,
            "overlap": None if overlap is None else jnp.asarray(overlap),
            "z": jnp.asarray(z),
            "known_noise": jnp.asarray(known),
            "trend": trend,
            "trend_means": jnp.asarray(
                bags.means(np.asarray(trend.features(jnp.asarray(bags.points))))
            ),
            "kernel": template,
            "mediation": mediation,
            "parameters": ParameterSet.of(parameters, self.fixed, self.priors),
            "dtype": self._tile_dtype(bags),
        }

    def _typical_points(self, bags: Bags) -> np.ndarray:
        """The points whose distances set the priors of length scales."""
        return bags.points

    def _typical_variance(self, z: np.ndarray) -> float:
        """What sets the priors of variances."""
        return _spread(z) ** 2 or float(np.mean(z**2)) or 1.0

    def _mediation(
        self, bags: Bags, z: np.ndarray, mediator: npt.ArrayLike | None
    ) -> tuple[Matched | Mediated, tuple[Parameter, ...]]:
        if len(z) != bags.n_bags:
            raise ValueError(
                f"{bags.n_bags} bags came with {len(z)} observations, but this model needs one "
                "for every bag. Use CMP, or PseudoTarget around this model, with mediators for "
                "unmatched data."
            )
        return Matched(), ()

    def _known_noise(
        self, z: np.ndarray, noise_std: npt.ArrayLike | None, noise_cov: npt.ArrayLike | None
    ) -> tuple[np.ndarray, bool]:
        known = known_covariance(len(z), noise_std, noise_cov)
        learn = noise_std is None if self.learn_noise is None else self.learn_noise
        if not learn and noise_std is None and noise_cov is None:
            raise ValueError(
                "learn_noise=False leaves the observations without noise; give noise_std or "
                "noise_cov to fit, or let the noise be learnt."
            )
        return known, learn

    def _tile_dtype(self, bags: Bags) -> Any:
        if self.precision == "auto":
            return jnp.float32 if bags.n_points >= FLOAT32_FROM else jnp.float64
        return jnp.dtype(self.precision).type

    def _describe(
        self,
        problem: BagProblem,
        best: Optimum,
        vectors: np.ndarray,
        diagnostics: dict[str, Any] | None,
        seconds: float,
    ) -> None:
        values = [problem.parameters.unpack(jnp.asarray(v)) for v in vectors]
        for each in values:
            each.pop("inducing", None)  # no parameter of the model; see inducing_
        self.parameters_ = {k: np.median([np.asarray(v[k]) for v in values], 0) for k in values[0]}
        self.kernel_ = problem.kernel.wrapped(self.parameters_)
        if isinstance(problem.mediation, Mediated):
            self.mediator_kernel_ = problem.mediation.kernel.wrapped(self.parameters_)
        given = self.priors or {}
        self.priors_ = {
            k: given.get(k, v) for k, v in problem.parameters.priors.items() if k != "inducing"
        }
        self.log_evidence_ = float(
            np.mean([float(field.log_evidence) for _, field in self._solved_])
        )
        bound = at_bounds(problem.parameters, best.vector)
        converged, log_posterior = best.converged, best.log_posterior
        if diagnostics is not None:
            converged = diagnostics["divergences"] == 0 and diagnostics["r_hat"] < 1.05
            log_posterior = diagnostics["log_posterior"]
            self.nuts_diagnostics_ = diagnostics
            self.parameter_draws_ = {
                k: np.stack([np.asarray(v[k]) for v in values]) for k in values[0]
            }
        check_finite(self.log_evidence_)
        found = [Caution(FitWarning, note) for note in self._notes(converged, diagnostics)]
        found += of_fit(self, bound)
        self.fit_report_ = FitReport(
            method=self.method,
            converged=converged,
            iterations=best.iterations,
            evaluations=best.evaluations,
            log_evidence=self.log_evidence_,
            log_posterior=log_posterior,
            at_bounds=bound,
            restarts=best.restarts,
            seconds=seconds,
            compile_seconds=best.compile_seconds,
            parameters=self.parameters_,
            details=self._details(problem),
            notes=tuple(caution.text for caution in found),
        )
        tell_of(found)

    def _details(self, problem: Any) -> dict[str, str]:
        """What the report says about how the posterior was computed."""
        level = jitter_level(*self._solved_[0])
        return {
            "inference": "exact",
            "tiles": jnp.dtype(problem.dtype).name,
            "jitter": f"{level:.0e} of the variance",
        }

    def _effort(self) -> str:
        """The option that lets a fit go on for longer."""
        return f"max_iter (now {self.max_iter})"

    def _notes(self, converged: bool, diagnostics: dict[str, Any] | None) -> tuple[str, ...]:
        """What to say about how the fit went."""
        if converged:
            return ()
        if diagnostics is None:
            return (
                f"the fit stopped before it converged. Raise {self._effort()} or n_restarts, or "
                "fix some parameters with fixed={...}.",
            )
        return (
            f"NUTS had {diagnostics['divergences']} divergences and R-hat "
            f"{diagnostics['r_hat']:.2f}. Raise num_warmup and num_samples in method_options.",
        )

    # ------------------------------------------------------------------ predicting

    def predict(
        self, x: npt.ArrayLike, fine_noise: bool = False, features: int | None = None
    ) -> Posterior:
        """Posterior of the fine field.

        Parameters
        ----------
        x : (m, d) or (m,)
            Query points, with the covariates of the bags in the same order.
        fine_noise
            Add the learnt high-resolution noise to variances, intervals and samples: the spread
            of a single fine value rather than of the smooth field.
        features
            Approximate the kernel by so many random Fourier features, at the learnt parameters.
            Once the features of the bags are averaged, a query point costs no more however many
            points the bags have. :func:`~deconditional.feature_error` tells what it costs in
            accuracy.

        Returns
        -------
        Posterior
            With ``mean``, ``std``, ``interval(level)``, ``quantile(q)``, ``sample(n, seed)`` and
            ``covariance()``.
        """
        self._check_fitted()
        array = query_points(x, self.n_features_in_)
        if fine_noise and not self.fine_noise:
            raise ValueError("this model has no high-resolution noise; fit with fine_noise=True.")
        support = self.bags_.points.min(0), self.bags_.points.max(0)
        return Posterior(self._fields(features), array, fine_noise, support)

    def _fields(self, features: int | None = None) -> list[Field]:
        """The posterior of f, once for every draw of the hyper-parameters."""
        if features is not None:
            return self._fourier_fields(features)
        return [field for _, field in self._solved_]

    def _fourier_fields(self, features: int) -> list[Field]:
        check_count("features", features)
        key = jax.random.key(self.seed)
        return [
            self._problem_.fourier_field(
                jnp.asarray(vector), pieces.weights, pieces.noise, int(features), key
            )
            for vector, (pieces, _) in zip(self._vectors_, self._solved_, strict=True)
        ]

    def predict_bags(self, bags: Bags) -> CoarsePosterior:
        """Joint posterior of the means of f over new bags."""
        self._check_fitted()
        check_bags(bags)
        if bags.points.shape[1] != self.n_features_in_:
            raise ValueError(
                f"the model was fitted on {self.n_features_in_} covariates; the new bags have "
                f"{bags.points.shape[1]}."
            )
        parts = [field.bag_moments(self.bags_, bags) for _, field in self._solved_]
        return CoarsePosterior(*(np.stack(part) for part in zip(*parts, strict=True)))

    def predict_held_out(self, folds: npt.ArrayLike) -> Gaussians:
        """Every observation as the observations of the other folds predict it, noise included.

        Hyper-parameters stay as they were learnt from all observations, so this is quick, and a
        little kinder than fitting anew without each fold.

        Parameters
        ----------
        folds : (M,)
            The fold of every observation.
        """
        self._check_fitted()
        z = self._problem_.z
        labels = np.asarray(folds)
        if labels.shape != z.shape or len(np.unique(labels)) < 2:
            raise ValueError(f"folds must divide the {len(z)} observations into two parts or more.")
        parts = [self._problem_.held_out(pieces, labels) for pieces, _ in self._solved_]
        return Gaussians(*(np.stack(part) for part in zip(*parts, strict=True)))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the fitted model to an .npz file; see :func:`deconditional.load`."""
        from deconditional.saving.api import save

        return save(self, path, overwrite=overwrite)

    def _check_fitted(self) -> None:
        if not hasattr(self, "_solved_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted; call fit first.")


def interrupted_note(after: str, path: Path | None) -> str:
    """What the report says of a fit that Ctrl-C ended."""
    further = (
        "Fit again for more; with a checkpoint it would go on from there."
        if path is None
        else f"The same call goes on from {str(path)!r}."
    )
    return (
        f"the fit was interrupted after {after} and kept as it stood, with the best parameters so "
        f"far. {further}"
    )


def _trend_std(z: np.ndarray, n_trend: int) -> np.ndarray:
    """Vague but sane: any offset like those of z, slopes of a few spreads of z per spread of x.

    A slope that no coarse observation can see (a covariate whose bag means hardly vary) then stays
    near zero instead of following the noise.
    """
    offset = 10.0 * float(np.sqrt(np.mean(z**2))) or 1.0
    slope = 3.0 * _spread(z) or offset
    return np.array([offset, *[slope] * (n_trend - 1)])[:n_trend]


def _spread(z: np.ndarray) -> float:
    """Standard deviation; zero where rounding alone tells equal observations apart."""
    found = float(np.std(z))
    return found if found > 1e-12 * float(np.abs(z).max()) else 0.0


def default_kernel(d: int) -> AbstractKernel:
    """A Gaussian kernel with a length scale per covariate."""
    return gk.RBF(lengthscale=jnp.ones(d)) if d > 1 else gk.RBF()
