"""Tables of Markdown: cells from records, comparisons of models, notes on how fits went."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np
from scipy.stats import wilcoxon

from studies.records import Record, Results

__all__ = [
    "LEAST_SEEDS",
    "Cell",
    "code_notes",
    "count",
    "highest",
    "lowest",
    "markdown",
    "mean",
    "mean_and_sd",
    "summary",
    "values",
    "warning_notes",
    "wilcoxon_table",
]

Cell = Callable[[Sequence[Record]], str]

LEAST_SEEDS = 6
"""With five pairs the smallest two-tailed p-value is 2/2⁵ = 0.06: nothing can reach 5%."""

NOTHING = "–"


# ---------------------------------------------------------------------- cells and rows


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table, line by line.

    Examples
    --------
    >>> markdown(["model", "RMSE"], [["cmp", 0.5]])
    ['| model | RMSE |', '|---|---|', '| cmp | 0.5 |']
    """
    lines = [head, *rows]
    texts = [f"| {' | '.join(map(str, line))} |" for line in lines]
    return [texts[0], "|---" * len(head) + "|", *texts[1:]]


def values(records: Iterable[Record], name: str) -> np.ndarray:
    """One score of all records that have it; NaN where it was not finite.

    Examples
    --------
    >>> values([{"rmse": 1.0}, {"rmse": None}, {}], "rmse")
    array([ 1., nan])
    """
    return np.array([record[name] for record in records if name in record], dtype=float)


def _cell(name: str, text: Callable[[np.ndarray], str]) -> Cell:
    def cell(records: Sequence[Record]) -> str:
        numbers = values(records, name)
        numbers = numbers[np.isfinite(numbers)]
        return text(numbers) if len(numbers) else NOTHING

    return cell


def mean(name: str, digits: str = ".3f") -> Cell:
    """The mean of a score as a cell.

    Examples
    --------
    >>> mean("rmse")([{"rmse": 0.5}, {"rmse": 0.7}]), mean("rmse")([])
    ('0.600', '–')
    """
    return _cell(name, lambda numbers: f"{numbers.mean():{digits}}")


def mean_and_sd(name: str, digits: str = ".3f") -> Cell:
    """Mean and sample standard deviation of a score as a cell.

    Examples
    --------
    >>> mean_and_sd("rmse")([{"rmse": 0.5}, {"rmse": 0.7}]), mean_and_sd("rmse")([{"rmse": 0.5}])
    ('0.600 ± 0.141', '0.500')
    """

    def text(numbers: np.ndarray) -> str:
        if len(numbers) == 1:
            return f"{numbers[0]:{digits}}"
        return f"{numbers.mean():{digits}} ± {numbers.std(ddof=1):{digits}}"

    return _cell(name, text)


def highest(name: str, digits: str = ".3f") -> Cell:
    """The highest value of a score as a cell."""
    return _cell(name, lambda numbers: f"{numbers.max():{digits}}")


def lowest(name: str, digits: str = ".3f") -> Cell:
    """The lowest value of a score as a cell."""
    return _cell(name, lambda numbers: f"{numbers.min():{digits}}")


def count(records: Sequence[Record]) -> str:
    """How many records there are, as a cell."""
    return str(len(records))


def summary(
    results: Results, matching: str, models: Iterable[str], columns: Mapping[str, Cell]
) -> list[str]:
    """A row for every model that has records: what each column makes of them.

    Examples
    --------
    >>> from pathlib import Path
    >>> results = Results(Path("here"), ("matching", "model", "seed"))
    >>> results.records = [{"matching": "half", "model": "cmp", "seed": 0, "rmse": 0.5}]
    >>> summary(results, "half", ["cmp", "gpr"], {"seeds": count, "RMSE": mean("rmse")})[2:]
    ['| cmp | 1 | 0.500 |']
    """
    rows = []
    for model in models:
        if mine := results.where(matching=matching, model=model):
            rows.append([model, *(cell(mine) for cell in columns.values())])
    return markdown(["model", *columns], rows)


# ---------------------------------------------------------------------- comparisons


def wilcoxon_table(results: Results, matching: str, models: Sequence[str], name: str) -> list[str]:
    """Two-tailed Wilcoxon signed-rank p-values of one score between all pairs, as Markdown lines.

    Pairs are compared on the seeds both have. Below six of them no p-value can reach 5%, and the
    lines say so instead.
    """
    scores = {
        model: dict(zip(values(kept, "seed"), values(kept, name), strict=True))
        for model in models
        if (kept := results.where(matching=matching, model=model))
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
    rows = []
    for i, model in enumerate(present[1:], start=1):
        cells = [_p_value(scores[model], scores[other]) for other in present[:i]]
        rows.append([model, *cells, *[""] * (len(present) - 1 - i)])
    said = "Two-tailed p-values over common seeds, not corrected for the number of pairs."
    return [said, "", *markdown(["", *present[:-1]], rows)]


def _p_value(a: Mapping[float, float], b: Mapping[float, float]) -> str:
    seeds = _common(a, b)
    if len(seeds) < LEAST_SEEDS:
        return f"{len(seeds)} seeds"
    differences = np.array([a[seed] - b[seed] for seed in seeds])
    if not differences.any():
        return "equal"
    return f"{wilcoxon(differences).pvalue:.2g}"


def _common(a: Mapping[float, float], b: Mapping[float, float]) -> list[float]:
    return [seed for seed in a if seed in b and np.isfinite(a[seed]) and np.isfinite(b[seed])]


# ---------------------------------------------------------------------- notes


def warning_notes(results: Results) -> list[str]:
    """How many fits came with a warning, and which, as Markdown lines."""
    warned = [fit for fit in results.fits if fit["warnings"]]
    if not warned:
        return [f"Fits with a warning: none of {len(results.fits)}."]
    total, hit = (
        Counter(" ".join(str(fit[key]) for key in results.keys[:2]) for fit in fits)
        for fits in (results.fits, warned)
    )
    counts = ", ".join(f"{name} {hit[name]} of {total[name]}" for name in hit)
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
