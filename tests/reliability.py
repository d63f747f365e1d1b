"""Faults tried on purpose: how many, and what became of them.

Tests marked ``reliability`` try a few of each kind. ``make reliability`` sets
``DECONDITIONAL_RELIABILITY`` to a folder: the same tests then try as many as docs/reliability.md
reports, and leave one record each there, from which this module prints that page's table:

    python tests/reliability.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TypeVar

FOLDER = os.environ.get("DECONDITIONAL_RELIABILITY")
Tried = TypeVar("Tried")


def tries(few: Tried, many: Tried) -> Tried:
    """What or how many to try: a few in the test suite, many for the table."""
    return many if FOLDER else few


def record(group: str, fault: str, tried: int, outcomes: dict[str, int]) -> None:
    """Keep what happened; outcomes are counts by words, such as {"clear error": 12}."""
    if sum(outcomes.values()) != tried:
        raise AssertionError(f"{fault}: {tried} tried, but {outcomes} adds up to something else")
    if FOLDER:
        folder = Path(FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        name = "".join(c if c.isalnum() else "-" for c in f"{group} {fault}".lower())[:120]
        found = {"group": group, "fault": fault, "tried": tried, "outcomes": outcomes}
        (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def table(folder: Path) -> str:
    """The records of a folder as Markdown, by group."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    lines = ["| | tried | what happened |", "|---|---|---|"]
    for group in sorted({each["group"] for each in found}):
        lines.append(f"| **{group}** | | |")
        for each in (f for f in found if f["group"] == group):
            happened = ", ".join(f"{n} {what}" for what, n in each["outcomes"].items() if n)
            lines.append(f"| {each['fault']} | {each['tried']} | {happened} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
