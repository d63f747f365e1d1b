"""The frame that every study stands in: tasks, resume, progress, tables, figures.

A study says what its independent tasks are, what one of them finds, and how the records are shown;
the frame does the rest. It carries out what a folder does not hold yet, writes after every task,
goes on after failures, and says at the end what made the numbers.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from rich.console import Console

import deconditional as dc
from deconditional.saving.outputs import output_folder, write_atomically
from studies.command import require
from studies.plots import can_draw
from studies.provenance import code_digest, provenance_lines
from studies.records import Record, Results
from studies.tables import code_notes, warning_notes
from studies.workers import carry_out, check_jobs

__all__ = ["Outcome", "Part", "Study", "Task", "fit_and_predict"]


class Task(NamedTuple):
    """One model on one draw of the data."""

    matching: str
    model: str
    seed: int

    def __str__(self) -> str:
        return f"{self.matching}, {self.model}, seed {self.seed}"


class Part(NamedTuple):
    """One case of one part of a study that has several, on one draw."""

    part: str
    case: str
    seed: int

    def __str__(self) -> str:
        return f"{self.part}: {self.case}, {self.seed}"


@dataclass
class Outcome:
    """What was found for one task.

    Attributes
    ----------
    task
        Which task.
    records
        What is to be kept, without the fields of the task.
    details
        How it went; its own ``warnings``, where it knows which they are.
    draw
        Draws the picture of the task to a file, where only the fit itself can.
    """

    task: Any
    records: list[Record]
    details: Record = field(default_factory=dict)
    draw: Callable[[Path], Any] | None = None


@dataclass(frozen=True)
class Study:
    """The base of all studies; its fields are the options of the command.

    Class attributes
    ----------------
    name, help, title
        On the command line, in its help, and at the head of the table.
    task
        What names a task: a named tuple, whose fields every record begins with.
    needs
        An extra of the package, and what to import from it.
    has_figures, takes_jobs
        Whether there is something to draw, and whether tasks may run side by side.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    title: ClassVar[str]
    task: ClassVar[type[Any]] = Task
    needs: ClassVar[tuple[str, ...]] = ()
    has_figures: ClassVar[bool] = True
    takes_jobs: ClassVar[bool] = True

    # What a study says.

    def settings(self) -> Record:
        """What the data is: a folder never mixes records of different settings."""
        return {}

    def tasks(self) -> Sequence[Any]:
        """All that is to be done; raises UsageError where the options cannot be used."""
        raise NotImplementedError

    def waves(self, tasks: Sequence[Any]) -> list[Sequence[Any]]:
        """The tasks in groups: a later group may find its tasks done by an earlier one."""
        return [tasks]

    def fit(self, task: Any) -> list[Outcome]:
        """What one task finds; that of further tasks, if it finds this on the way."""
        raise NotImplementedError

    def picture(self, task: Any) -> str | None:
        """The file that the fit of a task draws, if it draws one."""
        return None

    def table(self, results: Results) -> list[str]:
        """The records as lines of Markdown, without heading and notes."""
        raise NotImplementedError

    def figures(self, results: Results) -> None:
        """Draw what can be drawn from the records, into their folder."""

    # What the frame does.

    def run(
        self,
        out: str | Path,
        *,
        jobs: int = 1,
        overwrite: bool = False,
        figures: bool = True,
        command: str | None = None,
        console: Console | None = None,
    ) -> Results:
        """Carry out what has no record yet; write records, table and figures.

        Parameters
        ----------
        out
            Folder for ``results.json``, ``table.md`` and pictures.
        jobs
            Tasks at a time, each in a process of its own.
        overwrite
            Discard what the folder holds.
        figures
            Whether to draw.
        command
            What the table says made it.
        console
            Where progress goes; the terminal by default.

        Raises
        ------
        UsageError
            Before any work, if the options cannot be used.
        """
        console = Console(highlight=False) if console is None else console
        figures = figures and self.has_figures
        if self.needs:
            require(*self.needs)
        check_jobs(jobs)
        if figures:
            can_draw()
        tasks = self.tasks()
        settings = {"experiment": self.name, **self.settings(), "version": dc.__version__}
        folder = output_folder(out)
        if overwrite:
            self._discard(folder)
        results = Results.open(folder, settings, self.task._fields, overwrite=overwrite)
        self._carry_out(tasks, results, folder if figures else None, jobs, console)
        write_atomically(folder / "table.md", self._page(results, command))
        if figures and results.records:
            self.figures(results)
        return results

    def _carry_out(
        self,
        tasks: Sequence[Any],
        results: Results,
        pictures: Path | None,
        jobs: int,
        console: Console,
    ) -> None:
        """Keep every outcome as it comes; a failure costs the others nothing."""
        code = code_digest()
        work = partial(_worked, study=self, pictures=pictures)

        def pending(among: Sequence[Any]) -> list[Any]:
            return [task for task in among if task not in results or self._undrawn(task, pictures)]

        for wave in self.waves(pending(tasks)):
            for task, found in carry_out(pending(wave), work, console, jobs):
                if isinstance(found, Exception):
                    results.failed(task, found, console)
                    continue
                for its, records, how in found:
                    if its not in results:
                        named = {"experiment": self.name, **its._asdict()}
                        results.add([{**named, **each} for each in records], how | {"code": code})

    def _undrawn(self, task: Any, pictures: Path | None) -> bool:
        name = self.picture(task)
        return pictures is not None and name is not None and not (pictures / name).exists()

    def _discard(self, folder: Path) -> None:
        """Remove the table and pictures of an earlier run, which this one may not make again."""
        (folder / "table.md").unlink(missing_ok=True)
        with suppress(OSError, ValueError, KeyError, TypeError):  # it may be anybody's file
            for record in json.loads((folder / "results.json").read_text(encoding="utf-8")):
                name = self.picture(self.task(*(record[key] for key in self.task._fields)))
                if name is not None:
                    (folder / name).unlink(missing_ok=True)

    def _page(self, results: Results, command: str | None) -> str:
        """The whole of ``table.md``."""
        lines = [f"# {self.title}", "", *self.table(results), ""]
        lines += ["## Warnings", "", *warning_notes(results), ""]
        if results.failures:
            lines += ["## Failed fits", "", *(f"- {failure}" for failure in results.failures), ""]
        lines += ["## How this was made", "", *provenance_lines(command)]
        return "\n".join([*lines, *code_notes(results.fits), ""])


def _worked(
    task: Any, study: Study, pictures: Path | None
) -> list[tuple[Any, list[Record], Record]]:
    """The outcomes of a task, with their warnings; missing pictures are drawn on the way."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", dc.DeconditionalWarning)
        outcomes = study.fit(task)
    ours = [w for w in caught if issubclass(w.category, dc.DeconditionalWarning)]
    for other in caught:
        if other not in ours:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    notes = [f"{w.category.__name__}: {w.message}" for w in ours]
    done = []
    for outcome in outcomes:
        name = study.picture(outcome.task)
        if outcome.draw is not None and pictures is not None and name is not None:
            outcome.draw(pictures / name)
        done.append((outcome.task, outcome.records, {"warnings": notes} | outcome.details))
    return done


def fit_and_predict(
    fit: Callable[[], Any], predict: Callable[[], Any]
) -> tuple[Any, dict[str, float]]:
    """What `predict` returns after `fit`, and the seconds of both.

    A posterior computes its moments when they are first asked for; they are asked for here.
    """
    began = time.perf_counter()
    fit()
    fitted = time.perf_counter()
    posterior = predict()
    _ = np.asarray(posterior.mean)
    predicted = time.perf_counter()
    return posterior, {"fit_seconds": fitted - began, "predict_seconds": predicted - fitted}
