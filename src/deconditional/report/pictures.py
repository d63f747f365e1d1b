"""The figures of the report, each with the words that stand for it where it cannot be seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.report import maps, plots
from deconditional.report.grids import area_weights, grid_of, plane, time_dim
from deconditional.report.page import Picture, number, share
from deconditional.report.result import ROLES, Result, floats, zone_values
from deconditional.scores import pit_coverage

SAMPLES_DRAWN = 20
"""Samples in the figure over time."""


def field(
    result: Result, values: Any, title: str, caption: str, kind: maps.Kind = "value"
) -> Picture:
    """A field as a map; an array stands for all fine cells."""
    if not isinstance(values, xr.DataArray):
        values = result.mean.copy(data=values)
    zones = None if result.outlines is None else zone_values(values)
    values = values if zones is None else result.mean
    drawn = plane(values).values if zones is None else zones
    known = drawn[np.isfinite(drawn)]
    alt = "no cell has a value."
    if known.size:
        alt = (
            f"from {number(known.min())} to {result.with_units(known.max())}, mean "
            f"{result.with_units(known.mean())}, {number(known.size)} of {number(drawn.size)} "
            "cells with a value."
        )
    own = result.is_of_counts and kind == "difference" and zones is not None
    limits, label = (result.limits, result.label) if kind == "value" else (None, result.units)
    label = result.target if own else label
    outlines = result.outlines
    figure = maps.field_map(maps.Panel(values, title, label, kind, limits, outlines, zones))
    return Picture.of(figure, f"Map of {result.name}, {title}: {alt}", caption)


def above(result: Result) -> list[Picture]:
    """Maps of the probability that a level is exceeded."""
    maps_above = []
    for k, level in enumerate(result.data["above"].values):
        share_above = result.data["exceedance"].isel(above=k, drop=True)
        title = f"probability of more than {number(level)}"
        likely = int((share_above > 0.95).sum())
        alt = f"Map of the {title}: above 95% in {number(likely)} cells."
        caption = f"Probability that {result.quantity} is more than {result.with_units(level)}."
        maps_above.append(_of_shares(result, share_above, title, alt, caption))
    return maps_above


def share_of_zones(result: Result, shares: xr.DataArray, title: str, caption: str) -> Picture:
    """Zones by a share between zero and one."""
    values = np.minimum(floats(shares), 1.0)  # borders that were reprojected round
    whole = int((values > 0.999).sum())
    alt = f"Map of {result.noun} by {title}: {number(whole)} of {number(values.size)} whole."
    return _of_shares(result, result.mean, title, alt, caption, values)


def _of_shares(
    result: Result, field: Any, title: str, alt: str, caption: str, of_zones: Any = None
) -> Picture:
    panel = maps.Panel(field, title, "", "value", (0.0, 1.0), result.outlines, of_zones)
    return Picture.of(maps.field_map(panel), alt, caption)


def fitted(result: Result) -> Picture:
    """Observed against fitted values of zones."""
    seen, mean = (floats(result.data[f"coarse_{name}"]).ravel() for name in ("observed", "mean"))
    known = np.isfinite(seen) & np.isfinite(mean)
    far = int((np.abs(seen - mean)[known] > 2 * np.sqrt(np.maximum(mean[known], 1e-12))).sum())
    return Picture.of(
        plots.against(mean[known], seen[known], "fitted", "observed"),
        f"Observed against fitted values of {number(int(known.sum()))} {result.noun}; "
        f"{number(far)} are more than two Poisson standard deviations from the line.",
        "On the line the fit is what was observed; the band is two standard deviations of a "
        "Poisson count.",
    )


def roles(result: Result, counts: list[int]) -> Picture:
    """A map of what every coarse cell gives."""
    role = result.data["coarse_role"]
    listed = ", ".join(f"{name} {number(n)}" for name, n in zip(ROLES, counts, strict=True))
    return Picture.of(
        maps.category_map(role.fillna(0), ROLES, "what coarse cells give"),
        f"Map of what each of {number(role.size)} coarse cells gives: {listed}.",
        "Coarse cells by what they give: fine covariates, a value of the target, or both.",
    )


def held_out(pit: npt.NDArray[np.float64]) -> Picture:
    """A figure of how often truth lies in intervals."""
    levels = (0.5, 0.8, 0.95)
    held = ", ".join(
        f"{level:.0%} intervals hold {share(actual)}"
        for level, actual in zip(levels, pit_coverage(pit, levels), strict=True)
    )
    return Picture.of(
        plots.coverage_curve(pit),
        f"Actual against nominal coverage of central intervals: {held}.",
        "Above the line intervals are too wide, below it too narrow.",
    )


def histogram(pit: npt.NDArray[np.float64]) -> Picture:
    """A figure of where truth lies in its distributions."""
    low, high = (number(int((side < 0.1).sum())) for side in (pit, 1.0 - pit))
    return Picture.of(
        plots.pit_histogram(pit),
        f"Histogram of {number(pit.size)} probabilities of less than the truth (PIT): {low} in "
        f"the lowest tenth, {high} in the highest.",
        "Flat within the band where calibrated; a hump says intervals are too wide, two horns too "
        "narrow, a slope that predictions are too low or too high.",
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
        plots.time_series(times, lines, result.label, "mean over the area", samples),
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
