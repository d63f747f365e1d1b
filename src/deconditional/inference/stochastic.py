r"""The uncollapsed bound, maximised by minibatches of coarse observations.

With q(v) = N(m, Σ) the paper's ELBO (its appendix on the variational formulation, with and without
high-resolution noise) is, for whitened observations :math:`\tilde z = S^{-1/2}z` and
:math:`\tilde\Gamma = \Gamma S^{-T/2}`,

.. math:: -\tfrac12\Bigl[M\log 2\pi + \log\det S + \sum_i (\tilde z_i - \tilde\gamma_i^\top m)^2
          + \tilde\gamma_i^\top\Sigma\tilde\gamma_i + \tilde r_i\Bigr] - \beta\,\mathrm{KL}(q\|p).

The sum is over observations even where their noises are correlated, since whitening comes first, so
a uniform minibatch, scaled up, estimates it and its gradients without bias. Matched data with
independent noises needs the bags of the minibatch alone; elsewhere every observation sees all bags.

q(v) moves by natural gradients, which for Gaussian noise are convex steps of its natural parameters
towards those of the minibatch, or by Adam on its mean and root; the hyper-parameters move by Adam.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.scipy.linalg as jsl
import numpy as np
import optax
from jaxtyping import Array, Float

from deconditional.fitting.interrupts import current
from deconditional.fitting.progress import tell
from deconditional.inference.basis import Basis
from deconditional.inference.collapsed import Coefficients
from deconditional.inference.field import BasisField
from deconditional.inference.minibatches import Batch, Batches, restricted
from deconditional.inference.variational import VariationalProblem
from deconditional.kernels.linalg import NoiseRoot, log_determinant, whiten
from deconditional.saving.resume import Section

__all__ = ["Climb", "Options", "elbo", "full_bound", "maximise_elbo", "optimal"]


@dataclass(frozen=True)
class Options:
    """How the bound is climbed.

    Attributes
    ----------
    batch_size
        Observations per step.
    optimiser
        Of q(v): ``"natural"`` gradients or ``"adam"``.
    learning_rate, natural_step
        Of Adam, and of the natural gradient: between 0 and 1, by default 0.5, or 1 where a batch
        has all observations. Both shrink on a plateau, except a natural step of 1.
    kl_weight
        β. Below one, q(v) trusts the observations more than Bayes' rule does.
    max_steps
        At most so many, screening of restarts included.
    patience, tolerance
        Steps without an improvement of the smoothed bound by more than so many nats make a
        plateau. Each plateau shrinks the steps to 0.3 of what they were; the fourth ends the fit,
        at the average of the parameters since the third.
    progress
        Show a progress bar.
    """

    batch_size: int = 64
    optimiser: str = "natural"
    learning_rate: float = 0.05
    natural_step: float | None = None
    kl_weight: float = 1.0
    max_steps: int = 4000
    patience: int = 200
    tolerance: float = 0.1
    progress: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if self.optimiser not in ("natural", "adam"):
            raise ValueError(f"optimiser must be natural or adam, not {self.optimiser!r}.")
        for name in ("batch_size", "max_steps", "patience"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be a positive whole number, not {value!r}.")
        for name in ("learning_rate", "natural_step", "kl_weight", "tolerance"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, float | int | np.number) or not 0 < value < np.inf:
                raise ValueError(f"{name} must be a positive number, not {value!r}.")
        if self.natural_step is not None and self.natural_step > 1:
            raise ValueError(f"natural_step lies between 0 and 1, not {self.natural_step!r}.")


# --------------------------------------------------------------------------- the bound


class Likelihood(eqx.Module):
    """What the expected log likelihood of a batch needs of the model."""

    white: Float[Array, "D B"]
    white_z: Float[Array, " B"]
    penalty: Float[Array, " B"]
    log_determinant: Float[Array, ""]
    n_observations: int = eqx.field(static=True)


def likelihood(
    problem: VariationalProblem, values: Mapping[str, Any], batch: Batch, key: Any
) -> Likelihood:
    """Whitened features, observations and penalties of a batch; log det S of all observations."""
    m = len(problem.z)
    if batch.chunks is None:
        pieces = problem.pieces(values, key)
        root = NoiseRoot.of(pieces.noise)
        chosen = batch.observations
        return Likelihood(
            root.whiten(pieces.mediated().T)[chosen].T,
            root.whiten(problem.z)[chosen],
            pieces.penalty(root)[chosen],
            root.log_determinant(),
            m,
        )
    part = restricted(problem, batch)
    pieces = part.pieces(values, key)
    root = NoiseRoot.of(pieces.noise)
    every = problem.noise(values, None, None, jnp.zeros(()))
    return Likelihood(
        root.whiten(pieces.mediated().T).T,
        root.whiten(part.z),
        pieces.penalty(root),
        NoiseRoot.of(every).log_determinant(),
        m,
    )


def elbo(part: Likelihood, coefficients: Coefficients, kl_weight: float = 1.0) -> Float[Array, ""]:
    """The bound, estimated without bias from a batch."""
    share = part.n_observations / part.white_z.shape[0]
    error = part.white_z - part.white.T @ coefficients.mean
    spread = coefficients.variance(part.white.T)
    constant = part.n_observations * jnp.log(2.0 * jnp.pi) + part.log_determinant
    expected = -0.5 * (constant + share * jnp.sum(error**2 + spread + part.penalty))
    return expected - kl_weight * divergence(coefficients)


def divergence(coefficients: Coefficients) -> Float[Array, ""]:
    """KL(q(v) || N(0, I))."""
    root, m = coefficients.precision_root, coefficients.mean
    assert root is not None
    return 0.5 * (jnp.trace(_covariance(root)) + m @ m - len(m) + log_determinant(root))


def _covariance(precision_root: Float[Array, "D D"]) -> Float[Array, "D D"]:
    inverse = whiten(precision_root, jnp.eye(len(precision_root)))
    return inverse.T @ inverse


# --------------------------------------------------------------------------- steps of q(v)


class Natural(eqx.Module):
    r"""q(v) by its natural parameters :math:`\Sigma^{-1}m` and :math:`\Sigma^{-1}`."""

    shift: Float[Array, " D"]
    precision: Float[Array, "D D"]

    def coefficients(self) -> Coefficients:
        """The distribution."""
        root = jnp.linalg.cholesky(self.precision)
        return Coefficients(jsl.cho_solve((root, True), self.shift), None, root)

    def step(self, part: Likelihood, size: Array, kl_weight: float) -> Natural:
        """A convex step towards the optimum for this batch."""
        gain = part.n_observations / part.white_z.shape[0] / kl_weight
        shift = gain * (part.white @ part.white_z)
        precision = jnp.eye(len(shift)) + gain * (part.white @ part.white.T)
        return Natural(
            (1.0 - size) * self.shift + size * shift,
            (1.0 - size) * self.precision + size * precision,
        )


class Rooted(eqx.Module):
    """q(v) by its mean and the Cholesky factor of its covariance, for gradient steps."""

    mean: Float[Array, " D"]
    lower: Float[Array, "D D"]
    log_diagonal: Float[Array, " D"]

    @classmethod
    def of(cls, coefficients: Coefficients) -> Rooted:
        """A given distribution."""
        assert coefficients.precision_root is not None
        lower = jnp.linalg.cholesky(_covariance(coefficients.precision_root))
        return cls(coefficients.mean, lower, jnp.log(jnp.diagonal(lower)))

    def coefficients(self) -> Coefficients:
        """The distribution."""
        root = jnp.tril(self.lower, -1) + jnp.diag(jnp.exp(self.log_diagonal))
        return Coefficients(self.mean, None, jnp.linalg.cholesky(_covariance(root)))


# --------------------------------------------------------------------------- the climb


class State(eqx.Module):
    """Where the climb stands."""

    vector: Float[Array, " size"]
    coefficients: Natural | Rooted
    adam: Any
    rates: Float[Array, " 2"]
    """Learning rate of Adam and step of the natural gradient."""


@dataclass
class Climb:
    """The result of a climb."""

    vector: np.ndarray
    field: BasisField
    log_posterior: float
    converged: bool
    steps: int
    restarts: tuple[float, ...]
    compile_seconds: float
    interrupted: bool
    trace: list[float] = dataclasses.field(default_factory=list)
    """The smoothed bound, once in ten steps."""


SCREENING_STEPS = 100
SMOOTHING = 50
"""Steps over which the bound is averaged."""
PLATEAUS = 4


@eqx.filter_jit
def _step(
    problem: VariationalProblem,
    state: State,
    batches: tuple[Batch, Batch],
    key: Any,
    low: Array,
    high: Array,
    kl_weight: float,
) -> tuple[State, Array]:
    """One step: q(v) by the first batch, then the parameters by the second.

    The parameters' gradient is taken at a q(v) that already knows the current parameters; at an
    older one it would pull them back to where they were. Batches of their own for the two keep
    that gradient unbiased.
    """
    first, second = jr.split(key)
    q = state.coefficients
    if isinstance(q, Natural):
        part = likelihood(problem, problem.parameters.unpack(state.vector), batches[0], first)
        q = q.step(part, state.rates[1], kl_weight)
    natural = isinstance(q, Natural)

    def loss(moving: tuple[Array, Any]) -> Array:
        vector, given = moving
        now = (q if natural else given).coefficients()
        part = likelihood(problem, problem.parameters.unpack(vector), batches[1], second)
        return -(elbo(part, now, kl_weight) + problem.parameters.log_prior(vector))

    moving = (state.vector, None if natural else q)
    value, gradient = jax.value_and_grad(loss)(moving)
    updates, adam = optax.scale_by_adam().update(gradient, state.adam)
    moved = jax.tree.map(lambda p, u: p - state.rates[0] * u, moving, updates)
    usable = jnp.isfinite(value) & jnp.isfinite(moved[0]).all()
    new = State(jnp.clip(moved[0], low, high), q if natural else moved[1], adam, state.rates)
    kept = jax.tree.map(lambda a, b: jnp.where(usable, a, b), new, state)
    return kept, -value


@eqx.filter_jit
def _statistics(
    problem: VariationalProblem, vector: Array, batch: Batch, count: Array, key: Any
) -> tuple[Array, Array, Array, Array]:
    """What a batch adds to precision, shift and bound; the first `count` observations count."""
    part = likelihood(problem, problem.parameters.unpack(vector), batch, key)
    use = jnp.where(jnp.arange(part.white_z.shape[0]) < count, 1.0, 0.0)
    white = part.white * use
    residual = jnp.sum(use * (part.white_z**2 + part.penalty))
    return white @ part.white.T, white @ part.white_z, residual, part.log_determinant


def _sums(
    problem: VariationalProblem, vector: Array, batches: Batches, key: Any
) -> tuple[Array, Array, Array, Array]:
    """Statistics of all observations, a batch at a time."""
    total: Any = None
    for (batch, count), k in zip(batches.epoch(), _keys(key), strict=False):
        *sums, log_determinant_ = _statistics(problem, vector, batch, jnp.asarray(count), k)
        total = sums if total is None else [a + b for a, b in zip(total, sums, strict=True)]
    return *total, log_determinant_


class _Keys:
    """Endless random keys; `key` is what the next ones come from."""

    def __init__(self, key: Any):
        self.key = key

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.key, used = jr.split(self.key)
        return used


def _keys(key: Any) -> _Keys:
    return _Keys(key)


def full_bound(
    problem: VariationalProblem,
    vector: Array,
    coefficients: Coefficients,
    batches: Batches,
    key: Any,
    kl_weight: float = 1.0,
) -> Array:
    """The ELBO of all observations, a batch at a time."""
    gram, shift, residual, log_det = _sums(problem, vector, batches, key)
    m, root = coefficients.mean, coefficients.precision_root
    assert root is not None
    spread = jnp.sum(gram * _covariance(root))
    quadratic = residual - 2.0 * shift @ m + m @ gram @ m + spread
    constant = len(problem.z) * jnp.log(2.0 * jnp.pi) + log_det
    return -0.5 * (constant + quadratic) - kl_weight * divergence(coefficients)


def optimal(
    problem: VariationalProblem, vector: Array, batches: Batches, key: Any, kl_weight: float
) -> Natural:
    """The best q(v) at given hyper-parameters, its statistics gathered a batch at a time."""
    gram, shift, _, _ = _sums(problem, vector, batches, key)
    return Natural(shift / kl_weight, jnp.eye(len(shift)) + gram / kl_weight)


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
    batches = Batches(problem, options.batch_size, seed)
    keys = _keys(jr.key(seed))
    climbs = _Climbs(problem, options, batches, keys, (low, high))
    began = time.perf_counter()
    if section is None or not climbs.resume(section):
        drawn = [parameters.draw(next(keys), shrink=0.5) for _ in range(n_restarts)]
        climbs.begin([parameters.start(), *starts, *drawn][:n_restarts])
    if section is not None:
        section.keep(climbs.state)
    if climbs.runs[0].steps == 0:
        climbs.runs[0].advance(1)
    compile_seconds = time.perf_counter() - began
    interrupted = climbs.climb(report, section)
    best = climbs.best
    vector = best.vector
    if options.optimiser == "natural":
        q = optimal(problem, vector, batches, next(keys), options.kl_weight).coefficients()
    else:
        q = best.state.coefficients.coefficients()
    bound = full_bound(problem, vector, q, batches, next(keys))
    values = parameters.unpack(vector)
    basis = _basis(problem, vector)
    return Climb(
        vector=np.asarray(vector),
        field=BasisField(basis, problem.trend, q, bound, problem.fine_noise_variance(values)),
        log_posterior=float(bound + parameters.log_prior(vector)),
        converged=best.ended,
        steps=climbs.steps,
        restarts=tuple(sorted((r.smoothed for r in climbs.runs if r.steps), reverse=True)),
        compile_seconds=compile_seconds,
        interrupted=interrupted,
        trace=best.trace,
    )


@eqx.filter_jit
def _basis(problem: VariationalProblem, vector: Array) -> Basis:
    return problem.basis(problem.parameters.unpack(vector))


class _Climbs:
    """The climbs of all restarts, and where they stand together."""

    def __init__(
        self,
        problem: VariationalProblem,
        options: Options,
        batches: Batches,
        keys: _Keys,
        bounds: tuple[Array, Array],
    ):
        self.parts = problem, options, batches, keys, bounds
        self.options, self.batches, self.keys = options, batches, keys
        self.runs: list[_Run] = []
        self._chosen: int | None = None
        self._frozen: dict[str, Any] | None = None

    @property
    def steps(self) -> int:
        """Of all climbs together."""
        return sum(run.steps for run in self.runs)

    @property
    def best(self) -> _Run:
        """The one that was chosen after the screening, or would be now."""
        smoothed = [run.smoothed for run in self.runs]
        return self.runs[smoothed.index(max(smoothed)) if self._chosen is None else self._chosen]

    def begin(self, points: Sequence[np.ndarray]) -> None:
        """From the start."""
        problem, options, batches, keys, bounds = self.parts
        self.runs = [_Run(problem, options, p, batches, keys, bounds) for p in points]

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
                _Run(problem, options, None, batches, keys, bounds, record)
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


class _Run:
    """One climb: its state, its smoothed bound and its plateaus."""

    def __init__(
        self,
        problem: VariationalProblem,
        options: Options,
        start: np.ndarray | None,
        batches: Batches,
        keys: _Keys,
        bounds: tuple[Array, Array],
        record: Mapping[str, Any] | None = None,
    ):
        self.problem, self.options = problem, options
        self.batches, self.keys, self.bounds = batches, keys, bounds
        step = options.natural_step
        if step is None:
            step = 1.0 if batches.size == batches.n_observations else 0.5
        self._shrink = jnp.asarray([0.3, 1.0 if step == 1.0 else 0.3])
        self.steps = 0
        self.smoothed = -np.inf
        self.trace: list[float] = []
        self._recent: deque[float] = deque(maxlen=SMOOTHING)
        self._best, self._best_step, self._plateaus = -np.inf, 0, 0
        if record is not None:
            self._restore(record)
            return
        natural = options.optimiser == "natural"
        vector = jnp.clip(jnp.asarray(start), *bounds)
        # From the prior, early steps would explain the observations by noise and not come back.
        q: Natural | Rooted = optimal(problem, vector, batches, next(keys), options.kl_weight)
        if isinstance(q, Natural) and not natural:
            q = Rooted.of(q.coefficients())
        self.state = _first_state(vector, q, jnp.asarray([options.learning_rate, step]))
        self._total, self._count = jnp.zeros_like(vector), 0

    @property
    def ended(self) -> bool:
        """Whether the last plateau was reached."""
        return self._plateaus >= PLATEAUS

    @property
    def vector(self) -> Array:
        """The parameters, averaged over the steps since the plateau before, if there was one."""
        enough = self._plateaus > 0 and self._count >= SMOOTHING
        return self._total / self._count if enough else self.state.vector

    def advance(
        self,
        steps: int,
        report: Callable[[int, float], None] | None = None,
        pause: Callable[[], bool] = lambda: False,
    ) -> None:
        """So many steps; fewer at the last plateau, or where `pause` says so before one."""
        for _ in range(steps):
            if self.ended or pause():
                return
            self._step()
        if report is not None:
            report(steps, self.smoothed)

    def _step(self) -> None:
        generator = self.batches.generator.bit_generator
        before = generator.state, self.keys.key
        try:
            state, bound = _step(
                self.problem,
                self.state,
                (self.batches.draw(), self.batches.draw()),
                next(self.keys),
                *self.bounds,
                self.options.kl_weight,
            )
            value = float(bound)
        except BaseException:
            # The step was not taken, so a checkpoint must not have the randomness it used up.
            generator.state, self.keys.key = before
            raise
        self.state = state
        self._total, self._count = self._total + self.state.vector, self._count + 1
        self._note(value)

    def _note(self, bound: float) -> None:
        self.steps += 1
        if np.isfinite(bound):
            self._recent.append(bound)
            self.smoothed = float(np.mean(self._recent))
        if self.steps % 10 == 0:
            self.trace.append(self.smoothed)
        if self.smoothed > self._best + self.options.tolerance:
            self._best, self._best_step = self.smoothed, self.steps
        elif self.steps - self._best_step >= self.options.patience:
            self._plateaus += 1
            self._best, self._best_step = self.smoothed, self.steps
            if not self.ended:
                self._total, self._count = jnp.zeros_like(self._total), 0
            self.state = replace(self.state, rates=self._shrink * self.state.rates)

    # ------------------------------------------------------------------ the checkpoint

    def record(self) -> dict[str, Any]:
        """Everything the next step depends on, as arrays and whole numbers."""
        return {
            "state": [np.asarray(leaf) for leaf in jax.tree.leaves(self.state)],
            "total": np.asarray(self._total),
            "trace": np.asarray(self.trace, dtype=float),
            "recent": np.asarray(self._recent, dtype=float),
            "levels": np.asarray([self.smoothed, self._best]),
            "counts": [self.steps, self._best_step, self._plateaus, self._count],
        }

    def _restore(self, record: Mapping[str, Any]) -> None:
        """Take a record's place; ValueError where it is none of this climb."""
        leaves = record["state"]
        size = self.problem.parameters.size
        basis = leaves[1].shape[0]
        blank: Natural | Rooted = Natural(jnp.zeros(basis), jnp.zeros((basis, basis)))
        if self.options.optimiser != "natural":
            blank = Rooted(jnp.zeros(basis), jnp.zeros((basis, basis)), jnp.zeros(basis))
        state = _first_state(jnp.zeros(size), blank, jnp.zeros(2))
        own, structure = jax.tree.flatten(state)
        shapes = [np.shape(leaf) for leaf in leaves]
        if shapes != [leaf.shape for leaf in own] or record["total"].shape != (size,):
            raise ValueError("its climbs do not fit the problem")
        if not all(np.isfinite(leaf).all() for leaf in leaves):
            raise ValueError("its climbs have left the finite numbers")
        lines = [record[key].ndim for key in ("trace", "recent", "levels")]
        counts = record["counts"]
        if lines != [1, 1, 1] or len(counts) != 4 or not all(type(n) is int for n in counts):
            raise ValueError("its climbs are not complete")
        self.state = jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in leaves])
        self._total = jnp.asarray(record["total"])
        self.trace = [float(value) for value in record["trace"]]
        self._recent.extend(float(value) for value in record["recent"])
        self.smoothed, self._best = (float(value) for value in record["levels"])
        self.steps, self._best_step, self._plateaus, self._count = counts


def _first_state(vector: Array, q: Natural | Rooted, rates: Array) -> State:
    adam = optax.scale_by_adam().init((vector, None if isinstance(q, Natural) else q))
    return State(vector, q, adam, rates)
