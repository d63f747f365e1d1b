"""``deconditional reproduce``: the experiments of the paper, one by one or all of them.

What an experiment computes with is imported when it runs, so that help and complaints come at once.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deconditional.cli.options import nothing_kept, positive, require, runs, whole
from deconditional.saving.outputs import output_folder, write_atomically
from studies.swiss_roll import MATCHINGS, MODELS

__all__ = ["EXPERIMENTS", "add"]


@dataclass(frozen=True)
class Experiment:
    """One experiment: its options, and what ``reproduce all --quick`` gives for them."""

    help: str
    description: str
    options: Callable[[argparse.ArgumentParser], None]
    command: Callable[[argparse.Namespace, str], int]
    quick: tuple[str, ...]
    takes_jobs: bool = False
    draws: bool = True


def add(commands: Any) -> None:
    """Add ``reproduce`` to the commands."""
    reproduce = commands.add_parser(
        "reproduce",
        help="repeat the experiments of the paper",
        description="Repeat an experiment of the paper, or all of them.",
    )
    experiments = reproduce.add_subparsers(metavar="EXPERIMENT", required=True)
    for name, experiment in EXPERIMENTS.items():
        parser = experiments.add_parser(
            name, help=experiment.help, description=experiment.description
        )
        experiment.options(parser)
        parser.add_argument(
            "--out", required=True, metavar="DIR", help="folder for numbers, tables, figures"
        )
        if experiment.draws:
            parser.add_argument("--no-figures", action="store_true", help="numbers and tables only")
        if experiment.takes_jobs:
            parser.add_argument(
                "--jobs", type=positive, default=1, help="fits at a time (default: 1)"
            )
        runs(parser, experiment.command, _kept)
    every = experiments.add_parser(
        "all",
        help="every experiment, one after another",
        description="Run every experiment with its defaults, each in a folder of its own. The same "
        "command resumes an interrupted run. Further studies are options of single experiments, "
        "as is global-fields --matching cells.",
    )
    every.add_argument("--out", required=True, metavar="DIR", help="folder of the folders")
    every.add_argument(
        "--quick", action="store_true", help="small sizes and few seeds: about 15 minutes"
    )
    every.add_argument("--no-figures", action="store_true", help="numbers and tables only")
    every.add_argument("--jobs", type=positive, default=1, help="fits at a time (default: 1)")
    runs(every, _all, _folders_kept)


# ---------------------------------------------------------------------- all of them


def _all(args: argparse.Namespace, command: str) -> int:
    from deconditional.fitting.workers import check_jobs

    drawing = () if args.no_figures else ("matplotlib",)
    require("demo", "xarray", "cf_xarray", "itur", *drawing)
    check_jobs(args.jobs)
    folder = output_folder(args.out)
    lines = ["# Experiments", "", f"Made by `{command}`.", ""]
    lines += ["| experiment | exit code | seconds of this run | command |", "|---|---|---|---|"]
    codes = {}
    for number, (name, experiment) in enumerate(EXPERIMENTS.items(), start=1):
        given = ["reproduce", name, "--out", str(folder / name)]
        given += experiment.quick if args.quick else ()
        given += ["--no-figures"] if args.no_figures and experiment.draws else []
        given += ["--jobs", str(args.jobs)] if experiment.takes_jobs and args.jobs > 1 else []
        print(f"\n{number} of {len(EXPERIMENTS)}: deconditional {shlex.join(given)}", flush=True)
        began = time.perf_counter()
        codes[name] = _carried_out(given)
        if codes[name] == 130:
            raise KeyboardInterrupt
        seconds = time.perf_counter() - began
        shown = f"deconditional {shlex.join(given)}"
        title = f"[{name}]({name}/table.md)" if (folder / name / "table.md").exists() else name
        lines.append(f"| {title} | {codes[name]} | {seconds:.0f} | `{shown}` |")
        write_atomically(folder / "index.md", "\n".join(lines) + "\n")
    refused = [name for name, code in codes.items() if code == 2]
    failed = [name for name, code in codes.items() if code not in (0, 2)]
    for names, advice in (
        (failed, "The same command tries again what is missing."),
        (
            refused,
            "It could not be carried out, see above; results of other settings need --out NEW.",
        ),
    ):
        if names:
            print(f"\nNot complete: {', '.join(names)}. {advice}")
    print(f"\nAn overview is in {folder / 'index.md'}")
    return 1 if any(codes.values()) else 0


def _carried_out(given: list[str]) -> int:
    """The exit code of a command line in a process of its own.

    What JAX has compiled holds memory maps, of which a process may have only so many; and what
    becomes of one experiment must not cost the others their turn.
    """
    return subprocess.run([sys.executable, "-m", "deconditional", *given], check=False).returncode


# ---------------------------------------------------------------------- what an interrupt leaves


def _kept(args: argparse.Namespace) -> str:
    path = Path(args.out) / "results.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return nothing_kept(args)
    again = "the same command resumes."
    if getattr(args, "overwrite", False):
        again = "the same command without --overwrite resumes."
    if isinstance(found, list):
        return f"{len(found)} finished records are kept in {path}; {again}"
    return f"What was finished is kept in {path}; {again}"


def _folders_kept(args: argparse.Namespace) -> str:
    return f"What was finished is kept in {args.out}; the same command resumes."


# ---------------------------------------------------------------------- one by one


def _overwrite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overwrite", action="store_true", help="discard what the folder holds")


def _finished(results: Any, out: str) -> int:
    print(f"{len(results.records)} records and tables in {out}")
    if results.failures:
        print(
            f"{len(results.failures)} fit(s) failed, see above; the same command tries them again."
        )
    return 1 if results.failures else 0


def _swiss_roll_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--matching", nargs="+", default=list(MATCHINGS), metavar="M", help="direct, indirect"
    )
    parser.add_argument(
        "--models", nargs="+", metavar="NAME", help=f"some of: {', '.join(MODELS)} (default: all)"
    )
    parser.add_argument("--seeds", type=whole, default=20, help="number of rolls (default: 20)")
    parser.add_argument(
        "--first-seed", type=whole, default=0, metavar="SEED", help="seed of the first roll"
    )
    _roll_size(parser)
    _overwrite(parser)


def _roll_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--points", type=positive, default=5000, help="points of a roll (default: 5000)"
    )
    parser.add_argument("--bags", type=positive, default=50, help="bags of a roll (default: 50)")


def _swiss_roll(args: argparse.Namespace, command: str) -> int:
    from studies import swiss_roll

    results = swiss_roll.run(
        matching=args.matching,
        models=args.models,
        seeds=args.seeds,
        first_seed=args.first_seed,
        out=args.out,
        n_points=args.points,
        n_bags=args.bags,
        jobs=args.jobs,
        overwrite=args.overwrite,
        figures=not args.no_figures,
        command=command,
    )
    return _finished(results, args.out)


def _variational_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=positive, default=3, help="number of rolls (default: 3)")
    _roll_size(parser)
    parser.add_argument(
        "--steps", type=positive, default=3000, help="steps of a climb (default: 3000)"
    )


def _variational(args: argparse.Namespace, command: str) -> int:
    from studies import variational

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


def _deep_kernel_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=positive, default=5, help="number of draws (default: 5)")
    parser.add_argument("--bags", type=positive, default=300, help="bags of a draw (default: 300)")


def _deep_kernel(args: argparse.Namespace, command: str) -> int:
    from studies import deep_kernel

    deep_kernel.run(
        seeds=args.seeds,
        out=args.out,
        n_bags=args.bags,
        figures=not args.no_figures,
        command=command,
    )
    print(f"tables and figures in {args.out}")
    return 0


def _global_fields_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--months", nargs="+", type=whole, default=[1, 4, 7], metavar="M", help="default: 1 4 7"
    )
    parser.add_argument("--draws", type=positive, default=3, help="of each month (default: 3)")
    parser.add_argument(
        "--matching",
        nargs="+",
        default=["matched", "half"],
        metavar="M",
        help="matched, half (default: both), cells (condensed, random or all fine cells)",
    )
    parser.add_argument("--models", nargs="+", metavar="NAME", help="some models (default: all)")
    _overwrite(parser)


def _global_fields(args: argparse.Namespace, command: str) -> int:
    require("demo", "xarray", "cf_xarray", "itur")
    from studies import global_fields

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
    return _finished(results, args.out)


def _mediation_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--datasets", nargs="+", metavar="NAME", help="some (default: all)")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="some (default: all)")
    parser.add_argument("--draws", type=positive, help="of each data set, at most")
    parser.add_argument(
        "--first", type=whole, default=0, metavar="N", help="number of the first draw (default: 0)"
    )
    _overwrite(parser)


def _mediation(args: argparse.Namespace, command: str) -> int:
    require("demo", "xarray", "cf_xarray", "itur")
    from studies import mediation

    results = mediation.run(
        args.datasets,
        args.models,
        args.draws,
        first=args.first,
        out=args.out,
        jobs=args.jobs,
        overwrite=args.overwrite,
        figures=not args.no_figures,
        command=command,
    )
    return _finished(results, args.out)


def _climate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        metavar="FILE.nc",
        help="fields of the published layout (orog clt albisccp pctisccp ttop on 360 x 720 cells); "
        "without it, a global climatology",
    )
    parser.add_argument(
        "--month", type=whole, metavar="1..12", help="of the climatology (default: 3)"
    )
    parser.add_argument("--seeds", type=whole, default=10, help="draws of cells (default: 10)")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="some models (default: all)")
    parser.add_argument(
        "--inducing", type=positive, default=800, help="inducing points (default: 800)"
    )
    parser.add_argument(
        "--exact-points",
        type=_points,
        default=16,
        metavar="N",
        help="points that stand for a bag in exact models, or all (default: 16)",
    )
    parser.add_argument(
        "--thin", type=positive, default=1, help="average so many fine cells each way first"
    )
    _overwrite(parser)


def _points(text: str) -> int | None:
    return None if text == "all" else positive(text)


def _climate(args: argparse.Namespace, command: str) -> int:
    if args.data is None:
        require("demo", "xarray", "cf_xarray", "itur")
    else:
        require("fields", "xarray", "cf_xarray", "netCDF4")
    from studies import climate

    results = climate.run(
        args.seeds,
        args.models,
        out=args.out,
        data=args.data,
        month=args.month,
        inducing=args.inducing,
        exact_points=args.exact_points,
        thin=args.thin,
        jobs=args.jobs,
        overwrite=args.overwrite,
        figures=not args.no_figures,
        command=command,
    )
    return _finished(results, args.out)


def _convergence_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repetitions", type=positive, help="draws of every size")
    parser.add_argument("--sizes", nargs="+", type=positive, metavar="M", help="observations")
    parser.add_argument("--seed", type=whole, default=0, help="default: 0")
    parser.add_argument("--quick", action="store_true", help="a try of a minute")
    _overwrite(parser)


def _convergence(args: argparse.Namespace, command: str) -> int:
    from studies import convergence

    convergence.run(
        args.repetitions,
        args.seed,
        args.sizes,
        quick=args.quick,
        out=args.out,
        overwrite=args.overwrite,
        figures=not args.no_figures,
        command=command,
    )
    print(f"tables and figures in {args.out}")
    return 0


def _shrinkage_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=positive, help="draws of every setting")
    parser.add_argument(
        "--quick", action="store_true", help="a try of a minute, without the large dense solves"
    )
    _overwrite(parser)


def _shrinkage(args: argparse.Namespace, command: str) -> int:
    from studies import shrinkage

    shrinkage.run(
        args.seeds,
        args.out,
        quick=args.quick,
        overwrite=args.overwrite,
        figures=not args.no_figures,
        command=command,
    )
    print(f"tables and figures in {args.out}")
    return 0


def _ridges_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=whole, default=4, help="rolls of every size (default: 4)")
    parser.add_argument(
        "--points",
        nargs="+",
        type=whole,
        default=[500, 1500, 5000],
        metavar="N",
        help="points of a roll: 500, 1500, 5000 (default: all three)",
    )
    _overwrite(parser)


def _ridges(args: argparse.Namespace, command: str) -> int:
    from studies import ridges

    results = ridges.run(
        args.seeds, out=args.out, points=args.points, overwrite=args.overwrite, command=command
    )
    return _finished(results, args.out)


_RESUMES = "Writes results.json after every fit; the same command resumes an interrupted run."

EXPERIMENTS = {
    "shrinkage": Experiment(
        "standard and shrinkage conditional mean operators (appendix C)",
        "Compare the standard and the shrinkage estimator of conditional mean embeddings with each "
        "other and with the truth, and their times with that of the dense formula.",
        _shrinkage_options,
        _shrinkage,
        ("--quick",),
    ),
    "convergence": Experiment(
        "rates of the deconditional mean operator (theorem 4.2)",
        "Measure how the excess risk falls with the number of observations, and compare the slopes "
        "with those of the theorem.",
        _convergence_options,
        _convergence,
        ("--quick",),
    ),
    "ridges": Experiment(
        "ridges of two-stage regression, by evidence and by leaving one out",
        "Fit the two-stage regressor to swiss rolls with its second ridge chosen in three ways.",
        _ridges_options,
        _ridges,
        ("--seeds", "1", "--points", "500"),
        draws=False,
    ),
    "swiss-roll": Experiment(
        "matched and unmatched bags on a swiss roll (section 5.1)",
        "Fit models to swiss rolls cut into bags, score them at all points, and compare them over "
        f"seeds. {_RESUMES}",
        _swiss_roll_options,
        _swiss_roll,
        ("--seeds", "1", "--points", "1000", "--bags", "20"),
        takes_jobs=True,
    ),
    "climate": Experiment(
        "mediated downscaling of atmospheric fields (section 5.2)",
        "Downscale with the paper's pipeline: a random half of the coarse cells gives fine "
        f"covariates, the other half the target, a coarse mediator links them. {_RESUMES}",
        _climate_options,
        _climate,
        ("--seeds", "1", "--thin", "2", "--inducing", "100", "--exact-points", "8"),
        takes_jobs=True,
    ),
    "global-fields": Experiment(
        "real global fields, matched and unmatched, every model",
        "Downscale surface temperature from real climatologies with every model, with fine "
        f"covariates in all coarse cells and in half of them. {_RESUMES} All of it takes about an "
        "hour and a half on two cores with --jobs 2.",
        _global_fields_options,
        _global_fields,
        ("--months", "1", "--draws", "1", "--models", "bilinear", "gpr", "bagg-gp"),
        takes_jobs=True,
    ),
    "mediation": Experiment(
        "every mediated model on unmatched data sets, compared with fair baselines",
        "Fit mediated models to the swiss roll, the S-curve, synthetic fields with better and "
        f"worse mediators and real fields, matched in no cell. {_RESUMES}",
        _mediation_options,
        _mediation,
        ("--datasets", "noisy-60", "--draws", "1", "--models", "propagated", "mediated"),
        takes_jobs=True,
    ),
    "variational": Experiment(
        "what variational inference costs in accuracy",
        "Four studies on the swiss roll: inducing points against the exact posterior, estimates of "
        "the trace, natural gradients against Adam, random Fourier features. Writes results.json "
        "after every study; the same command resumes an interrupted run.",
        _variational_options,
        _variational,
        ("--seeds", "1", "--points", "1000", "--bags", "20", "--steps", "300"),
    ),
    "deep-kernel": Experiment(
        "a field that depends on an index of several bands",
        f"Fit with and without a small network in front of the kernels. {_RESUMES}",
        _deep_kernel_options,
        _deep_kernel,
        ("--seeds", "1", "--bags", "60"),
    ),
}
"""Name on the command line -> the experiment."""
