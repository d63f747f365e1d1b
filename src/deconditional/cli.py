"""The command line: ``deconditional demo | downscale | report | reproduce | benchmark``.

What a command computes with is imported when it runs, so that help and complaints come at once.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from deconditional import __version__, field_commands, reproduce_commands
from deconditional.command_options import nothing_kept, positive, runs, whole
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


BENCHMARK_OPTIONS = {
    "kernels": {"points": 20_000, "bags": 200, "dims": 5, "quick": False},
    "against-dense": {"points": 5000, "bags": 50},
    "scaling": {"points": 1_000_000, "inducing": 400},
    "climate-size": {"inducing": 800, "restarts": 1, "quick": False},
}
"""What each benchmark can be told, and what it takes otherwise."""


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


def _output_untouched(args: argparse.Namespace) -> str:
    if getattr(args, "written", None) is not None:
        return f"{args.written} is written; what was to follow is not."
    return "No output was written; what was there has not changed."


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
    reproduce_commands.add(commands)
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
    demo.add_argument("--seed", type=whole, default=0, help="of the choice of cells (default: 0)")
    demo.add_argument(
        "--synthetic", action="store_true", help="made-up fields, which need no data package"
    )
    runs(demo, _demo, nothing_kept)


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
    runs(parser, field_commands.downscale, _output_untouched)


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
    runs(parser, field_commands.report, _output_untouched)


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
        type=positive,
        help="fine points (kernels: 20000, against-dense: 5000, scaling: up to 1000000)",
    )
    benchmark.add_argument(
        "--bags", type=positive, help="number of bags (kernels: 200, against-dense: 50)"
    )
    benchmark.add_argument("--dims", type=positive, help="covariates (kernels: 5)")
    benchmark.add_argument(
        "--inducing", type=positive, help="inducing points (scaling: 400, climate-size: 800)"
    )
    benchmark.add_argument("--restarts", type=positive, help="restarts of a fit (climate-size: 1)")
    benchmark.add_argument(
        "--quick", action="store_true", help="a short try (kernels, climate-size)"
    )
    benchmark.add_argument("--out", type=Path, metavar="FILE.json", help="write the numbers here")
    runs(benchmark, _benchmark, nothing_kept)
