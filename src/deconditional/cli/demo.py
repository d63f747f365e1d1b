"""The demonstration: surface temperature over the globe, from coarse cells to fine ones.

Real monthly climatologies on a 0.75° grid are cut into coarse cells of 12 x 12. A random half of
the coarse cells keeps its fine covariates (altitude, rain, cloud) and no temperature; the other
half keeps its mean temperature and no covariates. What links them is the water vapour column, known
in all coarse cells. The fine temperature is wanted everywhere, and known, so the answer can be
checked.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import xarray as xr
from rich.table import Table
from sklearn.base import clone

from deconditional import datasets
from deconditional.cli.console import new_console, say
from deconditional.errors import FitWarning
from deconditional.fields import Downscaler
from deconditional.fields.interpolation import bilinear
from deconditional.fields.io import write_fields
from deconditional.report import write_report
from deconditional.report.maps import demo_maps
from deconditional.report.plots import save
from deconditional.saving.outputs import output_folder, write_atomically
from deconditional.scores import bias, mae, rmse
from deconditional.scores.marginals import Marginals

TARGET = "tas"
COVARIATES = ("altitude", "rain", "cloud")
MEDIATORS = ("water_vapour",)
BASELINE = "bagg-gp"
"""The model to compare with; on unmatched data it reaches the bags by pseudo-targets."""

Scores = Mapping[str, Mapping[str, float]]


def run(
    out: str | Path, month: int = 1, synthetic: bool = False, seed: int = 0, command: str = ""
) -> Scores:
    """Downscale, compare, draw, report; prints the paths of what it wrote.

    Parameters
    ----------
    out
        Folder for ``demo.nc``, ``maps.png``, ``report.html`` and ``scores.json``.
    month
        Month of the climatology, 1 to 12.
    synthetic
        Use made-up fields with known truth, which need no data package.
    seed
        Of the choice of coarse cells.
    command
        What the history of the result says.
    """
    began = time.perf_counter()
    folder = output_folder(out)
    console = new_console()
    if not synthetic and find_spec("itur") is None:
        console.print(
            "The package itur, which has the global fields, is not installed; using synthetic "
            "fields instead (pip install 'deconditional[demo]').",
            markup=False,
        )
        synthetic = True
    data, block, name = fields(month, synthetic)
    console.print(
        f"{name}: half of the coarse cells give {', '.join(COVARIATES)} at fine resolution, the "
        f"other half their mean {TARGET}, linked by {', '.join(MEDIATORS)}."
    )
    example = datasets.split_cells(data, TARGET, COVARIATES, MEDIATORS, block=block, seed=seed)
    downscaler, baseline = fitted(example, seed)
    for label, text in downscaler.pairing_.understood:
        say(console, label, text)
    console.print(str(downscaler.comparison_))
    chosen = downscaler.model_name_
    results = {
        which: downscaler.using(which).predict(example.everywhere, command=command or "demo")
        for which in downscaler.candidates_
    } | {BASELINE: baseline.predict(example.everywhere)}
    scores = compare(results, example.coarse[TARGET], example.truth)
    console.print(table(scores, chosen, str(example.truth.attrs.get("units", ""))))
    title = f"{name}: {chosen}, RMSE {scores[chosen]['rmse']:.2f}"
    for file in written(folder, results[chosen], example, scores, title):
        say(console, "written", str(file))
    say(console, "seconds", f"{time.perf_counter() - began:.0f}")
    return scores


def fields(month: int, synthetic: bool) -> tuple[xr.Dataset, int, str]:
    """Fields, cells along the side of a coarse cell, and a name for them."""
    if synthetic:
        return datasets.synthetic_fields(60, 120, seed=month), 6, "synthetic fields"
    return datasets.global_fields(month), 12, f"global climatology, month {month}"


def fitted(example: datasets.FieldsExample, seed: int) -> tuple[Downscaler, Downscaler]:
    """The models to choose from, and the baseline, learnt from the same cells."""
    downscaler = Downscaler(
        TARGET,
        COVARIATES,
        MEDIATORS,
        points_per_bag=12,
        n_restarts=1,
        seed=seed,
        progress=True,
    )
    baseline = clone(downscaler).set_params(model=BASELINE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # notes are in the report
        for each in (downscaler, baseline):
            each.fit(example.fine, example.coarse)
    return downscaler, baseline


def written(
    folder: Path, result: xr.Dataset, example: datasets.FieldsExample, scores: Scores, title: str
) -> Iterator[Path]:
    """Write the result, its maps, its report and the scores, one after the other."""
    yield write_fields(result, folder / "demo.nc")
    mean, units = result["mean"], str(example.truth.attrs.get("units", ""))
    width, error = 2 * 1.96 * result["std"], mean - example.truth
    coarse = example.coarse[TARGET]
    figure = demo_maps(example.truth, coarse, mean, width, error, units, title)
    yield save(figure, folder / "maps.png", dpi=150)
    yield write_report(result, folder / "report.html", example.truth)
    write_atomically(folder / "scores.json", json.dumps(scores, indent=1))
    yield folder / "scores.json"


def compare(results: Mapping[str, xr.Dataset], coarse: xr.DataArray, truth: xr.DataArray) -> Scores:
    """Scores of posteriors, and of bilinear interpolation, against the truth, over all cells."""
    known = np.isfinite(truth.values)
    f = truth.values[known]
    scores = {}
    for name, result in results.items():
        mean, std = (result[part].transpose(*truth.dims).values[known] for part in ("mean", "std"))
        scores[name] = Marginals("normal", mean, std).score(mean, f)
    plain = bilinear(coarse, truth).transpose(*truth.dims).values[known]
    scores["bilinear"] = {"rmse": rmse(plain, f), "mae": mae(plain, f), "bias": bias(plain, f)}
    return scores


def table(scores: Scores, chosen: str, units: str) -> Table:
    """Table of the scores, a row for each model."""
    drawn = Table(title=f"against the truth ({units})", title_justify="left")
    columns = ("rmse", "mae", "bias", "crps", "coverage95")
    drawn.add_column("")
    for column in columns:
        drawn.add_column(column, justify="right")
    for name, row in scores.items():
        label = f"{BASELINE} (pseudo-targets)" if name == BASELINE else name
        cells = [f"{row[c]:.3f}" if c in row else "" for c in columns]
        drawn.add_row(f"{label} *" if name == chosen else label, *cells)
    return drawn
