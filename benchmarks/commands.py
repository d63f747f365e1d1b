"""``deconditional benchmark``: speed, as ratios to a named opponent.

What a benchmark computes with is imported when it runs, so that help and complaints come at once.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deconditional.kernels.compilation_cache import keep_compiled

from deconditional.cli.options import nothing_kept, positive, runs
from deconditional.errors import UsageError

__all__ = ["BENCHMARKS", "add"]


@dataclass(frozen=True)
class Benchmark:
    """One benchmark: what it can be told, by name of the option, and whether it compiles anew."""

    help: str
    description: str
    options: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    times_compilation: bool = False
    draws: bool = True


def add(commands: Any) -> None:
    """Add ``benchmark`` to the commands."""
    benchmark = commands.add_parser(
        "benchmark",
        help="measure speed",
        description="Measure speed, as ratios to a named opponent in the same run.",
    )
    names = benchmark.add_subparsers(metavar="BENCHMARK", required=True)
    for name, entry in BENCHMARKS.items():
        parser = names.add_parser(name, help=entry.help, description=entry.description)
        for option, settings in entry.options.items():
            parser.add_argument(f"--{option}", **settings)
        parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the numbers here")
        if entry.draws:
            parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw them here")
        parser.set_defaults(what=name)
        runs(parser, _benchmark, nothing_kept)


def _benchmark(args: argparse.Namespace, command: str) -> int:
    entry = BENCHMARKS[args.what]
    given = {option.replace("-", "_") for option in entry.options}
    options = {name: getattr(args, name) for name in given}
    for path in (args.out, getattr(args, "plot", None)):
        _output_file(path)
    if entry.draws:
        from benchmarks.figures import can_plot

        can_plot(args.plot)
        options["plot"] = args.plot
    module = importlib.import_module(f"benchmarks.{args.what.replace('-', '_')}")
    if not entry.times_compilation:
        keep_compiled()
        return module.run(**options, out=args.out)
    with _nothing_kept():
        return module.run(**options, out=args.out)


@contextmanager
def _nothing_kept() -> Iterator[None]:
    """Compile anew, whatever is on disk."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    config: Any = jax.config
    before = config.jax_enable_compilation_cache
    try:
        config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()  # JAX decides once whether it looks there
        yield
    finally:
        config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _output_file(path: Path | None) -> None:
    """Fail now rather than after the measurement."""
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"the output {str(path)!r} is a folder; name a file.")
    parent = path.parent
    while not parent.exists():
        parent = parent.parent
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write {str(path)!r} ({error.strerror or error}); name another file."
        ) from None


# ---------------------------------------------------------------------- what there is


def _number(default: int, what: str) -> dict[str, Any]:
    return {"type": positive, "default": default, "help": f"{what} (default: {default})"}


def _switch(what: str) -> dict[str, Any]:
    return {"action": "store_true", "help": what}


GROWTHS = ("points", "bags", "observations", "covariates", "cores", "vbagg", "varcmp")
GPYTORCH_KERNELS = ("gaussian", "matern12", "matern32")
OPTIMISERS = ("lbfgs", "adam")

BENCHMARKS = {
    "kernels": Benchmark(
        "the bag kernels against the speed of exp alone",
        "Time the averages of kernels over pairs of bags, their gradients, and those between "
        "points and bags, as shares of what exp alone reaches.",
        {
            "points": _number(20_000, "fine points"),
            "bags": _number(200, "bags"),
            "dims": _number(5, "covariates"),
            "quick": _switch("float32 alone, half a second for each"),
        },
    ),
    "fit": Benchmark(
        "whole fits, in units of exp on n² values",
        "Fit CMP, S-CMP, U-CMP, Bagg-GP and VarCMP to a swiss roll: seconds of an evaluation, "
        "evaluations, whole fits with and without compilation.",
        {
            "points": _number(5000, "fine points"),
            "bags": _number(50, "bags"),
            "inducing": _number(100, "inducing points of VarCMP"),
            "restarts": _number(4, "starts of every fit"),
            "quick": _switch("1500 points in 30 bags, one start"),
        },
        times_compilation=True,
    ),
    "predict": Benchmark(
        "mean and variance at query points against the speed of exp alone",
        "Predict with the exact posterior, with inducing points and with random features, in "
        "blocks of several sizes.",
        {
            "points": _number(20_000, "fine points of the bags"),
            "bags": _number(200, "bags"),
            "dims": _number(5, "covariates"),
            "inducing": _number(400, "inducing points"),
            "features": _number(1000, "random features"),
            "queries": _number(65_536, "query points"),
            "quick": _switch("5000 points in 100 bags, 8192 query points, one size of block"),
        },
    ),
    "climate-size": Benchmark(
        "whole fits at the size of the paper's climate experiment",
        "Fit a variational and an exact model to 441 bags of 289 points and predict at 254 898, "
        "with the share of the speed of exp that was reached.",
        {
            "inducing": _number(800, "inducing points"),
            "restarts": _number(1, "starts of a fit"),
            "exact-all": _switch("fit the exact model with all points too: for a GPU"),
            "quick": _switch("a small globe"),
        },
        times_compilation=True,
    ),
    "scaling": Benchmark(
        "growth with points, bags, observations, covariates and cores",
        "Time one objective and gradient while one quantity grows, every size in a process of its "
        "own, and compare the log-log slopes with the expected ones.",
        {
            "grow": {
                "nargs": "+",
                "choices": GROWTHS,
                "metavar": "WHAT",
                "help": f"some of: {', '.join(GROWTHS)} (default: all)",
            },
            "points": {"type": positive, "help": "no more points than these where points grow"},
            "inducing": _number(400, "inducing points of vbagg and varcmp"),
            "quick": _switch("the two smallest sizes of each"),
        },
    ),
    "against-dense": Benchmark(
        "an exact fit against the dense formula of the paper",
        "Compare the bag form of exact CMP with the paper's n x n formula: time of an evaluation, "
        "of the whole fit, memory, and that both give the same numbers.",
        {
            "points": _number(5000, "fine points"),
            "bags": _number(50, "bags"),
        },
        times_compilation=True,
    ),
    "against-gpytorch": Benchmark(
        "Bagg-GP against the same model written with GPyTorch",
        "Fit the same Bagg-GP, by maximum likelihood from the same start, with GPyTorch and with "
        "this package, and compare the times to the same evidence. Needs GPyTorch, and a clone of "
        "the repository.",
        {
            "points": _number(5000, "fine points"),
            "bags": _number(50, "bags"),
            "kernel": {
                "choices": GPYTORCH_KERNELS,
                "default": "gaussian",
                "help": "with a length scale for each covariate (default: gaussian)",
            },
            "optimisers": {
                "nargs": "+",
                "choices": OPTIMISERS,
                "default": list(OPTIMISERS),
                "help": "those of GPyTorch (default: both)",
            },
        },
        times_compilation=True,
    ),
    "out-of-core": Benchmark(
        "prediction of a grid larger than memory on one and two worker processes",
        "Predict mean and standard deviation from a Zarr store into another with Dask workers: "
        "throughput by number of workers, memory of each, difference from memory.",
        {
            "cells": _number(100_000_000, "fine cells"),
            "inducing": _number(400, "inducing points"),
            "features": {"type": positive, "help": "so many random features in place of them"},
            "workers": _number(2, "worker processes, one core each"),
            "quick": _switch("40 000 cells"),
        },
        draws=False,
    ),
    "check": Benchmark(
        "quick benchmarks against a baseline of ratios; exit code 1 after a slowdown",
        "Measure kernels, fit, predict and against-dense at small size and compare their ratios "
        "with those of a file. A ratio over 1.3 times its old value is flagged.",
        {
            "baseline": {
                "type": Path,
                "default": Path("benchmarks/baseline.json"),
                "metavar": "FILE.json",
                "help": "default: benchmarks/baseline.json",
            },
            "update": _switch("write a new baseline instead of comparing"),
            "rounds": _number(2, "measurements, of which the best counts"),
        },
        draws=False,
    ),
}
"""Name on the command line -> the benchmark."""
