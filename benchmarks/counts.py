"""Counts over polygons: seconds and memory of a fit, and how far its posterior is from NUTS.

*Cost.* A made-up field of 28,892 pixels in 109 polygons, with populations and three covariates: the
size of the malaria data of Madagascar, for which R's `disaggregation` publishes 56 seconds. Every
size is a process of its own, which compiles, with two rounds: the second compiles nothing. Sizes
that are too large to be learnt from in a benchmark are solved once, at the starting values.

*Agreement.* Sixty points in ten polygons, hyper-parameters held, against draws of NUTS, for four
families.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from rich.console import Console

import deconditional as dc
from benchmarks.frame import Benchmark, Costs, Result, Row, percent, shown
from benchmarks.timing import available_cores, in_own_process, peak_bytes
from deconditional.inference.laplace import FamilyProblem
from deconditional.models.families import pose
from deconditional.models.sources import Source, given
from studies.command import option

__all__ = ["Counts", "polygons"]

CASES = (
    ("Poisson", 100.0, 1.0),
    ("Poisson", 100.0, 0.2),
    ("Poisson", 2.0, 1.0),
    ("Poisson", 2.0, 0.2),
    ("Binomial", 20.0, 0.5),
    ("NegativeBinomial", 20.0, 0.5),
    ("Tweedie", 10.0, 0.5),
)
"""Families, exposures or trials, and length scales of what is compared with NUTS."""

OWN = {"NegativeBinomial": {"dispersion": 0.1}, "Tweedie": {"dispersion": 0.5, "power": 1.5}}
"""Parameters of these families, which are held too."""


def polygons(n: int, n_bags: int, seed: int = 0) -> tuple[dc.Bags, np.ndarray, np.ndarray]:
    """Bags of pixels on a square nearest to as many centres, counts, and f at the pixels."""
    rng = np.random.default_rng(seed)
    side = int(np.ceil(np.sqrt(n)))
    axis = np.linspace(0, 1, side)
    place = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)[:n]
    waves, phases = 4 * rng.standard_normal((3, 2, 20)), rng.uniform(0, 6, (3, 20))
    covariates = [
        np.cos(place @ w + p).sum(1) / np.sqrt(10) for w, p in zip(waves, phases, strict=True)
    ]
    x = np.column_stack([place, *covariates])
    centres = place[rng.choice(n, n_bags, replace=False)]
    parts = np.array_split(place, max(1, n * n_bags // 10**7))
    squared = (centres**2).sum(1)
    bag = np.concatenate([np.argmin(squared - 2 * p @ centres.T, axis=1) for p in parts])
    f = -4 + 0.7 * x[:, 2] - 0.4 * x[:, 3] + 0.5 * np.sin(3 * x[:, 0])
    bags = dc.Bags.from_points(x, bag, exposure=np.exp(rng.normal(2, 1, n)))
    assert bags.exposure is not None
    return bags, rng.poisson(bags.exposure * bags.means(np.exp(f))).astype(float), f


@dataclass(frozen=True)
class Counts(Benchmark):
    """Fits of counts: their cost, and how far they are from NUTS."""

    name: ClassVar[str] = "counts"
    help: ClassVar[str] = "counts over polygons: seconds, memory, and agreement with NUTS"
    times_compilation: ClassVar[bool] = True
    columns: ClassVar[Any] = {
        "what": shown("what"),
        "round": shown("round"),
        "learn, s": shown("learn", "{:.1f}"),
        "predict, s": shown("predict", "{:.1f}"),
        "peak, GiB": shown("peak", "{:.1f}"),
        "mean, sd off": shown("mean", "{:.2f}"),
        "sd over NUTS": shown("sd", "{:.2f}"),
        "sums off": percent("sums"),
        "their sd": shown("sums_sd", "{:.2f}"),
    }

    sizes: tuple[str, ...] = option(
        ("28892x109",), "pixels x polygons; over 100,000 pixels solved once", quick=("2000x20",)
    )
    inducing: int = option(400, "inducing points", quick=40)
    cores: int = option(2, "cores of a fit")
    draws: int = option(2000, "draws of NUTS; 0 for no comparison", quick=0)

    def measure(self, where: Console) -> Result:
        """Run every size in a process of its own, and every comparison in one more."""
        rows: list[Row] = []
        cores = min(self.cores, len(available_cores()))
        for size in self.sizes:
            with where.status(size):
                run = ["-m", "benchmarks.counts", "cost", *size.split("x"), str(self.inducing)]
                rows += json.loads(in_own_process(run, cores=cores))
        if self.draws:
            with where.status("NUTS"):
                run = ["-m", "benchmarks.counts", "nuts", str(self.draws)]
                rows += json.loads(in_own_process(run))
        return {"rows": rows}

    def words(self, result: Result) -> tuple[str, None]:
        """Sizes and cores."""
        used = min(self.cores, len(available_cores()))
        return f"{self.inducing} inducing points, fits on {used} core(s); {result['device']}", None

    def costs(self, result: Result) -> Costs:
        """Seconds of the second round."""
        return {
            row["what"]: (row["learn"] + row["predict"], 1.0)
            for row in result["rows"]
            if row.get("round") == 2
        }


def cost(n: int, n_bags: int, n_inducing: int) -> list[Row]:
    """Seconds of learning and predicting, twice; of one solution where there are many pixels."""
    bags, counts, _ = polygons(n, n_bags)
    rows: list[Row] = []
    for number in (1, 2):
        model = dc.VBagg(family=dc.Poisson(), n_inducing=n_inducing, n_restarts=1)
        began = time.perf_counter()
        if n > 100_000:
            problem = pose(model, given([Source(bags, counts, dc.Poisson())])).problem
            start = jax.numpy.asarray(problem.parameters.start())
            jax.block_until_ready(eqx.filter_jit(FamilyProblem.evaluate)(problem, start)[0])
            learnt = predicted = time.perf_counter()
        else:
            model.fit(bags, counts)
            learnt = time.perf_counter()
            model.predict(bags.points).interval(0.95)
            predicted = time.perf_counter()
        times = {"learn": learnt - began, "predict": predicted - learnt}
        what = f"{n} pixels, {n_bags} polygons"
        rows.append({"what": what, "round": number, **times, "peak": peak_bytes() / 2**30})
    return rows


def against_nuts(n_draws: int) -> list[Row]:
    """Means and standard deviations of f and of sums, in those of NUTS."""
    return [row for case in CASES for row in _compared(*case, n_draws)]


def _compared(name: str, amount: float, scale: float, n_draws: int) -> list[Row]:
    rng = np.random.default_rng(1)
    x = np.linspace(0, 6, 60)
    bags = dc.Bags.from_points(x, np.arange(60) // 6)
    gram = np.exp(-0.5 * (x[:, None] - x) ** 2 / scale**2) + 1e-8 * np.eye(60)
    f = np.linalg.cholesky(gram) @ rng.standard_normal(60)
    family, own = getattr(dc, name)(), OWN.get(name, {})
    rates = bags.means(np.asarray(family.g.rate(f)))
    counts = np.asarray(family.simulate(jax.random.key(1), amount * rates, amount, **own))
    fixed = {"kernel.lengthscale": scale, "kernel.variance": 1.0, **own}
    options: dict[str, Any] = {"family": family, "n_inducing": 60, "trend": "none", "fixed": fixed}
    amounts: Any = {family.amount: amount}
    nuts = {"num_warmup": n_draws // 4, "num_samples": n_draws}
    oracle: Any = dc.VBagg(method="nuts", method_options=nuts, **options).fit(
        bags, counts, **amounts
    )
    truth = oracle.predict(x).latent
    sums = oracle.predict_bags(bags, kind="mean", n_draws=n_draws)
    rows: list[Row] = []
    for way in ("laplace", "collapsed"):
        model: Any = dc.VBagg(inference=way, **options).fit(bags, counts, **amounts)
        found = model.predict(x).latent
        drawn = model.predict_bags(bags, kind="mean", n_draws=n_draws)
        rows.append(
            {
                "what": f"{name}({amount:g}), length scale {scale:g}: {way}",
                "mean": float(np.abs((found.mean - truth.mean) / truth.std).max()),
                "sd": float(np.median(found.std / truth.std)),
                "sums": float(np.mean(drawn.mean / sums.mean) - 1),
                "sums_sd": float(np.median(drawn.std / sums.std)),
            }
        )
    return rows


if __name__ == "__main__":
    warnings.simplefilter("ignore", dc.DeconditionalWarning)
    run: Any = {"cost": cost, "nuts": against_nuts}[sys.argv[1]]
    print(json.dumps(run(*map(int, sys.argv[2:]))))
