"""The command line: ``deconditional demo | downscale | report``.

What a command computes with is imported when it runs, so that help and complaints come at once.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from deconditional import __version__, importing
from deconditional.cli.options import EXAMPLES, Add, add_options, require, whole
from deconditional.errors import UsageError, shortened, visible
from deconditional.fitting.interrupts import aborting

TRACEBACK = "DECONDITIONAL_TRACEBACK"

REPORT_EXAMPLES = """\
examples:
    deconditional report tas_fine.nc
    deconditional report tas_fine.nc --truth station_grid.nc --out tas.html
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def main(argv: list[str] | None = None) -> int:
    """Run a command; the exit code.

    0 is success, 1 means that part of the work failed, 2 that the command cannot be carried out as
    given, 3 that the program itself failed, 130 that it was interrupted. With the environment
    variable DECONDITIONAL_TRACEBACK set, a failure of the program shows where it happened.

    Examples
    --------
    >>> main(["--version"])
    deconditional 0.1.0
    0
    """
    given = sys.argv[1:] if argv is None else argv
    _write_any_name()
    try:
        args = _parser().parse_args(given)
        return _carry_out(args, _command_line(given))
    except UsageError as error:
        _complain(str(error))
        return 2
    except SystemExit as done:  # argparse leaves this way after --help and --version
        return int(done.code or 0)
    except BrokenPipeError:  # whoever reads the output has stopped
        _drop_output()
        return 1
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        _complain(
            f"the program failed ({type(error).__name__}: {shortened(visible(str(error)), 300)}). "
            f"This is a fault of ours: please report it, with what {TRACEBACK}=1 shows."
        )
        return 3


def _complain(message: str) -> None:
    print(f"deconditional: error: {' '.join(message.splitlines())}", file=sys.stderr)


def _write_any_name() -> None:
    """Let names be printed that the encoding of the terminal does not have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Keep Python from writing once more to a pipe that is closed when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _command_line(given: Sequence[str]) -> str:
    """The command as histories have it: on one line, and not without end."""
    words = " ".join(visible(shlex.join(["deconditional", *given])).splitlines())
    return shortened(words, 4000)


FIELDS = ("xarray", "cf_xarray", "netCDF4")
PAGES = (*FIELDS, "matplotlib", "jinja2")
COMMANDS = {"demo": ("demo", PAGES), "downscale": ("fields", FIELDS), "report": ("report", PAGES)}
"""The extra that a command needs and packages of it, without which it cannot begin."""


def _carry_out(args: argparse.Namespace, command: str) -> int:
    """Run the function of a command, which is in the module of its name."""
    extra, packages = COMMANDS[args.command]
    try:
        with aborting():
            require(extra, *packages)
            with importing():
                module = importlib.import_module(f"deconditional.cli.{args.command}")
            code: int = getattr(module, args.command)(args, command)
            return code
    except KeyboardInterrupt:
        print(f"\ndeconditional: interrupted. {_left(args)}", file=sys.stderr)
        return 130


def _left(args: argparse.Namespace) -> str:
    """What an interrupt leaves of a command."""
    if args.command == "demo":
        return "Nothing was kept; run the command again."
    if getattr(args, "written", None) is not None:
        return f"{args.written} is written; what was to follow is not."
    left = "No output was written; what was there has not changed."
    checkpoint = getattr(args, "checkpoint", None)
    if checkpoint is not None and checkpoint.exists():
        left += f" The same command goes on from {checkpoint}."
    return left


# ---------------------------------------------------------------------- arguments


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="deconditional",
        description="Gaussian-process downscaling of coarse observations that need not match the "
        "fine covariates.",
    )
    parser.add_argument("--version", action="version", version=f"deconditional {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    demo = commands.add_parser(
        "demo",
        help="downscale real global fields and compare with the truth",
        description="Downscale surface temperature over the globe, from real climatologies: half "
        "of the coarse cells give fine covariates, the other half the coarse temperature. Writes "
        "demo.nc, maps.png, report.html and scores.json. Takes about two minutes.",
    )
    downscale = commands.add_parser(
        "downscale",
        help="a coarse field on the fine grid of its covariates, from files to a file",
        description="Downscale a coarse target with fine covariates. Coarse cells with fine "
        "covariates and coarse cells with a target need not be the same, in place or in time: "
        "mediators, known in both, link them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report = commands.add_parser(
        "report",
        help="an HTML page about a downscaled field",
        description="Write a self-contained HTML page about what deconditional downscale wrote: "
        "maps, calibration, scales, residuals, parameters, comparison of models.",
        epilog=REPORT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _demo_options(demo.add_argument)
    add_options(downscale)
    _report_options(report.add_argument)
    return parser


def _demo_options(add: Add) -> None:
    add("--out", required=True, metavar="DIR", help="folder for what is written")
    months = {"type": int, "default": 1, "choices": range(1, 13), "metavar": "1..12"}
    add("--month", help="default: 1", **months)
    add("--seed", type=whole, default=0, help="of the choice of cells (default: 0)")
    text = "homicides in counties of the United States, from those of states (under a minute)"
    add("--counts", action="store_true", help=text)
    add("--synthetic", action="store_true", help="made-up fields, which need no data package")


def _report_options(add: Add) -> None:
    add("result", metavar="OUT.nc", help="what deconditional downscale wrote")
    add("--truth", nargs="+", metavar="FILE", help="the fine field, if it is known")
    add("--out", type=Path, metavar="FILE.html", help="default: OUT.html beside the result")
