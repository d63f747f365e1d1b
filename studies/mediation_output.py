"""What the comparison of mediated models shows: its tables and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from studies.provenance import provenance_lines
from studies.records import (
    LEAST_SEEDS,
    Record,
    Results,
    code_notes,
    mean_and_sd,
    table_head,
    table_line,
    values,
    warning_notes,
    wilcoxon_table,
)

__all__ = ["FAIR", "draw", "table"]

FAIR = ("plug-in", "propagated", "propagated, fine noise")
"""Baselines that see what the others see: regressions whose predictions are targets."""

DEFAULT, ORACLE = "mediated", "oracle"
COVERED = (0.92, 0.98)
"""Where the coverage of 95 % intervals is to lie on average."""


def table(
    results: Results, datasets: Sequence[str], models: Sequence[str], command: str | None
) -> str:
    """All scores as Markdown."""
    datasets = [name for name in datasets if any(results.of(name, model) for model in models)]
    lines = ["# Mediated models", "", *_overview(results, datasets, models)]
    lines += _default_against_baselines(results, datasets)
    for name in datasets:
        present = [model for model in models if results.of(name, model)]
        lines += [f"## {name}", ""]
        lines += table_head(
            "model", "draws", "RMSE", "worst", "CRPS", "worst", "NLL", "95 %", "least", "50 %", "s"
        )
        lines += [_row(model, results.of(name, model)) for model in present]
        for score in ("rmse", "crps"):
            others = [m for m in present if m != ORACLE]
            lines += ["", f"### {name}: {score.upper()} compared", ""]
            lines += wilcoxon_table(results, name, others, score)
        lines += ["", *warning_notes(results.fits, name), ""]
    lines += [*provenance_lines(command), *code_notes(results.fits)]
    return "\n".join(lines) + "\n"


def _overview(results: Results, datasets: Sequence[str], models: Sequence[str]) -> list[str]:
    """RMSE / CRPS / coverage of every model on every data set; the best of each in bold."""
    best = {
        (name, score): min(
            values(found, score).mean()
            for model in models
            if model != ORACLE and (found := results.of(name, model))
        )
        for name in datasets
        for score in ("rmse", "crps")
        if any(results.of(name, model) for model in models if model != ORACLE)
    }

    def cell(name: str, model: str) -> str:
        found = results.of(name, model)
        if not found:
            return "–"
        shown = []
        for score in ("rmse", "crps"):
            mean = values(found, score).mean()
            bold = "**" if model != ORACLE and mean <= best[name, score] else ""
            shown.append(f"{bold}{mean:.3f}{bold}")
        return " / ".join([*shown, f"{values(found, 'coverage95').mean():.2f}"])

    lines = [
        "## Overview",
        "",
        "RMSE / CRPS / coverage of 95 % intervals, means over draws.",
        "",
        *table_head("", *datasets),
    ]
    for model in models:
        if any(results.of(name, model) for name in datasets):
            lines.append(table_line(model, *(cell(name, model) for name in datasets)))
    return [*lines, ""]


def _default_against_baselines(results: Results, datasets: Sequence[str]) -> list[str]:
    head = ("data set", "draws", "RMSE / best", "CRPS / best", "largest p", "95 %", "least")
    lines = [
        f"## {DEFAULT} against pseudo-targets",
        "",
        "Ratios of means to the best of the three baselines in that score. p: Wilcoxon signed-rank "
        "over draws, of the CRPS being smaller than a baseline's, the largest of the three. Last: "
        "RMSE to that of the oracle.",
        "",
        *table_head(*head, "RMSE / oracle"),
    ]
    for name in datasets:
        mine = {r["seed"]: r for r in results.of(name, DEFAULT)}
        baselines = [{r["seed"]: r for r in results.of(name, model)} for model in FAIR]
        baselines = [each for each in baselines if each]
        if not mine or not baselines:
            continue
        seeds = sorted(set(mine).intersection(*baselines))
        if not seeds:
            continue
        ratios = []
        for score in ("rmse", "crps"):
            other = min(np.mean([each[s][score] for s in seeds]) for each in baselines)
            ratios.append(f"{np.mean([mine[s][score] for s in seeds]) / other:.3f}")
        cover = np.array([mine[s]["coverage95"] for s in seeds])
        oracle = {r["seed"]: r["rmse"] for r in results.of(name, ORACLE)}
        to_oracle = "–"
        if set(seeds) <= set(oracle):
            ratio = np.mean([mine[s]["rmse"] for s in seeds]) / np.mean([oracle[s] for s in seeds])
            to_oracle = f"{ratio:.3f}"
        largest = max(_p_smaller(mine, each, seeds) for each in baselines)
        tested = f"{largest:.2g}" if len(seeds) >= LEAST_SEEDS else "not tested"
        spread = (f"{cover.mean():.3f}", f"{cover.min():.2f}")
        lines.append(table_line(name, str(len(seeds)), *ratios, tested, *spread, to_oracle))
    return [*lines, ""] if len(lines) > 6 else []


def _p_smaller(mine: dict[int, Record], other: dict[int, Record], seeds: Sequence[int]) -> float:
    """One-sided: that the CRPS of the first is smaller."""
    from scipy.stats import wilcoxon

    gap = np.array([mine[s]["crps"] - other[s]["crps"] for s in seeds])
    return float(wilcoxon(gap, alternative="less").pvalue) if gap.any() else 1.0


def _row(model: str, records: Sequence[Record]) -> str:
    rmse, crps, cover = (values(records, name) for name in ("rmse", "crps", "coverage95"))
    return table_line(
        model,
        str(len(records)),
        mean_and_sd(rmse),
        f"{rmse.max():.3f}",
        mean_and_sd(crps),
        f"{crps.max():.3f}",
        f"{values(records, 'nll').mean():.2f}",
        f"{cover.mean():.3f}",
        f"{cover.min():.2f}",
        f"{values(records, 'coverage50').mean():.2f}",
        f"{values(records, 'seconds').mean():.0f}",
    )


def draw(
    results: Results, datasets: Sequence[str], models: Sequence[str], folder: Path
) -> Path | None:
    """``mediation.png``: RMSE and CRPS over the best baseline's, coverage with its range.

    None where no baseline has a record.
    """
    from deconditional.report import plots

    datasets = [name for name in datasets if any(results.of(name, model) for model in FAIR)]
    if not datasets:
        return None
    plots.require_matplotlib()
    from matplotlib.figure import Figure

    shown = [m for m in models if m != ORACLE and any(results.of(name, m) for name in datasets)]
    figure = Figure(figsize=(12.0, 1.4 + 0.72 * len(datasets)), layout="constrained")
    left, middle, right = figure.subplots(1, 3, sharey=True)
    heights = np.arange(len(datasets))[::-1]
    for place, model in enumerate(shown):
        offset = 0.34 - 0.68 * place / max(len(shown) - 1, 1)
        main = model == DEFAULT
        colour = "black" if main else f"C{place}"
        look = {"color": colour, "marker": "D" if main else "o", "ms": 6 if main else 4.5}
        for axes, score in ((left, "rmse"), (middle, "crps"), (right, "coverage95")):
            at, low, high, means = [], [], [], []
            for name, height in zip(datasets, heights, strict=True):
                found = results.of(name, model)
                if not found:
                    continue
                scale = 1.0 if axes is right else _best(results, name, score)
                scores = values(found, score) / scale
                at.append(height + offset)
                means.append(scores.mean())
                low.append(scores.min() if axes is right else scores.mean())
                high.append(scores.max() if axes is right else scores.mean())
            axes.hlines(at, low, high, color=colour, lw=1, alpha=0.5)
            axes.plot(means, at, ls="", label=model, **look)
    for axes, title in (
        (left, "RMSE / best pseudo-targets"),
        (middle, "CRPS / best pseudo-targets"),
    ):
        axes.axvline(1.0, color="0.3", ls="--", lw=1)
        axes.set(title=title, xscale="log", xticks=[0.5, 0.7, 1.0, 1.5, 2.0, 3.0])
        axes.set_xticklabels(["0.5", "0.7", "1", "1.5", "2", "3"])
        axes.minorticks_off()
    right.axvspan(*COVERED, color="0.85", zorder=0)
    right.set(title="coverage of 95 % intervals", xlim=(0.0, 1.02))
    for axes in (left, middle, right):
        axes.set_yticks(heights, datasets)
        for height in heights[:-1]:
            axes.axhline(height - 0.5, color="0.8", lw=0.8)
        axes.set_ylim(-0.55, len(datasets) - 0.45)
        axes.grid(axis="x", alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return plots.save(figure, folder / "mediation.png", dpi=110)


def _best(results: Results, name: str, score: str) -> float:
    return float(
        min(values(found, score).mean() for model in FAIR if (found := results.of(name, model)))
    )
