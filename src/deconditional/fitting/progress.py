"""How long work tells whoever listens how far it is.

Work calls :func:`tell`; nothing happens unless a listener was set with :func:`listening`.

Examples
--------
>>> with listening(lambda step: print(step.what, step.done, step.total)):
...     tell("points", 4096, 10000)
points 4096 10000
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)


@dataclass(frozen=True)
class Step:
    """How far a piece of work is; `total` is None where nobody knows."""

    what: str
    done: int
    total: int | None = None
    note: str = ""


_listeners: list[Callable[[Step], None]] = []


def tell(what: str, done: int, total: int | None = None, note: str = "") -> None:
    """Tell the listener, if there is one."""
    if _listeners:
        _listeners[-1](Step(what, done, total, note))


@contextmanager
def listening(listener: Callable[[Step], None]) -> Iterator[None]:
    """Have a function called at every step of what runs inside."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.pop()


@contextmanager
def show(enabled: bool = True) -> Iterator[Callable[[str], None]]:
    """A progress display; gives a function that names the stage that begins."""
    if not enabled:
        yield lambda stage: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        stages: list[TaskID] = []

        def finish() -> None:
            if stages:
                bar.update(stages[-1], total=1, completed=1)

        def begin(stage: str) -> None:
            finish()
            stages.append(bar.add_task(stage, total=None, note=""))

        def listener(step: Step) -> None:
            if not stages:
                begin(step.what)
            note = step.note or (f"{step.done} of {step.total} {step.what}" if step.total else "")
            done = step.done if step.total else 0
            bar.update(stages[-1], total=step.total, completed=done, note=note)

        with listening(listener):
            yield begin
        finish()
