"""Learning hyper-parameters: MAP by L-BFGS with restarts, or their full posterior by NUTS.

A problem offers ``parameters`` (a :class:`~deconditional.parameters.ParameterSet`) and
``log_posterior(vector)``; nothing here knows what the model is. Problems are pytrees, so one
compilation serves every data set of the same shape.

L-BFGS has a memory that SciPy does not hand out, so a checkpoint keeps what it was told instead:
all evaluations. A fit that goes on runs again from its start, is told the same, and comes in no
time to where it stopped, with the same memory. NUTS keeps the state of its chain.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Lock
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from deconditional.errors import CheckpointError, FitWarning
from deconditional.fitting.interrupts import Stop, current
from deconditional.fitting.parameters import ParameterSet
from deconditional.fitting.progress import show, tell
from deconditional.saving.resume import Section

__all__ = [
    "FitReport",
    "FitWarning",
    "Optimum",
    "Problem",
    "loss",
    "loss_and_gradient",
    "maximise",
    "sample_posterior",
]


TOLERANCE = 1e-7
"""Relative change of the loss that ends a run: millionths of a nat."""

FLOAT32_TOLERANCE = 1e-6
"""The same with float32 tiles, whose rounding hides smaller changes."""

FLOAT32_LINE_SEARCH = 10
"""Evaluations after which a line search with float32 tiles gives up: it meets nothing but noise."""

FLOAT32_PROMISE = 0.5
"""Nats that a run which such noise ended may have left to gain: what a standard deviation costs."""


LINE_SEARCH_FAILED = 2
"""Status of L-BFGS-B when no step goes down, not even along the gradient."""

SHORT_EVALUATION = 0.01
"""Seconds; a longer evaluation uses the cores itself, and a second beside it slows both down."""

ENOUGH_DRAWS = 20
"""Draws from which an interrupted chain takes the place of the most probable parameters."""

BLOCK = 100
"""Most steps of NUTS between two looks at whether to stop or to write."""

BLOCK_SECONDS = 0.5
"""Time between two such looks, where a single step does not take longer."""


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
def loss(problem: Problem, vector: Any) -> Any:
    """The negative log posterior."""
    return -problem.log_posterior(vector)


@eqx.filter_jit
def loss_and_gradient(problem: Problem, vector: Any) -> tuple[Any, Any]:
    """The negative log posterior, and its gradient."""
    return jax.value_and_grad(lambda v: -problem.log_posterior(v))(vector)


class _Stopped(Exception):
    """Ends a run of the optimiser at the evaluation that would come next."""


class _Evaluations:
    """Every evaluation so far: a vector that is asked for again gets the same answer."""

    def __init__(self, section: Section, size: int):
        self.section, self.size = section, size
        self._known: dict[bytes, tuple[float, np.ndarray]] = {}
        self._rows: list[np.ndarray] = []
        self.seconds = 0.0
        self.ended = False
        if section.found is not None:
            self._take(section.found)
        if self._rows:
            section.resumed = f"{len(self._rows)} evaluations"
        section.keep(self._state)

    def _take(self, found: dict[str, Any]) -> None:
        rows: Any = found.get("evaluations")
        seconds, ended = found.get("seconds"), found.get("ended")
        shaped = isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.dtype == np.float64
        if not shaped or rows.shape[1] != 2 * self.size + 1 or not np.isfinite(rows).all():
            self.section.useless("its evaluations do not fit the problem")
        elif not isinstance(seconds, np.ndarray) or seconds.shape or not isinstance(ended, bool):
            self.section.useless("it is not complete")
        else:
            self.seconds, self.ended = float(seconds), ended
            for row in rows:
                self.add(row[: self.size], float(row[self.size]), row[self.size + 1 :])

    def _state(self) -> dict[str, Any]:
        rows = list(self._rows)
        return {
            "evaluations": np.stack(rows) if rows else np.zeros((0, 2 * self.size + 1)),
            "seconds": np.asarray(self.seconds),
            "ended": self.ended,
        }

    def of(self, vector: np.ndarray) -> tuple[float, np.ndarray] | None:
        """The evaluation at a vector, if there was one."""
        found = self._known.get(np.asarray(vector, dtype=float).tobytes())
        return None if found is None else (found[0], found[1].copy())

    def add(self, vector: np.ndarray, value: float, gradient: np.ndarray) -> None:
        """Remember an evaluation."""
        row = np.concatenate([vector, [value], gradient])
        self._known[row[: self.size].tobytes()] = (value, row[self.size + 1 :])
        self._rows.append(row)


class _Objective:
    """The loss for SciPy: float64 in and out, huge where the algebra breaks down."""

    def __init__(self, problem: Problem, memory: _Evaluations | None = None):
        self.problem = problem
        self.memory = memory
        self.evaluations = 0
        self._count = Lock()

    def known(self, vector: np.ndarray) -> tuple[float, np.ndarray] | None:
        """The evaluation at a vector where the checkpoint has it."""
        found = None if self.memory is None else self.memory.of(vector)
        if found is not None:
            with self._count:
                self.evaluations += 1
        return found

    def __call__(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = self.evaluated(vector)
        if self.memory is not None:
            self.memory.add(vector, value, gradient)
            self.memory.section.offer()
        return value, gradient

    def evaluated(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """An evaluation that is not remembered."""
        value, gradient = loss_and_gradient(self.problem, jnp.asarray(vector))
        value, gradient = float(value), np.asarray(gradient, dtype=float)
        with self._count:
            self.evaluations += 1
            count = self.evaluations
        tell("fit", count, note=f"{count} evaluations, {-value:.1f}")
        if not np.isfinite(value) or not np.isfinite(gradient).all():
            return 1e25, np.zeros_like(vector)
        return value, gradient


class _Restart:
    """One of the runs of the optimiser, with the best it has found."""

    def __init__(self, objective: _Objective, start: np.ndarray, halted: Callable[[], bool]):
        self.objective, self.halted = objective, halted
        self.vector, self.loss, self.gradient = start, np.inf, np.zeros_like(start)
        self.success = False
        self.promise = np.inf
        self.iterations = 0

    def run(
        self, low: np.ndarray, high: np.ndarray, iterations: int, options: Mapping[str, Any]
    ) -> None:
        """So many iterations; fewer where the run is halted."""
        self.success, self.promise, self.iterations = False, np.inf, 0
        try:
            result = minimize(
                self._loss,
                np.clip(self.vector, low, high),
                jac=True,
                method="L-BFGS-B",
                bounds=list(zip(low, high, strict=True)),
                callback=self._next,
                options={"maxiter": iterations, **options},
            )
        except _Stopped:
            return
        self.vector, self.loss, self.gradient = result.x, float(result.fun), result.jac
        self.success, self.iterations = bool(result.success), int(result.nit)
        if result.status == LINE_SEARCH_FAILED:
            free = _downhill(result.x, result.jac, low, high) != 0
            gradient = np.where(free, result.jac, 0.0)
            self.promise = 0.5 * float(gradient @ result.hess_inv.matvec(gradient))

    def _loss(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        found = self.objective.known(vector)
        if found is None:
            if self.halted():
                raise _Stopped
            found = self.objective(vector)
        if found[0] < self.loss:
            self.vector, self.loss, self.gradient = vector.copy(), *found
        return found

    def _next(self, xk: np.ndarray) -> None:
        self.iterations += 1


@dataclass(frozen=True)
class Optimum:
    """The best of the restarts, and draws about it where these are to take its place."""

    vector: np.ndarray
    log_posterior: float
    converged: bool
    iterations: int
    evaluations: int
    restarts: tuple[float, ...]
    compile_seconds: float
    draws: np.ndarray | None = None


def maximise(
    problem: Problem,
    *,
    n_restarts: int = 4,
    max_iter: int = 300,
    seed: int = 0,
    starts: tuple[np.ndarray, ...] = (),
    screening: int = 12,
    section: Section | None = None,
) -> Optimum:
    """Maximise the log posterior.

    The first start is every prior's median, then come `starts` (a user's own values), then draws
    from the priors. All restarts run for `screening` iterations; the better half, and at least
    two, then run to convergence. Evaluations too short to keep every core busy by themselves run
    together on a pool of threads: XLA leaves Python's lock while it computes.

    Evaluations are kept in the `section` of a checkpoint and taken from there. Where a stop is
    asked for (:mod:`deconditional.fitting.interrupts`), the best parameters so far are the answer.
    """
    parameters = problem.parameters
    stop = current()
    memory = None if section is None else _Evaluations(section, parameters.size)
    objective = _Objective(problem, memory)
    first = parameters.start()
    compile_seconds, one_evaluation, (loss, gradient) = _begin(objective, first, stop)
    if parameters.size == 0:
        return Optimum(first, -loss, True, 0, objective.evaluations, (-loss,), compile_seconds)
    keys = jax.random.split(jax.random.key(seed), max(1, n_restarts))
    drawn = [parameters.draw(key, shrink=0.5) for key in keys]
    points = [first, *starts, *drawn][: max(1, n_restarts)]
    low, high = parameters.bounds()

    options: dict[str, Any] = {"ftol": TOLERANCE, "gtol": 1e-3, "maxcor": 20}
    single = getattr(problem, "dtype", None) == jnp.float32
    if single:
        options |= {"ftol": FLOAT32_TOLERANCE, "maxls": FLOAT32_LINE_SEARCH}

    halt = Event()
    restarts = [_Restart(objective, p, lambda: halt.is_set() or stop.reached()) for p in points]
    restarts[0].loss, restarts[0].gradient = loss, gradient
    workers = os.cpu_count() or 1 if one_evaluation < SHORT_EVALUATION else 1
    with ThreadPoolExecutor(max_workers=min(len(points), workers)) as pool:
        try:
            if len(restarts) > 2:
                _together(pool, [partial(r.run, low, high, screening, options) for r in restarts])
                restarts.sort(key=lambda r: r.loss)
            if not stop.asked:
                restarts = restarts[: max(2, len(points) // 2)]
            if not stop.asked or memory is not None:
                _together(pool, [partial(r.run, low, high, max_iter, options) for r in restarts])
        except BaseException as error:
            halt.set()
            if not (isinstance(error, KeyboardInterrupt) and stop.taken()):
                raise
    restarts.sort(key=lambda r: r.loss)
    best = restarts[0]
    if memory is not None:
        memory.ended = not stop.used
        (memory.section.stopped if stop.used else memory.section.complete)()
    return Optimum(
        vector=best.vector,
        log_posterior=-best.loss,
        converged=not stop.used and _converged(best, low, high, single),
        iterations=best.iterations,
        evaluations=objective.evaluations,
        restarts=tuple(-r.loss for r in restarts if r.loss < np.inf),
        compile_seconds=compile_seconds,
    )


def _begin(
    objective: _Objective, first: np.ndarray, stop: Stop
) -> tuple[float, float, tuple[float, np.ndarray]]:
    """Seconds of the first evaluation, which compiles, and of one more; the evaluation itself.

    A fit that goes on has it in its checkpoint. It repeats it: the same data and options must give
    the same number, or the rest of the checkpoint is not to be trusted.
    """
    memory = objective.memory
    known = objective.known(first)
    began = time.perf_counter()
    if memory is None or known is None:
        found = objective(first)
        compiled = time.perf_counter()
        if not stop.asked:
            objective.evaluated(first)
        one = time.perf_counter() - compiled
        if memory is not None:
            memory.seconds = one
        return compiled - began, one, found
    if memory.ended:
        objective.evaluations += 1
        return 0.0, memory.seconds, known
    value, _ = objective.evaluated(first)
    single = getattr(objective.problem, "dtype", None) == jnp.float32
    if abs(value - known[0]) > (1e-3 if single else 1e-6) * (1.0 + abs(known[0])):
        raise CheckpointError(
            f"the checkpoint {str(memory.section.path)!r} has a log posterior of {-known[0]:.6g} "
            f"where it is {-value:.6g} now: the kernel or a prior has changed. Name another file, "
            "or delete it to begin anew."
        )
    return time.perf_counter() - began, memory.seconds, known


def _together(pool: ThreadPoolExecutor, tasks: Sequence[Callable[[], None]]) -> None:
    """Run tasks on a pool.

    Waiting is done in short pieces, since not every system wakes a thread that waits for long when
    Ctrl-C is pressed.
    """
    left = {pool.submit(task) for task in tasks}
    while left:
        done, left = wait(left, timeout=0.5, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()


def _converged(best: _Restart, low: np.ndarray, high: np.ndarray, single: bool) -> bool:
    """Met a tolerance, or came so close that rounding, of float32 tiles most of all, ended it."""
    step = _downhill(best.vector, best.gradient, low, high)
    near = bool(np.abs(step).max() < 0.02)
    return best.success or near or (single and best.promise < FLOAT32_PROMISE)


def _downhill(
    vector: np.ndarray, gradient: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """The step against the gradient, as far as bounds let it."""
    return np.clip(vector - gradient, low, high) - vector


def at_bounds(parameters: ParameterSet, vector: np.ndarray) -> tuple[str, ...]:
    """Names of the entries of the vector that lie on a bound."""
    low, high = parameters.bounds()
    touching = (vector - low < 1e-3) | (high - vector < 1e-3)
    return tuple(name for name, on in zip(parameters.names(), touching, strict=True) if on)


# --------------------------------------------------------------------------- NUTS


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
    section: Section | None = None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Draws from the posterior of the unconstrained vector by NUTS, and their diagnostics.

    The state of the chain is kept in the `section` of a checkpoint; draws of a run that goes on
    from there are, on the same machine, those of a run that was never stopped, to the bit. Where a
    stop is asked for (:mod:`deconditional.fitting.interrupts`), the chains that are complete, or
    else what there is of the first, are the answer: nothing at all, with no diagnostics, if it is
    too little.
    """
    from numpyro.diagnostics import effective_sample_size, gelman_rubin, split_gelman_rubin

    if num_samples < 4 or num_warmup < 1 or num_chains < 1:
        raise ValueError("NUTS needs at least 4 samples, 1 warm-up step and 1 chain.")
    chains = _Chains(problem, start, seed, num_warmup, num_samples, num_chains, max_tree_depth)
    with show(progress_bar) as stage:
        stage("NUTS")
        chains.run(section, current())
    draws, diverging, potential = chains.collected()
    if draws.shape[1] < min(ENOUGH_DRAWS, num_samples):
        return draws.reshape(-1, draws.shape[-1])[:0], {}
    rhat = gelman_rubin(draws) if len(draws) > 1 else split_gelman_rubin(draws)
    return draws.reshape(-1, draws.shape[-1]), {
        "divergences": int(np.sum(diverging)),
        "r_hat": float(np.max(rhat)),
        "effective_samples": float(np.min(effective_sample_size(draws))),
        "log_posterior": float(-np.min(potential)),
    }


class _Place(NamedTuple):
    """Where sampling stands: the chain, its steps, its state, and what was drawn so far."""

    chain: int = 0
    done: int = 0
    state: Any = None
    rows: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...] = ()

    def drawn(self, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draws, divergences and energies in one piece each."""
        if not self.rows:
            return np.zeros((0, size)), np.zeros(0, bool), np.zeros(0)
        draws, diverging, potential = (
            np.concatenate(part) for part in zip(*self.rows, strict=True)
        )
        return draws, diverging, potential


class _Chains:
    """Chains of NUTS, one after the other, a block of steps at a time.

    All blocks are one compiled program, whatever their length, so that it does not matter to the
    draws where they are cut.
    """

    def __init__(
        self,
        problem: Problem,
        start: np.ndarray,
        seed: int,
        num_warmup: int,
        num_samples: int,
        num_chains: int,
        max_tree_depth: int,
    ):
        from numpyro.infer import NUTS

        self._sampler = NUTS(
            potential_fn=lambda v: -problem.log_posterior(v),
            dense_mass=True,
            max_tree_depth=max_tree_depth,
            target_accept_prob=0.85,
        )
        key = jax.random.key(seed)
        spread = 0.05 * jax.random.normal(key, (num_chains, len(start)))
        self._starts = jnp.asarray(start) + spread
        self._keys = jax.random.split(key, num_chains) if num_chains > 1 else key[None]
        self._warmup, self._samples, self._n = num_warmup, num_samples, num_chains
        self._length = num_warmup + num_samples
        self._at = _Place()

    def run(self, section: Section | None, stop: Stop) -> None:
        """Sample until all is done, or a stop is asked for."""
        if section is not None:
            self._resume(section)
        advance = jax.jit(self._advance)
        steps = 1
        try:
            while self._at.chain < self._n and not stop.reached():
                if self._at.state is None:
                    self._at = self._at._replace(state=self._begin(self._at.chain))
                steps = self._block(advance, steps)
                if section is not None:
                    section.offer()
        except KeyboardInterrupt:
            if not stop.taken():
                raise
        if section is not None and stop.used:
            section.stopped()

    def collected(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What was drawn in the chains that are complete, or else in the first."""
        parts = self._at.drawn(self._starts.shape[1])
        whole = self._at.chain
        n, each = (whole, self._samples) if whole else (1, len(parts[0]))
        draws, diverging, potential = (
            part[: n * each].reshape(n, each, *part.shape[1:]) for part in parts
        )
        return draws, diverging, potential

    # ------------------------------------------------------------------ steps

    def _begin(self, chain: int) -> Any:
        """The state before the first step."""
        state = self._sampler.init(
            self._keys[chain], self._warmup, self._starts[chain], model_args=(), model_kwargs={}
        )
        leaves, structure = jax.tree.flatten(state)
        # As if they came from a file, so that both ways enter the same program.
        return jax.tree.unflatten(structure, [_from_host(leaf, _to_host(leaf)) for leaf in leaves])

    def _advance(self, state: Any, steps: Any) -> tuple[Any, Any]:
        room = (
            jnp.zeros((BLOCK, self._starts.shape[1])),
            jnp.zeros(BLOCK, bool),
            jnp.zeros(BLOCK),
        )

        def step(k: Any, carried: Any) -> Any:
            now, seen = carried
            now = self._sampler.sample(now, (), {})
            values = (now.z, now.diverging, now.potential_energy)
            return now, tuple(s.at[k].set(v) for s, v in zip(seen, values, strict=True))

        return jax.lax.fori_loop(0, steps, step, (state, room))

    def _block(self, advance: Any, steps: int) -> int:
        """Some steps; how many may follow."""
        chain, done, state, rows = self._at
        steps = min(steps, self._length - done)
        began = time.perf_counter()
        state, seen = jax.block_until_ready(advance(state, jnp.asarray(steps)))
        each = (time.perf_counter() - began) / steps
        first = max(0, self._warmup - done)
        if first < steps:
            draws, diverging, potential = (np.asarray(s)[first:steps] for s in seen)
            rows = (*rows, (draws, diverging, potential))
        done += steps
        # In one piece: whoever writes it down, after an interrupt say, finds no half of it.
        ended = done == self._length
        self._at = _Place(chain + 1, 0, None, rows) if ended else _Place(chain, done, state, rows)
        tell("steps of NUTS", chain * self._length + done, self._n * self._length)
        return int(np.clip(BLOCK_SECONDS / max(each, 1e-9), 1, BLOCK))

    # ------------------------------------------------------------------ the checkpoint

    def _state(self) -> dict[str, Any]:
        at = self._at
        draws, diverging, potential = at.drawn(self._starts.shape[1])
        return {
            "chain": at.chain,
            "done": at.done,
            "state": [_to_host(leaf) for leaf in jax.tree.leaves(at.state)],
            "draws": draws,
            "diverging": diverging,
            "potential": potential,
        }

    def _resume(self, section: Section) -> None:
        """Go on from what a section has, if anything."""
        if section.found is not None:
            found = self._place(section.found)
            if found is None:
                section.useless("its chains do not fit the problem")
            else:
                self._at = found
                steps = found.chain * self._length + found.done
                section.resumed = f"{steps} steps of NUTS"
        section.keep(self._state)

    def _place(self, found: dict[str, Any]) -> _Place | None:
        """A place of these chains, or None where it is not one."""
        chain, done, leaves = (found.get(key) for key in ("chain", "done", "state"))
        if type(chain) is not int or type(done) is not int or not isinstance(leaves, list):
            return None
        if not (0 <= chain <= self._n and 0 <= done < self._length):
            return None
        drawn = chain * self._samples + max(0, done - self._warmup)
        shapes = {"draws": (drawn, self._starts.shape[1]), "diverging": (drawn,)}
        for key, shape in {**shapes, "potential": (drawn,)}.items():
            values = found.get(key)
            if not isinstance(values, np.ndarray) or values.shape != shape:
                return None
            if not np.isfinite(values).all():
                return None
        rows = (found["draws"], found["diverging"].astype(bool), found["potential"])
        if not leaves:
            return _Place(chain, done, None, (rows,)) if done == 0 else None
        own, structure = jax.tree.flatten(self._begin(min(chain, self._n - 1)))
        hosted = [_to_host(leaf) for leaf in own]
        if len(leaves) != len(hosted) or not all(
            isinstance(new, np.ndarray) and (new.shape, new.dtype) == (old.shape, old.dtype)
            for new, old in zip(leaves, hosted, strict=True)
        ):
            return None
        restored = [_from_host(old, new) for old, new in zip(own, leaves, strict=True)]
        return _Place(chain, done, jax.tree.unflatten(structure, restored), (rows,))


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_host(leaf: Any) -> np.ndarray:
    """An array as a file has it; random keys by their numbers."""
    leaf = jnp.asarray(leaf) if not hasattr(leaf, "dtype") else leaf
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _from_host(like: Any, values: np.ndarray) -> Any:
    """The way back."""
    if hasattr(like, "dtype") and _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(values), impl=jax.random.key_impl(like))
    return jnp.asarray(values)
