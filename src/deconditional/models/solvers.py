"""How the posterior of a model is computed: exactly, or in a basis of the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.cluster import kmeans_plusplus

from deconditional.bags import Bags
from deconditional.fitting.parameters import IDENTITY, Parameter
from deconditional.fitting.priors import Flat
from deconditional.inference.exact import ExactProblem
from deconditional.inference.stochastic import ClimbOptions
from deconditional.inference.variational import (
    AllPairs,
    ResidualRule,
    SampledPairs,
    VariationalProblem,
)
from deconditional.kernels.devices import gathered
from deconditional.kernels.layout import BagSampler
from deconditional.kernels.radial import spectral_features
from deconditional.kernels.repeats import repeats_of
from deconditional.kernels.within_bags import own_pairs
from deconditional.models.checks import check_count, rows_of
from deconditional.models.options import BasisOptions

EXACT_TRACE_POINTS = 8_000
"""Points up to which trace="auto" takes all pairs; or eight times the size of the basis."""

TRACE_POINTS = 16
"""Points of a bag from which what the basis leaves out is estimated."""


class Posed(NamedTuple):
    """A problem, what a report says of how it was posed, and how its bound is climbed, if it is."""

    problem: Any
    details: dict[str, str]
    notes: tuple[str, ...] = ()
    climb: ClimbOptions | None = None


def pose(options: Any, parts: Mapping[str, Any], bags: Bags, seed: int) -> Posed:
    """The problem of some parts: in a basis, where the options of a model ask for one, or exact."""
    if not isinstance(options, BasisOptions):
        repeats = repeats_of(bags, parts["kernel"].kernel)
        return Posed(ExactProblem(**parts, repeats=repeats), {"inference": "exact"})
    _check_noise(parts)
    points_per_bag, climb = inference_options(options)
    key = jax.random.key(seed)
    notes: tuple[str, ...] = ()
    on_one = {**parts, "layout": gathered(parts["layout"]), "n_features": options.features}
    problem = VariationalProblem(**on_one, locations=None, residual=None, key=key)
    trace = "none, features are the prior"
    if options.features is not None:
        kernel = problem.kernel.with_values(
            problem.parameters.unpack(jnp.asarray(problem.parameters.start()))
        )
        spectral_features(kernel, options.features, key, bags.points.shape[1])  # raises, if at all
    else:
        points, notes = inducing_points(bags, options.inducing, options.n_inducing, seed)
        rule, trace = _residual_rule(options.trace, points_per_bag, bags, problem, len(points))
        locations = (points - np.asarray(problem.trend.centre)) / np.asarray(problem.trend.scale)
        problem = replace(problem, residual=rule, locations=jnp.asarray(locations))
        if options.learn_inducing:
            learnt = Parameter("inducing", locations, Flat(locations), IDENTITY, reach=np.inf)
            every = replace(problem.parameters, learnt=(*problem.parameters.learnt, learnt))
            problem = replace(problem, parameters=every, locations=None)
    details = {"inference": "stochastic" if climb else "collapsed", "trace": trace}
    return Posed(problem, details, notes, climb)


def _residual_rule(
    how: str, points_per_bag: int, bags: Bags, problem: VariationalProblem, n_basis: int
) -> tuple[ResidualRule, str]:
    """How to find what the basis leaves out, by the size of the data unless asked for."""
    diagonal, n = problem.is_local, bags.n_points
    pairs = float((bags.sizes.astype(float) ** 2).sum()) if diagonal else float(n) ** 2
    cheap = pairs <= n * max(EXACT_TRACE_POINTS, 8 * n_basis)
    if how == "exact" or (how == "auto" and cheap):
        text = f"exact, all {pairs:.3g} {'pairs within bags' if diagonal else 'pairs'}"
        return AllPairs(own_pairs(bags) if diagonal else None), text
    sampler = BagSampler.of(bags.points, bags.bag, bags.weights, bags.n_bags)
    text = f"estimated from 2 x {points_per_bag} points per bag"
    return SampledPairs(sampler, points_per_bag, diagonal), text


def inference_options(model: Any) -> tuple[int, ClimbOptions | None]:
    """Points per bag of estimates, and how a bound is climbed, if it is: what a model asks for."""
    if not isinstance(model, BasisOptions):
        return TRACE_POINTS, None
    given = dict(model.inference_options or {})
    points = given.pop("trace_points", TRACE_POINTS)
    check_count("trace_points", points)
    if points > 128 or points & (points - 1):
        raise ValueError(f"trace_points must be a power of two up to 128, not {points}.")
    known = [f.name for f in fields(ClimbOptions)]
    for name in given:
        if name not in known:
            raise ValueError(
                f"inference_options names {name!r}; the options are "
                f"{', '.join(['trace_points', *known])}."
            )
    if given and model.inference == "collapsed":
        raise ValueError(f"inference_options {', '.join(given)} belong to inference='stochastic'.")
    return int(points), ClimbOptions(**given) if model.inference == "stochastic" else None


def check_inference(model: Any) -> None:
    """Raise where options of inference in a basis contradict each other."""
    inference_options(model)
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


DEFAULT_INDUCING = 400
MOST_FOR_KMEANS = 10_000
"""Points that k-means++ chooses from; of more, these are sampled first."""


def inducing_points(
    bags: Bags, how: Any, number: int | None, seed: int
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Inducing points in the units of the covariates, and notes for the report."""
    if not isinstance(how, str):
        return _given(how, number, bags.points.shape[1]), ()
    if how not in ("kmeans", "uniform"):
        raise ValueError(f"inducing must be 'kmeans', 'uniform' or an array, not {how!r}.")
    rng = np.random.default_rng(seed)
    points = bags.points
    if len(points) > MOST_FOR_KMEANS:
        points = points[rng.choice(len(points), MOST_FOR_KMEANS, replace=False)]
    distinct = np.unique(points, axis=0)
    wanted = DEFAULT_INDUCING if number is None else int(number)
    notes: tuple[str, ...] = ()
    if wanted > len(distinct):
        if number is not None:
            notes = (
                f"{wanted} inducing points were asked for, but the bags have only {len(distinct)} "
                "distinct points; all of them are used. Ask for fewer, or use the exact model.",
            )
        wanted = len(distinct)
    if wanted == len(distinct):
        return distinct, notes
    if how == "uniform":
        return distinct[np.sort(rng.choice(len(distinct), wanted, replace=False))], notes
    return spread_out(distinct, wanted, seed), notes


def spread_out(points: np.ndarray, number: int, seed: int) -> np.ndarray:
    """Points far from one another, chosen by k-means++ in standardised units."""
    spread = points.std(0)
    scaled = (points - points.mean(0)) / np.where(spread > 0, spread, 1.0)
    _, rows = kmeans_plusplus(scaled, number, random_state=seed)
    return points[np.sort(rows)]


def _given(how: Any, number: int | None, d: int) -> np.ndarray:
    needed = f"inducing points need the {d} covariates of the bags, one row each"
    points = rows_of(how, d, "inducing point", needed, "Leave it out.")
    if number is not None and number != len(points):
        raise ValueError(
            f"n_inducing is {number}, but {len(points)} inducing points were given; leave "
            "n_inducing out."
        )
    return points
