"""How the posterior of a model is computed: exactly, or in a basis of the field.

A solver makes the problem from its parts, and says in a report how it was solved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deconditional.bags import Bags
from deconditional.fitting.parameters import IDENTITY, Parameter
from deconditional.fitting.priors import Flat
from deconditional.inference.basis import FLOAT32_JITTER
from deconditional.inference.exact import ExactProblem
from deconditional.inference.learn import Fitted
from deconditional.inference.residual import AllPairs, ResidualRule, SampledPairs
from deconditional.inference.stochastic import ClimbOptions
from deconditional.inference.variational import VariationalProblem
from deconditional.kernels.devices import gathered
from deconditional.kernels.layout import BagSampler
from deconditional.kernels.linalg import JITTER
from deconditional.kernels.radial import spectral_features
from deconditional.kernels.repeats import repeats_of
from deconditional.kernels.within_bags import own_pairs
from deconditional.models.checks import check_count
from deconditional.models.inducing import inducing_points
from deconditional.models.options import BagOptions, BasisOptions

EXACT_TRACE_POINTS = 8_000
"""Points up to which trace="auto" takes all pairs; or eight times the size of the basis."""


class Posed(NamedTuple):
    """A problem, and what a report says of how it was posed: details by name, and notes."""

    problem: Any
    details: dict[str, str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exact:
    """Exact inference, which factorises the covariance of the observations."""

    climb: ClimbOptions | None = None

    def pose(self, parts: Mapping[str, Any], bags: Bags, seed: int) -> Posed:
        """The exact problem of some parts."""
        repeats = repeats_of(bags, parts["kernel"].kernel)
        return Posed(ExactProblem(**parts, repeats=repeats), {"inference": "exact"})

    def found(self, fitted: Fitted, details: Mapping[str, str]) -> dict[str, str]:
        """How a problem was solved, for the report."""
        level = fitted.fields[0].jitter(fitted.pieces[0])
        tiles = jnp.dtype(fitted.problem.dtype).name
        return {**details, "tiles": tiles, "jitter": f"{level:.0e} of the variance"}


@dataclass(frozen=True)
class Variational:
    """Inference in a basis: inducing points, or random Fourier features.

    Attributes
    ----------
    options
        Inducing points, features and trace as :class:`~deconditional.VBagg` takes them.
    climb
        How the bound is climbed by minibatches; None where q(u) is integrated out.
    trace_points
        Size of the estimate of what the basis leaves out.
    """

    options: BasisOptions
    climb: ClimbOptions | None = None
    trace_points: int = 16

    @classmethod
    def of(cls, model: Any) -> Variational:
        """The solver that the options of a model ask for, once they are known to go together."""
        _check(model)
        given = dict(model.inference_options or {})
        points = given.pop("trace_points", cls.trace_points)
        check_count("trace_points", points)
        if points > 128 or points & (points - 1):
            raise ValueError(f"trace_points must be a power of two up to 128, not {points}.")
        known = [f.name for f in fields_of(ClimbOptions)]
        for name in given:
            if name not in known:
                raise ValueError(
                    f"inference_options names {name!r}; the options are "
                    f"{', '.join(['trace_points', *known])}."
                )
        if given and model.inference == "collapsed":
            raise ValueError(
                f"inference_options {', '.join(given)} belong to inference='stochastic'."
            )
        climb = ClimbOptions(**given) if model.inference == "stochastic" else None
        return cls(model, climb, int(points))

    def pose(self, parts: Mapping[str, Any], bags: Bags, seed: int) -> Posed:
        """The problem, its basis chosen from the points of the bags."""
        _check_noise(parts)
        key = jax.random.key(seed)
        inference = "stochastic" if self.climb else "collapsed"
        blank: dict[str, Any] = {"locations": None, "residual": None, "key": key}
        on_one = {**parts, "layout": gathered(parts["layout"])}
        problem = VariationalProblem(**on_one, **blank, n_features=self.options.features)
        if self.options.features is not None:
            values = problem.parameters.unpack(jnp.asarray(problem.parameters.start()))
            kernel = problem.kernel.with_values(values)
            spectral_features(
                kernel, self.options.features, key, bags.points.shape[1]
            )  # raises, if at all
            trace = "none, features are the prior"
            return Posed(problem, {"inference": inference, "trace": trace})
        points, notes = inducing_points(bags, self.options.inducing, self.options.n_inducing, seed)
        residual, trace = self._residual(bags, problem, len(points))
        problem = replace(problem, residual=residual)
        locations = (jnp.asarray(points) - problem.trend.centre) / problem.trend.scale
        if self.options.learn_inducing:
            start = np.asarray(locations)
            learnt = Parameter("inducing", start, Flat(start), IDENTITY, reach=np.inf)
            parameters = problem.parameters
            parameters = replace(parameters, learnt=(*parameters.learnt, learnt))
            problem = replace(problem, parameters=parameters)
        else:
            problem = replace(problem, locations=locations)
        return Posed(problem, {"inference": inference, "trace": trace}, notes)

    def _residual(
        self, bags: Bags, problem: VariationalProblem, n_basis: int
    ) -> tuple[ResidualRule, str]:
        """How to find what the basis leaves out, by the size of the data unless asked for."""
        diagonal = problem.is_local
        n = bags.n_points
        pairs = float((bags.sizes.astype(float) ** 2).sum()) if diagonal else float(n) ** 2
        how = self.options.trace
        if how == "auto":
            cheap = pairs <= n * max(EXACT_TRACE_POINTS, 8 * n_basis)
            how = "exact" if cheap else "subsample"
        if how == "exact":
            text = f"exact, all {pairs:.3g} {'pairs within bags' if diagonal else 'pairs'}"
            return AllPairs(own_pairs(bags) if diagonal else None), text
        points = self.trace_points
        sampler = BagSampler.of(bags.points, bags.bag, bags.weights, bags.n_bags)
        text = f"estimated from 2 x {points} points per bag"
        return SampledPairs(sampler, points, diagonal), text

    def found(self, fitted: Fitted, details: Mapping[str, str]) -> dict[str, str]:
        """How a problem was solved, for the report."""
        basis, dtype = fitted.pieces[0].basis, fitted.problem.dtype
        tiles = jnp.dtype(dtype).name + (" (retried)" if fitted.float32_off else "")
        details = {"inference": details["inference"], "tiles": tiles, "trace": details["trace"]}
        if self.options.features is not None:
            return {**details, "features": str(self.options.features)}
        jitter = float(basis.jitter)
        least = FLOAT32_JITTER if dtype == jnp.float32 else JITTER
        raised = f", raised from {least:.0e}" if jitter > 2 * least else ""
        together = basis.size - len(np.unique(np.asarray(basis.locations), axis=0))
        coincide = f" ({together} coincide)" if together else ""
        learnt = ", learnt" if self.options.learn_inducing else ""
        return {
            **details,
            "inducing points": f"{basis.size}{coincide}{learnt}",
            "jitter": f"{jitter:.0e} of the variance{raised}",
        }


def solver_of(model: BagOptions) -> Exact | Variational:
    """The solver that the options of a model ask for, once they are known to go together."""
    return Variational.of(model) if isinstance(model, BasisOptions) else Exact()


def _check(model: Any) -> None:
    """Raise where options contradict each other."""
    if model.inference not in ("collapsed", "laplace", "stochastic"):
        raise ValueError(
            f"inference must be 'collapsed', 'laplace' or 'stochastic', not {model.inference!r}."
        )
    if model.trace not in ("auto", "exact", "subsample"):
        raise ValueError(f"trace must be one of auto, exact, subsample, not {model.trace!r}.")
    for name in ("n_inducing", "features"):
        if getattr(model, name) is not None:
            check_count(name, getattr(model, name))
    if model.method == "nuts" and model.inference == "stochastic":
        raise ValueError("method='nuts' needs inference='collapsed'.")
    if model.method == "nuts" and model.learn_inducing:
        raise ValueError(
            "inducing points are no parameters of the model, so NUTS cannot sample them; use "
            "learn_inducing=False."
        )
    if model.features is None:
        return
    usual = {"n_inducing": None, "learn_inducing": False, "trace": "auto"}
    given = [name for name, value in usual.items() if getattr(model, name) != value]
    if given or not isinstance(model.inducing, str) or model.inducing != "kmeans":
        named = ", ".join(given) or "inducing"
        raise ValueError(f"features take the place of inducing points; leave {named} out.")


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
