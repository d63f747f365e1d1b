"""The model for unmatched data against its sampler, and on truths drawn from its prior.

``mediation-sampler``
    predictions averaged over weighted draws, and by the most probable hyper-parameters, against
    those of NUTS, which samples the regression and then the field, on the same data;
``mediation-calibration``
    simulation-based calibration: length scales, the variance of the field, the share that mediators
    explain, the field itself, mediators and observations are drawn from their priors, and the
    probability that the posterior gives to values below the truth is noted. It is uniform if
    model and inference are right; the model has the prior of the truths' length scales and
    variance, and priors of its own for the rest.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import gpjax.kernels as gk
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from scipy.special import ndtr
from scipy.stats import chisquare

import deconditional as dc
from deconditional.fitting.priors import LogNormal, SplitLogNormal
from studies.command import known, option, positive, whole
from studies.data import NoisyMediator
from studies.frame import Outcome, Study, Task
from studies.mediation import DATASETS
from studies.records import Results
from studies.tables import count, highest, markdown, mean, summary, values

__all__ = ["MediationCalibration", "MediationSampler", "from_the_prior"]

PROBLEMS = ("roll", "s-curve", "noisy-60", "noisy-30", "globe")
METHODS = ("draws", "map")
POINTS_PER_BAG = 8
"""Points that every bag is seen through, by all methods: a sampler takes thousands of steps."""

POINTS = 400
"""Fine points, evenly among all, at which posteriors are compared."""


@dataclass(frozen=True)
class MediationSampler(Study):
    """MediatedGP by weighted draws against the same model by NUTS."""

    name: ClassVar[str] = "mediation-sampler"
    help: ClassVar[str] = "the model for unmatched data against its sampler"
    title: ClassVar[str] = "MediatedGP against its sampler"
    has_figures: ClassVar[bool] = False

    problems: tuple[str, ...] = option(
        PROBLEMS, "data sets of the study mediation", quick=("noisy-60",), metavar="NAME"
    )
    samples: int = option(
        200, "by NUTS, of the regression and of the field", quick=16, type=positive
    )
    seed: int = option(500, "of the data", type=whole)

    def tasks(self) -> list[Task]:
        """A problem is one task for all methods: the sampler runs once."""
        chosen = known("data set", self.problems, [*DATASETS])
        return [Task(name, "draws", self.seed) for name in chosen]

    def fit(self, task: Task) -> list[Outcome]:
        """Distances of means and standard deviations from those of the sampler."""
        data, setting = DATASETS[task.matching].make(task.seed), DATASETS[task.matching].setting()
        x = data.x[:: max(1, len(data.x) // POINTS)]
        options = {"num_warmup": self.samples, "num_samples": self.samples}

        def posterior(method: str, given: dict[str, int] | None) -> tuple[Any, float, Any]:
            began = time.perf_counter()
            model = dc.MediatedGP(
                setting.kernel,
                setting.mediator_kernel,
                trend=setting.trend,
                method=method,
                method_options=given,
                points_per_bag=POINTS_PER_BAG,
            )
            model.fit(data.bags, data.z, mediator=data.mediator)
            found = model.predict(x)
            return found, time.perf_counter() - began, model

        sampled, spent, of_sampler = posterior("nuts", options)
        told = [each.nuts_diagnostics_ for each in (of_sampler.regressor_, of_sampler)]
        convergence = {
            "r_hat": max(each["r_hat"] for each in told),
            "divergences": sum(each["divergences"] for each in told),
        }
        outcomes = []
        for method in METHODS:
            other, seconds, _ = posterior(method, None)
            gap = np.abs(other.mean - sampled.mean) / sampled.std
            ratio = other.std / sampled.std
            record = {
                **{"gap": float(gap.mean()), "largest_gap": float(gap.max())},
                **{"sd_ratio": float(ratio.mean()), "sd_least": float(ratio.min())},
                **{"sd_most": float(ratio.max())},
                **{"seconds": seconds, "sampler_seconds": spent, **convergence},
            }
            outcomes.append(Outcome(task._replace(model=method), [record]))
        return outcomes

    def table(self, results: Results) -> list[str]:
        """Distances in standard deviations of the sampler's posterior."""
        columns = {
            "problems": count,
            "mean gap": mean("gap", ".2f"),
            "largest gap": highest("largest_gap", ".2f"),
            "sd / sampler's": mean("sd_ratio", ".2f"),
            "R-hat": highest("r_hat", ".2f"),
            "divergences": mean("divergences", ".0f"),
            "s": mean("seconds", ".0f"),
            "sampler, s": mean("sampler_seconds", ".0f"),
        }
        lines = ["Gaps of means in standard deviations of the sampler's posterior.", ""]
        for (name,) in results.each("matching"):
            lines += [f"## {name}", "", *summary(results, name, METHODS, columns), ""]
        return lines


# ---------------------------------------------------------------------- calibration

LENGTHS = SplitLogNormal(np.array([1.0, 1.0]), below=1.2, above=1.5)
VARIANCE = LogNormal(1.0, 1.0)
NOISE = 0.05
BINS = 10


def from_the_prior(seed: int, n_cells: int = 60, points_per_cell: int = 12) -> NoisyMediator:
    """Hyper-parameters, a field, mediators and observations, all drawn from their priors.

    Cells lie in [-2, 2]², one half of them bags. The mediator of a cell explains a share of the
    variance of cell means that is uniform between 0 and 1.
    """
    rng = np.random.default_rng([4000, seed])
    keys = jr.split(jr.key(seed), 2)
    lengths, variance = np.asarray(LENGTHS.sample(keys[0])), float(VARIANCE.sample(keys[1]))
    centres = rng.uniform(-2.0, 2.0, (n_cells, 1, 2))
    x = (centres + 0.45 * rng.standard_normal((n_cells, points_per_cell, 2))).reshape(-1, 2)
    kernel = gk.RBF(lengthscale=jnp.asarray(lengths), variance=variance)
    gram = np.asarray(kernel.cross_covariance(jnp.asarray(x), jnp.asarray(x)))
    level, vectors = np.linalg.eigh(gram)
    f = vectors @ (np.sqrt(np.maximum(level, 0.0)) * rng.standard_normal(len(x)))
    cell = np.repeat(np.arange(n_cells), points_per_cell)
    cells = dc.Bags.from_points(x, cell)
    means = cells.means(f)
    share, spread = rng.uniform(), means.std()
    noise = np.sqrt(1.0 - share) * rng.standard_normal(n_cells)
    y = np.sqrt(share) * (means - means.mean()) / spread + noise
    cells = dc.Bags.from_points(x, cell, mediator=y)
    half = np.arange(n_cells // 2)
    observed = half + n_cells // 2
    z = means[observed] + NOISE * spread * rng.standard_normal(len(observed))
    return NoisyMediator(x, f, cells.select(half), y[observed, None], z, cells.select(observed))


@dataclass(frozen=True)
class MediationCalibration(Study):
    """Whether truths drawn from the prior lie where the posterior says."""

    name: ClassVar[str] = "mediation-calibration"
    help: ClassVar[str] = "the model for unmatched data on truths drawn from its prior"
    title: ClassVar[str] = "Calibration of MediatedGP on its prior"
    has_figures: ClassVar[bool] = False

    draws: int = option(200, "truths", quick=4, type=positive)
    cells: int = option(60, "cells, half of them bags", quick=24, type=positive)

    def settings(self) -> dict[str, Any]:
        """Cells."""
        return {"cells": self.cells}

    def tasks(self) -> list[Task]:
        """One for each truth."""
        return [Task("prior", "mediated", seed) for seed in range(self.draws)]

    def fit(self, task: Task) -> list[Outcome]:
        """Probability of values below the truth, at a point of the first bag and of a bag mean."""
        data = from_the_prior(task.seed, self.cells)
        priors = {"kernel.lengthscale": LENGTHS, "kernel.variance": VARIANCE}
        model = dc.MediatedGP(priors=priors, seed=task.seed)
        model.fit(data.bags, data.z, mediator=data.mediator)
        points = np.array([0, data.bags.n_points, len(data.x) - 1])
        below = _below(model.predict(data.x[points]), data.f[points])
        truth = data.bags.means(data.f[: data.bags.n_points])[1:2]
        of_bag = _below(model.predict_bags(data.bags.select([1])), truth)
        found = {name: float(p) for name, p in zip(QUANTITIES, [*below, *of_bag], strict=True)}
        every = _below(model.predict(data.x), data.f)
        shares = {
            _share(level): float(np.mean(np.abs(every - 0.5) < level / 2)) for level in LEVELS
        }
        return [Outcome(task, [found | shares])]

    def table(self, results: Results) -> list[str]:
        """Shares of truths within intervals, and the test of uniformity, for every quantity."""
        rows = []
        for name in QUANTITIES:
            found = values(results.records, name)
            within = [np.mean(np.abs(found - 0.5) < level / 2) for level in LEVELS]
            counts = np.bincount((found * BINS).astype(int).clip(max=BINS - 1), minlength=BINS)
            cells = [f"{share:.3f}" for share in within]
            rows.append([name, len(found), *cells, f"{chisquare(counts).pvalue:.2g}"])
        shares = [values(results.records, _share(level)) for level in LEVELS]
        cells = [f"{each.mean():.3f} ± {standard_error(each):.3f}" for each in shares]
        rows.append(["all points", len(shares[0]), *cells, ""])
        return markdown(["quantity", "truths", "50 %", "95 %", "p, uniform"], rows)


LEVELS = (0.5, 0.95)
QUANTITIES = ("in a bag", "in an observed cell", "in another", "bag mean")


def _share(level: float) -> str:
    """Name of the share of all points whose truth lies within intervals."""
    return f"within {100 * level:.0f} %"


def standard_error(found: np.ndarray) -> float:
    """Of a mean over truths; of one truth nothing is known."""
    return float(found.std(ddof=1) / np.sqrt(len(found))) if len(found) > 1 else float("nan")


def _below(posterior: Any, truth: np.ndarray) -> np.ndarray:
    """Probability of values below the truth, under a mixture over draws."""
    sd = np.sqrt(posterior.component_variances)
    return np.asarray(ndtr((truth - posterior.component_means) / sd).mean(0))
