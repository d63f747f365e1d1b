"""``deconditional demo --counts``: deaths of regions as a map, and for counties that are hidden."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

import deconditional
from deconditional import datasets
from deconditional.cli.console import new_console, say
from deconditional.errors import DeconditionalWarning
from deconditional.fields.aggregation import Aggregate, aggregate
from deconditional.fields.downscaler import Downscaler
from deconditional.fields.grids import find_grid
from deconditional.fields.io import write_fields
from deconditional.fields.overlap import overlap
from deconditional.fields.zones.layer import Layer
from deconditional.models.baselines import areal_weighting, dasymetric, poisson_regression
from deconditional.report import write_report
from deconditional.saving.outputs import output_folder
from deconditional.scores import Counts, Draws

COLUMNS = ("rmse", "crps", "coverage95", "coverage50")
LEVEL = 0.002
"""Two deaths in a thousand births, the rate of all of the state."""


def run(out: str | Path, seed: int = 0, command: str = "") -> dict[str, dict[str, float]]:
    """Downscale deaths of regions, predict those of counties, and compare with what they were.

    Parameters
    ----------
    out
        Folder for ``counts.nc``, ``counts.html`` and ``counties.csv``.
    seed
        Of the choice of regions.
    command
        What the history of the result says.
    """
    began, folder, console = time.perf_counter(), output_folder(out), new_console()
    data = datasets.north_carolina(seed=seed)
    console.print(
        f"Sudden infant deaths in North Carolina, 1974 to 1984: {len(data.zones)} regions give "
        f"{int(data.zones['deaths'].sum())} deaths, a grid has births and the share of non-white "
        f"ones; the {len(data.truth)} counties are hidden."
    )
    model = fitted(data, seed)
    for label, text in model.pairing_.understood:
        say(console, label, text)
    console.print(str(model.comparison_), markup=False)
    result = model.predict(data.fine, exceedance=[LEVEL], command=command or "demo --counts")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconditionalWarning)
        found = aggregate(model, data.truth, kind="count", seed=seed, min_cover=0.1)
    scores = compare(model, data, seed)
    console.print(table(scores))
    write_fields(result, folder / "counts.nc")
    write_report(result, folder / "counts.html")
    found.table.drop(columns="geometry").to_csv(folder / "counties.csv")
    for name in ("counts.nc", "counts.html", "counties.csv"):
        say(console, "written", str(folder / name))
    say(console, "seconds", f"{time.perf_counter() - began:.0f}")
    return scores


def fitted(data: datasets.CountsExample, seed: int, n_inducing: int = 80) -> Downscaler:
    """The rate of deaths, learnt from the regions."""
    family = deconditional.Poisson(exposure="births", overdispersion=True)
    model = Downscaler(
        "deaths",
        ["nonwhite"],
        family=family,
        n_restarts=1,
        seed=seed,
        progress=True,
        model_options={"n_inducing": n_inducing},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconditionalWarning)  # notes are in the report
        return model.fit(data.fine, data.zones)


def compare(
    model: Downscaler, data: datasets.CountsExample, seed: int
) -> dict[str, dict[str, float]]:
    """Scores of the counts of counties, by the model and by simple answers."""
    grid = find_grid(data.fine, ["births"], "fine")
    births = np.nan_to_num(data.fine["births"].values.ravel()) / grid.areas
    of_regions, of_counties = (
        (overlap(grid, Layer.of(zones, [], grid).grid) * births[:, None]).T
        for zones in (data.zones, data.truth)
    )
    z, truth = (zones["deaths"].to_numpy(float) for zones in (data.zones, data.truth))
    used = births > 0
    of_regions, of_counties = (m.tocsc()[:, used].tocsr() for m in (of_regions, of_counties))
    share = np.nan_to_num(data.fine["nonwhite"].values.ravel()[used])[:, None]
    simple: dict[str, Any] = {
        "areal weighting": areal_weighting(of_regions, z),
        "Poisson regression": poisson_regression(of_regions, z, share),
    }
    simple["dasymetric regression"] = dasymetric(of_regions, z, simple["Poisson regression"])
    found = aggregate(model, data.truth, kind="sum", samples=1000, seed=seed, min_cover=0.1)
    every: dict[str, Counts | Draws] = {"deconditional": Draws(split(found, data, seed))}
    every |= {name: method.predict(of_counties) for name, method in simple.items()}
    return {name: found.score(truth) for name, found in every.items()}


def split(found: Aggregate, data: datasets.CountsExample, seed: int) -> npt.NDArray[np.float64]:
    """Totals of regions shared out among their counties, (n, counties).

    Counts that are independent and Poisson are multinomial once their total is known, with shares
    in proportion to what is expected of each.
    """
    expected = found.draws * found.table["amount"].to_numpy()
    rng, region = np.random.default_rng(seed), data.truth["region"].to_numpy()
    out = np.empty_like(expected)
    for name, total in data.zones["deaths"].items():
        inside = region == name
        share = expected[:, inside] / expected[:, inside].sum(1, keepdims=True)
        out[:, inside] = rng.multinomial(int(total), share)
    return out


def table(scores: dict[str, dict[str, float]]) -> Table:
    """The scores as a table."""
    drawn = Table(title="deaths in hidden counties, against the truth", title_justify="left")
    drawn.add_column("")
    for column in COLUMNS:
        drawn.add_column(column, justify="right")
    for name, row in scores.items():
        drawn.add_row(name, *(f"{row[c]:.3f}" for c in COLUMNS))
    return drawn
