"""How the cost of one objective and gradient grows with the problem, and with the cores.

The exact model is grown in its points n, bags N, observations M and covariates d, one at a time,
and is given more cores; variational models are grown in their points. Every size is measured in a
process of its own, ``python -m benchmarks.scaling MODEL POINTS BAGS OBSERVATIONS
COVARIATES INDUCING``, so that its memory and its threads are its own.

The expected slopes are those of the term that wins in the end: n² kernel values, N³ and M³ for
Cholesky factors, d for distances. The last two sizes come closest to it, so their slope is shown
beside that of all.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
from rich.console import Console

import deconditional as dc
from benchmarks.frame import Benchmark, Result, Row, show, shown
from benchmarks.problems import start, strips
from benchmarks.timing import available_cores, in_own_process, peak_bytes
from deconditional.errors import UsageError
from studies import plots
from studies.clock import best_seconds
from studies.command import known, option, positive

__all__ = ["GROWTHS", "Scaling", "slopes_of"]


@dataclass(frozen=True)
class Size:
    """The size of one problem."""

    model: str = "exact"
    points: int = 4096
    bags: int = 64
    observations: int = 64
    covariates: int = 3
    inducing: int = 0


@dataclass(frozen=True)
class Growth:
    """One quantity that grows while the rest stays."""

    title: str
    what: str
    sizes: tuple[int, ...]
    base: Size
    expected: float
    why: str


GROWTHS = {
    "points": Growth(
        "exact CMP, points n",
        "points",
        (2048, 4096, 8192, 16_384, 32_768),
        Size(bags=64, observations=64),
        2.0,
        "n² kernel values",
    ),
    "bags": Growth(
        "exact CMP, bags N",
        "bags",
        (128, 256, 512, 1024, 2048),
        Size(points=4096, observations=64),
        3.0,
        "N³ of the operator's Cholesky factor, once it is above the n² of the points",
    ),
    "observations": Growth(
        "exact CMP, observations M",
        "observations",
        (128, 256, 512, 1024, 2048),
        Size(points=4096, bags=64),
        3.0,
        "M³ of the evidence's Cholesky factor, once it is above the n² of the points",
    ),
    "covariates": Growth(
        "exact CMP, covariates d",
        "covariates",
        (2, 4, 8, 16, 32, 64),
        Size(points=8192),
        1.0,
        "at most d: distances are matrix products, exp does not depend on d",
    ),
    "cores": Growth(
        "exact CMP, cores",
        "cores",
        (1, 2, 4, 8, 16, 32, 64),
        Size(points=16_384),
        -1.0,
        "1 / cores",
    ),
    "vbagg": Growth(
        "VBagg, points n, 100 in a bag",
        "points",
        (10_000, 31_623, 100_000, 316_228, 1_000_000),
        Size("vbagg", inducing=400),
        1.0,
        "n",
    ),
    "varcmp": Growth(
        "VarCMP, points n, 400 bags",
        "points",
        (10_000, 31_623, 100_000, 316_228, 1_000_000),
        Size("varcmp", bags=400, observations=400, inducing=400),
        1.0,
        "n, above what the mediation costs",
    ),
}
"""What can grow, by name."""


@dataclass(frozen=True)
class Scaling(Benchmark):
    """One objective and gradient while one quantity grows; slopes next to the expected ones."""

    name: ClassVar[str] = "scaling"
    help: ClassVar[str] = "growth with points, bags, observations, covariates and cores"
    columns: ClassVar[Any] = {
        "grows": shown("title"),
        "size": shown("size", "{:,}"),
        "seconds": shown("seconds", "{:.4f}"),
        "to the first": shown("to_first", "{:.2f}"),
        "memory": shown("peak_bytes", "{:.0f} MiB", 2**-20),
    }
    slopes: ClassVar[Any] = {
        "grows": shown("title"),
        "all sizes": shown("all", "{:.2f}"),
        "last two": shown("last", "{:.2f}"),
        "expected": shown("expected", "{:g}"),
        "because of": shown("why"),
    }
    series: ClassVar[Any] = {"seconds": "seconds"}

    grow: tuple[str, ...] = option(
        (), f"some of: {', '.join(GROWTHS)} (default: all)", metavar="WHAT"
    )
    points: int | None = option(None, "no more than these where points grow", type=positive)
    inducing: int = option(400, "inducing points of vbagg and varcmp")
    sizes: int = option(6, "of every quantity, the first ones", quick=2)

    def measure(self, where: Console) -> Result:
        """Every size in a process of its own, and the slopes."""
        plans = {name: self.chosen(name) for name in known("growth", self.grow, [*GROWTHS])}
        rows: list[Row] = []
        slopes = {}
        for name, sizes in plans.items():
            mine = []
            for size in sizes:
                with where.status(f"{GROWTHS[name].title}: {size}"):
                    mine.append(self._measured(name, size))
                mine[-1]["to_first"] = mine[-1]["seconds"] / mine[0]["seconds"]
            slopes[name] = slopes_of(mine)
            rows += mine
        return {"rows": rows, "slopes": slopes}

    def chosen(self, name: str) -> list[int]:
        """The sizes of one growth."""
        growth = GROWTHS[name]
        sizes = list(growth.sizes)
        if growth.what == "cores":
            sizes = [size for size in sizes if size <= len(available_cores())]
        if growth.what == "points" and self.points is not None:
            sizes = [size for size in sizes if size <= self.points]
            if not sizes:
                raise UsageError(
                    f"--points {self.points} leaves no size of {name}; its least is "
                    f"{growth.sizes[0]}."
                )
        return sizes[: self.sizes]

    def _measured(self, name: str, size: int) -> Row:
        """One size in a process of its own."""
        growth = GROWTHS[name]
        problem, cores = growth.base, None
        if growth.what == "cores":
            cores = size
        else:
            changed: dict[str, Any] = {growth.what: size}
            problem = replace(problem, **changed)
        if problem.model == "vbagg":
            problem = replace(problem, bags=size // 100, observations=size // 100)
        if problem.model != "exact":
            problem = replace(problem, inducing=self.inducing)
        command = ["-m", "benchmarks.scaling", *map(str, asdict(problem).values())]
        measured = json.loads(in_own_process(command, cores=cores).strip().splitlines()[-1])
        return {"grows": name, "title": growth.title, "size": size, **measured}

    def words(self, result: Result) -> tuple[str, None]:
        """What every row is."""
        return "One objective and gradient; every size in a process of its own", None

    def show(self, where: Console, result: Result) -> None:
        """Print seconds, then slopes."""
        super().show(where, result)
        rows = [{**asdict(GROWTHS[name]), **slope} for name, slope in result["slopes"].items()]
        show(where, rows, self.slopes, "Log-log slopes")

    def figure(self, result: Result) -> Any:
        """Seconds against size, with the expected slope through the last size."""
        panels = []
        for name in result["slopes"]:
            rows = [row for row in result["rows"] if row["grows"] == name]
            sizes, seconds = (np.array([row[key] for row in rows]) for key in ("size", "seconds"))
            growth = GROWTHS[name]
            ideal = seconds[-1] * (sizes / sizes[-1]) ** growth.expected
            lines = {growth.title: (sizes, seconds), f"slope {growth.expected:g}": (sizes, ideal)}
            text = {"xlabel": growth.what, "ylabel": "seconds"}
            panels.append({"lines": lines, **text, "xscale": "log", "yscale": "log"})
        return plots.curves(panels, "One objective and gradient")


def slopes_of(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Of log seconds against log size: by least squares over all sizes, and of the last two.

    Examples
    --------
    >>> slopes_of([{"size": n, "seconds": 1e-6 * n**2} for n in (10, 100, 1000)])
    {'all': 2.0, 'last': 2.0}
    """
    if len(rows) < 2:
        return {"all": None, "last": None}
    sizes, seconds = (np.log([row[key] for row in rows]) for key in ("size", "seconds"))
    last = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
    slope = np.polyfit(sizes, seconds, 1)[0]
    return {"all": round(float(slope), 3), "last": round(float(last), 3)}


def _one(size: Size) -> dict[str, Any]:
    """Time of one evaluation with gradient, and the peak memory of this process."""
    data = strips(size.points, size.bags, size.observations, size.covariates)
    options: dict[str, Any] = {"precision": "float32"}
    estimator: Any = dc.CMP(**options)
    if size.model != "exact":
        model = {"vbagg": dc.VBagg, "varcmp": dc.VarCMP}[size.model]
        estimator = model(n_inducing=size.inducing, **options)
    mediator = None if size.model == "vbagg" else data.mediator
    begun = start(estimator, data.bags, data.z, mediator)
    return {
        **asdict(size),
        "cores": len(available_cores()),
        "seconds": best_seconds(begun.evaluate, budget=5.0),
        "peak_bytes": peak_bytes(),
    }


if __name__ == "__main__":
    print(json.dumps(_one(Size(sys.argv[1], *map(int, sys.argv[2:])))))
