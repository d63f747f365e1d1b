"""The uncollapsed bound, maximised by minibatches of coarse observations from several starts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from deconditional.fitting.interrupts import current
from deconditional.fitting.map import Optimum
from deconditional.fitting.progress import tell
from deconditional.inference.basis import Basis
from deconditional.inference.basis_field import BasisField
from deconditional.inference.bound import Keys, full_bound, optimal
from deconditional.inference.climbing import Options, Run
from deconditional.inference.minibatches import Batches
from deconditional.inference.variational import VariationalProblem
from deconditional.saving.resume import Section

__all__ = ["Climb", "maximise_elbo"]

SCREENING_STEPS = 100
"""Steps of every restart, after which the best alone goes on."""


class Climb(NamedTuple):
    """The parameters found, the posterior there, and the smoothed bound, once in ten steps."""

    optimum: Optimum
    field: BasisField
    trace: np.ndarray


def maximise_elbo(
    problem: VariationalProblem,
    options: Options,
    *,
    n_restarts: int = 1,
    seed: int = 0,
    starts: tuple[np.ndarray, ...] = (),
    report: Callable[[int, float], None] | None = None,
    section: Section | None = None,
) -> Climb:
    """Climb the bound from several starts; the best of a short screening goes on to the end.

    The whole state is kept in the `section` of a checkpoint; a climb that goes on from there is, on
    the same machine, the one that was never stopped, to the bit. An interrupt (Ctrl-C) ends the
    climb where it stands.
    """
    parameters = problem.parameters
    low, high = map(jnp.asarray, parameters.bounds())
    batches, keys = Batches(problem, options.batch_size, seed), Keys(jr.key(seed))
    climbs = Climbs(problem, options, batches, keys, (low, high))
    began = time.perf_counter()
    if section is None or not climbs.resume(section):
        drawn = parameters.draws(seed, n_restarts, shrink=0.5)
        climbs.begin([parameters.start(), *starts, *drawn][:n_restarts])
    if section is not None:
        section.keep(climbs.state)
    if climbs.runs[0].steps == 0:
        climbs.runs[0].advance(1)
    compile_seconds = time.perf_counter() - began
    climbs.climb(report, section)
    best = climbs.best
    field = climbs.field(best.vector)
    optimum = Optimum(
        vector=np.asarray(best.vector),
        log_posterior=float(field.log_evidence + parameters.log_prior(best.vector)),
        converged=best.ended,
        iterations=climbs.steps,
        evaluations=climbs.steps,
        restarts=tuple(sorted((r.smoothed for r in climbs.runs if r.steps), reverse=True)),
        compile_seconds=compile_seconds,
    )
    return Climb(optimum, field, np.asarray(best.trace))


@eqx.filter_jit
def _basis(problem: VariationalProblem, vector: Array) -> Basis:
    return problem.basis(problem.parameters.unpack(vector))


class Climbs:
    """The climbs of all restarts, and where they stand together."""

    def __init__(
        self,
        problem: VariationalProblem,
        options: Options,
        batches: Batches,
        keys: Keys,
        bounds: tuple[Array, Array],
    ):
        self.parts = problem, options, batches, keys, bounds
        self.options, self.batches, self.keys = options, batches, keys
        self.runs: list[Run] = []
        self._chosen: int | None = None
        self._frozen: dict[str, Any] | None = None

    @property
    def steps(self) -> int:
        """Number of steps of all climbs together."""
        return sum(run.steps for run in self.runs)

    @property
    def best(self) -> Run:
        """The one that was chosen after the screening, or would be now."""
        smoothed = [run.smoothed for run in self.runs]
        return self.runs[smoothed.index(max(smoothed)) if self._chosen is None else self._chosen]

    def begin(self, points: Sequence[np.ndarray]) -> None:
        """From the start."""
        problem, options, batches, keys, bounds = self.parts
        self.runs = [Run(problem, options, p, batches, keys, bounds) for p in points]

    def climb(self, report: Callable[[int, float], None] | None, section: Section | None) -> bool:
        """Screen, choose and climb to the end; whether an interrupt ended it before."""
        stop = current()

        def pause() -> bool:
            steps = self.steps
            tell("fit", steps, note=f"{steps} steps, {self.best.smoothed:.1f}")
            if section is not None:
                section.offer()
            return stop.reached()

        try:
            if len(self.runs) > 1 and self._chosen is None:
                screening = min(SCREENING_STEPS, self.options.max_steps // len(self.runs))
                for run in self.runs:
                    if not stop.used:
                        run.advance(screening - run.steps, report, pause)
            if self._chosen is None and not stop.used:
                self._chosen = self.runs.index(self.best)
            best = self.best
            spent = self.steps - best.steps
            while not best.ended and not stop.used:
                left = self.options.max_steps - spent - best.steps
                if left <= 0:
                    break
                best.advance(min(10, left), report, pause)
        except KeyboardInterrupt:
            if not stop.taken():
                raise
        self._frozen = None if section is None else self.state()
        if section is not None and stop.used:
            section.stopped()
        return stop.used

    def field(self, vector: Array) -> BasisField:
        """The posterior at given parameters, and its bound over all observations."""
        problem, options, batches, keys, _ = self.parts
        if options.optimiser == "natural":
            q = optimal(problem, vector, batches, next(keys), options.kl_weight).coefficients()
        else:
            q = self.best.state.coefficients.coefficients()
        bound = full_bound(problem, vector, q, batches, next(keys))
        noise = problem.fine_noise_variance(problem.parameters.unpack(vector))
        return BasisField(_basis(problem, vector), problem.trend, q, bound, noise)

    # ------------------------------------------------------------------ the checkpoint

    def state(self) -> dict[str, Any]:
        """Everything the next step depends on."""
        if self._frozen is not None:
            return self._frozen
        return {
            "runs": [run.record() for run in self.runs],
            "chosen": self._chosen,
            "generator": json.dumps(self.batches.generator.bit_generator.state),
            "key": np.asarray(jr.key_data(self.keys.key)),
        }

    def resume(self, section: Section) -> bool:
        """Go on from what a section has; whether there was anything to go on from."""
        if section.found is None:
            return False
        problem, options, batches, keys, bounds = self.parts
        before = batches.generator.bit_generator.state
        try:
            found = section.found
            runs = [
                Run(problem, options, None, batches, keys, bounds, record)
                for record in found["runs"]
            ]
            chosen = found["chosen"]
            if not runs or not (chosen is None or 0 <= chosen < len(runs)):
                raise ValueError("no climb of those it has was chosen")
            batches.generator.bit_generator.state = json.loads(found["generator"])
            key = jr.wrap_key_data(jnp.asarray(found["key"]), impl=jr.key_impl(keys.key))
            if key.shape != keys.key.shape:
                raise ValueError("its random key is none")
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            batches.generator.bit_generator.state = before
            section.useless(str(error).splitlines()[0] if str(error) else type(error).__name__)
            return False
        keys.key = key
        self.runs, self._chosen = runs, chosen
        section.resumed = f"{self.steps} steps"
        return True
