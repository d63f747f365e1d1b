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
from jaxtyping import Bool, Float
from numpyro.diagnostics import effective_sample_size, gelman_rubin, split_gelman_rubin
from numpyro.infer import NUTS

from deconditional.fitting.evaluation import Problem
from deconditional.fitting.interrupts import Stop, current
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
    chains = _Chains(chain, np.asarray(start), seed, num_samples, num_chains)
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


class Place(NamedTuple):
    """Where sampling stands.

    Attributes
    ----------
    chain, done
        The chain, and how many steps it has taken.
    state
        NumPyro's state of the chain, in a checkpoint its arrays in order; None before the first
        step.
    draws, diverging, potential
        What was drawn so far, in all chains.
    """

    chain: int
    done: int
    state: Any
    draws: Float[np.ndarray, "n size"]
    diverging: Bool[np.ndarray, " n"]
    potential: Float[np.ndarray, " n"]


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


class _Chains:
    """Chains of NUTS, a block of steps at a time."""

    def __init__(self, chain: Chain, start: np.ndarray, seed: int, samples: int, n: int):
        key, warmup = jax.random.key(seed), chain.warmup
        self._chain = chain
        self._starts = jnp.asarray(start) + 0.05 * jax.random.normal(key, (n, len(start)))
        self._keys = jax.random.split(key, n) if n > 1 else key[None]
        self._warmup, self._samples, self._n = warmup, samples, n
        self._length = warmup + samples
        self._at = Place(0, 0, None, np.zeros((0, len(start))), np.zeros(0, bool), np.zeros(0))

    def run(self, section: CheckpointSection | None, stop: Stop) -> None:
        """Sample until all is done, or a stop is asked for."""
        if section is not None:
            self._resume(section)
        steps = 1
        try:
            while self._at.chain < self._n and not stop.reached():
                steps = self._block(steps)
                if section is not None:
                    section.offer()
        except KeyboardInterrupt:
            if not stop.taken():
                raise
        if section is not None and stop.used:
            section.stopped()

    def collected(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What was drawn in the chains that are complete, or else in the first."""
        chain, _, _, *parts = self._at
        n, each = (chain, self._samples) if chain else (1, len(parts[0]))
        draws, diverging, potential = (
            part[: n * each].reshape(n, each, *part.shape[1:]) for part in parts
        )
        return draws, diverging, potential

    def _begin(self, chain: int) -> Any:
        """The state before the first step."""
        return self._chain.begin(self._keys[chain], self._starts[chain])

    def _block(self, steps: int) -> int:
        """Some steps; how many may follow."""
        chain, done, state, *drawn = self._at
        steps = min(steps, self._length - done)
        began = time.perf_counter()
        state = self._begin(chain) if state is None else state
        state, seen = jax.block_until_ready(self._chain.advance(state, jnp.asarray(steps)))
        each = (time.perf_counter() - began) / steps
        first = min(max(0, self._warmup - done), steps)
        drawn = [
            np.concatenate([had, np.asarray(new)[first:steps]])
            for had, new in zip(drawn, seen, strict=True)
        ]
        done += steps
        # In one piece: whoever writes it down, after an interrupt say, finds no half of it.
        after = (chain + 1, 0, None) if done == self._length else (chain, done, state)
        self._at = Place(*after, *drawn)
        tell("steps of NUTS", chain * self._length + done, self._n * self._length)
        return int(np.clip(BLOCK_SECONDS / max(each, 1e-9), 1, BLOCK))

    # ------------------------------------------------------------------ the checkpoint

    def _kept(self) -> dict[str, Any]:
        leaves = jax.tree.leaves(self._at.state)
        return {"chains": self._at._replace(state=leaves if leaves else None)}

    def _resume(self, section: CheckpointSection) -> None:
        """Go on from what a section has, if anything."""
        if section.found is not None:
            place = self._fitting(section.found.get("chains"))
            if place is None:
                section.useless("its chains do not fit the problem")
            else:
                self._at = place
                steps = place.chain * self._length + place.done
                section.resumed = f"{steps} steps of NUTS"
        section.keep(self._kept)

    def _fitting(self, found: Any) -> Place | None:
        """A place of these chains, or None where it is not one."""
        if not isinstance(found, Place):
            return None
        drawn = found.chain * self._samples + max(0, found.done - self._warmup)
        inside = 0 <= found.chain <= self._n and 0 <= found.done < self._length
        if not inside or found.draws.shape != (drawn, self._starts.shape[1]):
            return None
        if found.state is None:
            return found if found.done == 0 else None
        own, form = jax.tree.flatten(self._begin(min(found.chain, self._n - 1)))
        if not isinstance(found.state, list) or len(own) != len(found.state):
            return None
        if any(_kind(a) != _kind(b) for a, b in zip(own, found.state, strict=True)):
            return None
        return found._replace(state=jax.tree.unflatten(form, found.state))


def _kind(leaf: Any) -> tuple[Any, ...]:
    return np.shape(leaf), getattr(leaf, "dtype", type(leaf))
