"""Learning: from a problem and options to the posterior at the hyper-parameters it found.

Data flow one way: :func:`learn` takes a problem, :class:`Learning` (how) and, for fits that can go
on after a stop, their part of a checkpoint; it returns :class:`Fitted`, which has everything that
estimators predict from and report on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from deconditional.fitting.draws import DRAWS, PROPOSALS, weighted_draws
from deconditional.fitting.interrupts import Stop, current, stoppable
from deconditional.fitting.map import Optimum, maximise
from deconditional.fitting.nuts import sample_posterior
from deconditional.inference.laplace import LATENT, FamilyProblem
from deconditional.inference.problem import BagProblem
from deconditional.inference.stochastic import ClimbOptions, maximise_elbo
from deconditional.kernels.linalg import suitable_threads
from deconditional.saving.resume import CheckpointPart, CheckpointSection

NO_HYPER = ("inducing", *LATENT)
"""Names of what is learnt with the hyper-parameters and is none."""

DISAGREEMENT = 0.1
"""Nats by which the objective in float32 may differ from that in float64."""


@dataclass(frozen=True)
class Learning:
    """Options of learning: method, restarts, seed and starting points."""

    # method, method_options: `"map"`, `"draws"` or `"nuts"`, and what the last two take.
    method: str = "map"
    method_options: Mapping[str, Any] | None = None
    # n_restarts, max_iter, seed: of the optimiser.
    n_restarts: int = 4
    max_iter: int = 300
    seed: int = 0
    # Climb the bound by minibatches, in this way; by L-BFGS if None.
    climb: ClimbOptions | None = None
    # Vectors to start from beside those of the data and of the priors.
    starts: tuple[np.ndarray, ...] = ()
    # Nats gained by a step that end a run of the optimiser; None for next to none.
    tolerance: float | None = None


@dataclass(frozen=True)
class Fitted:
    """What was learnt: the posterior of the field, once for every draw of the hyper-parameters."""

    # problems, vectors, pieces, fields: problem, hyper-parameters (unconstrained), what the
    # posterior was made of, and the posterior itself, one of each for a draw. MAP has one draw.
    problems: tuple[Any, ...]
    vectors: np.ndarray
    pieces: tuple[Any, ...]
    fields: tuple[Any, ...]
    optimum: Optimum  # the most probable hyper-parameters, and the effort they took
    diagnostics: dict[str, Any] | None = None  # of NUTS
    # How far the fit was when Ctrl-C ended it, in words; nothing if it was not.
    interrupted: str = ""
    # Nats by which float32 was off where the fit was repeated for that, else zero.
    float32_off: float = 0.0
    trace: np.ndarray | None = None  # the bound on the way, of a stochastic climb

    @property
    def problem(self) -> Any:
        """The problem, which is the same for all draws."""
        return self.problems[0]

    @property
    def z(self) -> np.ndarray:
        """Observations that the fit has seen."""
        return np.asarray(self.problem.z)

    def values(self) -> list[dict[str, Any]]:
        """Named hyper-parameters of all draws; inducing points and coefficients are none."""
        every = [
            problem.parameters.unpack(vector)
            for problem, vector in zip(self.problems, self.vectors, strict=True)
        ]
        return [{k: np.asarray(v) for k, v in each.items() if k not in NO_HYPER} for each in every]

    def by_draw(self, ask: Callable[[Any, Any, Any, Any], Any]) -> list[Any]:
        """What problem, vector, pieces and field of every draw answer; equal draws answer once."""
        found: dict[int, Any] = {}
        for draw in zip(self.problems, self.vectors, self.pieces, self.fields, strict=True):
            if id(draw[3]) not in found:
                found[id(draw[3])] = ask(*draw)
        return [found[id(field)] for field in self.fields]

    def moments(self, ask: Callable[[Any, Any, Any, Any], Any]) -> tuple[np.ndarray, np.ndarray]:
        """Means and (co)variances that every draw answers as of :meth:`by_draw`, one row each."""
        means, covariances = zip(*self.by_draw(ask), strict=True)
        return np.stack(means), np.stack(covariances)


def learn(
    problem: BagProblem, how: Learning, stages: CheckpointPart, others: Sequence[BagProblem] = ()
) -> Fitted:
    """Learn the hyper-parameters of a problem and solve it there.

    `others` are problems of the same shapes that stand for data which are not known for sure: draws
    are shared out among them, and NUTS samples the posterior of each. A fit in float32 whose
    objective is off in float64 is repeated in float64. Where Ctrl-C stops it
    (:mod:`deconditional.fitting.interrupts`), the best so far is the answer.
    """
    if how.method == "nuts" and problem.parameters.size == 0:
        raise ValueError("every parameter is fixed, so NUTS has nothing to sample; use 'map'.")
    by = _learnt_by_climbing if how.climb else _learnt_by_map
    with stoppable() as stop, suitable_threads(len(problem.z), problem.layout.mesh is not None):
        fitted = by(problem, how, stages)
        off = 0.0 if current().used else problem.rounding(jnp.asarray(fitted.optimum.vector))
        if off > DISAGREEMENT:
            precise: Any = replace(problem, dtype=jnp.float64)
            fitted = replace(by(precise, how, stages), float32_off=off)
            others = [replace(other, dtype=jnp.float64) for other in others]
        if stop.used:
            unit = "steps" if how.climb else "evaluations"
            return replace(fitted, interrupted=f"{fitted.optimum.evaluations} {unit}")
        if how.method == "draws":
            return averaged(fitted, how, others)
        return sampled(fitted, how, stages, stop, others) if how.method == "nuts" else fitted


def _section(stages: CheckpointPart, name: str, problem: Any) -> CheckpointSection:
    """The section of a stage, in the precision of the problem."""
    return stages.section(f"{name} in {jnp.dtype(problem.dtype).name}")


def _learnt_by_map(problem: BagProblem, how: Learning, stages: CheckpointPart) -> Fitted:
    """The posterior at the most probable hyper-parameters."""
    if problem.parameters.size == 0:  # nothing to learn: no objective is compiled
        pieces, field = problem.solve(jnp.zeros(0))
        value = float(field.log_evidence)
        best = Optimum(np.zeros(0), value, True, 0, 0, (value,), 0.0)
    else:
        best = maximise(
            problem,
            n_restarts=how.n_restarts,
            max_iter=how.max_iter,
            seed=how.seed,
            starts=how.starts,
            tolerance=how.tolerance,
            section=_section(stages, "map", problem),
        )
        pieces, field = problem.solve(jnp.asarray(best.vector))
    return Fitted((problem,), best.vector[None], (pieces,), (field,), best)


def _learnt_by_climbing(problem: Any, how: Learning, stages: CheckpointPart) -> Fitted:
    """The posterior where a climb of the uncollapsed bound ended."""
    assert how.climb is not None
    best, field, trace = maximise_elbo(
        problem,
        how.climb,
        n_restarts=how.n_restarts,
        seed=how.seed,
        starts=how.starts,
        section=_section(stages, "climb", problem),
    )
    of_family = isinstance(problem, FamilyProblem)
    pieces = problem.made_of(field) if of_family else problem.solve(jnp.asarray(best.vector))[0]
    return Fitted((problem,), best.vector[None], (pieces,), (field,), best, trace=trace)


def averaged(fitted: Fitted, how: Learning, others: Sequence[BagProblem] = ()) -> Fitted:
    """The posterior at a few draws of the hyper-parameters, weighed about the most probable ones.

    Each of `others` has one of them: of exact problems, by weights of its own.
    """
    problem, best = fitted.problem, fitted.optimum
    own = others if hasattr(problem, "gram_at") else ()
    weighted = weighted_draws(problem, best.vector, how.seed, own)
    if others:
        order = np.random.default_rng(how.seed).permutation(len(others))
        levels = (order[:, None] + 0.5) / len(others)
        each = weighted if own else weighted * len(others)
        vectors = np.concatenate([w.at(at) for w, at in zip(each, levels, strict=True)])
    else:
        vectors = weighted[0].pick(dict(how.method_options or {}).get("num_draws", DRAWS))
    more = PROPOSALS + 2 * len(best.vector) if len(weighted[0].vectors) > 1 else 0
    optimum = replace(best, evaluations=best.evaluations + more)
    owners = tuple(others) or (problem,) * len(vectors)
    return solved_at(replace(fitted, optimum=optimum), owners, vectors)


def sampled(
    fitted: Fitted,
    how: Learning,
    stages: CheckpointPart,
    stop: Stop,
    others: Sequence[BagProblem] = (),
) -> Fitted:
    """The posterior at draws of the hyper-parameters by NUTS, from the most probable ones on."""
    options = {"num_warmup": 200, "num_samples": 200, **(how.method_options or {})}
    wanted = options["num_samples"] * options.get("num_chains", 1)
    problems, found = others or [fitted.problem], []
    for k, problem in enumerate(problems):
        section = _section(stages, f"nuts {k}" if others else "nuts", problem)
        draws, told = sample_posterior(
            problem, fitted.optimum.vector, seed=how.seed + k, section=section, **options
        )
        found.append((draws[:: len(problems)], told))
        if stop.used:
            break
    count = sum(len(draws) for draws, _ in found)
    if stop.used:
        fitted = replace(fitted, interrupted=f"{count or 'too few'} of {wanted} draws")
    if not count:
        return fitted
    owners = tuple(p for p, (draws, _) in zip(problems, found, strict=False) for _ in draws)
    fitted = solved_at(fitted, owners, np.concatenate([draws for draws, _ in found]))
    return replace(fitted, diagnostics=_worst([told for _, told in found if told]) or None)


def solved_at(
    fitted: Fitted,
    problems: tuple[Any, ...],
    vectors: np.ndarray,
    solve: Callable[..., Any] = lambda problem, vector: problem.solve(vector),
) -> Fitted:
    """The posterior at other hyper-parameters, or of other problems, each solved once."""
    solved: dict[tuple[int, bytes], tuple[Any, Any]] = {}
    keys = [(id(p), v.tobytes()) for p, v in zip(problems, vectors, strict=True)]
    for key, problem, vector in zip(keys, problems, vectors, strict=True):
        if key not in solved:
            solved[key] = solve(problem, jnp.asarray(vector))
    pieces, fields = zip(*(solved[key] for key in keys), strict=True)
    return replace(fitted, problems=problems, vectors=vectors, pieces=pieces, fields=fields)


def _worst(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The diagnostics of several runs of NUTS as those of one."""
    sums = ("divergences", "effective_samples")
    return {
        name: (sum if name in sums else max)(each[name] for each in told)
        for name in (told[0] if told else ())
    }
