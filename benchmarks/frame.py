"""The frame that every benchmark stands in: options, a table, JSON, a figure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.table import Table

from benchmarks.figures import bars
from benchmarks.timing import device_name
from deconditional.report import plots
from deconditional.saving.outputs import write_atomically
from studies.provenance import machine

__all__ = [
    "Benchmark",
    "Costs",
    "Result",
    "Row",
    "console",
    "markdown",
    "percent",
    "show",
    "shown",
    "write",
]

Result = dict[str, Any]
Row = dict[str, Any]
Costs = dict[str, tuple[float, float]]
"""For every case its seconds, and those of its opponent."""

Column = Callable[[Row], str]

WIDTH = 120
"""Columns of a table that goes to a file or a pipe."""


def console() -> Console:
    """Where tables go; a pipe has no width, and 80 columns would break their words."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=max(WIDTH, plain.width))


def shown(name: str, shape: str = "{}", scale: float = 1.0) -> Column:
    """A number of a row as a cell; a dash where the row has none.

    Examples
    --------
    >>> shown("seconds", "{:.1f}", 1e3)({"seconds": 0.25}), shown("seconds")({})
    ('250.0', '–')
    """

    def cell(row: Row) -> str:
        value = row.get(name)
        if value is None:
            return "–"
        return shape.format(value if scale == 1.0 else scale * value)

    return cell


def percent(name: str) -> Column:
    """A share of a row as a cell."""
    return shown(name, "{:.0%}")


def show(
    where: Console,
    rows: list[Row],
    columns: Mapping[str, Column],
    title: str,
    caption: str | None = None,
) -> None:
    """Print rows as a table; all columns but the first are of numbers."""
    table = Table(title=title, caption=caption)
    for place, heading in enumerate(columns):
        table.add_column(heading, justify="right" if place else "left")
    for row in rows:
        style = "bold red" if row.get("state") in ("slower", "gone") else None
        table.add_row(*(column(row) for column in columns.values()), style=style)
    where.print(table)


def markdown(rows: list[Row], columns: Mapping[str, Column]) -> str:
    """Rows as a table for the pages of docs/results.

    Examples
    --------
    >>> print(markdown([{"a": 0.25}], {"case": shown("name"), "s": shown("a", "{:.1f}")}))
    | case | s |
    | --- | --- |
    | – | 0.2 |
    """
    cells = [[column(row) for column in columns.values()] for row in rows]
    lines = [[*columns], ["---"] * len(columns), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(path: str | Path, content: Any) -> None:
    """Write JSON, with the folders it needs."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(Path(path), json.dumps(content, indent=2) + "\n")


@dataclass(frozen=True)
class Benchmark:
    """The base of all benchmarks; its fields are the options of the command.

    Class attributes
    ----------------
    name, help
        On the command line, and in its help.
    columns
        Heading of a column -> what it shows of a row.
    times_compilation
        Whether it must find nothing compiled on disk.
    series, axis, level, log
        The figure: legend -> the number of a row that a bar shows, the name of the axis, a line
        across it, and whether it is logarithmic. There is none without series.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    columns: ClassVar[Mapping[str, Column]] = {}
    times_compilation: ClassVar[bool] = False
    series: ClassVar[Mapping[str, str]] = {}
    axis: ClassVar[str] = ""
    level: ClassVar[tuple[str, float] | None] = None
    log: ClassVar[bool] = False

    def measure(self, where: Console) -> Result:
        """The numbers: ``rows``, and what holds for all of them beside the options."""
        raise NotImplementedError

    def words(self, result: Result) -> tuple[str, str | None]:
        """Title and caption of the table."""
        raise NotImplementedError

    def lines(self, result: Result) -> list[Row]:
        """The rows of the table."""
        return result["rows"]

    def label(self, row: Row) -> str:
        """The name of a row's bars."""
        return next(iter(self.columns.values()))(row)

    def costs(self, result: Result) -> Costs:
        """What is watched against slowdowns."""
        raise NotImplementedError

    def figure(self, result: Result) -> Any:
        """The numbers as bars."""
        rows = result["rows"]
        return bars(
            [self.label(row) for row in rows],
            {name: [row.get(key, math.nan) for row in rows] for name, key in self.series.items()},
            self.words(result)[0],
            self.axis,
            self.level,
            self.log,
        )

    def show(self, where: Console, result: Result) -> None:
        """Print the numbers."""
        show(where, self.lines(result), self.columns, *self.words(result))

    def run(self, out: Path | None = None, plot: Path | None = None) -> int:
        """Measure, print a table, write JSON and a figure; the exit code."""
        where = console()
        asked = {"benchmark": self.name, **asdict(self), "device": device_name()}
        result = {**asked, **self.measure(where), "machine": machine()}
        self.show(where, result)
        if out is not None:
            write(out, result)
        if plot is not None:
            plot.parent.mkdir(parents=True, exist_ok=True)
            plots.save(self.figure(result), plot)
        return 0
