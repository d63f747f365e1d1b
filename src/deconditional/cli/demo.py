"""Two demonstrations: temperature over the globe, and homicides of states in hidden counties.

Real monthly climatologies on a 0.75° grid are cut into coarse cells of 12 x 12. A random half of
the coarse cells keeps its fine covariates (altitude, rain, cloud) and no temperature; the other
half keeps its mean temperature and no covariates. What links them is the water vapour column, known
in all coarse cells. The fine temperature is wanted everywhere, and known, so the answer can be
checked. With ``--counts``, homicides of states become a map, and are predicted for their counties.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from rich.table import Table
from scipy.sparse import diags_array
from sklearn.base import clone

import deconditional
from deconditional import datasets
from deconditional.cli.console import new_console, say
from deconditional.cli.options import require
from deconditional.datasets.homicides import YEARS
from deconditional.errors import DeconditionalWarning, FitWarning
from deconditional.fields.aggregation import aggregate
from deconditional.fields.downscaler import Downscaler
from deconditional.fields.io import write_fields
from deconditional.fields.opponents import bilinear
from deconditional.models.baselines import areal_weighting, dasymetric, poisson_regression
from deconditional.report import write_report
from deconditional.report.maps import demo_maps
from deconditional.report.plots import save
from deconditional.saving.outputs import output_folder, write_atomically
from deconditional.scores import Counts, Draws, bias, mae, rmse
from deconditional.scores.marginals import Marginals

TARGET = "tas"
COVARIATES = ("altitude", "rain", "cloud")
MEDIATORS = ("water_vapour",)
BASELINE = "bagg-gp"
"""The model to compare with; on unmatched data it reaches the bags by pseudo-targets."""
SCORES = ("rmse", "mae", "bias", "crps", "coverage95")

Scores = Mapping[str, Mapping[str, float]]


def demo(args: argparse.Namespace, command: str) -> int:
    """Run one of the two demonstrations."""
    if args.counts:
        require("geo", "geopandas", "shapely")
        run_counts(args.out, args.seed, command)
    else:
        run(args.out, args.month, args.synthetic, args.seed, command)
    return 0


def run(
    out: str | Path, month: int = 1, synthetic: bool = False, seed: int = 0, command: str = ""
) -> Scores:
    """Downscale, compare, draw, report; prints the paths of what it wrote.

    They are ``demo.nc``, ``maps.png``, ``report.html`` and ``scores.json`` in the folder `out`.
    Made-up fields with known truth need no data package; `command` is what the history of the
    result says.
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
    title = f"against the truth ({example.truth.attrs.get('units', '')})"
    console.print(table(scores, SCORES, title, chosen))
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


def table(scores: Scores, columns: Sequence[str], title: str, chosen: str = "") -> Table:
    """Table of scores, a row for each model."""
    drawn = Table(title=title, title_justify="left")
    for column in ("", *columns):
        drawn.add_column(column, justify="right" if column else "left")
    for name, row in scores.items():
        label = f"{BASELINE} (pseudo-targets)" if name == BASELINE else name
        cells = [f"{row[c]:.3f}" if c in row else "" for c in columns]
        drawn.add_row(f"{label} *" if name == chosen else label, *cells)
    return drawn


# ---------------------------------------------------------------------- counts


COUNT_SCORES = ("rmse", "crps", "coverage95", "coverage50")
STEP, N_INDUCING = 1 / 3, 60  # fewer than 10,000 cells, so all are learnt from at once
LEVEL = 1e-4
"""One homicide in ten thousand person-years, about the rate of all states."""


def run_counts(out: str | Path, seed: int = 0, command: str = "") -> dict[str, dict[str, float]]:
    """Downscale homicides of states, predict those of counties, and compare with what they were.

    They go to ``counts.nc``, ``counts.html`` and ``counties.csv`` in the folder `out`; `command` is
    what the history of the result says.
    """
    began, folder, console = time.perf_counter(), output_folder(out), new_console()
    data = datasets.us_homicides(step=STEP)
    console.print(
        f"Homicides of 1989 to 1991 in {len(data.zones)} states; a grid has people and five "
        f"covariates; {len(data.truth)} counties are hidden."
    )
    model = Downscaler(
        "homicides",
        data.covariates,
        family=deconditional.Poisson(exposure="person_years", overdispersion=True),
        n_restarts=1,
        seed=seed,
        progress=True,
        model_options={"n_inducing": N_INDUCING},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconditionalWarning)  # notes are in the report
        model.fit(data.fine, data.zones)
        found = aggregate(model, data.truth, kind="count", samples=1000, seed=seed, min_cover=0.1)
    for label, text in model.pairing_.understood:
        say(console, label, text)
    console.print(str(model.comparison_), markup=False)
    result = model.predict(data.fine, exceedance=[LEVEL], command=command or "demo --counts")
    scores = compare_counts(found.draws, data, seed)
    title = "homicides in hidden counties, given those of their state, against the truth"
    console.print(table(scores, COUNT_SCORES, title))
    write_fields(result, folder / "counts.nc")
    write_report(result, folder / "counts.html")
    found.table.drop(columns="geometry").to_csv(folder / "counties.csv")
    say(console, "written", f"counts.nc, counts.html and counties.csv in {folder}")
    say(console, "seconds", f"{time.perf_counter() - began:.0f}")
    return scores


def compare_counts(
    rates: npt.NDArray[np.float64], data: datasets.CountsExample, seed: int
) -> dict[str, dict[str, float]]:
    """Scores of the counts of counties, from draws of their rates and from simple answers.

    Whoever has the people and covariates of counties needs no grid; simple answers have them.
    """
    z, truth = (zones["homicides"].to_numpy(float) for zones in (data.zones, data.truth))
    years = YEARS * data.truth["people"].to_numpy(float)
    state = data.zones.index.get_indexer(data.truth["state"])
    of_states = years * (state == np.arange(len(z))[:, None])
    simple: dict[str, Any] = {
        "areal weighting": areal_weighting(of_states, z),
        "Poisson regression": poisson_regression(of_states, z, data.truth[data.covariates]),
    }
    simple["dasymetric regression"] = dasymetric(of_states, z, simple["Poisson regression"])
    counts = split(rates * years, state, z.astype(int), seed)
    every: dict[str, Counts | Draws] = {"deconditional": Draws(counts)}
    every |= {name: method.predict(diags_array(years)) for name, method in simple.items()}
    return {name: found.score(truth) for name, found in every.items()}


def split(
    expected: npt.NDArray[np.float64], state: npt.NDArray[Any], totals: Any, seed: int
) -> npt.NDArray[np.float64]:
    """Totals of states shared out among their counties, (n, counties).

    Counts that are independent and Poisson are multinomial once their total is known, with shares
    in proportion to what is expected of each.
    """
    rng, out = np.random.default_rng(seed), np.empty_like(expected)
    for number, total in enumerate(totals):
        inside = state == number
        share = expected[:, inside] / expected[:, inside].sum(1, keepdims=True)
        out[:, inside] = rng.multinomial(total, share)
    return out
