"""A worked example of deep kernels: a field that depends on an index of several bands.

A sensor sees six bands; the field depends on one ratio of two combinations of them, as vegetation
indices do. No kernel with a length scale for each band can say that; a small network in front of
the kernel can learn the index from coarse values alone. For unmatched data the mediator is a
rotated mixture of one informative and three idle variables, and a linear layer in front of its
kernel learns which combination matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np

import deconditional as dc
from deconditional.errors import UsageError
from studies import plots
from studies.command import option
from studies.frame import Outcome, Study, Task, fit_and_predict
from studies.records import Record, Results
from studies.tables import count, highest, lowest, markdown, mean

__all__ = ["BandIndex", "DeepKernels", "band_index", "deep_kernel", "linear_features"]

BANDS, POINTS_PER_BAG, NOISE_STD = 6, 10, 0.05
MATCHINGS = ("direct", "indirect")
SCORES = ("rmse", "crps", "coverage95")


@dataclass(frozen=True)
class BandIndex:
    """Bags of points in six bands, coarse values, and the truth."""

    bags: dc.Bags
    z: np.ndarray
    mediator: np.ndarray | None
    x: np.ndarray
    f: np.ndarray
    index: np.ndarray


def band_index(matching: str = "direct", n_bags: int = 300, seed: int = 0) -> BandIndex:
    """Draw the example; for ``"indirect"`` data twice as many bags are halved.

    Examples
    --------
    >>> data = band_index("indirect", n_bags=20, seed=1)
    >>> data.bags.n_bags, data.z.shape, data.mediator.shape, data.x.shape
    (20, (20,), (20, 4), (400, 6))
    """
    rng = np.random.default_rng(seed)
    total = n_bags if matching == "direct" else 2 * n_bags
    above = rng.standard_normal(BANDS)
    above /= np.linalg.norm(above)
    below = rng.standard_normal(BANDS)
    below -= above * (above @ below)
    below /= np.linalg.norm(below)
    bag_of = np.repeat(np.arange(total), POINTS_PER_BAG)
    x = rng.standard_normal((total, BANDS))[bag_of]
    x = x + 0.6 * rng.standard_normal(x.shape)
    index = (x @ above - 0.5 * x @ below) / (1.0 + np.exp(0.5 * x @ below))
    f = np.sin(1.5 * index) + 0.3 * index
    f = (f - f.mean()) / f.std()
    every = dc.Bags.from_points(x, bag_of)
    means = every.means(f)
    z = means + NOISE_STD * rng.standard_normal(total)
    if matching == "direct":
        return BandIndex(every, z, None, x, f, index)
    informative = means / means.std() + 0.1 * rng.standard_normal(total)
    rotation = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    y = np.column_stack([informative, rng.standard_normal((total, 3))]) @ rotation.T
    order = rng.permutation(total)
    covered, observed = np.sort(order[:n_bags]), np.sort(order[n_bags:])
    bags = dc.Bags.from_points(x, bag_of, mediator=y).select(covered)
    return BandIndex(bags, z[observed], y[observed], x, f, index)


def deep_kernel(n_inputs: int, seed: int = 0) -> dc.DeepKernel:
    """A Gaussian kernel of one feature, which a network of six hidden units makes."""
    network = eqx.nn.MLP(
        n_inputs, 1, width_size=6, depth=1, activation=jax.nn.tanh, key=jax.random.key(seed)
    )
    return dc.DeepKernel(gk.RBF(), network)


def linear_features(n_inputs: int, seed: int = 0) -> dc.DeepKernel:
    """A Gaussian kernel of one linear combination of the inputs."""
    layer = eqx.nn.Linear(n_inputs, 1, use_bias=False, key=jax.random.key(seed))
    return dc.DeepKernel(gk.RBF(), layer)


def _models(matching: str, seed: int) -> dict[str, Any]:
    # Networks have many optima: with 3 restarts instead of 8, two of six seeds end in a poor one.
    common: dict[str, Any] = {"n_inducing": 100, "n_restarts": 8, "max_iter": 500, "seed": seed}
    if matching == "direct":
        return {
            "length scale per band": dc.VBagg(**common),
            "deep k": dc.VBagg(deep_kernel(BANDS, seed), **common),
        }
    common["uncertainty"] = True
    plain = gk.RBF(lengthscale=jnp.ones(4))
    return {
        "length scale per band": dc.VarCMP(None, plain, **common),
        "deep k": dc.VarCMP(deep_kernel(BANDS, seed), plain, **common),
        "deep l": dc.VarCMP(None, linear_features(4, seed), **common),
        "deep k and l": dc.VarCMP(deep_kernel(BANDS, seed), linear_features(4, seed), **common),
    }


def _not_converged(records: Any) -> str:
    return str(sum(not record["converged"] for record in records))


COLUMNS = {
    "seeds": count,
    "RMSE": mean("rmse"),
    "worst RMSE": highest("rmse"),
    "CRPS": mean("crps"),
    "worst CRPS": highest("crps"),
    "coverage of 95%": mean("coverage95", ".2f"),
    "lowest": lowest("coverage95", ".2f"),
    "bound": mean("bound", ".0f"),
    "fit (s)": mean("fit_seconds", ".0f"),
    "did not converge": _not_converged,
}


@dataclass(frozen=True)
class DeepKernels(Study):
    """Variational models with and without a small network in front of their kernels."""

    name: ClassVar[str] = "deep-kernel"
    help: ClassVar[str] = "a field that depends on an index of several bands"
    title: ClassVar[str] = "Deep kernels"

    seeds: int = option(5, "number of draws", quick=1)
    bags: int = option(300, "bags of a draw", quick=60)

    def settings(self) -> Record:
        """Bags of a draw."""
        return {"n_bags": self.bags}

    def tasks(self) -> list[Task]:
        """Every model on matched and unmatched draws."""
        if self.seeds < 1 or self.bags < 5:
            raise UsageError("take at least 1 seed and 5 bags.")
        return [
            Task(matching, model, seed)
            for seed in range(self.seeds)
            for matching in MATCHINGS
            for model in _models(matching, seed)
        ]

    def fit(self, task: Task) -> list[Outcome]:
        """Scores of one model on one draw."""
        data = band_index(task.matching, self.bags, task.seed)
        model = _models(task.matching, task.seed)[task.model]
        given = {} if data.mediator is None else {"mediator": data.mediator}
        posterior, seconds = fit_and_predict(
            lambda: model.fit(data.bags, data.z, **given), lambda: model.predict(data.x)
        )
        scores = dc.scores.score(posterior, data.f)
        record = {name: float(scores[name]) for name in SCORES} | {
            "bound": float(model.log_evidence_),
            "converged": model.fit_report_.converged,
        }

        def draw(path: Path) -> None:
            feature = np.asarray(model.kernel_.features(jnp.asarray(data.x)))[:, 0]
            panels = [
                (data.index, feature, "true index", "learnt feature"),
                (data.f, posterior.mean, "true field", "posterior mean"),
            ]
            title = "A network of six hidden units finds the index from coarse values"
            plots.save(plots.points_panels(panels, title=title), path)

        return [Outcome(task, [record | seconds], draw=draw)]

    def picture(self, task: Task) -> str | None:
        """The learnt feature against the true index, for the first draw."""
        return "feature.png" if task == ("direct", "deep k", 0) else None

    def table(self, results: Results) -> list[str]:
        """Means over seeds, and the worst."""
        rows = []
        for matching, model in results.each("matching", "model"):
            mine = results.where(matching=matching, model=model)
            rows.append([matching, model, *(cell(mine) for cell in COLUMNS.values())])
        return [
            f"{self.bags} bags of {POINTS_PER_BAG} points in {BANDS} bands; means over seeds. The "
            "field has standard deviation 1.",
            "",
            *markdown(["matching", "kernels", *COLUMNS], rows),
        ]
