"""From parts of the fine data to the posterior of the target there, in the target's units.

In memory there is one part, whose posterior is joint. Chunks are predicted one by one and when they
are asked for, by a :class:`Predictor` that travels to the workers; samples are then functions, the
same in every chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from deconditional.errors import UsageError
from deconditional.fields.axes import Floats
from deconditional.fields.consistency import consistent
from deconditional.fields.part import Part
from deconditional.fields.parts import Parts
from deconditional.fields.problem import Problem
from deconditional.fields.scaling import InputScaling, TargetScaling
from deconditional.fields.sides import FineSide
from deconditional.inference.posterior import BLOCK, Gaussians, Paths, Posterior

EXTRAPOLATION = "extrapolation"
"""Name of the variable that flags cells far from the data."""

NOT_PREDICTED = -1
"""Its value where nothing was predicted."""


@dataclass(frozen=True)
class Wanted:
    """What is asked of the posterior, and in which units."""

    target: TargetScaling
    # levels, n_samples, seed: quantiles and samples.
    levels: tuple[float, ...] = ()
    n_samples: int = 0
    seed: int = 0
    # fine_noise, features: as in predict.
    fine_noise: bool = False
    features: int | None = None
    consistency: str | None = None  # whether area means must be as observed: "exact" or None
    # Levels that the field exceeds with probabilities that are asked for.
    above: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a number of samples that is none."""
        n = self.n_samples
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise UsageError(f"samples must be a whole number from 0 on, not {n!r}.")

    def for_window(self, number: int) -> Wanted:
        """Request for one of many windows in time, with samples of its own."""
        return replace(self, seed=self.seed + number) if self.n_samples else self

    @property
    def layers(self) -> dict[str, tuple[tuple[str, ...], slice]]:
        """Leading dimensions of every variable and where its layers are, by its name."""
        sizes: dict[str, tuple[tuple[str, ...], int]] = {
            "mean": ((), 1),
            "std": ((), 1),
            "quantiles": (("quantile",), len(self.levels)),
            "exceedance": (("above",), len(self.above)),
            "latent_mean": ((), int(self.target.bounded)),
            "latent_std": ((), int(self.target.bounded)),
            EXTRAPOLATION: ((), 1),
            "samples": (("sample",), self.n_samples),
        }
        wanted = {name: about for name, about in sizes.items() if about[1]}
        ends = np.cumsum([n for _, n in wanted.values()]).tolist()
        return {
            name: (dims, slice(end - n, end))
            for (name, (dims, n)), end in zip(wanted.items(), ends, strict=True)
        }

    @property
    def size(self) -> int:
        """Number of layers of the answer."""
        return max(rows.stop for _, rows in self.layers.values())

    def nothing(self, shape: tuple[int, ...]) -> Floats:
        """All layers where nothing is predicted."""
        out = np.full((self.size, *shape), np.nan)
        out[self.layers[EXTRAPOLATION][1]] = NOT_PREDICTED
        return out

    def marginals(self, posterior: Gaussians) -> dict[str, np.ndarray]:
        """Moments of the target, quantiles, and moments before bounds, as far as asked for."""
        target = self.target
        mean, std = target.moments(posterior.component_means, posterior.component_variances)
        values = {"mean": mean, "std": std}
        if self.levels:
            values["quantiles"] = target.physical(posterior.quantile(np.asarray(self.levels)))
        if self.above:
            levels = target.process(self.above)
            values["exceedance"] = np.stack([1.0 - posterior.cdf(level) for level in levels])
        if target.bounded:
            values["latent_mean"] = target.centre + target.scale * posterior.mean
            values["latent_std"] = target.scale * posterior.std
        return values

    def spread_out(self, part: Part, values: Mapping[str, np.ndarray]) -> Floats:
        """All layers, (layers, times, y, x), of values at points; NaN, or -1, elsewhere."""
        inside = part.present.ravel()
        out, n = self.nothing((inside.size,)), int(inside.sum())
        for name, (_, rows) in self.layers.items() if n else ():
            out[rows, inside] = np.atleast_2d(values[name])[:, :n]
        return out.reshape(len(out), *part.shape)

    def named(self, stack: Any) -> dict[str, tuple[tuple[str, ...], Any]]:
        """Leading dimensions and array (..., time, y, x) of every variable, by its name."""
        arrays = {}
        for name, (dims, rows) in self.layers.items():
            array = stack[rows] if dims else stack[rows.start]
            arrays[name] = (dims, array.astype(np.int8) if name == EXTRAPOLATION else array)
        return arrays


def quantile_levels(quantiles: Sequence[float]) -> tuple[float, ...]:
    """Levels of quantiles in order, each once; raises where one lies outside 0 to 1."""
    levels = _in_order(quantiles)
    if levels is None:
        raise UsageError(
            f"quantiles must be numbers between 0 and 1, not {quantiles!r}; write "
            "quantiles=[0.05, 0.5, 0.95]."
        )
    if any(not 0 < q < 1 for q in levels):
        raise UsageError(f"quantiles lie strictly between 0 and 1, not {list(levels)}.")
    return levels


def exceedance_levels(given: Sequence[float]) -> tuple[float, ...]:
    """Levels of the target in order, each once; raises where one is no number."""
    levels = _in_order(given)
    if levels is None or not np.isfinite(levels).all():
        raise UsageError(f"exceedance levels are numbers, as in exceedance=[0.01], not {given!r}.")
    return levels


def _in_order(given: Sequence[float]) -> tuple[float, ...] | None:
    """Numbers in order, each once; None where some are none."""
    try:
        return tuple(np.unique(np.asarray(given, dtype=float)).tolist())
    except (TypeError, ValueError):
        return None


def parts_of(side: FineSide, problem: Problem) -> Parts:
    """Fine data on which to predict, beside the units of a fit."""
    pairing = problem.pairing
    side = side.split_as(problem.means, pairing.fine).beside(pairing.coarse)
    if side.question.exposure not in side.dataset:  # nothing to weight by: plain areas
        side = replace(side, question=replace(side.question, exposure=None))
    n_unit_times = len(pairing.target) // pairing.coarse.n_cells
    unit_time = np.full(side.grid.n_times, -1)  # where times are unknown, no cell is in a unit
    if pairing.times is None:
        unit_time[:] = 0
    elif side.grid.times is not None:
        unit_time = pairing.clock.places(side.grid.times, pairing.times)
    return side.parts(pairing.coarse, unit_time, n_unit_times, pairing.clock, {})


@dataclass(frozen=True)
class Together:
    """All fine data under one posterior: what there is to answer from."""

    parts: Parts
    model: Any
    problem: Problem

    def predicted(
        self, wanted: Wanted, stage: Callable[[str], None]
    ) -> tuple[dict[str, tuple[tuple[str, ...], Any]], Any]:
        """All that was asked for, for each name leading dimensions and array, and area means."""
        stack, means = self.layers(wanted, stage)
        return wanted.named(stack), self.problem.fitted(means)

    def layers(self, wanted: Wanted, stage: Callable[[str], None]) -> tuple[Any, Any]:
        """All layers that were asked for, (layers, time, y, x), and area means of the first."""
        parts, reader = self.parts, self.parts.reader
        if parts.lazy:
            predictor = chunk_predictor(self.model, self.problem, wanted)
            stack = parts.stack(_of_chunk, wanted.size, predictor)
        else:
            stack = _at_once(parts.only, self.model, self.problem, wanted, stage)
        if (reader.unit_time < 0).all():
            return stack, np.full(reader.n_units, np.nan)
        return stack, parts.area_means(stack[0])

    def area_means(self, mean: Any) -> Floats:
        """Area means over all units of a field, in chunks, that was written."""
        field = self.parts.reader.grid.full(mean.data)
        means = self.parts.area_means(field.rechunk(self.parts.chunks)).compute()
        return np.asarray(self.problem.fitted(means))


def _at_once(
    part: Part, model: Any, problem: Problem, wanted: Wanted, stage: Callable[[str], None]
) -> Floats:
    """All of the posterior in memory."""
    part.check_known()
    x = problem.inputs(part.points)
    posterior = model.predict(x, fine_noise=wanted.fine_noise, features=wanted.features).latent
    posterior.support = problem.support
    constrained = posterior
    if wanted.consistency == "exact":
        stage("making area means consistent")
        constrained = consistent(posterior, part, problem, wanted.seed)
    values = wanted.marginals(constrained)
    values[EXTRAPOLATION] = posterior.extrapolation
    if wanted.n_samples:
        stage(f"drawing {wanted.n_samples} samples")
        draws = constrained.sample(wanted.n_samples, wanted.seed)
        values["samples"] = wanted.target.physical(draws)
    return wanted.spread_out(part, values)


# ---------------------------------------------------------------------- chunks


@dataclass(frozen=True)
class Predictor:
    """All that the prediction of a chunk needs of a fit; it can travel to other processes."""

    fields: Sequence[Any]  # posteriors of the process, one for each draw of the hyper-parameters
    inputs: InputScaling  # to the units of the process
    # Least and greatest value of every input that was learnt from, in those units.
    support: tuple[Floats, Floats]
    wanted: Wanted
    may_round: bool = False  # whether large chunks may be predicted in single precision

    def posterior(self, x: Floats) -> Posterior:
        """The posterior of the process."""
        noise = self.wanted.fine_noise
        return Posterior(self.fields, x, noise, self.support, self.may_round)

    def draws(self, x: Floats, part: Part) -> Floats:
        """Samples of the process, with the noise of single fine values if that counts.

        The noise is that of a part, whatever the order of the parts.
        """
        values = self.paths(x)
        if not self.wanted.fine_noise:
            return values
        where = [along.start for along in part.place]
        rng = np.random.default_rng([self.wanted.seed, *where])
        return values + self.paths.noise_std[:, None] * rng.standard_normal(values.shape)

    @cached_property
    def paths(self) -> Paths:
        """Samples as functions, the same in every process."""
        return Paths(self.fields, self.wanted.n_samples, self.wanted.seed)

    def __getstate__(self) -> dict[str, Any]:
        """The state without the functions, which every process draws anew."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def chunk_predictor(model: Any, problem: Problem, wanted: Wanted) -> Predictor:
    """What predicts chunks with a fitted model."""
    anywhere = np.zeros((1, len(problem.inputs.centre)))
    found = model.predict(anywhere, fine_noise=wanted.fine_noise, features=wanted.features).latent
    return Predictor(found.fields, problem.inputs, problem.support, wanted, found.may_round)


def _of_chunk(part: Part, predictor: Predictor) -> Floats:
    wanted, values = predictor.wanted, {}
    if len(part.points):
        x = _padded(predictor.inputs(part.points))
        posterior = predictor.posterior(x)
        values = wanted.marginals(posterior)
        values[EXTRAPOLATION] = posterior.extrapolation
        if wanted.n_samples:
            values["samples"] = wanted.target.physical(predictor.draws(x, part))
    return wanted.spread_out(part, values)


def _padded(x: Floats) -> Floats:
    """Rows up to one of a few numbers, so that few shapes are compiled."""
    size = BLOCK if len(x) > BLOCK else 1 << max(int(np.ceil(np.log2(len(x)))), 6)
    missing = -len(x) % size
    return np.concatenate([x, np.broadcast_to(x[:1], (missing, x.shape[1]))])
