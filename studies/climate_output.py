"""What the climate experiment shows: its table next to the paper's, and its maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deconditional.saving.outputs import write_atomically
from studies.provenance import provenance_lines
from studies.records import (
    Record,
    Results,
    code_notes,
    mean_and_sd,
    values,
    warning_notes,
    wilcoxon_table,
)

if TYPE_CHECKING:
    from studies.climate import Fields, Split

__all__ = ["PAPER", "draw_data", "draw_posterior", "picture", "table"]

PAPER = {
    "vargpr": ("8.02 ± 0.28", "5.55 ± 0.17", "0.831 ± 0.012", "0.212 ± 0.011"),
    "vbagg": ("8.25 ± 0.15", "5.82 ± 0.11", "0.821 ± 0.006", "0.182 ± 0.004"),
    "varcmp": ("7.40 ± 0.25", "5.34 ± 0.22", "0.848 ± 0.011", "0.212 ± 0.013"),
}
"""RMSE, MAE, correlation and SSIM of the paper: cloud-top temperature of CMIP6, 10 seeds."""

TESTED = {
    "rmse": "RMSE",
    "mae": "MAE",
    "pearson": "Pearson's correlation",
    "spearman": "Spearman's correlation",
    "ssim": "SSIM",
    "ssim_unit_range": "SSIM with R = 1",
    "crps": "CRPS",
}

PAPER_TESTS = {
    "rmse": ("0.0051", "0.0069", "0.047"),
    "mae": ("0.0051", "0.059", "0.0069"),
    "spearman": ("0.0051", "0.017", "0.028"),
    "ssim_unit_range": ("0.0051", "0.96", "0.0051"),
}
"""The paper's p-values: vbagg against varcmp, vargpr against varcmp, vargpr against vbagg."""


def table(
    results: Results, models: Sequence[str], settings: Mapping[str, Any], command: str | None
) -> str:
    """The whole of ``table.md``."""
    present = [name for name in models if results.of("half", name)]
    fine, coarse = (settings[f"{name} cells"] for name in ("fine", "coarse"))
    few = settings["exact_points"]
    points = "all points" if few is None else f"{few} condensed points"
    lines = [
        "# Mediated downscaling of atmospheric fields",
        "",
        f"Fields: {settings['source']}; {fine[0]} x {fine[1]} fine cells, {coarse[0]} x "
        f"{coarse[1]} coarse ones, half of which give covariates and the other half the target. "
        f"{settings['inducing']} inducing points; exact models learn from {points} of every "
        "bag. Scores are over all fine cells with covariates, without weights.",
        "",
        "| model | seeds | RMSE | MAE | Pearson | Spearman | SSIM | SSIM, R = 1 | CRPS "
        "| coverage of 95% | fit (s) |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(_row(name, results.of("half", name)) for name in present),
        "",
        "SSIM is that of Wang et al. (2004): Gaussian windows of standard deviation 1.5 cells, "
        "constants (0.01 R)² and (0.03 R)², with R the range of the truth, and with R = 1, which "
        "are the constants of the published code, for values in kelvin. cmp, u-cmp and u-cmp, "
        "centred have no high-resolution noise.",
        "",
        "## The paper",
        "",
        "Cloud-top temperature of CMIP6; 10 seeds. According to the published code the month is "
        "March 1950, the correlation is Spearman's, and SSIM has R = 1.",
        "",
        "| model | RMSE | MAE | correlation | SSIM |",
        "|---|---|---|---|---|",
        *(f"| {name} | {' | '.join(cells)} |" for name, cells in PAPER.items()),
        "",
        *warning_notes(results.fits, "half"),
    ]
    for name, label in TESTED.items():
        lines += ["", f"## Wilcoxon signed-rank tests of {label}", ""]
        lines += wilcoxon_table(results, "half", present, name)
        if name in PAPER_TESTS:
            first, second, third = PAPER_TESTS[name]
            lines += [
                "",
                f"The paper: vbagg and varcmp {first}, vargpr and varcmp {second}, vargpr and "
                f"vbagg {third}.",
            ]
    if results.failures:
        lines += ["", "## Failed fits", "", *(f"- {failure}" for failure in results.failures)]
    made = [*provenance_lines(command), *code_notes(results.fits)]
    return "\n".join([*lines, "", "## How this was made", "", *made, ""])


def _row(model: str, records: Sequence[Record]) -> str:
    digits = {
        "rmse": 2,
        "mae": 2,
        "pearson": 3,
        "spearman": 3,
        "ssim": 3,
        "ssim_unit_range": 3,
        "crps": 2,
        "coverage95": 3,
        "fit_seconds": 0,
    }
    cells = [mean_and_sd(values(records, name), places) for name, places in digits.items()]
    return f"| {' | '.join([model, str(len(records)), *cells])} |"


# ---------------------------------------------------------------------- maps


def picture(model: str) -> str:
    """Name of a model's maps."""
    return f"posterior-{model.replace(', ', '-')}.png"


def draw_data(folder: Path, data: Fields, drawn: Split) -> None:
    """The data of one draw as ``data.png``: bags of covariates, mediator, coarse target."""
    from deconditional.report import field_plots

    size = data.layout.block
    covered = drawn.gives_covariates.repeat(size, 0).repeat(size, 1)
    panels = [
        field_plots.Panel(np.where(covered, data.covariates[..., place], np.nan), name)
        for place, name in enumerate(data.layout.covariates)
    ]
    panels.append(field_plots.Panel(data.mediator, f"{data.layout.mediator}, coarse, everywhere"))
    observed = np.where(drawn.gives_target, data.target, np.nan)
    panels.append(field_plots.Panel(observed, f"{data.layout.target}, coarse, observed", data.unit))
    panels.append(field_plots.Panel(data.truth, f"{data.layout.target}, truth", data.unit))
    figure = field_plots.map_grid(panels, 2, _extent(data), f"Data of seed 0: {data.source}")
    write_atomically(folder / "data.png", field_plots.png(figure))


def draw_posterior(
    folder: Path, model: str, data: Fields, drawn: Split, maps: Mapping[str, Any]
) -> None:
    """Mean, width of the 95% interval, squared and signed difference from the truth."""
    from deconditional.report import field_plots

    difference = data.truth - maps["mean"]
    unit = data.unit
    limits = float(np.nanmin(data.truth)), float(np.nanmax(data.truth))
    panels = [
        field_plots.Panel(maps["mean"], "posterior mean", unit, limits=limits),
        field_plots.Panel(2 * 1.96 * maps["std"], "width of the 95% interval", unit, "spread"),
        field_plots.Panel(difference**2, "squared difference", f"{unit}²", "spread"),
        field_plots.Panel(difference, "truth − mean", unit, "difference"),
    ]
    figure = field_plots.map_grid(panels, 2, _extent(data), f"{model}, seed 0")
    write_atomically(folder / picture(model), field_plots.png(figure))


def _extent(data: Fields) -> tuple[float, float, float, float]:
    step = [abs(float(axis[1] - axis[0])) / 2 for axis in (data.lat, data.lon)]
    return (
        float(data.lon[0]) - step[1],
        float(data.lon[-1]) + step[1],
        float(data.lat[0]) - step[0],
        float(data.lat[-1]) + step[0],
    )
