"""Has anything become slower? Quick benchmarks against a committed baseline of ratios.

A ratio is a time in units of a named opponent's, measured in the same run: lower is better. Times
are the best of several rounds, ours and the opponent's each on their own, and what looks slow is
measured again before it is called so: a busy machine can only make times longer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import against_dense, fit, kernels, predict, timing
from benchmarks.timing import device_name, write_json
from deconditional.errors import UsageError
from studies.provenance import machine

__all__ = ["LIMIT", "compare", "run"]

LIMIT = 1.3
"""A ratio that has grown by more than this is flagged."""

AGAIN = 2
"""Further rounds for a benchmark in which something looks slow."""

Times = dict[str, tuple[float, float]]


def _kernels(console: Console) -> Times:
    return kernels.costs(kernels.measure(points=8000, bags=100, dims=5, quick=True))


def _fit(console: Console) -> Times:
    result = fit.measure(points=2000, bags=40, inducing=60, restarts=1, budget=0.5, console=console)
    return fit.costs(result)


def _predict(console: Console) -> Times:
    result = predict.measure(
        points=5000,
        bags=100,
        dims=5,
        inducing=400,
        features=1000,
        queries=16_384,
        budget=0.5,
        quick=True,
        console=console,
    )
    return predict.costs(result)


def _against_dense(console: Console) -> Times:
    result = against_dense.measure(points=1200, bags=30, budget=0.5, console=console, fit=False)
    return against_dense.costs(result)


BENCHMARKS: dict[str, Callable[[Console], Times]] = {
    "kernels": _kernels,
    "fit": _fit,
    "predict": _predict,
    "against-dense": _against_dense,
}
"""What is measured: for every case its seconds, and those of its opponent."""


def run(
    baseline: str | Path = "benchmarks/baseline.json",
    update: bool = False,
    rounds: int = 2,
    out: str | Path | None = None,
) -> int:
    """Measure and compare; 1 if a ratio grew by more than the limit, or is gone."""
    path = Path(baseline)
    known = None if update else read_baseline(path)
    console = timing.console()
    times: Times = {}
    for name in BENCHMARKS:
        _measure_into(times, name, rounds, console)
    if known is not None:
        for name in sorted({case.split(":")[0] for case in _slow(times, known)}):
            if name in BENCHMARKS:
                _measure_into(times, name, AGAIN, console)
    ratios = ratios_of(times)
    result = {
        "benchmark": "check",
        "device": device_name(),
        "machine": machine(),
        "ratios": ratios,
    }
    if known is None:
        write_json(result, path)
        write_json(result, out)
        console.print(f"{len(ratios)} ratios written to {path}", highlight=False)
        return 0
    rows = compare(ratios, known["ratios"])
    _show(console, rows, known, result)
    write_json(result | {"baseline": str(path), "rows": rows}, out)
    flagged = [row["case"] for row in rows if row["state"] in ("slower", "gone")]
    if flagged:
        console.print(f"Flagged: {', '.join(flagged)}.", highlight=False)
        console.print("If this is meant, write a new baseline with --update.", highlight=False)
    return 1 if flagged else 0


def _measure_into(times: Times, name: str, rounds: int, console: Console) -> None:
    """Keep the best of what is known and of further rounds."""
    for number in range(rounds):
        with console.status(f"{name}, round {number + 1} of {rounds}"):
            measured = BENCHMARKS[name](Console(quiet=True))
        for case, (ours, theirs) in measured.items():
            key = f"{name}: {case}"
            best = times.get(key, (math.inf, math.inf))
            times[key] = (min(best[0], ours), min(best[1], theirs))


def ratios_of(times: Times) -> dict[str, float]:
    """Our best time over the opponent's best.

    Examples
    --------
    >>> ratios_of({"fit: CMP": (3.0, 2.0)})
    {'fit: CMP': 1.5}
    """
    return {case: float(f"{ours / theirs:.4g}") for case, (ours, theirs) in times.items()}


def _slow(times: Times, known: dict[str, Any]) -> list[str]:
    rows = compare(ratios_of(times), known["ratios"])
    return [row["case"] for row in rows if row["state"] == "slower"]


def compare(now: dict[str, float], then: dict[str, float]) -> list[dict[str, Any]]:
    """Every case with its ratio then and now, and whether that is a slowdown.

    Examples
    --------
    >>> for row in compare({"a": 1.4, "b": 1.2, "new": 3.0}, {"a": 1.0, "b": 1.0, "old": 2.0}):
    ...     print(row["case"], row["state"])
    a slower
    b as before
    old gone
    new new
    """
    rows = []
    for case, before in then.items():
        if case not in now:
            rows.append({"case": case, "then": before, "now": None, "change": None})
            rows[-1]["state"] = "gone"
            continue
        change = now[case] / before
        state = "slower" if change > LIMIT else "faster" if change < 1 / LIMIT else "as before"
        rows.append({"case": case, "then": before, "now": now[case], "change": change})
        rows[-1]["state"] = state
    for case, ratio in now.items():
        if case not in then:
            rows.append({"case": case, "then": None, "now": ratio, "change": None, "state": "new"})
    return rows


def read_baseline(path: Path) -> dict[str, Any]:
    """The baseline of a file, or an error that says what is wrong with it."""
    remedy = f"make one with deconditional benchmark check --baseline {path} --update"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no baseline {str(path)!r}; {remedy}.") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the baseline {str(path)!r} ({error}); {remedy}.") from None
    ratios = known.get("ratios") if isinstance(known, dict) else None
    if not isinstance(ratios, dict) or not ratios:
        raise UsageError(f"{str(path)!r} holds no ratios of benchmarks; {remedy}.")
    for case, ratio in ratios.items():
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < 1e12:
            raise UsageError(f"{case!r} in {str(path)!r} is {ratio!r}, no ratio; {remedy}.")
    return known


def _show(
    console: Console, rows: list[dict[str, Any]], known: dict[str, Any], result: dict[str, Any]
) -> None:
    table = Table(
        title="Times in units of a named opponent's, measured in the same run",
        caption=f"change: now over then; over {LIMIT} is a slowdown",
    )
    table.add_column("case")
    for heading in ("then", "now", "change", ""):
        table.add_column(heading, justify="right" if heading else "left")

    def text(value: float | None) -> str:
        return "–" if value is None else f"{value:.3g}"

    for row in rows:
        style = "bold red" if row["state"] in ("slower", "gone") else None
        cells = [text(row[key]) for key in ("then", "now", "change")]
        table.add_row(row["case"], *cells, row["state"], style=style)
    console.print(table)
    then, now = (r.get("machine", {}) for r in (known, result))
    for key in ("processor", "cores", "device"):
        if then.get(key) != now.get(key):
            console.print(
                f"The baseline was measured with {key} {then.get(key)}, this with {now.get(key)}: "
                "ratios may differ for that alone.",
                highlight=False,
            )
