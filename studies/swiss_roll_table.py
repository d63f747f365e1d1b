"""The swiss-roll table: our scores next to the published ones, and paired tests between models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from studies.provenance import provenance_lines
from studies.records import (
    Results,
    code_notes,
    mean_and_sd,
    values,
    warning_notes,
    wilcoxon_table,
)

__all__ = ["PAPER", "table"]

PAPER: dict[str, dict[str, str]] = {
    "direct": {
        "cmp": ".33 ± .06",
        "s-cmp": ".25 ± .04",
        "varcmp": ".18 ± .04",
        "bagg-gp": ".60 ± .01",
        "vbagg": ".22 ± .04",
        "gpr": ".70 ± .05",
    },
    "indirect": {
        "cmp": ".80 ± .14",
        "s-cmp": "1.05 ± .04",
        "varcmp": ".87 ± .07",
        "bagg-gp": "1.13 ± .11",
        "vbagg": "1.46 ± .34",
        "gpr": "1.04 ± .05",
    },
}
"""Published RMSE, mean ± standard deviation over 20 seeds."""

PAPER_TESTS: dict[str, dict[str, tuple[str, ...]]] = {
    "direct": {
        "bagg-gp": ("6e-05",),
        "varcmp": ("8e-05", "6e-05"),
        "vbagg": ("6e-05", "6e-05", "0.0057"),
        "gpr": ("6e-05", "6e-05", "6e-05", "6e-05"),
        "s-cmp": ("6e-05", "6e-05", "0.00048", "0.014", "6e-05"),
    },
    "indirect": {
        "bagg-gp": ("0.011",),
        "varcmp": ("0.0019", "0.015"),
        "vbagg": ("8.9e-05", "0.048", "8.9e-05"),
        "gpr": ("0.025", "0.048", "0.048", "0.85"),
        "s-cmp": ("8.9e-05", "0.0028", "8.9e-05", "0.00014", "0.052"),
    },
}
"""Published p-values of RMSE; columns are cmp, bagg-gp, varcmp, vbagg, gpr."""


def table(
    results: Results,
    models: Sequence[str],
    settings: Mapping[str, Any],
    command: str | None = None,
) -> str:
    """The whole of ``table.md``."""
    lines = [
        "# Swiss roll",
        "",
        f"{settings['n_points']} points, {settings['n_bags']} bags, noise of standard deviation "
        f"{settings['noise_std']} on the bag means. Scores are over all points of a roll; ± is "
        "one standard deviation over seeds. Lower is better, except coverage, where 0.95 is best.",
    ]
    for matching in PAPER:
        if any(record["matching"] == matching for record in results.records):
            lines += _section(results, models, matching)
    if results.failures:
        lines += ["", "## Failed fits", "", *(f"- {failure}" for failure in results.failures)]
    made = [*provenance_lines(command), *code_notes(results.fits)]
    return "\n".join([*lines, "", "## How this was made", "", *made, ""])


def _section(results: Results, known: Sequence[str], matching: str) -> list[str]:
    models = [name for name in known if results.of(matching, name)]
    lines = [
        "",
        f"## {matching.capitalize()} matching",
        "",
        "| model | seeds | RMSE | RMSE, paper | worst RMSE (seed) | CRPS | coverage of 95% | NLL "
        "| fit (s) | of it compiling (s) |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_summary(results, matching, name) for name in _rows(matching, models)),
        "",
        *_footnotes(matching),
        *warning_notes(results.fits, matching),
    ]
    for name, label in (("rmse", "RMSE"), ("crps", "CRPS")):
        lines += [
            "",
            f"### Wilcoxon signed-rank tests of {label}, {matching} matching",
            "",
            *wilcoxon_table(results, matching, models, name),
        ]
        if name == "rmse":
            lines += ["", "The paper's:", "", *_paper_tests(matching)]
    return lines


def _paper_tests(matching: str) -> list[str]:
    columns = ("cmp", "bagg-gp", "varcmp", "vbagg", "gpr")
    lines = [f"|  | {' | '.join(columns)} |", "| --- " * (1 + len(columns)) + "|"]
    for model, cells in PAPER_TESTS[matching].items():
        blanks = [""] * (len(columns) - len(cells))
        lines.append(f"| {' | '.join([model, *cells, *blanks])} |")
    return lines


def _rows(matching: str, models: Sequence[str]) -> list[str]:
    """The models fitted and those of the paper, each family together."""
    order = ["cmp", "s-cmp", "u-cmp", "varcmp", "u-varcmp"]
    for base in ("bagg-gp", "vbagg", "gpr"):
        order += [base, f"{base}-plugin", f"{base}-misordered"]
    shown = {*models, *PAPER[matching]}
    return [name for name in dict.fromkeys([*order, *models]) if name in shown]


def _summary(results: Results, matching: str, model: str) -> str:
    paper = PAPER[matching].get(model.removesuffix("-plugin").removesuffix("-misordered"), "–")
    kept = results.of(matching, model)
    if not kept:
        return f"| {model} | – | – | {paper} | – | – | – | – | – | – |"
    errors = values(kept, "rmse")
    worst = f"{errors.max():.3f} ({kept[int(np.argmax(errors))]['seed']})"
    fits = [fit for fit in results.fits if (fit["matching"], fit["model"]) == (matching, model)]
    cells = [
        model,
        str(len(kept)),
        mean_and_sd(errors),
        paper,
        worst,
        mean_and_sd(values(kept, "crps")),
        mean_and_sd(values(kept, "coverage95")),
        mean_and_sd(values(kept, "nll"), 2),
        mean_and_sd(values(kept, "fit_seconds"), 1),
        mean_and_sd(values(fits, "compile_seconds"), 1),
    ]
    return "| " + " | ".join(cells) + " |"


def _footnotes(matching: str) -> list[str]:
    notes = [
        "Rows with the paper's number alone are models of the paper that this run did not fit.",
        "",
        "Fit times include compiling (the first evaluation), which models of one seed can share.",
        "",
    ]
    if matching == "indirect":
        notes += [
            "bagg-gp, vbagg, gpr and vargpr learn from pseudo-targets whose covariance is "
            "propagated; the paper's take them at face value, as the -plugin rows do. In the "
            "published code they also reach the wrong bags, as in the -misordered rows.",
            "",
        ]
    return notes
