"""The figures of the report, each with the words that stand for it where it cannot be seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.report import curves, maps
from deconditional.report.grids import area_weights, grid_of, plane, time_dim
from deconditional.report.page import Picture, number, share
from deconditional.report.result import ROLES, Result
from deconditional.report.variogram import distance_bins, semivariogram
from deconditional.scores import pit_coverage

__all__ = ["field", "held_out", "over_time", "predicted", "roles", "scales"]

SAMPLES_DRAWN = 20
"""Samples in the figure over time."""


def field(
    result: Result, values: Any, title: str, caption: str, kind: maps.Kind = "value"
) -> Picture:
    """A field as a map; an array stands for all fine cells."""
    if not isinstance(values, xr.DataArray):
        values = result.mean.copy(data=values)
    drawn = plane(values).values
    known = drawn[np.isfinite(drawn)]
    alt = "no cell has a value."
    if known.size:
        alt = (
            f"from {number(known.min())} to {result.with_units(known.max())}, mean "
            f"{result.with_units(known.mean())}, {number(known.size)} of {number(drawn.size)} "
            "cells with a value."
        )
    limits, label = (result.limits, result.label) if kind == "value" else (None, result.units)
    figure = maps.field_map(maps.Panel(values, title, label, kind, limits))
    return Picture.of(figure, f"Map of {result.name}, {title}: {alt}", caption)


def roles(result: Result, counts: list[int]) -> Picture:
    """A map of what every coarse cell gives."""
    role = result.data["coarse_role"]
    listed = ", ".join(f"{name} {number(n)}" for name, n in zip(ROLES, counts, strict=True))
    return Picture.of(
        maps.category_map(role.fillna(0), ROLES, "what coarse cells give"),
        f"Map of what each of {number(role.size)} coarse cells gives: {listed}.",
        "Coarse cells by what they give: fine covariates, a value of the target, or both.",
    )


def predicted(result: Result) -> Picture:
    """A map of the fine cells that have a prediction."""
    known = np.isfinite(result.mean)
    names = ("not predicted", "predicted")
    return Picture.of(
        maps.category_map(known.astype(float), names, "fine cells predicted"),
        f"Map of the fine cells predicted: {number(int(known.sum()))} of {number(known.size)}.",
        "Fine cells with a prediction; grey cells have none.",
    )


def held_out(pit: npt.NDArray[np.float64]) -> list[Picture]:
    """Figures of how often truth lies in intervals, and of where in its distributions."""
    levels = (0.5, 0.8, 0.95)
    held = ", ".join(
        f"{level:.0%} intervals hold {share(actual)}"
        for level, actual in zip(levels, pit_coverage(pit, levels), strict=True)
    )
    low, high = share(float(np.mean(pit < 0.1))), share(float(np.mean(pit > 0.9)))
    return [
        Picture.of(
            curves.coverage_curve(pit),
            f"Actual against nominal coverage of central intervals: {held}.",
            "Above the line intervals are too wide, below it too narrow.",
        ),
        Picture.of(
            curves.pit_histogram(pit),
            f"Histogram of {number(pit.size)} PIT values: {low} below 0.1 and {high} above 0.9, "
            "where 10% each would be calibrated.",
            "Flat is calibrated; a hump means too wide distributions, a bowl too narrow ones, a "
            "slope a bias.",
        ),
    ]


def scales(result: Result) -> Picture | None:
    """A figure of the semivariograms of all fields; None where too few cells have a value."""
    samples = result.samples
    fields = {
        "posterior mean": result.mean,
        "one sample": None if samples is None else samples.isel(sample=0),
        "coarse observations": result.data.get("coarse_observed"),
        "truth": result.truth,
    }
    planes = {name: plane(values) for name, values in fields.items() if values is not None}
    unit = planes["posterior mean"].unit
    bins = distance_bins(planes["posterior mean"])
    variograms = {name: semivariogram(drawn, bins) for name, drawn in planes.items()}
    lines = {name: (v.distance, v.semivariance) for name, v in variograms.items() if v.pairs.size}
    if not lines:
        return None
    squared = f" ({result.units})²" if result.units else ""
    ends = "; ".join(
        f"{name} {number(y[0])} at {number(x[0])} {unit} and {number(y[-1])} at "
        f"{number(x[-1])} {unit}"
        for name, (x, y) in lines.items()
    )
    return Picture.of(
        curves.semivariograms(lines, unit, result.units),
        f"Semivariogram{squared}: {ends}.",
        "Up to 200\u202f000 random pairs of cells in every direction.",
    )


def over_time(result: Result, time: str) -> Picture:
    """A figure of means over the area at every time."""
    lines = {"posterior mean": _area_mean(result.mean).values}
    if result.truth is not None:
        lines["truth"] = _area_mean(result.truth.where(result.mean.notnull())).values
    samples = None
    if result.samples is not None:
        drawn = _area_mean(result.samples.isel(sample=slice(SAMPLES_DRAWN)))
        samples = drawn.transpose("sample", time).values
    times = result.mean[time].values
    first, last = lines["posterior mean"][[0, -1]]
    return Picture.of(
        curves.time_series(times, lines, result.label, "mean over the area", samples),
        f"Mean of {result.name} over the area at {number(len(times))} times: "
        f"{result.with_units(first)} at the first, {result.with_units(last)} at the last.",
        "Means over the cells predicted, weighted by area.",
    )


def _area_mean(values: xr.DataArray) -> xr.DataArray:
    """Mean over the horizontal dimensions, weighted by area; the first step of others than time."""
    grid = grid_of(values)
    place = grid.spatial
    kept = {*place, time_dim(values), "sample"}
    values = values.isel({dim: 0 for dim in values.dims if dim not in kept})
    return values.weighted(area_weights(values)).mean(place)
