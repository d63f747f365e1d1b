"""``python -m benchmarks``: one benchmark, or a quick check of several against a baseline."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from benchmarks.against_dense import AgainstDense
from benchmarks.against_gpytorch import AgainstGPyTorch
from benchmarks.check import Check
from benchmarks.climate_size import ClimateSize
from benchmarks.cores import Cores
from benchmarks.counts import Counts
from benchmarks.first_minute import FirstMinute
from benchmarks.fit import Fit
from benchmarks.frame import Benchmark, markdown
from benchmarks.kernels import Kernels
from benchmarks.out_of_core import OutOfCore
from benchmarks.predict import Predict
from benchmarks.scaling import Scaling
from benchmarks.unmatched import Unmatched
from benchmarks.zones import Zones
from deconditional.errors import UsageError
from deconditional.report import plots
from studies.command import Parser, add_options, answer, made

__all__ = ["BENCHMARKS", "main"]

BENCHMARKS: dict[str, type[Benchmark]] = {
    benchmark.name: benchmark
    for benchmark in (
        FirstMinute,
        Cores,
        Kernels,
        Fit,
        Predict,
        Unmatched,
        Counts,
        ClimateSize,
        Scaling,
        AgainstDense,
        AgainstGPyTorch,
        OutOfCore,
        Zones,
        Check,
    )
}
"""Name on the command line -> the benchmark."""


def main(given: Sequence[str] | None = None) -> int:
    """Run a benchmark; the exit code, 1 after a slowdown and 2 for what cannot be carried out."""
    parser = Parser(
        prog="benchmarks",
        description="Measure speed, as ratios to a named opponent in the same run.",
    )
    names = parser.add_subparsers(metavar="BENCHMARK", required=True)
    for name, kind in BENCHMARKS.items():
        about = f"{kind.help[0].upper()}{kind.help[1:]}."
        one = names.add_parser(name, help=kind.help, description=about)
        add_options(one, kind)
        one.add_argument("--quick", action="store_true", help="a try at small size")
        one.add_argument("--out", type=Path, metavar="FILE.json", help="write the numbers here")
        if kind.series:
            one.add_argument("--plot", type=Path, metavar="FILE.png", help="draw them here")
        one.set_defaults(carry_out=partial(_one, kind), kept=_nothing_kept)
    table = names.add_parser("table", help="the table of a record, as markdown")
    table.add_argument("record", type=Path, metavar="FILE.json", help="what --out has written")
    table.set_defaults(carry_out=_table, kept=_nothing_kept)
    return answer(parser, sys.argv[1:] if given is None else given)


def _one(kind: type[Benchmark], args: argparse.Namespace) -> int:
    plot = getattr(args, "plot", None)
    for path in (args.out, plot):
        _check_file(path)
    _check_plot(plot)
    with _compiling_anew(kind.times_compilation):
        return made(kind, args, args.quick).run(args.out, plot)


def _table(args: argparse.Namespace) -> int:
    try:
        record = json.loads(args.record.read_text())
        one = BENCHMARKS[record["benchmark"]]()
        print(markdown(one.lines(record), one.columns))
        where = ", ".join(f"{name} {value}" for name, value in record["machine"].items())
        print(f"\n{one.words(record)[0]}. Machine: {where}.")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{str(args.record)!r} is no record of a benchmark.") from None
    return 0


def _nothing_kept(args: argparse.Namespace) -> str:
    return "Nothing was kept; run the command again."


@contextmanager
def _compiling_anew(wanted: bool) -> Iterator[None]:
    """Compile, whatever is on disk, where the time of compiling is measured."""
    config: Any = jax.config
    before = config.jax_enable_compilation_cache
    if not wanted or not before:
        yield
        return
    try:
        config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()  # JAX decides once whether it looks there
        yield
    finally:
        config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _check_file(path: Path | None) -> None:
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
        why = error.strerror or error
        raise UsageError(f"cannot write {str(path)!r} ({why}); name another file.") from None


def _check_plot(path: Path | None) -> None:
    if path is None:
        return
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot writes PNG, and {str(path)!r} does not end in .png.")
    try:
        plots.require_matplotlib()
    except ImportError as error:
        raise UsageError(f"{error} Or leave --plot out.") from None


if __name__ == "__main__":
    sys.exit(main())
