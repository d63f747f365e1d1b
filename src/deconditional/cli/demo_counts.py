"""``deconditional demo --counts``: homicides of states as a map, and in hidden counties."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import diags_array

import deconditional
from deconditional import datasets
from deconditional.cli.console import new_console, say
from deconditional.datasets.homicides import YEARS
from deconditional.errors import DeconditionalWarning
from deconditional.fields.aggregation import aggregate
from deconditional.fields.downscaler import Downscaler
from deconditional.fields.io import write_fields
from deconditional.models.baselines import areal_weighting, dasymetric, poisson_regression
from deconditional.report import write_report
from deconditional.saving.outputs import output_folder
from deconditional.scores import Counts, Draws

COLUMNS = ("rmse", "crps", "coverage95", "coverage50")
STEP, N_INDUCING = 1 / 3, 60  # fewer than 10,000 cells, so all are learnt from at once
LEVEL = 1e-4
"""One homicide in ten thousand person-years, about the rate of all states."""


def run(out: str | Path, seed: int = 0, command: str = "") -> dict[str, dict[str, float]]:
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
    scores = compare(found.draws, data, seed)
    console.print("homicides in hidden counties, given those of their state, against the truth")
    console.print(f"{'':22}" + "".join(f"{column:>12}" for column in COLUMNS))
    for name, row in scores.items():
        console.print(f"{name:22}" + "".join(f"{row[column]:12.3f}" for column in COLUMNS))
    write_fields(result, folder / "counts.nc")
    write_report(result, folder / "counts.html")
    found.table.drop(columns="geometry").to_csv(folder / "counties.csv")
    say(console, "written", f"counts.nc, counts.html and counties.csv in {folder}")
    say(console, "seconds", f"{time.perf_counter() - began:.0f}")
    return scores


def compare(
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
