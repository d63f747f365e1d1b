"""Fits to observations of any family: from checked sources to a model that was fitted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np

from deconditional.bags import Bags
from deconditional.fitting.interrupts import stoppable
from deconditional.fitting.parameters import ParameterSet, positive
from deconditional.inference.laplace import (
    SETTLED,
    FamilyProblem,
    settled,
    solution_of,
)
from deconditional.inference.learn import (
    Fitted,
    Learning,
    averaged,
    learn,
    sampled,
    solved_at,
)
from deconditional.inference.seen import FINE_NOISE, Nearest, Seen
from deconditional.kernels.devices import gathered
from deconditional.kernels.tasks import TaskKernel
from deconditional.models.base import learning, stages
from deconditional.models.checks import check_count
from deconditional.models.data import Data
from deconditional.models.problems import (
    field_kernel,
    mediated,
    prior_trend,
    with_length_scales,
)
from deconditional.models.report import take
from deconditional.models.solvers import Posed, inducing_points, inference_options
from deconditional.models.sources import Given, Source, with_task
from deconditional.observations.families import Normal
from deconditional.observations.kinds import Matched
from deconditional.observations.measurements import Measurements
from deconditional.saving.resume import CheckpointPart, within

MOST_POINTS = 1_000
"""Distinct points up to which a model without inducing points has one at each of them."""

ROUNDS = 4
"""Most fits, each about the solution of the last."""

MANY_POINTS = 10_000
"""Points beyond which hyper-parameters are learnt from representatives of every bag."""

REPRESENTATIVES = 32
"""Points that stand for a bag."""

VARIANCES = (0.1, 10.0)
"""Between which the prior of the variance of f is centred where there is a log or a logit."""


def families_asked(model: Any, where: Any, exposure: Any, trials: Any) -> bool:
    """Whether a fit is one to a family of observations, or to several sources."""
    if getattr(model, "inference", "collapsed") == "laplace" and not model.family:
        raise ValueError("inference='laplace' is for a family=; normal errors need none.")
    amounts = exposure is not None or trials is not None
    several = isinstance(where, list | tuple) and all(isinstance(each, Source) for each in where)
    return model.family is not None or amounts or several


def fit_sources(
    model: Any,
    sources: Sequence[Given],
    kept: CheckpointPart | None,
    others: Sequence[Measurements] = (),
    **of_kernel: Any,
) -> Any:
    """The model, fitted to sources; draws are shared out among `others`, data of the first source.

    A variational fit takes expectations under the solution of the last round. Where there are many
    points, hyper-parameters are learnt from a few of every bag that stand for it, and the posterior
    is that of all points.
    """
    began = time.perf_counter()
    tasks = [each.task for each in sources]
    sources = [replace(each, bags=_points(model, each)) for each in sources]
    posed = pose(model, sources, **of_kernel)
    whole, details = posed.problem, posed.details
    problem = whole if posed.climb else _condensed(whole, sources, model.seed)
    if posed.climb:
        details["minibatches"] = f"of {posed.climb.batch_size} observations"
    first, *others_of = [each.bags for each in sources]
    bags = first.joined(*others_of) if others_of else first

    def at(number: int) -> CheckpointPart:
        part = within(kept, f"round {number}").get("checkpoint")
        return stages(model, bags, whole, part)

    how = learning(model, posed)
    fitted, rounds = _in_rounds(problem, how, at, others)
    if model.method == "nuts" and not fitted.interrupted:
        fitted = _sampled(fitted, how, at(ROUNDS))
    elif problem is not whole:
        fitted = _of_all_points(fitted, whole, model.method)
        details["learnt from"] = f"{_size(problem)} of {_size(whole)} points"
    details |= {"rounds": str(rounds)} if whole.variational else {}
    learnt_model = take(model, bags, fitted, posed, at(ROUNDS), began)
    learnt_model.families_ = tuple(each.family for each in sources)
    if tasks[0] is not None:
        learnt_model.tasks_ = max(t or 0 for t in tasks) + 1
    return learnt_model


def _points(model: Any, each: Given) -> Bags:
    """The bags of a source with the points that the model takes of them, and their task."""
    bags = each.bags.centroids() if getattr(model, "centroids", False) else each.bags
    if model.points_per_bag is not None:
        bags = bags.subsample(model.points_per_bag, seed=model.seed)
    return bags if each.task is None else with_task(bags, each.task)


def _in_rounds(
    problem: Any, how: Learning, at: Callable[[int], CheckpointPart], others: Sequence[Measurements]
) -> tuple[Fitted, int]:
    """What was learnt, and in how many fits.

    The first is about crude rates, and need not be exact. It is over where the evidence stays as
    the problem moves to its own solution.
    """
    first = replace(how, method="map", method_options=None)
    if how.climb or not problem.variational:
        return learn(problem, first if how.method == "nuts" else how, at(0)), 1
    rounds, evaluations, roughly = 1, 0, replace(first, tolerance=0.1 * SETTLED)
    fitted = learn(problem, roughly, at(0))
    while not fitted.interrupted:
        before, begun = fitted.optimum, (fitted.pieces[0], fitted.fields[0])
        problem, pieces, field = settled(problem, before.vector, FamilyProblem.solve, begun)
        fitted = replace(fitted, problems=(problem,), pieces=(pieces,), fields=(field,))
        moved = abs(float(field.log_evidence - begun[1].log_evidence))
        is_settled = rounds > 1 and moved < SETTLED
        if is_settled or rounds == ROUNDS or not problem.parameters.size:
            break
        again = replace(first, n_restarts=0, starts=(before.vector,))
        evaluations += before.evaluations
        fitted, rounds = learn(problem, again, at(rounds)), rounds + 1
    if how.method == "draws" and not fitted.interrupted:
        every = [_seeing(problem, *map(jnp.asarray, each)) for each in others]
        fitted = averaged(fitted, how, every)  # type: ignore[arg-type]
    optimum = replace(fitted.optimum, evaluations=fitted.optimum.evaluations + evaluations)
    return replace(fitted, optimum=optimum), rounds


def _of_all_points(fitted: Fitted, whole: FamilyProblem, method: str) -> Fitted:
    """The posterior of all points at hyper-parameters that were learnt from some."""
    if whole.variational:
        whole, *found = settled(whole, fitted.optimum.vector, solution_of)
        if method == "map":
            pieces, field = found
            return replace(fitted, problems=(whole,), pieces=(pieces,), fields=(field,))
    drawn = [p.sources[0] for p in fitted.problems]
    every = {id(seen): _seeing(whole, seen.y, seen.known) for seen in drawn}
    owners = tuple(every[id(seen)] for seen in drawn)
    return solved_at(fitted, owners, fitted.vectors, solution_of)


def _seeing(problem: FamilyProblem, y: Any, known: Any) -> FamilyProblem:
    """The problem with other observations of its first source."""
    first = replace(problem.sources[0], y=y, known=known)
    return replace(problem, sources=(first, *problem.sources[1:]))


def _condensed(problem: FamilyProblem, sources: Sequence[Given], seed: int) -> FamilyProblem:
    """The problem with a few points of every bag; itself where it has few."""
    if _size(problem) <= MANY_POINTS:
        return problem
    few = [replace(each, bags=each.bags.condense(REPRESENTATIVES, seed)) for each in sources]
    seen = [_seen(each, old.observation) for each, old in zip(few, problem.sources, strict=True)]
    return replace(problem, sources=tuple(seen))


def _size(problem: FamilyProblem) -> int:
    """Points of all sources."""
    return sum(int(np.count_nonzero(seen.layout.weights)) for seen in problem.sources)


def _sampled(fitted: Fitted, how: Any, at: Any) -> Fitted:
    """Draws of hyper-parameters, coefficients and effects together."""
    joint, start = fitted.problem.joint(fitted.vectors[0], fitted.pieces[0])
    pieces, field = joint.solve(jnp.asarray(start))
    begun = replace(
        fitted,
        problems=(joint,),
        vectors=start[None],
        pieces=(pieces,),
        fields=(field,),
        optimum=replace(fitted.optimum, vector=start),
    )
    with stoppable() as stop:
        return sampled(begun, how, at, stop)


def pose(model: Any, sources: Sequence[Given], **of_kernel: Any) -> Posed:
    """The problem of sources, and what a report says of how it was posed.

    `of_kernel` is what :func:`~deconditional.models.problems.field_kernel` has beside.
    """
    check_options(model)
    n_tasks = max((each.task or 0) for each in sources) + 1
    tasked = sources[0].task is not None
    points = np.concatenate([each.bags.points for each in sources])
    crude = np.concatenate([each.crude for each in sources])
    trend = prior_trend(model.trend, points, crude)
    if any(each.family.link != "identity" for each in sources):
        variance = float(np.clip(np.var(crude), *VARIANCES))
        floor = jnp.maximum(trend.prior_std, 1.0)
        trend = eqx.tree_at(lambda t: t.prior_std, trend, floor)
    else:
        variance = float(np.var(crude)) or 1.0
    kernel = model.kernel
    if tasked:
        check_count("rank", model.rank)
        base = with_length_scales(gk.RBF, points.shape[1] - 1) if kernel is None else kernel
        level = float(np.max(np.asarray(trend.prior_std), initial=1.0))
        kernel = TaskKernel(base, n_tasks, model.rank, level)
    template = field_kernel(kernel, points, variance, **of_kernel)
    kinds = [_kind(model, each) for each in sources]
    parameters = [*template.parameters]
    for each, kind in zip(sources, kinds, strict=True):
        parameters += [*kind.parameters, *_own_parameters(each)]
    if model.fine_noise:
        _check_fine_noise(sources)
        parameters.append(positive(FINE_NOISE, 0.3 * np.sqrt(variance), 1.0, reach=6.0))
    wanted = ParameterSet.of(parameters, model.fixed, model.priors)
    locations, notes = _inducing(model, points)
    problem = FamilyProblem(
        sources=tuple(map(_seen, sources, kinds)),
        trend=trend,
        kernel=template,
        parameters=wanted,
        inducing=None if locations is None else jnp.asarray(locations),
        key=jax.random.key(model.seed),
        n_features=getattr(model, "features", None) or 0,
        variational=getattr(model, "inference", "collapsed") != "laplace",
        dtype=jnp.float32 if model.precision == "float32" else jnp.float64,
    )
    if getattr(model, "inference", "") == "stochastic" and not problem.is_local:
        raise ValueError(
            "inference='stochastic' takes one source that sees its own bags; leave it out for "
            "several sources, and for observations with mediators."
        )
    size = problem.n_features if locations is None else len(locations)
    way = "variational" if problem.variational else "Laplace"
    kind = "features" if locations is None else "inducing points"
    families = ", ".join(type(each.family).__name__ for each in sources)
    details = {"inference": f"{way}, {size} {kind}", "family": families}
    return Posed(problem, details, notes, inference_options(model)[1])


def check_options(model: Any) -> None:
    """Raise where options have no meaning for observations of any family."""
    model.check_options()
    usual = {"learn_noise": None, "learn_inducing": False, "uncertainty": False, "trace": "auto"}
    for name, value in usual.items():
        if getattr(model, name, value) != value:
            raise ValueError(f"{name} is for normal observations of one kind; leave it out.")


def _check_fine_noise(sources: Sequence[Given]) -> None:
    """Raise unless all sources are normal observations of f over their own bags."""
    for each in sources:
        linked = each.mediator is not None
        if linked or type(each.family) is not Normal or each.family.link != "identity":
            raise ValueError(
                "fine_noise is for normal observations of the bags themselves; counts have as much "
                "by overdispersion='points'."
            )


def _inducing(model: Any, points: np.ndarray) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Where the basis functions are; None for random Fourier features."""
    bags = Bags.from_points(points, np.zeros(len(points), dtype=int))
    if hasattr(model, "n_inducing"):
        if model.features is not None:
            return None, ()
        return inducing_points(bags, model.inducing, model.n_inducing, model.seed)
    few = len(np.unique(points, axis=0)) <= MOST_POINTS
    most = len(points) if few else MOST_POINTS
    locations, _ = inducing_points(bags, "kmeans", most, model.seed)
    if few:
        return locations, ()
    return locations, (
        f"the bags have more than {MOST_POINTS} distinct points, so {MOST_POINTS} of them are the "
        "inducing points of this fit. VBagg(n_inducing=...) takes another number.",
    )


def _kind(model: Any, each: Given) -> Any:
    """How the observations of a source see its bags."""
    if each.mediator is None:
        return Matched()
    if not hasattr(model, "mediator_kernel"):
        raise ValueError(
            f"{type(model).__name__} is for observations of the bags themselves; VarCMP is the "
            "model for observations with mediators."
        )
    linked = Data(each.bags, each.z, each.known, False, each.bags.points, each.mediator)
    return mediated(linked, model)


def _own_parameters(each: Given) -> list[Any]:
    """Parameters of the family and of the bias of a source, under names of its own."""
    spread = float(np.std(each.z / each.amount)) or 1.0
    known = isinstance(each.family, Normal) and not each.learns_noise
    every = () if known else each.family.own_parameters(spread)
    own = [replace(p, name=f"{each.prefix}{p.name}") for p in every]
    if each.bias == "affine":
        own.append(positive(f"{each.prefix}scale", 1.0, 0.3, reach=3.0))
    return own


def _seen(each: Given, kind: Any) -> Seen:
    """The data of a source as inference has it, with the linear problem of its crude rates."""
    family, crude = each.family, each.crude
    if isinstance(family, Normal):
        variance = each.known + (0.2 * np.std(each.z)) ** 2 * each.learns_noise
        values = {"variance": np.maximum(variance, 1e-12)}
    else:
        values = {p.name: p.start for p in family.parameters}
    layout = gathered(each.bags.layout)
    ones, eta = jnp.ones(len(crude)), jnp.asarray(crude)
    information = jax.jit(family.information_of_link)(eta, jnp.asarray(each.amount), **values)
    nearest = Nearest(jnp.ones(len(layout.points)), ones, information, eta)
    return Seen(
        layout=layout,
        y=jnp.asarray(each.z),
        amount=jnp.asarray(each.amount),
        known=jnp.asarray(each.known),
        observation=kind,
        nearest=nearest,
        counted=ones,
        shares=ones if each.mediator is not None else 1.0 / jnp.asarray(each.bags.effective_sizes),
        offset_std=jnp.asarray(max(float(np.std(crude)), 1.0 * (family.link != "identity")) * 3.0),
        family=family,
        prefix=each.prefix,
        offset=each.bias != "none",
        affine=each.bias == "affine",
        learns_noise=each.learns_noise,
    )
