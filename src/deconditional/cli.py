"""The command line: ``deconditional demo | downscale | report | reproduce | benchmark``.

What a command computes with is imported when it runs, so that help and complaints come at once.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from deconditional import __version__, field_commands
from deconditional.experiments.swiss_roll import MATCHINGS, MODELS
from deconditional.outputs import UsageError

__all__ = ["main"]


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def main(argv: list[str] | None = None) -> int:
    """Run a command; the exit code.

    0 is success, 1 means that part of the work failed, 2 that the command cannot be carried out as
    given, 130 that it was interrupted.

    Examples
    --------
    >>> main(["--version"])
    deconditional 0.1.0
    0
    """
    given = sys.argv[1:] if argv is None else argv
    try:
        args = _parser().parse_args(given)
        return _carry_out(args, shlex.join(["deconditional", *given]))
    except UsageError as error:
        message = " ".join(str(error).splitlines())
        print(f"deconditional: error: {message}", file=sys.stderr)
        return 2
    except SystemExit as done:  # argparse leaves this way after --help and --version
        return int(done.code or 0)


def _carry_out(args: argparse.Namespace, command: str) -> int:
    try:
        return args.command(args, command)
    except KeyboardInterrupt:
        print(f"\ndeconditional: interrupted. {args.kept(args)}", file=sys.stderr)
        return 130


# ---------------------------------------------------------------------- commands


def _demo(args: argparse.Namespace, command: str) -> int:
    field_commands.require("demo", "xarray", "cf_xarray", "netCDF4", "matplotlib", "jinja2")
    from deconditional import demo

    demo.run(args.out, args.month, args.synthetic, args.seed, command)
    return 0


def _reproduce_swiss_roll(args: argparse.Namespace, command: str) -> int:
    from rich.console import Console

    from deconditional.experiments import swiss_roll

    results = swiss_roll.run(
        matching=args.matching,
        models=args.models,
        seeds=args.seeds,
        first_seed=args.first_seed,
        out=args.out,
        n_points=args.points,
        n_bags=args.bags,
        overwrite=args.overwrite,
        figures=not args.no_figures,
        command=command,
    )
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{len(results.records)} records in {results.folder / 'results.json'}")
    console.print(f"tables in {results.folder / 'table.md'}")
    if results.failures:
        console.print(
            f"{len(results.failures)} fit(s) failed, see above; the same command tries them again."
        )
    return 1 if results.failures else 0


BENCHMARK_OPTIONS = {
    "kernels": {"points": 20_000, "bags": 200, "dims": 5, "quick": False},
    "against-dense": {"points": 5000, "bags": 50},
    "scaling": {"points": 1_000_000, "inducing": 400},
    "climate-size": {"inducing": 800, "restarts": 1, "quick": False},
}
"""What each benchmark can be told, and what it takes otherwise."""


def _reproduce_variational(args: argparse.Namespace, command: str) -> int:
    from deconditional.experiments import variational

    variational.run(
        seeds=args.seeds,
        out=args.out,
        n_points=args.points,
        n_bags=args.bags,
        steps=args.steps,
        figures=not args.no_figures,
        command=command,
    )
    print(f"tables and figures in {args.out}")
    return 0


def _reproduce_deep_kernel(args: argparse.Namespace, command: str) -> int:
    from deconditional.experiments import deep_kernel

    deep_kernel.run(
        seeds=args.seeds,
        out=args.out,
        n_bags=args.bags,
        figures=not args.no_figures,
        command=command,
    )
    print(f"tables and figures in {args.out}")
    return 0


def _reproduce_global_fields(args: argparse.Namespace, command: str) -> int:
    field_commands.require("demo", "xarray", "cf_xarray", "itur")
    from deconditional.experiments import global_fields

    results = global_fields.run(
        args.months,
        args.draws,
        args.matching,
        args.models,
        out=args.out,
        jobs=args.jobs,
        overwrite=args.overwrite,
        figures=not args.no_figures,
        command=command,
    )
    print(f"{len(results.records)} records and tables in {args.out}")
    return 1 if results.failures else 0


def _benchmark(args: argparse.Namespace, command: str) -> int:
    known = BENCHMARK_OPTIONS[args.what]
    given = {
        name: value
        for name in ("points", "bags", "dims", "inducing", "restarts", "quick")
        if (value := getattr(args, name)) not in (None, False)
    }
    for name in given:
        if name not in known:
            homes = [what for what, options in BENCHMARK_OPTIONS.items() if name in options]
            raise UsageError(f"--{name} belongs to benchmark {', '.join(homes)}.")
    _output_file(args.out)
    module = importlib.import_module(f"deconditional.benchmarks.{args.what.replace('-', '_')}")
    return module.run(**(known | given), out=args.out)


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


# ---------------------------------------------------------------------- what an interrupt leaves


def _nothing_kept(args: argparse.Namespace) -> str:
    return "Nothing was kept; run the command again."


def _output_untouched(args: argparse.Namespace) -> str:
    if getattr(args, "written", None) is not None:
        return f"{args.written} is written; what was to follow is not."
    return "No output was written; what was there has not changed."


def _records_kept(args: argparse.Namespace) -> str:
    path = Path(args.out) / "results.json"
    try:
        number = len(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return _nothing_kept(args)
    return (
        f"{number} finished records are kept in {path}; the same command, without --overwrite, "
        "resumes."
    )


def _studies_kept(args: argparse.Namespace) -> str:
    if not (Path(args.out) / "results.json").exists():
        return _nothing_kept(args)
    return f"What was finished is kept in {args.out}; the same command resumes."


# ---------------------------------------------------------------------- arguments


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="deconditional",
        description="Gaussian-process downscaling of coarse observations that need not match the "
        "fine covariates.",
    )
    parser.add_argument("--version", action="version", version=f"deconditional {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_downscale(commands)
    _add_report(commands)
    _add_reproduce(commands)
    _add_benchmark(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[_Parser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="downscale real global fields and compare with the truth",
        description="Downscale surface temperature over the globe, from real climatologies: half "
        "of the coarse cells give fine covariates, the other half the coarse temperature. Writes "
        "demo.nc, maps.png, report.html and scores.json. Takes about two minutes.",
    )
    demo.add_argument("--out", required=True, metavar="DIR", help="folder for what is written")
    demo.add_argument(
        "--month", type=int, default=1, choices=range(1, 13), metavar="1..12", help="default: 1"
    )
    demo.add_argument("--seed", type=_whole, default=0, help="of the choice of cells (default: 0)")
    demo.add_argument(
        "--synthetic", action="store_true", help="made-up fields, which need no data package"
    )
    _runs(demo, _demo, _nothing_kept)


def _add_downscale(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "downscale",
        help="a coarse field on the fine grid of its covariates, from files to a file",
        description="Downscale a coarse target with fine covariates. Coarse cells with fine "
        "covariates and coarse cells with a target need not be the same, in place or in time: "
        "mediators, known in both, link them.",
        epilog=field_commands.DOWNSCALE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    field_commands.add_downscale_options(parser)
    _runs(parser, field_commands.downscale, _output_untouched)


def _add_report(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "report",
        help="an HTML page about a downscaled field",
        description="Write a self-contained HTML page about what deconditional downscale wrote: "
        "maps, calibration, scales, residuals, parameters, comparison of models.",
        epilog=field_commands.REPORT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    field_commands.add_report_options(parser)
    _runs(parser, field_commands.report, _output_untouched)


def _add_reproduce(commands: argparse._SubParsersAction[_Parser]) -> None:
    reproduce = commands.add_parser(
        "reproduce",
        help="repeat an experiment of the paper",
        description="Repeat an experiment of the paper.",
    )
    experiments = reproduce.add_subparsers(metavar="EXPERIMENT", required=True)
    roll = experiments.add_parser(
        "swiss-roll",
        help="matched and unmatched bags on a swiss roll",
        description="Fit models to swiss rolls cut into bags, score them at all points, and "
        "compare them over seeds. Writes results.json after every fit; the same command resumes "
        "an interrupted run.",
    )
    roll.add_argument(
        "--matching",
        nargs="+",
        default=list(MATCHINGS),
        metavar="M",
        help="direct, indirect or both",
    )
    roll.add_argument(
        "--models", nargs="+", metavar="NAME", help=f"some of: {', '.join(MODELS)} (default: all)"
    )
    roll.add_argument("--seeds", type=_whole, default=20, help="number of rolls (default: 20)")
    roll.add_argument(
        "--first-seed", type=_whole, default=0, metavar="SEED", help="seed of the first roll"
    )
    roll.add_argument(
        "--out", required=True, metavar="DIR", help="folder for records, tables, figures"
    )
    roll.add_argument(
        "--points", type=_positive, default=5000, help="points of a roll (default: 5000)"
    )
    roll.add_argument("--bags", type=_positive, default=50, help="bags of a roll (default: 50)")
    roll.add_argument("--overwrite", action="store_true", help="discard what the folder holds")
    roll.add_argument("--no-figures", action="store_true", help="records and tables only")
    _runs(roll, _reproduce_swiss_roll, _records_kept)
    study = experiments.add_parser(
        "variational",
        help="what variational inference costs in accuracy",
        description="Four studies on the swiss roll: inducing points against the exact posterior, "
        "estimates of the trace, natural gradients against Adam, random Fourier features. Writes "
        "results.json after every study; the same command resumes an interrupted run.",
    )
    _study_options(study, seeds=3)
    study.add_argument(
        "--points", type=_positive, default=5000, help="points of a roll (default: 5000)"
    )
    study.add_argument("--bags", type=_positive, default=50, help="bags of a roll (default: 50)")
    study.add_argument(
        "--steps", type=_positive, default=3000, help="steps of a climb (default: 3000)"
    )
    _runs(study, _reproduce_variational, _studies_kept)
    deep = experiments.add_parser(
        "deep-kernel",
        help="a field that depends on an index of several bands",
        description="Fit with and without a small network in front of the kernels. Writes "
        "results.json after every fit; the same command resumes an interrupted run.",
    )
    _study_options(deep, seeds=5)
    deep.add_argument("--bags", type=_positive, default=300, help="bags of a draw (default: 300)")
    _runs(deep, _reproduce_deep_kernel, _studies_kept)
    _add_global_fields(experiments)


def _add_global_fields(experiments: argparse._SubParsersAction[_Parser]) -> None:
    study = experiments.add_parser(
        "global-fields",
        help="real global fields, matched and unmatched, every model",
        description="Downscale surface temperature from real climatologies with every model, with "
        "fine covariates in all coarse cells and in half of them. Writes results.json after every "
        "fit; the same command resumes an interrupted run. All of it takes about two hours on two "
        "cores.",
    )
    study.add_argument(
        "--months", nargs="+", type=_whole, default=[1, 4, 7], metavar="M", help="default: 1 4 7"
    )
    study.add_argument("--draws", type=_positive, default=3, help="of each month (default: 3)")
    study.add_argument(
        "--matching",
        nargs="+",
        default=["matched", "half"],
        metavar="M",
        help="matched, half (default: both), cells (condensed, random or all fine cells)",
    )
    study.add_argument("--models", nargs="+", metavar="NAME", help="some models (default: all)")
    study.add_argument("--jobs", type=_positive, default=1, help="fits at a time (default: 1)")
    study.add_argument("--overwrite", action="store_true", help="discard what the folder holds")
    study.add_argument(
        "--out", required=True, metavar="DIR", help="folder for records, tables, figures"
    )
    study.add_argument("--no-figures", action="store_true", help="records and tables only")
    _runs(study, _reproduce_global_fields, _records_kept)


def _study_options(parser: argparse.ArgumentParser, seeds: int) -> None:
    parser.add_argument(
        "--seeds", type=_positive, default=seeds, help=f"number of draws (default: {seeds})"
    )
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="folder for numbers, tables, figures"
    )
    parser.add_argument("--no-figures", action="store_true", help="numbers and tables only")


def _add_benchmark(commands: argparse._SubParsersAction[_Parser]) -> None:
    benchmark = commands.add_parser(
        "benchmark",
        help="measure speed",
        description="Measure the bag kernels against the speed of exp alone (kernels), an exact "
        "fit against the dense formula of the paper (against-dense), the growth of a variational "
        "model's cost with the number of points (scaling), or a whole fit at the size of the "
        "paper's climate experiment (climate-size).",
    )
    benchmark.add_argument(
        "what",
        nargs="?",
        default="kernels",
        choices=list(BENCHMARK_OPTIONS),
        help="default: kernels",
    )
    benchmark.add_argument(
        "--points",
        type=_positive,
        help="fine points (kernels: 20000, against-dense: 5000, scaling: up to 1000000)",
    )
    benchmark.add_argument(
        "--bags", type=_positive, help="number of bags (kernels: 200, against-dense: 50)"
    )
    benchmark.add_argument("--dims", type=_positive, help="covariates (kernels: 5)")
    benchmark.add_argument(
        "--inducing", type=_positive, help="inducing points (scaling: 400, climate-size: 800)"
    )
    benchmark.add_argument("--restarts", type=_positive, help="restarts of a fit (climate-size: 1)")
    benchmark.add_argument(
        "--quick", action="store_true", help="a short try (kernels, climate-size)"
    )
    benchmark.add_argument("--out", type=Path, metavar="FILE.json", help="write the numbers here")
    _runs(benchmark, _benchmark, _nothing_kept)


def _runs(
    parser: argparse.ArgumentParser,
    command: Callable[[argparse.Namespace, str], int],
    kept: Callable[[argparse.Namespace], str],
) -> None:
    parser.set_defaults(command=command, kept=kept)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None


def _positive(text: str) -> int:
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number
