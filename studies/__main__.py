"""``python -m studies``: one study, or all of them one after another."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from deconditional.saving.outputs import output_folder, write_atomically
from studies.climate import Climate
from studies.command import Parser, add_options, answer, made, positive, require
from studies.convergence import Convergence
from studies.counts import Counts
from studies.deep_kernel import DeepKernels
from studies.first_files import FirstFiles
from studies.frame import Study
from studies.global_fields import GlobalFields
from studies.mediation import Mediation
from studies.mediation_checks import MediationCalibration, MediationSampler
from studies.ridges import Ridges
from studies.shrinkage import Shrinkage
from studies.swiss_roll import SwissRoll
from studies.tables import markdown
from studies.variational import Variational
from studies.workers import check_jobs

__all__ = ["STUDIES", "main"]

STUDIES: dict[str, type[Study]] = {
    study.name: study
    for study in (
        Shrinkage,
        Convergence,
        Ridges,
        SwissRoll,
        Climate,
        GlobalFields,
        FirstFiles,
        Mediation,
        MediationSampler,
        MediationCalibration,
        Variational,
        DeepKernels,
        Counts,
    )
}
"""Name on the command line -> the study."""


def main(given: Sequence[str] | None = None) -> int:
    """Run a study; the exit code.

    0 is success, 1 means that part of the work failed, 2 that the command cannot be carried out as
    given, 130 that it was interrupted.
    """
    given = sys.argv[1:] if given is None else given
    parser = Parser(prog="studies", description="The studies of the paper, and our own.")
    names = parser.add_subparsers(metavar="STUDY", required=True)
    command = " ".join(shlex.join(["python", "-m", "studies", *given]).splitlines())
    for name, study in STUDIES.items():
        about = f"{study.help[0].upper()}{study.help[1:]}. The same command resumes."
        one = names.add_parser(name, help=study.help, description=about)
        add_options(one, study)
        _add_common(one)
        if study.takes_jobs:
            one.add_argument("--jobs", type=positive, default=1, help="fits at a time (default: 1)")
        if study.has_figures:
            one.add_argument("--no-figures", action="store_true", help="numbers and tables only")
        one.add_argument("--overwrite", action="store_true", help="discard what the folder holds")
        one.set_defaults(carry_out=partial(_one, study, command), kept=_kept)
    every = names.add_parser(
        "all",
        help="every study, one after another",
        description="Every study with its defaults, each in a folder and a process of its own. "
        "The same command resumes.",
    )
    _add_common(every)
    every.add_argument("--jobs", type=positive, default=1, help="fits at a time (default: 1)")
    every.add_argument("--no-figures", action="store_true", help="numbers and tables only")
    every.set_defaults(carry_out=partial(_all, command), kept=_folders_kept)
    return answer(parser, given)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of what is written")
    parser.add_argument("--quick", action="store_true", help="small sizes, few seeds")


def _one(study: type[Study], command: str, args: argparse.Namespace) -> int:
    results = made(study, args, args.quick).run(
        args.out,
        jobs=getattr(args, "jobs", 1),
        overwrite=args.overwrite,
        figures=not getattr(args, "no_figures", True),
        command=command,
    )
    print(f"{len(results.records)} records and a table in {args.out}")
    if results.failures:
        many = len(results.failures)
        print(f"{many} fit(s) failed, see above; the same command tries them again.")
    return 1 if results.failures else 0


def _kept(args: argparse.Namespace) -> str:
    path = Path(args.out) / "results.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "Nothing was kept; run the command again."
    again = " without --overwrite" if args.overwrite else ""
    return f"{len(found)} finished records are kept in {path}; the same command{again} resumes."


# ---------------------------------------------------------------------- all of them


def _all(command: str, args: argparse.Namespace) -> int:
    require("demo", *dict.fromkeys(n for study in STUDIES.values() for n in study.needs[1:]))
    check_jobs(args.jobs)
    folder = output_folder(args.out)
    codes, rows = {}, []
    for number, (name, study) in enumerate(STUDIES.items(), start=1):
        given = [name, "--out", str(folder / name)]
        given += ["--quick"] if args.quick else []
        given += ["--no-figures"] if args.no_figures and study.has_figures else []
        given += ["--jobs", str(args.jobs)] if study.takes_jobs and args.jobs > 1 else []
        shown = shlex.join(["python", "-m", "studies", *given])
        print(f"\n{number} of {len(STUDIES)}: {shown}", flush=True)
        began = time.perf_counter()
        codes[name] = _carried_out(given)
        if codes[name] == 130:
            raise KeyboardInterrupt
        title = f"[{name}]({name}/table.md)" if (folder / name / "table.md").exists() else name
        rows.append([title, codes[name], f"{time.perf_counter() - began:.0f}", f"`{shown}`"])
        table = markdown(["study", "exit code", "seconds of this run", "command"], rows)
        lines = ["# Studies", "", f"Made by `{command}`.", "", *table, ""]
        write_atomically(folder / "index.md", "\n".join(lines))
    failed = [name for name, code in codes.items() if code]
    if failed:
        print(f"\nNot complete, see above: {', '.join(failed)}. The same command tries again.")
    print(f"\nAn overview is in {folder / 'index.md'}")
    return 1 if failed else 0


def _carried_out(given: Sequence[str]) -> int:
    """The exit code of a study in a process of its own.

    What JAX has compiled holds memory maps, of which a process may have only so many; and what
    becomes of one study must not cost the others their turn.
    """
    return subprocess.run([sys.executable, "-m", "studies", *given], check=False).returncode


def _folders_kept(args: argparse.Namespace) -> str:
    return f"What was finished is kept in {args.out}; the same command resumes."


if __name__ == "__main__":
    sys.exit(main())
