"""Has anything become slower? Quick benchmarks against a committed baseline of ratios.

A ratio is a time in units of a named opponent's, measured in the same run: lower is better. Times
are the best of several rounds, ours and the opponent's each on their own, and what looks slow is
measured again before it is called so: a busy machine can only make times longer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from benchmarks.against_dense import AgainstDense
from benchmarks.fit import Fit
from benchmarks.frame import Benchmark, Costs, Result, Row, console, show, shown, write
from benchmarks.kernels import Kernels
from benchmarks.predict import Predict
from benchmarks.timing import device_name
from deconditional.errors import UsageError
from studies.command import option
from studies.provenance import machine

__all__ = ["LIMIT", "Check", "compare", "ratios_of", "read_baseline"]

LIMIT = 1.3
"""A ratio that has grown by more than this is flagged."""

AGAIN = 2
"""Further rounds for a benchmark in which something looks slow."""


def _costs(benchmark: Benchmark) -> Callable[[Console], Costs]:
    return lambda where: benchmark.costs(benchmark.measure(where))


def _dense(where: Console) -> Costs:
    small = AgainstDense(points=1200, bags=30, budget=0.5)
    return small.costs(small.evaluations(where))


WATCHED: dict[str, Callable[[Console], Costs]] = {
    "kernels": _costs(Kernels(points=8000, bags=100, types=("float32",), budget=0.5)),
    "fit": _costs(Fit(points=2000, bags=40, inducing=60, restarts=1, budget=0.5)),
    "predict": _costs(Predict(points=5000, bags=100, queries=16_384, blocks=(), budget=0.5)),
    "against-dense": _dense,
}
"""What is measured: for every case its seconds, and those of its opponent."""


@dataclass(frozen=True)
class Check(Benchmark):
    """Small kernels, fit, predict and against-dense, compared with a file of ratios."""

    name: ClassVar[str] = "check"
    help: ClassVar[str] = "quick benchmarks against a baseline of ratios; 1 after a slowdown"
    columns: ClassVar[Any] = {
        "case": shown("case"),
        "then": shown("then", "{:.3g}"),
        "now": shown("now", "{:.3g}"),
        "change": shown("change", "{:.3g}"),
        "": shown("state"),
    }

    baseline: str = option("benchmarks/baseline.json", "its ratios", metavar="FILE.json")
    update: bool = option(False, "write a new baseline instead of comparing")
    rounds: int = option(2, "measurements, of which the best counts", quick=1)

    def run(self, out: Path | None = None, plot: Path | None = None) -> int:
        """Measure and compare; 1 if a ratio grew by more than the limit, or is gone."""
        path = Path(self.baseline)
        earlier = None if self.update else read_baseline(path)
        where = console()
        times: Costs = {}
        for name in WATCHED:
            _measure_into(times, name, self.rounds, where)
        if earlier is not None:
            for name in _slow(times, earlier["ratios"]):
                _measure_into(times, name, AGAIN, where)
        facts = {"benchmark": self.name, "device": device_name(), "machine": machine()}
        result: Result = {**facts, "ratios": ratios_of(times)}
        if earlier is None:
            for target in {path, out or path}:
                write(target, result)
            where.print(f"{len(times)} ratios written to {path}", highlight=False)
            return 0
        rows = compare(result["ratios"], earlier["ratios"])
        title = "Times in units of a named opponent's, measured in the same run"
        caption = f"change: now over then; over {LIMIT} is a slowdown"
        show(where, rows, self.columns, title, caption)
        _name_machines(where, earlier.get("machine", {}), result["machine"])
        if out is not None:
            write(out, result | {"baseline": str(path), "rows": rows})
        flagged = [row["case"] for row in rows if row["state"] in ("slower", "gone")]
        if flagged:
            where.print(f"Flagged: {', '.join(flagged)}.", highlight=False)
            where.print("If this is meant, write a new baseline with --update.", highlight=False)
        return 1 if flagged else 0


def _measure_into(times: Costs, name: str, rounds: int, where: Console) -> None:
    """Keep the best of what is known and of further rounds."""
    for number in range(rounds):
        with where.status(f"{name}, round {number + 1} of {rounds}"):
            measured = WATCHED[name](Console(quiet=True))
        for case, (ours, theirs) in measured.items():
            best = times.get(f"{name}: {case}", (math.inf, math.inf))
            times[f"{name}: {case}"] = (min(best[0], ours), min(best[1], theirs))


def ratios_of(times: Costs) -> dict[str, float]:
    """Our best time over the opponent's best.

    Examples
    --------
    >>> ratios_of({"fit: CMP": (3.0, 2.0)})
    {'fit: CMP': 1.5}
    """
    return {case: float(f"{ours / theirs:.4g}") for case, (ours, theirs) in times.items()}


def _slow(times: Costs, then: dict[str, float]) -> list[str]:
    """The benchmarks in which something looks slow."""
    rows = compare(ratios_of(times), then)
    names = {row["case"].split(":")[0] for row in rows if row["state"] == "slower"}
    return sorted(names & set(WATCHED))


def compare(now: dict[str, float], then: dict[str, float]) -> list[Row]:
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
    for case in dict.fromkeys([*then, *now]):
        row: Row = {"case": case, "then": then.get(case), "now": now.get(case), "change": None}
        if case not in now:
            row["state"] = "gone"
        elif case not in then:
            row["state"] = "new"
        else:
            change = row["change"] = now[case] / then[case]
            row["state"] = (
                "slower" if change > LIMIT else "faster" if change < 1 / LIMIT else "as before"
            )
        rows.append(row)
    return rows


def read_baseline(path: Path) -> dict[str, Any]:
    """The baseline of a file, or an error that says what is wrong with it."""
    remedy = f"make one with python -m benchmarks check --baseline {path} --update"
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


def _name_machines(where: Console, then: dict[str, Any], now: dict[str, Any]) -> None:
    for key in ("processor", "cores", "device"):
        if then.get(key) != now.get(key):
            where.print(
                f"The baseline was measured with {key} {then.get(key)}, this with {now.get(key)}: "
                "ratios may differ for that alone.",
                highlight=False,
            )
