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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import figures, timing
from benchmarks.problems import problem_of, strips
from benchmarks.timing import (
    available_cores,
    best_seconds,
    in_own_process,
    peak_bytes,
    write_json,
)
from deconditional.errors import UsageError
from studies.provenance import machine

__all__ = ["GROWTHS", "figure", "run"]


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

QUICK = 2
"""Sizes of a short try: the first ones."""


def run(
    grow: Sequence[str] | None = None,
    points: int | None = None,
    inducing: int = 400,
    quick: bool = False,
    out: str | Path | None = None,
    plot: str | Path | None = None,
) -> int:
    """Measure, print a table and the slopes, write JSON and a figure.

    Parameters
    ----------
    grow
        Names of :data:`GROWTHS`; all by default.
    points
        Leave out larger sizes where points grow.
    inducing
        Inducing points of the variational models.
    quick
        The first two sizes of each.
    """
    console = timing.console()
    names = list(GROWTHS) if grow is None else list(dict.fromkeys(grow))
    plans = {name: _sizes(name, points, quick) for name in names}
    rows: list[dict[str, Any]] = []
    for name, sizes in plans.items():
        for size in sizes:
            with console.status(f"{GROWTHS[name].title}: {size}"):
                rows.append(_measured(name, size, inducing))
    slopes = {name: slopes_of([row for row in rows if row["grows"] == name]) for name in names}
    _show(console, rows, slopes)
    result = {
        "benchmark": "scaling",
        "inducing": inducing,
        "rows": rows,
        "slopes": slopes,
        "machine": machine(),
    }
    write_json(result, out)
    if plot is not None:
        figures.save(figure(result), plot)
    return 0


def _sizes(name: str, points: int | None, quick: bool) -> list[int]:
    growth = GROWTHS[name]
    sizes = list(growth.sizes)
    if growth.what == "cores":
        sizes = [size for size in sizes if size <= len(available_cores())]
    if growth.what == "points" and points is not None:
        sizes = [size for size in sizes if size <= points]
        if not sizes:
            raise UsageError(
                f"--points {points} leaves no size of {name}; its least is {growth.sizes[0]}."
            )
    return sizes[:QUICK] if quick else sizes


def _measured(name: str, size: int, inducing: int) -> dict[str, Any]:
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
        problem = replace(problem, inducing=inducing)
    given = [problem.model, problem.points, problem.bags, problem.observations]
    given += [problem.covariates, problem.inducing]
    command = ["-m", "benchmarks.scaling", *map(str, given)]
    measured = json.loads(in_own_process(command, cores=cores).strip().splitlines()[-1])
    return {"grows": name, "size": size, **measured}


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


def figure(result: dict[str, Any]) -> Any:
    """Seconds against size, with the expected slope through the last size."""
    panels = []
    for name in result["slopes"]:
        rows = [row for row in result["rows"] if row["grows"] == name]
        sizes, seconds = ([row[key] for row in rows] for key in ("size", "seconds"))
        growth = GROWTHS[name]
        panels.append(
            {
                "lines": {growth.title: (sizes, seconds)},
                "xlabel": growth.what,
                "ylabel": "seconds",
                "slope": growth.expected,
                "ticks": sizes if len(sizes) < 7 else sizes[::2],
            }
        )
    return figures.growth(panels, "One objective and gradient")


def _show(
    console: Console, rows: list[dict[str, Any]], slopes: dict[str, dict[str, float | None]]
) -> None:
    table = Table(title="One objective and gradient; every size in a process of its own")
    for heading in ("grows", "size", "seconds", "to the first", "memory"):
        table.add_column(heading, justify="left" if heading == "grows" else "right")
    first: dict[str, float] = {}
    for row in rows:
        start = first.setdefault(row["grows"], row["seconds"])
        table.add_row(
            GROWTHS[row["grows"]].title,
            f"{row['size']:,}",
            f"{row['seconds']:.4f}",
            f"{row['seconds'] / start:.2f}",
            f"{row['peak_bytes'] / 2**20:.0f} MiB",
        )
    console.print(table)
    summary = Table(title="Log-log slopes")
    for heading in ("grows", "all sizes", "last two", "expected", "because of"):
        left = heading in ("grows", "because of")
        summary.add_column(heading, justify="left" if left else "right")
    for name, found in slopes.items():
        cells = ["–" if found[key] is None else f"{found[key]:.2f}" for key in ("all", "last")]
        growth = GROWTHS[name]
        summary.add_row(growth.title, *cells, f"{growth.expected:g}", growth.why)
    console.print(summary)


def _one(size: Size) -> dict[str, Any]:
    """Time of one evaluation with gradient, and the peak memory of this process."""
    import jax.numpy as jnp

    import deconditional as dc
    from deconditional.fitting.map import loss_and_gradient

    data = strips(size.points, size.bags, size.observations, size.covariates)
    options: dict[str, Any] = {"precision": "float32"}
    estimator: Any = dc.CMP(**options)
    if size.model != "exact":
        model = {"vbagg": dc.VBagg, "varcmp": dc.VarCMP}[size.model]
        estimator = model(n_inducing=size.inducing, **options)
    mediator = None if size.model == "vbagg" else data.mediator
    problem = problem_of(estimator, data.bags, data.z, mediator)
    vector = jnp.asarray(problem.parameters.start())
    seconds = best_seconds(lambda: loss_and_gradient(problem, vector), budget=5.0)
    return {
        "model": size.model,
        "points": size.points,
        "bags": size.bags,
        "observations": size.observations,
        "covariates": size.covariates,
        "inducing": size.inducing,
        "cores": len(available_cores()),
        "trace": estimator.fit_report_.details.get("trace"),
        "seconds": seconds,
        "peak_bytes": peak_bytes(),
    }


if __name__ == "__main__":
    print(json.dumps(_one(Size(sys.argv[1], *map(int, sys.argv[2:])))))
