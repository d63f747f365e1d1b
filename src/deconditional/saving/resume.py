"""How far a fit is, kept in a file, so that one that was stopped goes on.

A fit has stages: the optimiser, its repetition in double precision, sampling by NUTS, and the fits
that a fit is made of. Each has a section of the file with a state of its own and the identity of
what it was made from. The file is a zip archive of plain arrays and JSON, as saved models are, and
is replaced as a whole.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deconditional.errors import (
    Caution,
    CheckpointError,
    CheckpointWarning,
    SavedModelError,
    UsageError,
    tell_of,
)
from deconditional.saving.container import Archive, ArrayWriter, refuse, write
from deconditional.saving.objects import ObjectReader, ObjectWriter
from deconditional.saving.outputs import check_place, remove_leftovers

KIND = "deconditional checkpoint"

INTERVAL = 30.0
"""Seconds between two writes."""

SHARE = 0.01
"""Of the time goes into writing, at most."""

BEGINNING = f'{{"format":"{KIND}"'.encode()
"""What is among the first bytes of every checkpoint."""


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
        if BEGINNING not in (_first_bytes(place) or BEGINNING):
            raise CheckpointError(
                f"{str(place)!r} exists and is no checkpoint, so it is left as it is; name another "
                "file."
            )

    def remove(self) -> None:
        """Delete the file, if it is there."""
        Path(self.path).unlink(missing_ok=True)


def _first_bytes(place: Path) -> bytes:
    """The beginning of a file; nothing where there is none."""
    try:
        with place.open("rb") as file:
            return file.read(200)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise CheckpointError(
            f"cannot read the checkpoint {str(place)!r}: {error.strerror or error}."
        ) from None


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
        file.save()
        raise
    file.end()


@dataclass(frozen=True)
class CheckpointPart:
    """Part of an open checkpoint that belongs to one of the fits that a fit is made of."""

    file: _File
    prefix: str = ""

    @property
    def path(self) -> Path:
        """Path of the checkpoint."""
        return self.file.path

    def within(self, name: str) -> CheckpointPart:
        """The part of a fit within this one."""
        return CheckpointPart(self.file, f"{self.prefix}{name}/")

    def section(self, name: str, identity: str) -> CheckpointSection:
        """The section of a stage, with what the file has of it.

        A file whose first section is missing, or has another identity, belongs to another fit,
        which is an error. A later one depends on what was computed before, perhaps on another
        machine; it begins anew, and a warning says so.
        """
        return self.file.section(f"{self.prefix}{name}", identity)


def within(kept: CheckpointPart | None, name: str = "") -> dict[str, Any]:
    """Keyword arguments of a fit within a fit: its part of the checkpoint, if there is one.

    Without a name that part is all of it. Models of other packages need not know of checkpoints.
    """
    return {} if kept is None else {"checkpoint": kept.within(name) if name else kept}


class CheckpointSection:
    """Section of a checkpoint: the state of one stage of a fit.

    Attributes
    ----------
    found
        The state that the file had, arrays and plain values by name; None where there was none.
    resumed
        What the stage took from it, in words.
    """

    def __init__(self, file: _File, name: str, identity: str, found: dict[str, Any] | None):
        self._file, self.name, self.identity = file, name, identity
        self.found = found
        self.resumed = ""
        self.state: Callable[[], dict[str, Any]] = lambda: found or {}

    @property
    def path(self) -> Path:
        """Path of the checkpoint."""
        return self._file.path

    def keep(self, state: Callable[[], dict[str, Any]]) -> None:
        """Write from now on what this function returns: arrays, texts, whole numbers, lists."""
        self.state = state

    def offer(self) -> None:
        """Write the checkpoint, if it is time."""
        self._file.offer()

    def complete(self) -> None:
        """Write now: a stage has ended, and the next may be long in compiling."""
        self._file.save()

    def stopped(self) -> None:
        """Write now, and leave the file when the fit ends: it was interrupted."""
        self._file.stopped = True
        self._file.save()

    def useless(self, why: str) -> None:
        """Forget what the file had, for it cannot be used."""
        _warn(
            f"{self.name!r} in the checkpoint {str(self.path)!r} cannot be used ({why}); it "
            "begins anew."
        )
        self.found = None
        self.state = dict


# --------------------------------------------------------------------------- the file


class _File:
    """An open checkpoint: sections in use, and those that the file has besides."""

    def __init__(self, settings: Checkpoint):
        settings.check()
        self.settings = settings
        self.path = Path(settings.path)
        self.stopped = False
        self._sections: dict[str, CheckpointSection] = {}
        self._lock = threading.Lock()
        self._due = time.monotonic() + settings.interval
        self._failed = False
        remove_leftovers(self.path)
        self._found = _read(self.path) if _first_bytes(self.path) else {}

    def section(self, name: str, identity: str) -> CheckpointSection:
        if self.stopped:  # what follows an interrupted stage is made from half-learnt numbers
            return CheckpointSection(self, name, identity, None)
        known = self._found.get(name)
        if self._found and not self._sections and (known is None or known[0] != identity):
            raise CheckpointError(
                f"the checkpoint {str(self.path)!r} belongs to another fit: its data, model, "
                "options or version differ. Name another file, or delete it to begin anew."
            )
        self._found.pop(name, None)
        if known is not None and known[0] != identity:
            _warn(
                f"{name!r} in the checkpoint {str(self.path)!r} was made from other numbers or "
                "options; it begins anew."
            )
            known = None
        section = CheckpointSection(self, name, identity, None if known is None else known[1])
        self._sections[name] = section
        return section

    def offer(self) -> None:
        if time.monotonic() >= self._due:
            self.save(wait=False)

    def save(self, wait: bool = True) -> None:
        """Write all sections; without `wait`, not while another thread does."""
        if not self._sections or not self._lock.acquire(blocking=wait):
            return
        began = time.monotonic()
        try:
            states = {name: (each.identity, each.state()) for name, each in self._sections.items()}
            _write(self.path, {**self._found, **states})
        except UsageError as error:
            if not self._failed:
                self._failed = True
                _warn(f"{error} The fit goes on without a checkpoint.")
        finally:
            now = time.monotonic()
            interval = self.settings.interval
            self._due = now + (max(interval, (now - began) / SHARE) if interval else 0.0)
            self._lock.release()

    def end(self) -> None:
        if self.stopped or self.settings.keep:
            self.save()
        else:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)


def _write(path: Path, sections: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
    arrays = ArrayWriter()
    writer = ObjectWriter(arrays)
    states = [[name, identity, writer.write(dict(s))] for name, (identity, s) in sections.items()]
    write(path, KIND, {"sections": states}, arrays)


def _read(path: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """The sections of a file; a damaged one is put aside."""
    try:
        with Archive.opened(path, KIND) as archive:
            reader = ObjectReader(archive)
            sections = {}
            for name, identity, state in archive.header["sections"]:
                sections[str(name)] = (str(identity), reader.read(state))
                if not isinstance(sections[name][1], dict):
                    refuse(f"the section {name[:60]!r} has no state")
            archive.check_all_used()
            return sections
    except SavedModelError as error:
        aside = path.with_name(f"{path.name}.damaged")
        os.replace(path, aside)
        reason = str(error).partition(": ")[2] or str(error)
        _warn(
            f"the checkpoint {str(path)!r} is damaged ({reason.rstrip('.')}); it is now "
            f"{str(aside)!r}, and the fit begins anew."
        )
        return {}


def _warn(message: str) -> None:
    tell_of([Caution(CheckpointWarning, message)])
