"""How far a fit is, kept in a file, so that one that was stopped goes on.

A fit has stages: the optimiser, its repetition in double precision, sampling by NUTS, and the fits
that a fit is made of. Each has a section of the file with the state that it last gave, and the
identity of what it was made from. The file is a zip archive of plain arrays and JSON, as saved
models are, and is replaced as a whole.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from deconditional.errors import (
    Caution,
    CheckpointError,
    CheckpointWarning,
    SavedModelError,
    UsageError,
    tell_of,
)
from deconditional.saving.container import Archive, ArrayWriter, write
from deconditional.saving.objects import ObjectReader, ObjectWriter
from deconditional.saving.outputs import check_place, remove_leftovers

KIND = "deconditional checkpoint"

INTERVAL = 30.0
"""Seconds between two writes."""

SHARE = 0.01
"""Share of the time that goes into writing, at most."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a fit keeps how far it is, and how.

    Parameters
    ----------
    path
        A file, in a folder that exists. While it is written a second one lies beside it.
    interval
        Seconds between two writes. Whatever the interval, writing takes at most a hundredth of
        the time; but 0 writes after every step.
    keep
        Leave the file when the fit has ended. The same fit then ends at once.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from deconditional import BaggGP, Bags, Checkpoint
    >>> bags = Bags.from_points(np.arange(40.0), np.arange(40) // 4)
    >>> with tempfile.TemporaryDirectory() as here:
    ...     kept = Checkpoint(f"{here}/line.checkpoint", keep=True)
    ...     first = BaggGP(n_restarts=1).fit(bags, np.arange(10.0), checkpoint=kept)
    ...     again = BaggGP(n_restarts=1).fit(bags, np.arange(10.0), checkpoint=kept)
    >>> again.fit_report_.log_posterior == first.fit_report_.log_posterior
    True
    >>> again.fit_report_.details["resumed"].endswith("evaluations")
    True
    """

    path: str | os.PathLike[str]
    interval: float = INTERVAL
    keep: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if not isinstance(self.path, str | os.PathLike):
            raise TypeError(f"a checkpoint is the path of a file, not {self.path!r}.")
        if isinstance(self.interval, bool) or not isinstance(self.interval, int | float):
            raise TypeError(f"interval must be a number of seconds, not {self.interval!r}.")
        if not 0 <= self.interval < math.inf:
            raise ValueError(f"interval must be zero or more seconds, not {self.interval!r}.")

    def check(self) -> None:
        """Raise where the file cannot be written, or holds something else than a checkpoint."""
        place = Path(self.path)
        if place.is_dir():
            raise CheckpointError(f"the checkpoint {str(place)!r} is a folder; name a file.")
        check_place(place, "checkpoint")
        _read(place)

    def remove(self) -> None:
        """Delete the file, if it is there."""
        Path(self.path).unlink(missing_ok=True)


# --------------------------------------------------------------------------- what fits use


@contextmanager
def opened(
    checkpoint: str | os.PathLike[str] | Checkpoint | CheckpointPart | None,
) -> Iterator[CheckpointPart | None]:
    """The checkpoint of a fit while the fit runs; None for none.

    At the end the file is removed, unless it is to be kept or the fit was interrupted. Where an
    exception ends the fit, what there is is written first. A part of a checkpoint that is open
    stays open.
    """
    if checkpoint is None or isinstance(checkpoint, CheckpointPart):
        yield checkpoint
        return
    settings = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    file = _File(settings)
    try:
        yield CheckpointPart(file)
    except CheckpointError:  # it belongs to another fit
        raise
    except BaseException:
        file.write()
        raise
    if file.stopped or settings.keep:
        file.write()
    else:
        with suppress(OSError):
            settings.remove()


@dataclass(frozen=True)
class CheckpointPart:
    """Part of an open checkpoint that belongs to one of the fits that a fit is made of."""

    # file, prefix: the file, and what is before the names of its sections; None where nothing is
    # kept.
    file: _File | None = None
    prefix: str = ""
    identity: str = ""  # what sections have to agree with: data, model, options and version
    _sections: list[CheckpointSection] = field(default_factory=list)

    def section(self, name: str) -> CheckpointSection:
        """The section of a stage, with what the file has of it.

        A file whose first section is missing, or has another identity, belongs to another fit,
        which is an error. A later one depends on what was computed before, perhaps on another
        machine; it begins anew, and a warning says so.
        """
        if self.file is None:
            return CheckpointSection()
        self._sections.append(self.file.section(f"{self.prefix}{name}", self.identity))
        return self._sections[-1]

    @property
    def path(self) -> Path | None:
        """The file; None where nothing is kept."""
        return None if self.file is None else self.file.path

    @property
    def resumed(self) -> str:
        """What was taken from the file, in words."""
        return ", ".join(each.resumed for each in self._sections if each.resumed)


def within(kept: CheckpointPart | None, name: str = "") -> dict[str, Any]:
    """Keyword arguments of a fit within a fit: its part of the checkpoint, if there is one.

    Without a name that part is all of it. Models of other packages need not know of checkpoints.
    """
    if kept is None:
        return {}
    inner = f"{kept.prefix}{name}/" if name else kept.prefix
    return {"checkpoint": CheckpointPart(kept.file, inner)}


class CheckpointSection:
    """Section of a checkpoint: the state of one stage of a fit. One without a file keeps nothing.

    ``found`` is the state that the file had, arrays and plain values by name, None where there was
    none; ``resumed`` what the stage took from it, in words.
    """

    def __init__(
        self, file: _File | None = None, name: str = "", found: dict[str, Any] | None = None
    ):
        self.file, self.name, self.found, self.resumed = file, name, found, ""

    def keep(self, state: Mapping[str, Any]) -> None:
        """Keep arrays, texts, whole numbers and lists by name: written if it is time."""
        if self.file is not None:
            self.file.keep(self.name, state)

    def write(self, stopped: bool = False) -> None:
        """Write now: the stage has ended, or was stopped, after which the file stays."""
        if self.file is not None:
            self.file.stopped = self.file.stopped or stopped
            self.file.write()

    def starts(self, unit: str) -> list[np.ndarray]:
        """Vectors to begin from, the best first, as ``vectors`` of the state; none without any.

        What was done before is ``done``, so many of a unit.
        """
        if self.found is None:
            return []
        self.resumed = f"{self.found['done']} {unit}"
        return list(self.found["vectors"])


# --------------------------------------------------------------------------- the file


class _File:
    """An open checkpoint: what stages have given to be kept, and what the file has besides."""

    def __init__(self, settings: Checkpoint):
        settings.check()
        self.settings, self.path = settings, Path(settings.path)
        self.stopped = self._failed = False
        self._due = time.monotonic() + settings.interval
        self._lock = threading.Lock()
        self._identities: dict[str, str] = {}
        """Identities of the stages that have begun."""
        remove_leftovers(self.path)
        self._states = _read(self.path)
        """Identity and state of every section."""

    def section(self, name: str, identity: str) -> CheckpointSection:
        if self.stopped:  # what follows an interrupted stage is made from half-learnt numbers
            return CheckpointSection()
        known, state = self._states.get(name, (None, None))
        if self._states and not self._identities and known != identity:
            raise CheckpointError(
                f"the checkpoint {str(self.path)!r} belongs to another fit: its data, model, "
                "options or version differ. Name another file, or delete it to begin anew."
            )
        self._identities[name] = identity
        if state is not None and known != identity:
            _warn(
                f"{name!r} in the checkpoint {str(self.path)!r} was made from other numbers or "
                "options; it begins anew."
            )
            del self._states[name]
            state = None
        return CheckpointSection(self, name, state)

    def keep(self, name: str, state: Mapping[str, Any]) -> None:
        """Take over a state; written if it is time, but while another thread writes."""
        self._states = {**self._states, name: (self._identities[name], dict(state))}
        if time.monotonic() >= self._due:
            self.write(wait=False)

    def write(self, wait: bool = True) -> None:
        """Write all sections."""
        if not self._states or not self._lock.acquire(blocking=wait):
            return
        began = time.monotonic()
        try:
            _write(self.path, self._states)
        except UsageError as error:
            if not self._failed:
                self._failed = True
                _warn(f"{error} The fit goes on without a checkpoint.")
        finally:
            now = time.monotonic()
            interval = self.settings.interval
            self._due = now + (max(interval, (now - began) / SHARE) if interval else 0.0)
            self._lock.release()


def _write(path: Path, sections: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
    arrays = ArrayWriter()
    writer = ObjectWriter(arrays)
    states = [[name, identity, writer.write(dict(s))] for name, (identity, s) in sections.items()]
    write(path, KIND, {"sections": states}, arrays)


def _read(path: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """The sections of a file, none of one that is empty or not there."""
    if not path.exists() or (path.is_file() and path.stat().st_size == 0):
        return {}
    try:
        with Archive.opened(path, KIND) as archive:
            read = ObjectReader(archive).read
            return {name: (made_from, read(s)) for name, made_from, s in archive.header["sections"]}
    except SavedModelError as error:
        raise CheckpointError(
            f"{str(path)!r} exists and is no checkpoint, or is damaged, so it is left as it is: "
            f"{str(error).partition(': ')[2]} Delete it to begin anew, or name another file."
        ) from None


def _warn(message: str) -> None:
    tell_of([Caution(CheckpointWarning, message)])
