"""``deconditional downscale``: read, say what was understood, learn, predict, write, sum up."""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xarray as xr
from rich.console import Console

import deconditional
from deconditional.cli.console import complaints, new_console, say
from deconditional.cli.options import require
from deconditional.cli.report import PAGES, check_file, write_page
from deconditional.errors import DeconditionalWarning, SliceWarning, UsageError
from deconditional.fields.aggregation import aggregate
from deconditional.fields.cluster import cluster
from deconditional.fields.downscaler import Downscaler
from deconditional.fields.downscaling import at_times
from deconditional.fields.downscaling import downscale as in_one_call
from deconditional.fields.io import (
    check_output,
    check_room,
    check_writable,
    is_raster,
    is_table_file,
    open_fields,
    open_fine,
    open_table,
    protect_inputs,
    remove,
    write_fields,
)
from deconditional.fields.predict import exceedance_levels, parts_of, quantile_levels
from deconditional.fields.sides import FineSide, two_sides
from deconditional.models.sources import Source
from deconditional.saving.outputs import replacing
from deconditional.saving.resume import Checkpoint, opened


@dataclass(frozen=True)
class Request:
    """One downscaling: the arguments, where to print, the estimator and the data."""

    args: argparse.Namespace
    command: str
    console: Console
    downscaler: Downscaler
    fine: Any
    coarse: Any
    on: xr.Dataset | None
    zones: Any = None

    @property
    def goal(self) -> Any:
        """Data to predict on: those of `on`, or else the fine data."""
        return self.fine if self.on is None else self.on


def downscale(args: argparse.Namespace, command: str) -> int:
    """Carry out a command; whatever can be refused is refused before anything is learnt."""
    console = new_console(args.quiet)
    check_files(args)
    extra = exposure(args)
    downscaler = estimator(args)
    downscaler.question()
    quantile_levels(args.quantiles)
    exceedance_levels(args.exceedance)
    check_size_options(args)
    request = Request(args, command, console, downscaler, *read(args, extra))
    if args.aggregate is not None:
        request = replace(request, zones=open_table(args.aggregate, "aggregate"))
    computing = complaints(
        f"the computation with the model {downscaler.model!r} failed",
        "try another --model or --seed, or leave variables out",
        "use --model varcmp or vbagg, fewer --points-per-bag, or a smaller region",
    )
    with computing, cluster(args.workers, args.scheduler):
        if args.map_over is not None:
            return every_slice(request)
        result = at_once(request)
    finished(request, result)
    return 0


def estimator(args: argparse.Namespace) -> Downscaler:
    """The estimator that the options describe."""
    given = {name: getattr(args, name) for name in args.of_estimator if name in args}
    if args.family is not None:
        name = "".join(part.capitalize() for part in args.family.split("-"))
        family = getattr(deconditional, name)
        given["family"] = family(**{family.amount: given.pop("exposure", None)})
    return Downscaler(**given, progress=not args.quiet and sys.stderr.isatty())


def exposure(args: argparse.Namespace) -> list[str]:
    """The file of the exposure, if it is one, whose variable becomes an option of the estimator."""
    given = args.exposure
    if given is None:
        return []
    is_file = os.path.exists(given) or is_raster(given)
    name = Path(given).stem if is_raster(given) else given
    if is_file and not is_raster(given):
        names = [str(n) for n in open_fields(given, "exposure").data_vars]
        if len(names) != 1:
            raise UsageError(f"{given!r} has {len(names)} variables; add it to --fine, name one.")
        name = names[0]
    args.exposure, args.of_estimator = name, [*args.of_estimator, "exposure"]
    return [given] if is_file else []


def zones_of(path: str, column: str | None) -> Any:
    """A table of zones whose rows are called by a column, if one is named; or cells of a grid."""
    if not is_table_file(path):
        return open_fields(path, "coarse")
    table = open_table(path)
    if column is not None and column not in table.columns:
        raise UsageError(
            f"--id: the polygons have no column {column!r}; they have "
            f"{', '.join(str(c) for c in table.columns)}."
        )
    return table if column is None else table.set_index(column)


def read(args: argparse.Namespace, extra: Sequence[str]) -> tuple[Any, Any, xr.Dataset | None]:
    """Fine and coarse data, and those to predict on if they are others, at the times asked for."""
    chunked = is_asked_for_chunks(args)
    fine = open_fine([*args.fine, *extra], chunked)
    coarse: Any
    if any(is_table_file(path) for path in args.coarse):
        coarse = [Source(zones_of(path, args.id), args.target) for path in args.coarse]
        coarse = coarse[0].where if len(coarse) == 1 else coarse
    elif args.id is not None:
        raise UsageError("--id names the rows of a table of polygons; --coarse is none.")
    else:
        coarse = open_fields(args.coarse, "coarse")
    on = None if args.on is None else open_fields(args.on, "prediction", chunked)
    return (
        (fine, coarse, on) if args.time is None else at_times(args.time, fine, coarse, on, "--time")
    )


def is_asked_for_chunks(args: argparse.Namespace) -> bool | None:
    """Whether data stays in its files; None goes by its size."""
    return {"auto": None, "yes": True, "no": False}[args.chunked]


def at_once(request: Request) -> xr.Dataset:
    """One fit and one prediction, written; the result is read back from its file."""
    args, downscaler = request.args, request.downscaler
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DeconditionalWarning)
        sides = two_sides(request.fine, request.coarse, downscaler.question())
        with about("--on"):
            where = sides[0] if request.on is None else FineSide.of(request.on, sides[0].question)
        downscaler.check_consistency(where)
        with complaints("the data cannot be read", "check that the files are whole"):
            learner = downscaler.prepare(*sides)
        for label, text in learner.problem.pairing.understood:
            say(request.console, label, text)
        if request.on is not None:  # now rather than after the fit
            with about("--on"):
                parts = parts_of(where, learner.problem)
                if not parts.lazy:
                    parts.only.check_known()
        check_result(request, where)
        with opened(args.checkpoint) as kept:
            downscaler.learn(learner, checkpoint=kept)
            result = predicted(request, where)
            found = None if request.zones is None else over_zones(request)
    args.written = args.out
    notes = [str(w.message) for w in caught if issubclass(w.category, DeconditionalWarning)]
    for note in dict.fromkeys(() if args.quiet else notes):
        print(f"note: {note}", file=sys.stderr)
    sum_up(request, result)
    if found is not None:
        many = int(found["mean"].notna().sum())
        say(request.console, "aggregated", f"over {many} of {len(found)} zones: {args.table}")
    return result


def predicted(request: Request, where: FineSide) -> xr.Dataset:
    """The result, written; read back from its file where that has all of it."""
    args, downscaler = request.args, request.downscaler
    wanted = {"quantiles": args.quantiles, "samples": args.samples, "command": request.command}
    wanted["exceedance"] = args.exceedance
    if is_raster(args.out):
        result = downscaler.predict(where, **wanted).load()
        write_fields(result, args.out)
        return result
    downscaler.predict_to(args.out, where, overwrite=args.overwrite, **wanted)
    return open_fields(args.out, "written", is_asked_for_chunks(args))


def over_zones(request: Request) -> Any:
    """The posterior over the zones of ``--aggregate``, written as a table."""
    args, downscaler = request.args, request.downscaler
    kind = "sum" if downscaler.kind == "sum" or downscaler.exposure else "mean"
    if downscaler.family is not None and downscaler.pairing_.question.kind == "sum":
        kind = "count"
    table = aggregate(downscaler, request.zones, kind=kind, seed=downscaler.seed).table
    with replacing(args.table) as part:
        if args.table.suffix == ".csv":
            table.drop(columns=table.geometry.name).to_csv(part)
        else:
            table.to_file(part, driver="GPKG")
    return table


def every_slice(request: Request) -> int:
    """One downscaling for every value of a dimension; those that are done survive a stop."""
    args = request.args
    if not isinstance(request.fine, xr.Dataset) or not isinstance(request.coarse, xr.Dataset):
        raise UsageError("--map-over goes over a dimension of gridded data; leave it out.")
    if request.zones is not None:
        raise UsageError("--aggregate needs one downscaling; leave --map-over out.")
    check_writable(request.goal, args.out)
    store = args.out.with_name(f".{args.out.name}.slices")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SliceWarning)
        result = in_one_call(
            request.fine,
            request.coarse,
            on=request.on,
            map_over=args.map_over,
            store=store,
            quantiles=args.quantiles,
            samples=args.samples,
            command=request.command,
            **request.downscaler.get_params(deep=False),
        )
    write_fields(result, args.out)
    args.written = args.out
    failures = [str(w.message) for w in caught if issubclass(w.category, SliceWarning)]
    say(request.console, "slices", f"{result.sizes[args.map_over]} of {args.map_over}")
    finished(request, result)
    if failures:
        print(f"deconditional: {failures[0]}", file=sys.stderr)
        return 1
    remove(store)
    return 0


def finished(request: Request, result: xr.Dataset) -> None:
    """Say what was written, and write the report if there is to be one."""
    say(request.console, "written", str(request.args.out))
    if request.args.report is not None:
        say(request.console, "report", str(write_page(result, request.args.report)))


def sum_up(request: Request, result: xr.Dataset) -> None:
    """Print the summary after a run."""
    console, comparison = request.console, request.downscaler.comparison_
    facts = json.loads(result.attrs["deconditional"])
    if comparison is not None:
        console.print(str(comparison), markup=False)
    mean, std = result["mean"], result["std"]
    left, units = facts["residuals"], facts["units"]
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


# ---------------------------------------------------------------------- checks


def check_files(args: argparse.Namespace) -> None:
    """Raise unless all that is to be written can be, and replaces nothing that is read."""
    more = [p for p in (args.exposure, args.aggregate) if p is not None and os.path.exists(p)]
    inputs: list[str | Path] = [*args.fine, *args.coarse, *(args.on or []), *more]
    protect_inputs(args.out, inputs)
    args.out = check_output(args.out, args.overwrite)
    others = [*inputs, args.out]
    if args.report is not None:
        require("report", "matplotlib", "jinja2")
        check_file(args.report, "report", PAGES, others, args.overwrite)
        others.append(args.report)
    if args.checkpoint is not None:
        check_checkpoint(args, others)
    check_table(args, others)


def check_table(args: argparse.Namespace, others: Sequence[str | Path]) -> None:
    """Raise unless the table of aggregates can be written where it was asked for."""
    if args.aggregate is None:
        if args.table is not None:
            raise UsageError("--table is written of --aggregate; name its polygons too.")
        return
    if args.table is None:
        stem = f"{args.out.stem}_{Path(args.aggregate).stem}.csv"
        args.table = args.out.with_name(stem)
    check_file(args.table, "table", (".csv", ".gpkg"), others, args.overwrite)


def check_checkpoint(args: argparse.Namespace, others: Sequence[str | Path]) -> None:
    """Raise unless learning can be kept in the file that was named for it."""
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


@contextmanager
def about(option: str) -> Iterator[None]:
    """Complaints of a block name the option that they are about."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def check_result(request: Request, side: FineSide) -> None:
    """Raise now where the result could not be written, or does not fit into memory."""
    args, n_cells = request.args, side.grid.n_cells * side.grid.n_times
    check_writable(side.dataset, args.out, side.grid.dims)
    if side.chunked:
        return
    layers = 2 + len(args.quantiles) + len(args.exceedance) + args.samples
    remedy = "ask for fewer samples or quantiles, or use --chunked yes"
    check_room(8 * n_cells * layers, f"a result of {layers} layers of {n_cells} cells", remedy)
