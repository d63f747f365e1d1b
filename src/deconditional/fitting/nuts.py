"""Draws from the posterior of a problem's parameters, by NumPyro's NUTS.

Chains run in blocks of steps; a checkpoint keeps the state of the chain between two blocks.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import effective_sample_size, gelman_rubin, split_gelman_rubin
from numpyro.infer import NUTS

from deconditional.fitting.interrupts import Stop, current
from deconditional.fitting.map import Problem
from deconditional.fitting.progress import show, tell
from deconditional.saving.resume import Section

__all__ = ["sample_posterior"]

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
    section: Section | None = None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Draws from the posterior of the unconstrained vector by NUTS, and their diagnostics.

    The state of the chain is kept in the `section` of a checkpoint; draws of a run that goes on
    from there are, on the same machine, those of a run that was never stopped, to the bit. Where a
    stop is asked for (:mod:`deconditional.fitting.interrupts`), the chains that are complete, or
    else what there is of the first, are the answer: nothing at all, with no diagnostics, if it is
    too little.
    """
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
