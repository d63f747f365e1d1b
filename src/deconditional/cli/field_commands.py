"""``deconditional downscale`` and ``deconditional report``.

What they compute with is imported when they run, so that help and complaints come at once.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deconditional.errors import UsageError, shortened, visible
from deconditional.kernels.compilation_cache import keep_compiled
from deconditional.saving.outputs import check_place

__all__ = ["add_downscale_options", "add_report_options", "downscale", "report"]

MODELS = (
    *("auto", "mediated", "cmp", "s-cmp", "u-cmp", "varcmp"),
    *("bagg-gp", "vbagg", "gpr", "vargpr"),
)

DOWNSCALE_EXAMPLES = """\
examples:
  fine covariates and coarse target in the same cells:
    deconditional downscale --fine fine.nc --coarse coarse.nc --target tas \\
        --covariates orog,clt --out tas_fine.nc

  in different cells or at different times, linked by precipitable water, which the coarse
  file has for all of them; three quantiles, ten samples and a report:
    deconditional downscale --fine fine.nc --coarse coarse.nc --target tas \\
        --covariates orog,clt --mediators prw --quantiles 0.05,0.5,0.95 --samples 10 \\
        --out tas_fine.nc --report tas_fine.html

  rain, positive and skewed, over land, one month, with the coarse means kept:
    deconditional downscale --fine "era_*.nc" --coarse gcm.zarr --target pr \\
        --covariates orog --mask land --transform log --consistency exact \\
        --time 2001-07 --out pr_fine.nc

exit codes: 0 done, 2 the command cannot be carried out as given, 3 the program itself failed, 130
interrupted.
"""

REPORT_EXAMPLES = """\
examples:
    deconditional report tas_fine.nc
    deconditional report tas_fine.nc --truth station_grid.nc --out tas.html
"""


def add_downscale_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``deconditional downscale``."""
    data = parser.add_argument_group("data")
    data.add_argument(
        "--fine",
        nargs="+",
        required=True,
        metavar="FILE",
        help="covariates on the fine grid, NaN where unknown: netCDF, Zarr, globs",
    )
    data.add_argument(
        "--coarse",
        nargs="+",
        required=True,
        metavar="FILE",
        help="target and mediators on the coarse grid, NaN where unknown",
    )
    data.add_argument("--target", required=True, help="coarse variable to downscale")
    data.add_argument("--covariates", type=names, default=[], metavar="A,B", help="fine variables")
    data.add_argument(
        "--mediators",
        type=names,
        default=[],
        metavar="P,Q",
        help="coarse variables that link target and covariates where cells or times differ",
    )
    data.add_argument(
        "--on",
        nargs="+",
        metavar="FILE",
        help="where to predict, if not where the fine covariates are known",
    )
    data.add_argument(
        "--time", metavar="T", help="use these times only: 2001-07, or 2001-06/2001-08"
    )
    data.add_argument("--mask", help="fine variable, share of a cell that counts (0 to 1)")
    data.add_argument(
        "--min-cover",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="least share of a coarse cell that fine cells must cover (default: 0.5)",
    )
    data.add_argument(
        "--dims",
        type=dimensions,
        metavar="y=A,x=B,time=C",
        help="names of dimensions, where CF attributes do not tell",
    )
    data.add_argument(
        "--map-over",
        metavar="DIM",
        help="one downscaling for every value of a dimension of the coarse data, time or member, "
        "say, each with a fit of its own; done ones are kept if the run stops",
    )
    size = parser.add_argument_group("size")
    size.add_argument(
        "--chunked",
        choices=("auto", "yes", "no"),
        default="auto",
        help="work through the fine files chunk by chunk, in little memory; a stopped run goes on "
        "when the command is given again (default: from 2 GB on)",
    )
    size.add_argument(
        "--workers",
        type=at_least(1),
        metavar="N",
        help="processes of a Dask cluster on this machine, one core each",
    )
    size.add_argument(
        "--scheduler", metavar="ADDRESS", help="of a running Dask cluster, tcp://host:8786, say"
    )
    size.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="keep how far learning is; the same command goes on from there after a stop, and "
        "removes the file at its end",
    )
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        default="auto",
        choices=MODELS,
        metavar="NAME",
        help=f"{', '.join(MODELS)} (default: auto, by blocked cross-validation)",
    )
    model.add_argument(
        "--kernel",
        default="rough",
        choices=("rough", "smooth"),
        help="smooth: Matérn-3/2 of position plus Gaussian of the covariates; rough, the default: "
        "a Matérn-1/2 of position besides, for intervals wide enough on real fields",
    )
    model.add_argument("--transform", choices=["log"], help="log for positive, skewed fields")
    model.add_argument(
        "--bounds",
        type=bounds,
        metavar="LOW,HIGH",
        help="physical limits, as in 0, or 0,1 or, below zero, --bounds=-40,40",
    )
    model.add_argument(
        "--consistency", choices=["exact"], help="make area means equal the observed values"
    )
    model.add_argument(
        "--no-position", action="store_true", help="do not use position as covariate and mediator"
    )
    model.add_argument(
        "--points-per-bag",
        type=points,
        default="auto",
        metavar="N",
        help="fine cells that stand for a coarse one while learning, or all (default: by size)",
    )
    model.add_argument(
        "--folds", type=at_least(2), default=5, help="of the cross-validation (default: 5)"
    )
    model.add_argument(
        "--restarts", type=at_least(1, 1000), default=2, help="of every fit (default: 2)"
    )
    model.add_argument("--seed", type=at_least(0, 2**32 - 1), default=0, help="default: 0")
    output = parser.add_argument_group("output")
    output.add_argument("--out", required=True, type=Path, metavar="OUT.nc", help=".nc or .zarr")
    output.add_argument(
        "--quantiles", type=levels, default=[], metavar="Q,R", help="as in 0.05,0.5,0.95"
    )
    output.add_argument(
        "--samples", type=at_least(0), default=0, metavar="K", help="joint samples to add"
    )
    output.add_argument("--report", type=Path, metavar="FILE.html", help="write a report too")
    output.add_argument(
        "--overwrite", action="store_true", help="replace an existing output or report"
    )
    output.add_argument("--quiet", action="store_true", help="print nothing but errors")


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``deconditional report``."""
    parser.add_argument("result", metavar="OUT.nc", help="what deconditional downscale wrote")
    parser.add_argument("--truth", nargs="+", metavar="FILE", help="the fine field, if it is known")
    parser.add_argument(
        "--out", type=Path, metavar="FILE.html", help="default: OUT.html beside the result"
    )


# ---------------------------------------------------------------------- commands


def downscale(args: argparse.Namespace, command: str) -> int:
    """Read, say what was understood, learn, predict, write, sum up."""
    require("fields", "xarray", "cf_xarray", "netCDF4")
    from rich.console import Console

    from deconditional.errors import DeconditionalWarning
    from deconditional.fields.cluster import cluster
    from deconditional.fields.downscaler import Downscaler, quantile_levels
    from deconditional.fields.files import check_output, open_fields, protect_inputs
    from deconditional.saving.resume import opened, whole

    console = Console(quiet=args.quiet, highlight=False, soft_wrap=True, emoji=False)
    inputs = [*args.fine, *args.coarse, *(args.on or [])]
    protect_inputs(args.out, inputs)
    args.out = check_output(args.out, args.overwrite)
    if args.report is not None:
        require("report", "matplotlib", "jinja2")
        check_report(args.report, [*inputs, args.out])
        if os.path.lexists(args.report) and not args.overwrite:
            raise UsageError(
                f"the report {str(args.report)!r} exists; name another, or add --overwrite."
            )
    check_checkpoint(args, [*inputs, args.out, *([args.report] if args.report else [])])
    downscaler = Downscaler(
        args.target,
        args.covariates,
        args.mediators,
        model=args.model,
        kernel=args.kernel,
        position=not args.no_position,
        transform=args.transform,
        bounds=args.bounds,
        consistency=args.consistency,
        points_per_bag=args.points_per_bag,
        mask=args.mask,
        min_cover=args.min_cover,
        dims=args.dims,
        folds=args.folds,
        n_restarts=args.restarts,
        seed=args.seed,
        progress=not args.quiet and sys.stderr.isatty(),
    )
    downscaler.question()
    quantile_levels(args.quantiles)
    check_size_options(args)
    keep_compiled()
    chunked = {"auto": None, "yes": True, "no": False}[args.chunked]
    fine = open_fields(args.fine, "fine", chunked)
    coarse = open_fields(args.coarse, "coarse")
    on = None if args.on is None else open_fields(args.on, "prediction", chunked)
    if args.time is not None:
        fine, coarse, on = at_time(args.time, fine, coarse, on)
    with (
        warnings.catch_warnings(record=True) as caught,
        one_line_errors(args.model),
        cluster(args.workers, args.scheduler),
    ):
        warnings.simplefilter("always", DeconditionalWarning)
        if args.map_over is not None:
            return downscale_each(args, command, console, downscaler, fine, coarse, on)
        downscaler.check_consistency(fine if on is None else on)
        with errors_of_reading():
            pairing = downscaler.understand(fine, coarse)
        for label, text in pairing.understood:
            say(console, label, text)
        if on is not None:
            check_on(on, pairing)
        check_result(fine if on is None else on, pairing.question, args)
        with opened(args.checkpoint) as kept:
            downscaler.fit(fine, coarse, **whole(kept))
            downscaler.predict_to(
                args.out,
                fine if on is None else on,
                quantiles=args.quantiles,
                samples=args.samples,
                overwrite=args.overwrite,
                command=command,
            )
        args.written = args.out
        result = open_fields(args.out, "written", chunked)
        notes = [str(w.message) for w in caught if issubclass(w.category, DeconditionalWarning)]
        for note in dict.fromkeys(notes):
            if not args.quiet:
                print(f"note: {note}", file=sys.stderr)
        sum_up(console, downscaler, result)
    say(console, "written", str(args.out))
    if args.report is not None:
        say(console, "report", str(write_page(result, args.report)))
    return 0


def check_checkpoint(args: argparse.Namespace, others: Sequence[str | Path]) -> None:
    """Raise unless learning can be kept in the file that was named for it."""
    from deconditional.fields.files import protect_inputs
    from deconditional.saving.resume import Checkpoint

    if args.checkpoint is None:
        return
    if args.map_over is not None:
        raise UsageError("--map-over keeps the slices that are done; leave --checkpoint out.")
    if args.checkpoint.absolute() in [Path(other).absolute() for other in others]:
        raise UsageError(f"--checkpoint {args.checkpoint} is another file of the command as well.")
    protect_inputs(args.checkpoint, others, "checkpoint")
    Checkpoint(args.checkpoint).check()


def check_size_options(args: argparse.Namespace) -> None:
    """Raise where options about size and workers contradict each other, or need what is absent."""
    if args.workers is not None and args.scheduler is not None:
        raise UsageError("--workers starts a cluster and --scheduler uses a running one; give one.")
    most = 4 * max(os.cpu_count() or 1, 2)
    if args.workers is not None and args.workers > most:
        raise UsageError(
            f"--workers {args.workers} are too many for {os.cpu_count()} core(s); give at most "
            f"{most}."
        )
    if args.workers is not None or args.scheduler is not None:
        require("dask", "dask", "distributed")
        if args.chunked == "no" and args.map_over is None:
            raise UsageError("--chunked no leaves nothing to do for Dask; leave it out.")
        if args.chunked == "auto" and args.map_over is None:
            args.chunked = "yes"
    if args.chunked == "yes":
        require("dask", "dask")


def downscale_each(
    args: argparse.Namespace,
    command: str,
    console: Any,
    downscaler: Any,
    fine: Any,
    coarse: Any,
    on: Any,
) -> int:
    """One downscaling for every value of a dimension; those that are done survive a stop."""
    from deconditional.errors import SliceWarning
    from deconditional.fields.downscaling import downscale as in_one_call
    from deconditional.fields.files import check_writable, remove, write_fields

    check_writable(fine if on is None else on, args.out)

    store = args.out.with_name(f".{args.out.name}.slices")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SliceWarning)
        result = in_one_call(
            fine,
            coarse,
            on=on,
            map_over=args.map_over,
            store=store,
            quantiles=args.quantiles,
            samples=args.samples,
            command=command,
            **downscaler.get_params(deep=False),
        )
    write_fields(result, args.out)
    args.written = args.out
    failures = [str(w.message) for w in caught if issubclass(w.category, SliceWarning)]
    say(console, "slices", f"{result.sizes[args.map_over]} of {args.map_over}")
    say(console, "written", str(args.out))
    if args.report is not None:
        say(console, "report", str(write_page(result, args.report)))
    if failures:
        print(f"deconditional: {failures[0]}", file=sys.stderr)
        return 1
    remove(store)
    return 0


def say(console: Any, label: str, text: str) -> None:
    """One line of what was understood or done."""
    from rich.text import Text

    text = shortened(visible(text), 2000)
    console.print(Text.assemble((f"{label:>12}", "bold"), "  ", text))


def at_time(times: str, *data: Any) -> tuple[Any, ...]:
    """Fine, coarse and prediction data at some times; at least one of them must have times."""
    from deconditional.fields.downscaling import select_time

    chosen = tuple(
        each if each is None else select_time(each, times, which)
        for each, which in zip(data, ("fine", "coarse", "prediction"), strict=True)
    )
    if all(new is old for new, old in zip(chosen, data, strict=True)):
        raise UsageError(f"--time {times} was given, but no file has times; leave it out.")
    return chosen


def check_on(on: Any, pairing: Any) -> None:
    """Raise now rather than after the fit where nothing can be predicted on a grid."""
    from deconditional.fields.fine_points import fine_points
    from deconditional.fields.grids import find_grid
    from deconditional.fields.pairing import is_chunked

    question = pairing.question
    try:
        grid = find_grid(on, question.covariates, "fine", question.dims)
        if not is_chunked(on, question):
            fine_points(on, question)
    except UsageError as error:
        raise UsageError(f"--on: {error}") from None
    if grid.spherical != pairing.coarse.spherical:
        raise UsageError(
            "--on: its grid is in other coordinates than those of the fine and coarse files; give "
            "one of the same projection."
        )


def check_result(on: Any, question: Any, args: argparse.Namespace) -> None:
    """Raise now where the result could not be written, or does not fit into memory."""
    from deconditional.fields.declared import available_memory, shown_bytes
    from deconditional.fields.files import check_writable
    from deconditional.fields.grids import find_grid
    from deconditional.fields.pairing import is_chunked

    grid = find_grid(on, question.covariates, "fine", question.dims)
    dims = [d for d in (grid.time, grid.y.name, grid.x.name) if d is not None]
    check_writable(on, args.out, dims)
    if is_chunked(on, question):
        return
    layers = 2 + len(args.quantiles) + args.samples
    needed = 8 * grid.n_cells * grid.n_times * layers
    memory = available_memory()
    if needed > memory:
        raise UsageError(
            f"{layers} layers of {grid.n_cells * grid.n_times} cells take {shown_bytes(needed)}, "
            f"and {shown_bytes(memory)} are free; ask for fewer samples or quantiles, or use "
            "--chunked yes."
        )


@contextmanager
def one_line_errors(model: str) -> Iterator[None]:
    """Turn what the numerical part stumbles over into a complaint with a remedy."""
    from deconditional.fields.files import one_line

    try:
        yield
    except UsageError:
        raise
    except MemoryError:
        raise UsageError(
            "the memory does not suffice; use --model varcmp or vbagg, fewer --points-per-bag, or "
            "a smaller region."
        ) from None
    except (ValueError, ArithmeticError, RuntimeError, OSError) as error:
        raise UsageError(
            f"the computation with the model {model!r} failed: {one_line(error)}; try another "
            "--model or --seed, or leave variables out."
        ) from error


@contextmanager
def errors_of_reading() -> Iterator[None]:
    """Turn what goes wrong while chunks of data are read into a complaint about the files."""
    from deconditional.fields.files import one_line

    try:
        yield
    except UsageError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"the data cannot be read ({type(error).__name__}: {one_line(error)}); check that the "
            "files are whole."
        ) from error


def write_page(result: Any, out: Path, truth: Any = None) -> Path:
    """Write the report, or say why not."""
    from deconditional.fields.files import one_line
    from deconditional.report import write_report

    try:
        return write_report(result, out, truth)
    except UsageError:
        raise
    except MemoryError:
        raise UsageError(
            f"the memory does not suffice for the report {str(out)!r}; cut the result to a region."
        ) from None
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"could not write the report {str(out)!r} ({one_line(error)}); make room, or name "
            "another place."
        ) from error


def sum_up(console: Any, downscaler: Any, result: Any) -> None:
    """The summary after a run."""
    import json

    facts = json.loads(result.attrs["deconditional"])
    if downscaler.comparison_ is not None:
        console.print(str(downscaler.comparison_), markup=False)
    mean, std = result["mean"], result["std"]
    left = facts["residuals"]
    units = facts["units"]
    say(console, "model", f"{facts['model']}; {facts['mediation']}")
    say(
        console,
        "posterior",
        f"{int(mean.notnull().sum())} fine cells, mean {float(mean.min()):.4g} to "
        f"{float(mean.max()):.4g} {units}, standard deviation {float(std.min()):.3g} to "
        f"{float(std.max()):.3g} {units}",
    )
    if left and left["n"]:
        say(
            console,
            "residuals",
            f"observed less area mean in {left['n']} cells: rms {left['rmse']:.3g}, largest "
            f"{left['largest']:.3g} {units}",
        )
    say(console, "seconds", ", ".join(f"{k} {v:.1f}" for k, v in facts["timings"].items()))


def report(args: argparse.Namespace, command: str) -> int:
    """Write the HTML page of a result."""
    require("report", "xarray", "cf_xarray", "netCDF4", "matplotlib", "jinja2")
    from deconditional.fields.files import open_fields
    from deconditional.report.result import load_result

    given = Path(args.result)
    if not given.name:
        raise UsageError(f"{args.result!r} is no file; name what deconditional downscale wrote.")
    out = args.out if args.out is not None else given.with_suffix(".html")
    check_report(out, [args.result, *(args.truth or [])])
    result = open_fields(given, "result") if given.is_dir() else load_result(given)
    truth = None if args.truth is None else open_fields(args.truth, "truth")
    print(write_page(result, out, truth))
    return 0


# ---------------------------------------------------------------------- checks and types


def require(extra: str, *packages: str) -> None:
    """Raise unless the packages of an extra can be imported."""
    from importlib.util import find_spec

    for package in packages:
        if find_spec(package) is None:
            raise UsageError(f"this needs {package}: pip install 'deconditional[{extra}]'.")


def check_report(path: Path, inputs: Sequence[str | Path]) -> None:
    """Raise unless a page can be written here, and is none of the files that are read."""
    from deconditional.fields.files import protect_inputs

    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"the report {str(path)!r} must end in .html; name another.")
    check_place(path, "report")
    if path.is_dir():
        raise UsageError(f"the report {str(path)!r} is a folder; name a file.")
    protect_inputs(path, inputs, "report")


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """The type of a whole number that is neither too small nor too large."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {value}")
        if most is not None and value > most:
            raise argparse.ArgumentTypeError(f"must be at most {most}, not {value}")
        return value

    return number


def names(text: str) -> list[str]:
    """Names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def levels(text: str) -> list[float]:
    """Numbers between commas."""
    try:
        return [float(part) for part in names(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers between commas, not {text!r}") from None


def bounds(text: str) -> tuple[float | None, float | None]:
    """Two limits between a comma; either may be left out.

    Examples
    --------
    >>> bounds("0,"), bounds("0,1")
    ((0.0, None), (0.0, 1.0))
    """
    low, comma, high = text.partition(",")
    try:
        ends = tuple(float(end) if end.strip() else None for end in (low, high))
    except ValueError:
        comma = ""
        ends = (None, None)
    if not comma or any(end != end for end in ends):  # a bound that is no number
        raise argparse.ArgumentTypeError(f"must be LOW,HIGH (either may be empty), not {text!r}")
    return ends[0], ends[1]


def points(text: str) -> int | str | None:
    """A number, ``all`` or ``auto``."""
    if text in ("all", "auto"):
        return None if text == "all" else text
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive number, all or auto, not {text!r}")
    return int(text)


def dimensions(text: str) -> dict[str, str]:
    """Names of dimensions by role."""
    pairs = [part.split("=", 1) for part in names(text) if "=" in part]
    found = {role.strip(): name.strip() for role, name in pairs}
    if len(found) != len(names(text)) or not set(found) <= {"y", "x", "time"}:
        raise argparse.ArgumentTypeError(f"must look like y=lat,x=lon,time=t, not {text!r}")
    return found
