"""The model for unmatched data against Bagg-GP on the same bags: learning and predicting.

Every case is a process of its own, which compiles, with two rounds: the second compiles nothing.
Both models see the same bags. Bagg-GP sees the means of these bags, the other model as many
observations of other bags and mediators that explain 60 % of them.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.console import Console

import deconditional as dc
from benchmarks.frame import Benchmark, Costs, Result, Row, shown
from benchmarks.timing import in_own_process
from studies.command import option
from studies.data.noisy_mediator import noisy_mediator

__all__ = ["Unmatched"]

OURS, THEIRS = "MediatedGP", "BaggGP"


@dataclass(frozen=True)
class Unmatched(Benchmark):
    """MediatedGP in units of Bagg-GP."""

    name: ClassVar[str] = "unmatched"
    help: ClassVar[str] = "the model for unmatched data, in units of Bagg-GP on the same bags"
    times_compilation: ClassVar[bool] = True
    columns: ClassVar[Any] = {
        "bags": shown("bags"),
        "round": shown("round"),
        "Bagg-GP: learn, s": shown("their_learn", "{:.2f}"),
        "predict, s": shown("their_predict", "{:.2f}"),
        "MediatedGP: learn, s": shown("learn", "{:.2f}"),
        "then, s": shown("predict", "{:.2f}"),
        "both over both": shown("ratio", "{:.2f}"),
    }

    bags: tuple[int, ...] = option((25, 100, 400, 741), "numbers of bags", quick=(25,), type=int)
    points: int = option(16, "points of a bag")

    def measure(self, where: Console) -> Result:
        """Run every case in a process of its own."""
        rows: list[Row] = []
        for bags in self.bags:
            found = {}
            for who in (THEIRS, OURS):
                with where.status(f"{who}, {bags} bags"):
                    run = ["-m", "benchmarks.unmatched", who, str(bags), str(self.points)]
                    found[who] = json.loads(in_own_process(run))
            for k, (theirs, ours) in enumerate(zip(found[THEIRS], found[OURS], strict=True)):
                times = {"learn": ours[0], "predict": ours[1]}
                others = {"their_learn": theirs[0], "their_predict": theirs[1]}
                ratio = sum(ours) / sum(theirs)
                rows.append({"bags": bags, "round": k + 1, **others, **times, "ratio": ratio})
        return {"rows": rows}

    def words(self, result: Result) -> tuple[str, None]:
        """Sizes."""
        return f"bags of {result['points']} points; {result['device']}", None

    def costs(self, result: Result) -> Costs:
        """Seconds of both models in the second round."""
        return {
            f"{row['bags']} bags": (
                row["learn"] + row["predict"],
                row["their_learn"] + row["their_predict"],
            )
            for row in result["rows"]
            if row["round"] == 2
        }


def main(who: str, bags: str, points: str) -> None:
    """Print seconds of learning and predicting, twice, as JSON."""
    n, spent = int(bags), []
    for seed in range(2):
        data = noisy_mediator(0.6, 2 * n, int(points), seed)
        given: dict[str, Any] = {"mediator": data.mediator} if who == OURS else {}
        z = data.z if who == OURS else data.bags.means(data.f[: data.bags.n_points])
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dc.DeconditionalWarning)
            model = getattr(dc, who)().fit(data.bags, z, **given)
        learnt = time.perf_counter()
        posterior = model.predict(data.x)
        posterior.interval(0.95)
        spent.append((learnt - began, time.perf_counter() - learnt))
    print(json.dumps(spent))


if __name__ == "__main__":
    main(*sys.argv[1:])
