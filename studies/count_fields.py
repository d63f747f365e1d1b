"""Rain with its dry hours, and cells beside stations: fields of real files with known truth."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gpjax.kernels as gk
import numpy as np
import numpy.typing as npt
import xarray as xr

import deconditional as dc
from deconditional.errors import UsageError
from deconditional.scores import Draws
from studies.first_scenarios import A1B, RAIN, Files
from studies.records import Record

__all__ = ["RAIN_MODELS", "STATION_MODELS", "rain", "rain_scores", "station_scores", "stations"]

Floats = npt.NDArray[np.float64]

BLOCK = 6
"""Fine cells to a coarse one, along both axes."""

DRAWS = 500
GAUGES = 30
"""Fine cells whose rain is known in one of the models of rain."""

WET = 0.03
"""Millimetres from which an hour is wet: half of the least amount that the file has."""

OFFSET = 0.1
"""Millimetres added to rain before its logarithm is taken, and taken off again."""


class Cells(NamedTuple):
    """A field on fine cells of the plane, and its means over blocks.

    Attributes
    ----------
    x : (n, 2)
        Positions of fine cells, in coarse cells.
    block : (n,)
        The coarse cell of each.
    truth : (n,)
        The field.
    """

    x: Floats
    block: npt.NDArray[np.int64]
    truth: Floats

    @property
    def means(self) -> Floats:
        """Means over coarse cells."""
        return np.bincount(self.block, self.truth) / np.bincount(self.block)

    @property
    def bags(self) -> dc.Bags:
        """The coarse cells."""
        return dc.Bags.from_points(self.x, self.block)

    @property
    def fine(self) -> dc.Bags:
        """Every fine cell by itself."""
        return dc.Bags.from_points(self.x, np.arange(len(self.x)))


def cells(field: xr.DataArray, block: int = BLOCK) -> Cells:
    """A field (rows, columns) cut into whole blocks."""
    rows, columns = (n // block for n in field.shape)
    values = field.values[: rows * block, : columns * block].astype(float)
    i, j = np.indices(values.shape)
    x = np.stack([i, j], -1).reshape(-1, 2) / block
    return Cells(x, (i // block * columns + j // block).ravel(), values.ravel())


def needed(folder: Path, name: str) -> Files:
    """The files of a folder, once one of them is there."""
    files = Files(folder)
    if name not in files:
        raise UsageError(f"there is no {name!r} in {str(folder)!r}; --data names its folder.")
    return files


# ---------------------------------------------------------------------- rain


def rain(folder: Path, hour: int) -> Cells:
    """One hour of rain, in millimetres."""
    return cells(needed(folder, RAIN).rain().rain.isel(time=hour))


def tweedie(given: Cells, seed: int, independent: bool = False) -> Draws:
    """Rain as a Tweedie amount.

    The fine cells of a coarse one rain together, so that its mean scatters as each of them does;
    or, if they are `independent`, their sum is one of so many amounts. Rain is in between, and
    coarse cells alone do not tell where.
    """
    size = np.bincount(given.block) if independent else np.ones(len(given.means))
    model = dc.VBagg(gk.Matern32(), family=dc.Tweedie(), n_inducing=300, n_restarts=2, seed=seed)
    model.fit(given.bags, given.means * size, exposure=size)
    found: Any = model.predict_bags(given.fine, exposure=1.0, noise=True, n_draws=DRAWS, seed=seed)
    return Draws(found.draws)


def with_gauges(given: Cells, seed: int) -> Draws:
    """Rain as a Tweedie amount, beside a few fine cells with gauges, which tell how these scatter.

    Power and dispersion of a fine cell are those of the gauges.
    """
    where = np.random.default_rng(seed).choice(len(given.truth), GAUGES, replace=False)
    sources = [
        dc.Source(given.bags, given.means, family=dc.Tweedie()),
        dc.Source(given.x[where], given.truth[where], family=dc.Tweedie()),
    ]
    model = dc.VBagg(gk.Matern32(), n_inducing=300, n_restarts=2, seed=seed).fit(sources)
    of_gauges: dict[str, Any] = {"exposure": 1.0, "source": 1, "noise": True}
    found: Any = model.predict_bags(given.fine, n_draws=DRAWS, seed=seed, **of_gauges)
    return Draws(found.draws)


def normal(given: Cells, seed: int) -> Draws:
    """A field with normal values, those below zero set to zero."""
    return Draws(np.maximum(_gaussian(given, given.means, seed), 0.0))


def log_transform(given: Cells, seed: int) -> Draws:
    """The logarithm of rain and an offset as a field; a mean's log for the mean of logs."""
    drawn = _gaussian(given, np.log(given.means + OFFSET), seed)
    return Draws(np.maximum(np.exp(drawn) - OFFSET, 0.0))


def _gaussian(given: Cells, z: Floats, seed: int) -> Floats:
    """Draws of the fine cells, variation from cell to cell included."""
    model = dc.VBagg(gk.Matern32(), fine_noise=True, n_inducing=300, n_restarts=2, seed=seed)
    post = model.fit(given.bags, z).predict(given.x, fine_noise=True)
    noise = np.random.default_rng(seed).normal(size=(DRAWS, len(given.x)))
    return post.mean + post.std * noise


RAIN_MODELS: dict[str, Callable[[Cells, int], Draws]] = {
    "Tweedie": tweedie,
    "Tweedie, independent cells": partial(tweedie, independent=True),
    "Tweedie, beside 30 gauges": with_gauges,
    "log transform": log_transform,
    "normal": normal,
}


def rain_scores(folder: Path, model: str, hour: int, seed: int) -> Record:
    """Scores of one hour, and the shares of dry cells that are predicted and true."""
    given = rain(folder, hour)
    found = RAIN_MODELS[model](given, seed)
    scores = found.score(given.truth)
    dry = {"dry": float(found.below(WET).mean()), "truly_dry": float((given.truth < WET).mean())}
    return scores | dry


# ---------------------------------------------------------------------- stations

STATIONS = 30
STATION_NOISE = 0.5
BIAS = 3.0
"""Kelvins that the second source is too warm by."""

STATION_MODELS = (
    "cells",
    "cells and stations",
    "and a biased source, bias learnt",
    "and a biased source, bias ignored",
    "cells and stations, spread of cells",
)
"""The last knows the noise of stations, and learns from them how single cells scatter."""


class Observed(NamedTuple):
    """What three sources say of one field.

    Attributes
    ----------
    given
        The coarse cells, and the truth.
    where, measured
        Fine cells with stations, and their noisy values.
    second, warm
        Other coarse cells, and their biased noisy means.
    """

    given: Cells
    where: npt.NDArray[np.int64]
    measured: Floats
    second: dc.Bags
    warm: Floats


def stations(folder: Path, seed: int) -> Observed:
    """Yearly mean temperature of North America in some year, the first from 1900 on."""
    files = needed(folder, A1B)
    given = cells(files.read(A1B).air_temperature.isel(time=40 + 7 * seed))
    rng = np.random.default_rng(seed)
    where = rng.choice(len(given.truth), STATIONS, replace=False)
    measured = given.truth[where] + STATION_NOISE * rng.normal(size=STATIONS)
    finer = np.unique((given.x * BLOCK // 4).astype(int), axis=0, return_inverse=True)[1]
    second = dc.Bags.from_points(given.x, finer)
    warm = second.means(given.truth) + BIAS + STATION_NOISE * rng.normal(size=second.n_bags)
    return Observed(given, where, measured, second, warm)


def station_scores(folder: Path, model: str, seed: int) -> Record:
    """Scores of the field on all fine cells, from some of the sources."""
    seen, spread = stations(folder, seed), model == STATION_MODELS[4]
    normal: Any = dc.Normal()
    sources = [dc.Source(seen.given.bags, seen.given.means, family=normal)]
    if model != STATION_MODELS[0]:
        known = STATION_NOISE if spread else None
        where = seen.given.x[seen.where]
        sources.append(dc.Source(where, seen.measured, family=normal, noise_std=known))
    if model in STATION_MODELS[2:4]:
        bias = "offset" if model == STATION_MODELS[2] else "none"
        sources.append(dc.Source(seen.second, seen.warm, family=normal, bias=bias))
    options: Any = {"n_inducing": 400, "n_restarts": 2, "seed": seed, "fine_noise": spread}
    fitted = dc.VBagg(gk.Matern32(), **options).fit(sources)
    found = dc.scores.score(fitted.predict(seen.given.x, fine_noise=spread), seen.given.truth)
    return {name: value for name, value in found.items() if name != "nll"}
