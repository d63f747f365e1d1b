"""Draws from the posterior of a problem's parameters, by NumPyro's NUTS.

Chains run one after the other, in blocks of steps that are one compiled program whatever their
length, so that it does not matter to the draws where they are cut. Between two blocks a chain is
NumPyro's own state: a checkpoint keeps it, and goes on from there.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpyro.diagnostics import effective_sample_size, gelman_rubin, split_gelman_rubin
from numpyro.infer import NUTS

from deconditional.fitting.evaluation import Problem
from deconditional.fitting.interrupts import current
from deconditional.fitting.progress import show, tell
from deconditional.saving.resume import CheckpointSection

ENOUGH_DRAWS = 20
"""Draws from which an interrupted chain takes the place of the most probable parameters."""

BLOCK = 100
"""Most steps of NUTS between two looks at whether to stop or to write."""

BLOCK_SECONDS = 0.5
"""Time between two such looks, where a single step does not take longer."""


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
    section: CheckpointSection | None = None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Draws from the posterior of the unconstrained vector by NUTS, and their diagnostics.

    The state of the chain is kept in the `section` of a checkpoint; draws of a run that goes on
    from there are, on the same machine, those of a run that was never stopped. Where a stop is
    asked for (:mod:`deconditional.fitting.interrupts`), the chains that are complete, or else what
    there is of the first, are the answer: nothing at all, with no diagnostics, if it is too little.
    """
    if num_samples < 4 or num_warmup < 1 or num_chains < 1:
        raise ValueError("NUTS needs at least 4 samples, 1 warm-up step and 1 chain.")
    chain = Chain(problem, num_warmup, max_tree_depth)
    with show(progress_bar) as stage:
        stage("NUTS")
        at = _sampled(chain, np.asarray(start), seed, num_samples, num_chains, section)
    n, each = (at.chain, num_samples) if at.chain else (1, len(at.draws))
    draws, diverging, potential = (
        part[: n * each].reshape(n, each, *part.shape[1:])
        for part in (at.draws, at.diverging, at.potential)
    )
    if each < min(ENOUGH_DRAWS, num_samples):
        return draws.reshape(-1, draws.shape[-1])[:0], {}
    rhat = gelman_rubin(draws) if n > 1 else split_gelman_rubin(draws)
    return draws.reshape(-1, draws.shape[-1]), {
        "divergences": int(np.sum(diverging)),
        "r_hat": float(np.max(rhat)),
        "effective_samples": float(np.min(effective_sample_size(draws))),
        "log_posterior": float(-np.min(potential)),
    }


class Chain(eqx.Module):
    """A chain of NUTS; the problem is data, so that equal shapes share what is compiled."""

    problem: Problem
    warmup: int = eqx.field(static=True)
    max_tree_depth: int = eqx.field(static=True)

    def _sampler(self) -> NUTS:
        return NUTS(
            potential_fn=lambda v: -self.problem.evaluate(v)[0],
            dense_mass=True,
            max_tree_depth=self.max_tree_depth,
            target_accept_prob=0.85,
        )

    @eqx.filter_jit
    def begin(self, key: Any, start: Any) -> Any:
        """The state before the first step."""
        return self._sampler().init(key, self.warmup, start, model_args=(), model_kwargs={})

    @eqx.filter_jit
    def advance(self, state: Any, steps: Any) -> tuple[Any, Any]:
        """Some steps, at most as many as a block has, and what was drawn in them."""
        sampler = self._sampler()
        # NumPyro makes the step together with a first state, which is of no use here.
        sampler.init(jax.random.key(0), self.warmup, state.z, model_args=(), model_kwargs={})
        room = jnp.zeros((BLOCK, len(state.z))), jnp.zeros(BLOCK, bool), jnp.zeros(BLOCK)

        def step(k: Any, carried: Any) -> Any:
            now, seen = carried
            now = sampler.sample(now, (), {})
            values = (now.z, now.diverging, now.potential_energy)
            return now, tuple(s.at[k].set(v) for s, v in zip(seen, values, strict=True))

        return jax.lax.fori_loop(0, steps, step, (state, room))


class Place(NamedTuple):
    """Where sampling stands."""

    # chain, done: the chain, and how many steps it has taken.
    chain: int
    done: int
    # NumPyro's state of the chain, in a checkpoint its arrays in order; None before the first step.
    state: Any
    # draws, diverging, potential: what was drawn so far, in all chains.
    draws: Float[np.ndarray, "n size"]
    diverging: Bool[np.ndarray, " n"]
    potential: Float[np.ndarray, " n"]


def _sampled(
    chain: Chain,
    start: np.ndarray,
    seed: int,
    samples: int,
    n_chains: int,
    section: CheckpointSection | None,
) -> Place:
    """Sample in blocks of steps until all chains are done, or a stop is asked for."""
    stop, section = current(), section or CheckpointSection()
    key, length = jax.random.key(seed), chain.warmup + samples
    starts = jnp.asarray(start) + 0.05 * jax.random.normal(key, (n_chains, len(start)))
    keys = jax.random.split(key, n_chains) if n_chains > 1 else key[None]
    nothing = Place(0, 0, None, np.zeros((0, len(start))), np.zeros(0, bool), np.zeros(0))
    at = _resumed(section, chain, starts[0], length) or nothing
    steps = 1
    try:
        while at.chain < n_chains and not stop.reached():
            steps = min(steps, length - at.done)
            began = time.perf_counter()
            state = chain.begin(keys[at.chain], starts[at.chain]) if at.state is None else at.state
            state, seen = jax.block_until_ready(chain.advance(state, jnp.asarray(steps)))
            each = (time.perf_counter() - began) / steps
            first = min(max(0, chain.warmup - at.done), steps)
            drawn = [
                np.concatenate([had, np.asarray(new)[first:steps]])
                for had, new in zip(at[3:], seen, strict=True)
            ]
            done = at.done + steps
            tell("steps of NUTS", at.chain * length + done, n_chains * length)
            after = (at.chain + 1, 0, None) if done == length else (at.chain, done, state)
            at = Place(*after, *drawn)
            section.keep({"chains": at._replace(state=jax.tree.leaves(at.state) or None)})
            steps = int(np.clip(BLOCK_SECONDS / max(each, 1e-9), 1, BLOCK))
    except KeyboardInterrupt:
        if not stop.taken():
            raise
    if stop.used:
        section.write(stopped=True)
    return at


def _resumed(section: CheckpointSection, chain: Chain, start: Array, length: int) -> Place | None:
    """Where a checkpoint says that sampling stands; None where it says nothing."""
    if section.found is None:
        return None
    at: Place = section.found["chains"]
    section.resumed = f"{at.chain * length + at.done} steps of NUTS"
    if at.state is None:
        return at
    form = jax.tree.structure(eqx.filter_eval_shape(chain.begin, jax.random.key(0), start))
    return at._replace(state=jax.tree.unflatten(form, at.state))
