"""Records of an experiment on disk: one after another, resumed, summed up and compared.

A :class:`Results` folder holds

``results.json``
    a list of records, one for each fitted model;
``fits.json``
    how each of these fits went: time spent compiling, warnings, state of the code;
``settings.json``
    what the data was; a folder never mixes records of different settings.

Files are replaced as a whole after every record, so an interrupted run keeps what it has. A study
that keeps all it has in one file resumes with :func:`finished`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deconditional.errors import UsageError
from deconditional.saving.outputs import write_atomically

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Record",
    "Results",
    "code_notes",
    "finished",
    "mean_and_sd",
    "table_head",
    "table_line",
    "values",
    "warning_notes",
    "wilcoxon_table",
]

Record = dict[str, Any]
Key = tuple[str, str, int]

KEYS = ("matching", "model", "seed")
"""What tells one record from another."""

LEAST_SEEDS = 6
"""With five pairs the smallest two-tailed p-value is 2/2⁵ = 0.06: nothing can reach 5%."""

REMEDY = "Choose another folder, or start anew with --overwrite."


class Results:
    """The records in a folder.

    Attributes
    ----------
    folder
        Where they are.
    records
        Dictionaries with at least ``matching``, ``model`` and ``seed``.
    fits
        How the fits went, with the same three keys.
    failures
        Messages of fits that failed in this run; they leave no record, so a rerun tries again.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as here:
    ...     results = Results.open(Path(here), {"n_points": 400})
    ...     results.add({"matching": "direct", "model": "cmp", "seed": 0, "rmse": 0.5})
    ...     again = Results.open(Path(here), {"n_points": 400})
    >>> ("direct", "cmp", 0) in again, ("direct", "cmp", 1) in again
    (True, False)
    """

    def __init__(self, folder: Path, records: list[Record], fits: list[Record]):
        self.folder = folder
        self.records = records
        self.fits = fits
        self.failures: list[str] = []

    @classmethod
    def open(cls, folder: Path, settings: Mapping[str, Any], *, overwrite: bool = False) -> Results:
        """Resume the records of a folder, or begin anew.

        Raises
        ------
        UsageError
            If the folder holds records of other settings, or a file that cannot be read, and
            `overwrite` is false.
        """
        if not overwrite:
            earlier = _read(folder / "settings.json", {})
            records = _records(folder / "results.json")
            if records and earlier != dict(settings):
                raise UsageError(_difference(folder, earlier, settings))
            results = cls(folder, records, _records(folder / "fits.json"))
        else:
            results = cls(folder, [], [])
        _write_json(folder / "settings.json", dict(settings))
        results._save()
        return results

    def __contains__(self, key: Key) -> bool:
        return any(_key(record) == key for record in self.records)

    def add(self, record: Record, fit: Mapping[str, Any] | None = None) -> None:
        """Keep a record, and how its fit went, on disk before anything else happens."""
        self.records.append(record)
        if fit is not None:
            named = {name: record[name] for name in KEYS}
            others = [other for other in self.fits if _key(other) != _key(record)]
            self.fits = [*others, {**named, **fit}]
        self._save()

    def failed(self, task: object, error: Exception, console: Console) -> None:
        """Keep the message of a fit that failed, and show it.

        Examples
        --------
        >>> import tempfile
        >>> from rich.console import Console
        >>> with tempfile.TemporaryDirectory() as here:
        ...     results = Results.open(Path(here), {})
        ...     results.failed("direct cmp seed 0", RuntimeError("no root"), Console(quiet=True))
        >>> results.failures
        ['direct cmp seed 0: RuntimeError: no root']
        """
        from rich.markup import escape

        self.failures.append(f"{task}: {type(error).__name__}: {error}")
        console.print(f"[red]failed[/red] {escape(self.failures[-1])}", highlight=False)

    def of(self, matching: str, model: str) -> list[Record]:
        """The records of one model, by seed."""
        chosen = [r for r in self.records if (r["matching"], r["model"]) == (matching, model)]
        return sorted(chosen, key=lambda record: record["seed"])

    def _save(self) -> None:
        # How a fit went comes first: a record without it would never get it.
        _write_json(self.folder / "fits.json", self.fits)
        _write_json(self.folder / "results.json", self.records)


def _key(record: Record) -> Key:
    return record["matching"], record["model"], record["seed"]


def _records(path: Path) -> list[Record]:
    content = _read(path, [])
    if not all(isinstance(record, dict) and record.keys() >= set(KEYS) for record in content):
        raise _foreign(path)
    return content


def _read(path: Path, empty: Any) -> Any:
    if not path.exists():
        return empty
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"{str(path)!r} cannot be read ({error}). {REMEDY}") from None
    if not isinstance(content, type(empty)):
        raise _foreign(path)
    return content


def _foreign(path: Path) -> UsageError:
    return UsageError(f"{str(path)!r} is not a file of this experiment. {REMEDY}")


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


# ---------------------------------------------------------------------- studies in one file


def finished(
    path: Path,
    stated: Mapping[str, Any],
    studies: Mapping[str, type],
    *,
    remedy: str = REMEDY,
) -> dict[str, Any]:
    """What an earlier run with the same settings has finished.

    Parameters
    ----------
    path
        The JSON file of that run. Without it nothing is finished.
    stated
        Entries the file must have, and their values: what the run was asked for.
    studies
        Entries to keep, where the file has them, and the type of each.
    remedy
        What a complaint advises.

    Raises
    ------
    UsageError
        If the file is not one of this study, or states something else.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as here:
    ...     path = Path(here) / "results.json"
    ...     _ = path.write_text('{"settings": {"seeds": 3}, "machine": {}, "steps": [1, 2]}')
    ...     finished(path, {"settings": {"seeds": 3}}, {"trace": list, "steps": list})
    {'steps': [1, 2]}
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict) or not content.keys() >= stated.keys():
        raise _not_of_this_study(path, remedy)
    if any(content[name] != value for name, value in stated.items()):
        raise UsageError(f"{str(path)!r} holds results of other settings. {remedy}")
    kept = {name: content[name] for name in studies if name in content}
    if not all(isinstance(study, studies[name]) for name, study in kept.items()):
        raise _not_of_this_study(path, remedy)
    return kept


def _not_of_this_study(path: Path, remedy: str) -> UsageError:
    return UsageError(f"{str(path)!r} is not a file of this study. {remedy}")


# ---------------------------------------------------------------------- summaries


def table_line(*cells: str) -> str:
    """A line of a Markdown table.

    Examples
    --------
    >>> table_line("cmp", "0.50", "")
    '| cmp | 0.50 |  |'
    """
    return f"| {' | '.join(cells)} |"


def table_head(*names: str) -> list[str]:
    """The names of a Markdown table's columns, and the line below them.

    Examples
    --------
    >>> table_head("model", "RMSE")
    ['| model | RMSE |', '|---|---|']
    """
    return [table_line(*names), "|---" * len(names) + "|"]


def values(records: Sequence[Record], name: str) -> np.ndarray:
    """One score of all records; NaN where it was not finite."""
    return np.array([record[name] for record in records], dtype=float)


def mean_and_sd(numbers: np.ndarray, digits: int = 3) -> str:
    """Mean and sample standard deviation, as in a table.

    Examples
    --------
    >>> mean_and_sd(np.array([0.5, 0.7])), mean_and_sd(np.array([0.5])), mean_and_sd(np.array([]))
    ('0.600 ± 0.141', '0.500', '–')
    """
    if len(numbers) == 0:
        return "–"
    if len(numbers) == 1:
        return f"{numbers[0]:.{digits}f}"
    return f"{numbers.mean():.{digits}f} ± {numbers.std(ddof=1):.{digits}f}"


def wilcoxon_table(results: Results, matching: str, models: Sequence[str], name: str) -> list[str]:
    """Two-tailed Wilcoxon signed-rank p-values of one score between all pairs, as Markdown lines.

    Pairs are compared on the seeds both have. Below six of them no p-value can reach 5%, and the
    lines say so instead.
    """
    scores = {
        model: dict(zip(values(kept, "seed"), values(kept, name), strict=True))
        for model in models
        if (kept := results.of(matching, model))
    }
    if len(scores) < 2:
        return ["One model alone: nothing to compare."]
    shared = [len(_common(scores[a], scores[b])) for a, b in combinations(scores, 2)]
    if max(shared) < LEAST_SEEDS:
        return [
            f"Not tested: at most {max(shared)} seed(s) in common. With fewer than {LEAST_SEEDS} "
            "the test has no power: not even the smallest p-value it can give is below 0.05."
        ]
    present = list(scores)
    lines = [
        "Two-tailed p-values over common seeds, not corrected for the number of pairs.",
        "",
        table_line("", *present[:-1]),
        table_line(*["---"] * len(present)),
    ]
    for i, model in enumerate(present[1:], start=1):
        cells = [_p_value(scores[model], scores[other]) for other in present[:i]]
        lines.append(table_line(model, *cells, *[""] * (len(present) - 1 - i)))
    return lines


def _p_value(a: Mapping[float, float], b: Mapping[float, float]) -> str:
    from scipy.stats import wilcoxon

    seeds = _common(a, b)
    if len(seeds) < LEAST_SEEDS:
        return f"{len(seeds)} seeds"
    differences = np.array([a[seed] - b[seed] for seed in seeds])
    if not differences.any():
        return "equal"
    return f"{wilcoxon(differences).pvalue:.2g}"


def _common(a: Mapping[float, float], b: Mapping[float, float]) -> list[float]:
    return [seed for seed in a if seed in b and np.isfinite(a[seed]) and np.isfinite(b[seed])]


def warning_notes(fits: Sequence[Record], matching: str) -> list[str]:
    """How many fits of each model came with a warning, and which, as Markdown lines."""
    mine = [fit for fit in fits if fit["matching"] == matching]
    warned = [fit for fit in mine if fit["warnings"]]
    if not warned:
        return [f"Fits with a warning: none of {len(mine)}."]
    total, hit = Counter(f["model"] for f in mine), Counter(f["model"] for f in warned)
    counts = ", ".join(f"{model} {hit[model]} of {total[model]}" for model in hit)
    # Messages that differ only in a measured number are one message.
    messages = Counter(re.sub(r"\d+\.\d+", "…", m) for fit in warned for m in fit["warnings"])
    return [
        f"Fits with a warning: {counts}.",
        "",
        *(f"- {number} x {message}" for message, number in messages.most_common()),
    ]


def code_notes(fits: Sequence[Record]) -> list[str]:
    """Which state of the code made the records, as Markdown lines."""
    states = Counter(fit["code"] for fit in fits)
    if len(states) < 2:
        return [f"- State of the code: {state}" for state in states]
    shares = ", ".join(f"{state} ({number} fits)" for state, number in states.items())
    return [
        f"- **The records come from different states of the code**: {shares}. Discard the older "
        "ones with --overwrite."
    ]
