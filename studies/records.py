"""Records of a study on disk: written one after another, resumed, never mixed.

A folder of results holds

``results.json``
    a list of records, each with the fields that name its task;
``fits.json``
    how the work on each task went: warnings, state of the code;
``settings.json``
    what the data was; a folder never mixes records of different settings.

Files are replaced as a whole after every task, so an interrupted run keeps what it has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape

from deconditional.errors import UsageError
from deconditional.saving.outputs import write_atomically

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Record", "Results"]

Record = dict[str, Any]

REMEDY = "Choose another folder, or start anew with --overwrite."


class Results:
    """The records in a folder.

    Attributes
    ----------
    folder
        Where they are.
    keys
        Names of the fields that tell the records of one task from those of others.
    records
        Dictionaries with at least these fields.
    fits
        How the work on each task went, with the same fields.
    failures
        Messages of tasks that failed in this run; they leave no record, so a rerun tries again.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as here:
    ...     results = Results.open(Path(here), {"points": 400}, ("model", "seed"))
    ...     results.add([{"model": "cmp", "seed": 0, "rmse": 0.5}], {"warnings": []})
    ...     again = Results.open(Path(here), {"points": 400}, ("model", "seed"))
    >>> ("cmp", 0) in again, ("cmp", 1) in again
    (True, False)
    """

    def __init__(
        self,
        folder: Path,
        keys: Sequence[str],
        records: Iterable[Record] = (),
        fits: Iterable[Record] = (),
    ):
        self.folder = folder
        self.keys = tuple(keys)
        self.records = list(records)
        self.fits = list(fits)
        self.failures: list[str] = []

    @classmethod
    def open(
        cls,
        folder: Path,
        settings: Mapping[str, Any],
        keys: Sequence[str],
        *,
        overwrite: bool = False,
    ) -> Results:
        """Resume the records of a folder, or begin anew.

        Raises
        ------
        UsageError
            If the folder holds records of other settings, or a file that cannot be read, and
            `overwrite` is false.
        """
        results = cls(folder, keys)
        stated = _plain(settings)
        if not overwrite:
            earlier = _read(folder / "settings.json", {})
            results.records = _records(folder / "results.json", keys)
            results.fits = _records(folder / "fits.json", keys)
            if results.records and earlier != stated:
                raise UsageError(_difference(folder, earlier, stated))
        _write_json(folder / "settings.json", stated)
        results._save()
        return results

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return any(self.key(record) == tuple(key) for record in self.records)

    def key(self, record: Record) -> tuple[Any, ...]:
        """What names the task of a record."""
        return tuple(record[name] for name in self.keys)

    def add(self, records: Sequence[Record], how: Mapping[str, Any]) -> None:
        """Keep the records of one task, and how it went, on disk before anything else happens."""
        self.records += records
        done = {name: records[0][name] for name in self.keys}
        others = [fit for fit in self.fits if self.key(fit) != self.key(done)]
        self.fits = [*others, {**done, **how}]
        self._save()

    def failed(self, task: object, error: Exception, console: Console) -> None:
        """Keep the message of a task that failed, and show it."""
        self.failures.append(f"{task}: {type(error).__name__}: {error}")
        console.print(f"[red]failed[/red] {escape(self.failures[-1])}", highlight=False)

    def where(self, **fields: Any) -> list[Record]:
        """The records with these values, by their last key, such as the seed.

        Examples
        --------
        >>> results = Results(Path("here"), ("model", "seed"))
        >>> results.records = [{"model": "cmp", "seed": 1}, {"model": "cmp", "seed": 0}]
        >>> [record["seed"] for record in results.where(model="cmp")]
        [0, 1]
        """
        chosen = [r for r in self.records if all(r.get(k) == v for k, v in fields.items())]
        return sorted(chosen, key=lambda record: record[self.keys[-1]])

    def each(self, *names: str, **fields: Any) -> list[tuple[Any, ...]]:
        """The different values of some fields, in the order of the records."""
        chosen = [r for r in self.records if all(r.get(k) == v for k, v in fields.items())]
        return list(dict.fromkeys(tuple(record[name] for name in names) for record in chosen))

    def _save(self) -> None:
        # How the work went comes first: a record without it would never get it.
        _write_json(self.folder / "fits.json", self.fits)
        _write_json(self.folder / "results.json", self.records)


def _records(path: Path, keys: Sequence[str]) -> list[Record]:
    content = _read(path, [])
    if not all(isinstance(record, dict) and record.keys() >= set(keys) for record in content):
        raise _foreign(path)
    return content


def _read(path: Path, empty: Any) -> Any:
    if not path.exists():
        return empty
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{str(path)!r} cannot be read ({error}). {REMEDY}") from None
    if not isinstance(content, type(empty)):
        raise _foreign(path)
    return content


def _foreign(path: Path) -> UsageError:
    return UsageError(f"{str(path)!r} is not a file of this study. {REMEDY}")


def _write_json(path: Path, content: Any) -> None:
    write_atomically(path, json.dumps(_plain(content), indent=1, allow_nan=False) + "\n")


def _plain(content: Any) -> Any:
    """The same in JSON's own types. JSON has no infinities: they become null."""
    if isinstance(content, Mapping):
        return {str(name): _plain(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    if isinstance(content, float | np.floating):
        return float(content) if np.isfinite(content) else None
    return int(content) if isinstance(content, np.integer) else content


def _difference(folder: Path, earlier: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    names = [name for name in {**earlier, **now} if earlier.get(name) != now.get(name)]
    changed = ", ".join(
        f"{name} {earlier.get(name, 'not stated')} there and {now.get(name, 'not stated')} now"
        for name in names
    )
    return (
        f"{str(folder)!r} holds results of other settings ({changed}). Choose another folder, or "
        "discard them with --overwrite."
    )
