"""``deconditional report``: the HTML page of a result."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import xarray as xr

from deconditional.cli.console import complaints
from deconditional.errors import UsageError
from deconditional.fields.io import open_fields, protect_inputs
from deconditional.report import write_report
from deconditional.saving.outputs import check_target

PAGES = (".html", ".htm")


def report(args: argparse.Namespace, command: str) -> int:
    """Write the HTML page of a result."""
    given = Path(args.result)
    if not given.name:
        raise UsageError(f"{args.result!r} is no file; name what deconditional downscale wrote.")
    out = args.out if args.out is not None else given.with_suffix(".html")
    check_file(out, "report", PAGES, [args.result, *(args.truth or [])], overwrite=True)
    result = open_fields(given, "result")
    truth = None if args.truth is None else open_fields(args.truth, "truth")
    print(write_page(result, out, truth))
    return 0


def check_file(
    path: Path, what: str, endings: Sequence[str], inputs: Sequence[str | Path], overwrite: bool
) -> None:
    """Raise unless a file can be written here, and replaces nothing that is read or to be kept."""
    check_target(path, what, endings, overwrite)
    protect_inputs(path, inputs, what)


def write_page(result: xr.Dataset, out: Path, truth: xr.Dataset | None = None) -> Path:
    """Write the report, or say why not."""
    failed = f"could not write the report {str(out)!r}"
    with complaints(failed, "make room, or name another place", "cut the result to a region"):
        return write_report(result, out, truth)
