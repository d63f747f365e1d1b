r"""The posterior of f from observations of any family: a normal distribution of the coefficients.

For :math:`f = \gamma^\top v` with v standard normal (and effects of observations, see
:mod:`deconditional.inference.newton`), the posterior is approximated by
:math:`q(v) = N(m, (I + J^\top\tilde\Lambda J)^{-1})`, and the log evidence by

.. math:: \ell(m) - \tfrac12\lVert m\rVert^2 - \tfrac12\log\det(I + J^\top\tilde\Lambda J) .

*Laplace.* m is the mode. A mode knows nothing of what f does within bags: the most probable f given
the sum of a bag is flat there, while f itself varies, and :math:`\mathrm{E}e^f > e^{\mathrm{E}f}`.
So the posterior mean of the sum of a bag lies above what was observed of it.

*Variational.* Rates and log likelihoods are expectations under q, with :math:`\mathrm{Var}_q f(x)`
at points and :math:`\mathrm{Var}_q\eta_m` of observations, and m is the stationary point of

.. math:: \mathrm{E}_q \ell - \mathrm{KL}(q \,\Vert\, p)
          = \mathrm{E}_q\ell + \tfrac12\mathrm{tr}(\Lambda J\Sigma J^\top)
          - \tfrac12\lVert m\rVert^2 - \tfrac12\log\det(I + J^\top\tilde\Lambda J) .

Given its mean over a bag, g of a mean rate is the link of that of expected rates less half its
variance (to second order; exact for a log link and normal f). Sums over bags have the posterior
mean that was observed, up to the pull of the prior.

The variance at the points is that of the linear problem *nearest* to the last solution
(:class:`~deconditional.inference.seen.Nearest`) at the present hyper-parameters: an explicit
function of them, and the fixed point of two or three rounds. Gradients by the hyper-parameters are
exact, through the mode by the implicit function theorem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from deconditional.fitting.evaluation import evaluated, quickly
from deconditional.fitting.kernel_parameters import KernelTemplate
from deconditional.fitting.parameters import IDENTITY, Parameter, ParameterSet
from deconditional.fitting.priors import Normal
from deconditional.inference.basis import Basis, FourierBasis, InducingBasis
from deconditional.inference.basis_field import BasisField, Coefficients
from deconditional.inference.field import Trend
from deconditional.inference.newton import (
    Curvature,
    Expansion,
    Unknowns,
    climb,
    follow,
    held,
)
from deconditional.inference.rates import FinePoints
from deconditional.inference.seen import FINE_NOISE, Nearest, Seen, View
from deconditional.observations.kinds import Matched, Observation

MOST_SPREAD = 30.0
"""Variance of f at a point beyond which rates would overflow: factors of a million either way."""

SMALL = 2**21
"""Values of basis functions at points, a tenth of a second of an evaluation."""

SETTLED = 0.05
"""Nats between two rounds that end them: what the next one would change is a few per cent of it."""

LATENT = ("latent", "effects")
"""Names of unknowns that NUTS draws with the hyper-parameters."""


class Sources(eqx.Module):
    """All sources at one value of the hyper-parameters; the likelihood of the unknowns."""

    views: tuple[View, ...]

    def expand(self, at: Unknowns) -> Expansion:
        """The log likelihood about a place."""
        total, parts = jnp.zeros(()), []
        for view, e in zip(self.views, self._apart(at.e), strict=True):
            f, r, eta = view.predictor(at.v, e)
            total += view.log_likelihood(eta)
            parts.append((view.jacobian(*view.at(f, r)), *view.slopes(eta), view.effect_std))
        return Expansion(total, *(jnp.concatenate(each) for each in zip(*parts, strict=True)))

    def log_posterior(self, at: Unknowns) -> Float[Array, ""]:
        """Log likelihood and log prior of the unknowns, constants of the prior apart."""
        total = -0.5 * (at.v @ at.v + at.e @ at.e)
        for view, e in zip(self.views, self._apart(at.e), strict=True):
            total += view.log_likelihood(view.predictor(at.v, e)[2])
        return total

    def nearest(self, at: Unknowns) -> tuple[Nearest, ...]:
        """The linear problems about a place."""
        found = []
        for view, e in zip(self.views, self._apart(at.e), strict=True):
            f, r, eta = view.predictor(at.v, e)
            score, information = view.slopes(eta)
            least = jnp.maximum(information, 1e-12)
            found.append(Nearest(*view.at(f, r), information, eta + score / least))
        return tuple(found)

    def _apart(self, e: Array) -> list[Array]:
        """Effects by source; zeros where there are none at all."""
        sizes = [len(view.seen.y) for view in self.views]
        e = e if e.size else jnp.zeros(sum(sizes))
        return jnp.split(e, np.cumsum(sizes)[:-1])


class Solution(eqx.Module):
    """What a posterior is made of: the basis, the mode, s, and the linear problems about the mode.

    `promise` is what the last step promised, in nats, and `steps` how many there were.
    """

    basis: Basis
    unknowns: Unknowns
    effect_std: Float[Array, " M"]
    nearest: tuple[Nearest, ...]
    promise: Float[Array, ""]
    steps: Array


class FamilyProblem(eqx.Module):
    """Sources, kernel and parameters of a model with observations of any family."""

    sources: tuple[Seen, ...]
    trend: Trend
    kernel: KernelTemplate
    parameters: ParameterSet
    # Where the basis functions are; None for random Fourier features.
    inducing: Float[Array, "d D"] | None
    # key, n_features: of random Fourier features.
    key: Any
    n_features: int = eqx.field(static=True)
    # Take rates as expectations; Laplace's method if not.
    variational: bool = eqx.field(static=True)
    dtype: type = eqx.field(static=True)

    # ------------------------------------------------------------------ as other problems have it

    @property
    def layout(self) -> Any:
        """The bags of the first source."""
        return self.sources[0].layout

    @property
    def mediation(self) -> Observation:
        """How the first source sees its bags."""
        return self.sources[0].observation

    @property
    def z(self) -> Float[Array, " M"]:
        """The observations of all sources."""
        return jnp.concatenate([seen.y for seen in self.sources])

    @property
    def known_noise(self) -> Float[Array, " M"]:
        """The variance of their errors that is known."""
        return jnp.concatenate([seen.known for seen in self.sources])

    def told(self, pieces: Solution, field: BasisField) -> dict[str, str]:
        """How the problem was solved, for a report; a climb by minibatches takes no such steps."""
        steps = int(pieces.steps)
        return {"steps to the mode": str(steps)} if steps else {}

    def rounding(self, vector: Array) -> float:
        """Nats by which precision puts the objective off: all is in the one asked for."""
        return 0.0

    def fine_noise_variance(self, values: Mapping[str, Any]) -> Array:
        """ς², zero for a model without."""
        return jnp.asarray(values.get(FINE_NOISE, 0.0)) ** 2

    @property
    def is_small(self) -> bool:
        """Whether the evaluations of a fit are made sooner than one is compiled well."""
        n = sum(len(seen.layout.points) for seen in self.sources)
        size = self.n_features if self.inducing is None else len(self.inducing)
        return n * size <= SMALL

    @property
    def is_local(self) -> bool:
        """Whether an observation sees a bag of its own and no other."""
        return len(self.sources) == 1 and isinstance(self.mediation, Matched)

    def made_of(self, field: BasisField) -> Solution:
        """What the posterior of a climb is made of."""
        at = Unknowns(field.coefficients.mean, jnp.zeros(0))
        near, zero = tuple(seen.nearest for seen in self.sources), jnp.zeros(())
        return Solution(field.basis, at, jnp.zeros(len(self.z)), near, zero, zero)

    # ------------------------------------------------------------------ evidence

    @property
    def offsets(self) -> list[int]:
        """The sources that have an offset."""
        return [k for k, seen in enumerate(self.sources) if seen.offset]

    @property
    def has_effects(self) -> bool:
        """Whether observations of any source have effects of their own."""
        return any(seen.family.overdispersion for seen in self.sources)

    def basis(self, values: Mapping[str, Any]) -> Basis:
        """The basis of the field."""
        kernel = self.kernel.with_values(values)
        if self.inducing is None:
            d = self.layout.points.shape[1]
            return FourierBasis(kernel, self.key, self.n_features, d, self.dtype)
        return InducingBasis.at(kernel, self.inducing, self.dtype)

    def views(self, values: Mapping[str, Any], basis: Basis) -> Sources:
        """The sources at a value of the hyper-parameters, no spread of f looked at."""
        views, offsets = [], self.offsets
        for k, seen in enumerate(self.sources):
            m, n = len(seen.y), len(seen.layout.points)
            own = jnp.array([1.0 * (k == other) for other in offsets]) * seen.offset_std
            points = FinePoints.of(basis, self.trend, seen.layout)
            views.append(
                View(
                    seen,
                    points,
                    seen.weights(values),
                    seen.of_family(values),
                    seen.effect_std(values, points),
                    jnp.zeros(n),
                    jnp.zeros(m),
                    None,
                    values[f"{seen.prefix}scale"] if seen.affine else jnp.ones(()),
                    own.reshape(len(offsets)),
                )
            )
        return Sources(tuple(views))

    def linear(self, sources: Sources) -> tuple[Expansion, Curvature]:
        """The linear problem nearest to the last solution, at other hyper-parameters."""
        near = [view.seen.nearest for view in sources.views]
        jacobian = [
            view.jacobian(each.slopes, each.gain)
            for view, each in zip(sources.views, near, strict=True)
        ]
        information = jnp.concatenate([each.information for each in near])
        target = jnp.concatenate([each.target for each in near])
        effects = jnp.concatenate([view.effect_std for view in sources.views])
        rows = jnp.concatenate(jacobian)
        linear = Expansion(jnp.zeros(()), rows, information * target, information, effects)
        return linear, linear.curvature()

    def spread(self, sources: Sources, linear: Expansion, curvature: Curvature) -> Sources:
        """The sources with expectations under the linear problem."""
        explained, n = curvature.explained(), len(self.offsets)
        own = linear.spread_of_links(explained)
        views, at = [], 0
        for view in sources.views:
            rows = slice(at, at + len(view.seen.y))
            at = rows.stop
            variance = view.points.prior_variance() - view.points.squares(explained[n:])
            of_field = linear.jacobian[rows, n:] / view.scale
            level = jnp.sum(of_field**2, 1) - jnp.sum((of_field @ explained[n:]) ** 2, 1)
            views.append(
                replace(
                    view,
                    spread=jnp.clip(variance, 0.0, MOST_SPREAD),
                    level=jnp.clip(level, 0.0, MOST_SPREAD),
                    own_spread=jnp.clip(own[rows], 0.0, MOST_SPREAD),
                )
            )
        return Sources(tuple(views))

    def posed(self, values: Mapping[str, Any], basis: Basis) -> tuple[Sources, Unknowns]:
        """The likelihood, and the mode of the nearest linear problem."""
        sources = self.views(values, basis)
        linear, curvature = self.linear(sources)
        effects = linear.effect_std * linear.score if self.has_effects else jnp.zeros(0)
        start = linear.solve(curvature, Unknowns(linear.score @ linear.jacobian, effects))
        if self.variational:
            sources = self.spread(sources, linear, curvature)
        return sources, start

    def evaluate(self, vector: Float[Array, " size"]) -> tuple[Array, tuple[Solution, BasisField]]:
        """Log evidence plus log prior of the unconstrained parameters, and the posterior there."""
        return self.found(vector, follow)

    def found(
        self, vector: Float[Array, " size"], mode: Callable[[Sources, Unknowns], Unknowns]
    ) -> tuple[Array, tuple[Solution, BasisField]]:
        """The same, with the mode as some function of the likelihood and of what a search found."""
        values = self.parameters.unpack(vector)
        basis = self.basis(values)
        sources, start = self.posed(values, basis)
        found = climb(*held((sources, start)))
        at = mode(sources, found.at)
        expansion = sources.expand(at)
        curvature = expansion.curvature()
        log_prior = -0.5 * (at.v @ at.v + at.e @ at.e)
        volume = expansion.log_volume(curvature, self.has_effects)
        evidence = expansion.log_likelihood + log_prior - 0.5 * volume
        if self.variational:  # the trace in KL, which Laplace's formula has not
            own = expansion.spread_of_links(curvature.explained())
            evidence = evidence + 0.5 * jnp.sum(expansion.information * own)
        coefficients = curvature.coefficients(at.v, len(self.offsets))
        fine = self.fine_noise_variance(values)
        field = BasisField(basis, self.trend, coefficients, evidence, fine)
        solution = Solution(
            *(basis, at, expansion.effect_std, sources.nearest(at), found.promise, found.steps)
        )
        return evidence + self.parameters.log_prior(vector), (solution, field)

    def solve(self, vector: Float[Array, " size"]) -> tuple[Solution, BasisField]:
        """What the posterior is made of at one value of the hyper-parameters, and the posterior."""
        if not self.parameters.size:  # nothing is learnt: there is no gradient to compile
            return solution_of(self, vector)
        return evaluated(self, vector)[2]

    def about(self, solution: Solution) -> FamilyProblem:
        """The problem with the linear observations that are nearest to a solution."""
        pairs = zip(self.sources, solution.nearest, strict=True)
        return replace(self, sources=tuple(replace(seen, nearest=n) for seen, n in pairs))

    def joint(self, vector: np.ndarray, solution: Solution) -> tuple[JointProblem, np.ndarray]:
        """The problem in which the unknowns are parameters too, and the vector of a solution."""
        latent = {"latent": solution.unknowns.v}
        if self.has_effects:
            latent["effects"] = solution.unknowns.e
        more = tuple(
            Parameter(name, np.zeros(len(each)), Normal(0.0, 1.0), IDENTITY, reach=30.0)
            for name, each in latent.items()
        )
        parameters = replace(self.parameters, learnt=(*self.parameters.learnt, *more))
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        start = np.concatenate([vector, *(np.asarray(each) for each in latent.values())])
        return JointProblem(**{**values, "parameters": parameters}), start


class JointProblem(FamilyProblem):
    """A problem of families with the unknowns among the parameters, for NUTS.

    What the basis leaves out of f is left out of rates too.
    """

    def evaluate(self, vector: Float[Array, " size"]) -> tuple[Array, tuple[Solution, BasisField]]:
        """Log likelihood plus log prior of parameters and unknowns, and the field of these."""
        values = self.parameters.unpack(vector)
        basis, v = self.basis(values), values["latent"]
        e = values["effects"] if self.has_effects else jnp.zeros(0)
        at, sources = Unknowns(v, e), self.views(values, basis)
        log_likelihood = sources.log_posterior(at) + 0.5 * (v @ v + e @ e)
        known = Coefficients(v[len(self.offsets) :], jnp.eye(len(v))[len(self.offsets) :], None)
        fine = self.fine_noise_variance(values)
        field = BasisField(basis, self.trend, known, log_likelihood, fine)
        effects = jnp.concatenate([view.effect_std for view in sources.views])
        near = tuple(seen.nearest for seen in self.sources)
        solution = Solution(basis, at, effects, near, jnp.zeros(()), jnp.zeros((), int))
        return log_likelihood + self.parameters.log_prior(vector), (solution, field)


def solution_of(problem: FamilyProblem, vector: Any) -> Any:
    """The posterior alone: no gradient is compiled for problems that are solved and not learnt."""
    return quickly(_solution)(problem, jnp.asarray(vector))


def _solution(problem: FamilyProblem, vector: Any) -> Any:
    return problem.found(vector, lambda _, mode: mode)[1]


def settled(
    problem: FamilyProblem,
    vector: np.ndarray,
    solve: Callable[..., Any],
    begun: tuple[Solution, BasisField] | None = None,
) -> tuple[FamilyProblem, Solution, BasisField]:
    """The problem about its own solution, what that is made of, and the posterior.

    `begun` is what :meth:`FamilyProblem.solve` answers, where that is known.
    """
    before = np.inf
    if begun is not None:
        problem, before = problem.about(begun[0]), float(begun[1].log_evidence)
    for _ in range(8):
        solution, field = solve(problem, jnp.asarray(vector))
        problem = problem.about(solution)
        now = float(field.log_evidence)
        if abs(now - before) < SETTLED:
            break
        before = now
    return problem, solution, field
