"""What the report says: one function for each section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deconditional.errors import shortened
from deconditional.report import field_plots
from deconditional.report.grids import area_weights, horizontal_dims, plane, time_dim
from deconditional.report.marginals import Marginals, actual_coverage
from deconditional.report.material import Material
from deconditional.report.page import (
    Picture,
    Pictures,
    Quote,
    Section,
    Table,
    Text,
    Warnings,
    number,
    share,
    shown,
)
from deconditional.report.result import ROLES, Result
from deconditional.report.variogram import distance_bins, semivariogram

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["sections", "summary"]

Block = Text | Quote | Warnings | Table | Pictures
Floats = npt.NDArray[np.float64]

SAMPLES_DRAWN = 20
"""Samples in the figure over time."""


# ---------------------------------------------------------------------- summary


def summary(material: Material) -> Text:
    """The result in one paragraph."""
    result = material.result
    predicted = int(np.isfinite(result.mean.values).sum())
    units = f", in {result.units}" if result.units else ""
    where = "fine cells" if result.time is None else "values (fine cells at all times)"
    model = result.facts.get("model")
    by = f"The model {model} predicts" if model else "The model predicts"
    sentences = [
        f"{by} {result.name} ({result.target}{units}) in {number(predicted)} of "
        f"{number(result.mean.size)} {where}."
    ]
    roles = result.roles()
    if roles is not None:
        sentences.append(_matching(roles))
    rmse = material.residuals.get("rmse")
    if rmse is not None and np.isfinite(rmse):
        sentences.append(
            "Averaged over coarse cells, the posterior mean differs from what was observed there "
            f"by {material.with_units(rmse, 3)} (root mean square)."
        )
    if material.scores is not None:
        found = material.scores
        sentences.append(
            f"Against the truth given, the mean has a root mean squared error of "
            f"{material.with_units(found['rmse'], 3)} and a bias of "
            f"{material.with_units(found['bias'], 3)}, the continuous ranked probability score is "
            f"{material.with_units(found['crps'], 3)}, and the 95% intervals hold "
            f"{share(found['coverage95'])} of the truth."
        )
    return Text(" ".join(sentences))


def _matching(roles: list[int]) -> str:
    _, covariates, target, both = roles
    bags, observations = covariates + both, target + both
    counted = (
        f"It learnt from the fine covariates of {number(bags)} coarse cells (bags) and from "
        f"observations in {number(observations)} coarse cells"
    )
    if both == 0:
        return (
            f"{counted}; no cell has both, so the data are unmatched and the mediators link them."
        )
    if both == observations:
        return (
            f"{counted}; every observed cell has its own fine covariates, so the data are matched."
        )
    return f"{counted}; {number(both)} cells have both, so the data are matched in part."


# ---------------------------------------------------------------------- sections


def sections(material: Material) -> list[Section]:
    """Every section of the report, in order."""
    return [
        Section("asked", "What was asked", _asked(material)),
        Section("coverage", "Data coverage", _coverage(material)),
        Section("posterior", "Posterior", _posterior(material)),
        Section("calibration", "Calibration", _calibration(material)),
        Section("scales", "Scales", _scales(material)),
        Section("agreement", "Agreement with the coarse observations", _agreement(material)),
        Section("parameters", "Hyper-parameters and fit", _parameters(material)),
        Section("comparison", "Model comparison", _comparison(material)),
        Section("provenance", "Timings and versions", _provenance(material)),
    ]


def _distribution(material: Material) -> str:
    kind = material.result.distribution
    if material.result.facts.get("model") in ("mediated", "MediatedGP"):
        return f"a mixture, taken here for {kind} with its mean and spread"
    return kind


def _asked(material: Material) -> list[Block]:
    facts, attrs = material.result.facts, material.result.data.attrs
    bounds = facts.get("bounds") or [None, None]
    request: dict[str, Any] = {
        "target": f"{material.result.name} ({material.result.target})",
        "units": material.result.units,
        "fine covariates": facts.get("covariates"),
        "mediators": facts.get("mediators"),
        "model": facts.get("model"),
        "mediation": facts.get("mediation"),
        "distribution of a cell": _distribution(material),
    }
    if any(bound is not None for bound in bounds):
        low, high = ("none" if bound is None else shown(bound) for bound in bounds)
        request["bounds"] = f"lower {low}, upper {high}"
    request |= {name: attrs[name] for name in ("title", "source", "Conventions") if name in attrs}
    blocks: list[Block] = [_facts("The request", request)]
    if facts.get("options"):
        blocks.append(_facts("Options", facts["options"]))
    if attrs.get("history"):
        blocks += [Text("History of the file:"), Quote(str(attrs["history"]))]
    return blocks


def _coverage(material: Material) -> list[Block]:
    result = material.result
    pictures = []
    roles = result.roles()
    if roles is not None:
        counts = ", ".join(f"{name} {number(n)}" for name, n in zip(ROLES, roles, strict=True))
        role = result.data["coarse_role"]
        pictures.append(
            Picture.of(
                field_plots.category_map(role.fillna(0), ROLES, "what coarse cells give"),
                f"Map of what each of {number(role.size)} coarse cells gives: {counts}.",
                "Coarse cells by what they give: fine covariates, a value of the target, or both.",
            )
        )
    found = np.isfinite(result.mean.values)
    pictures.append(
        Picture.of(
            field_plots.category_map(
                material.on_grid(found.astype(float)),
                ("not predicted", "predicted"),
                "fine cells predicted",
            ),
            f"Map of the fine cells predicted: {number(int(found.sum()))} of {number(found.size)}.",
            "Fine cells with a prediction; grey cells have none.",
        )
    )
    blocks: list[Block] = [*_first_step(result), Pictures(pictures)]
    understood = result.facts.get("understood") or []
    if understood:
        rows = [[str(label), shown(text)] for label, text in understood]
        blocks.append(Table("How the files were understood", (), rows))
    return blocks


def _posterior(material: Material) -> list[Block]:
    result = material.result
    pictures = []
    if "coarse_observed" in result.data:
        pictures.append(
            _map(
                material,
                result.data["coarse_observed"],
                "coarse input",
                "The coarse observations; grey where there is none.",
            )
        )
    pictures.append(
        _map(material, result.mean, "posterior mean", "The posterior mean, on the same colours.")
    )
    lower, upper = material.marginals.interval(0.95)
    pictures.append(
        _map(
            material,
            material.on_grid(upper - lower),
            "width of the 95% interval",
            "Width of the central interval that holds a cell's value with probability 95%.",
            "spread",
        )
    )
    if _has_samples(result):
        pictures.append(
            _map(
                material,
                result.data["samples"].isel(sample=0),
                "one sample",
                "One draw of the posterior: a field with the detail that the mean smooths away.",
            )
        )
    blocks: list[Block] = [*_first_step(result), Pictures(pictures)]
    if result.time is not None:
        blocks.append(Pictures([_over_time(material, result.time)]))
    return blocks


def _calibration(material: Material) -> list[Block]:
    if material.scored is not None and material.truth is not None and material.scores is not None:
        return _against_truth(material, material.scored, material.truth, material.scores)
    comparison = material.result.facts.get("comparison") or {}
    pit = np.asarray(comparison.get("pit") or [], dtype=float)
    pit = pit[np.isfinite(pit)]
    if not pit.size:
        return [
            Text(
                "No truth was given, and the file holds no cross-validation, so there is nothing "
                "to hold the intervals against. Give the truth to the report, or let deconditional "
                "downscale compare models by cross-validation."
            )
        ]
    return [
        Text(
            f"No truth was given. The figures show {number(pit.size)} coarse observations that "
            "were left out in cross-validation and predicted from the others: they test the "
            "distributions of coarse cells, not those of fine cells."
        ),
        _calibration_pictures(pit),
    ]


def _against_truth(
    material: Material,
    scored: tuple[Floats, Floats, Marginals],
    truth: xr.DataArray,
    found: dict[str, float],
) -> list[Block]:
    _, values, marginals = scored
    result, units = material.result, material.result.units
    rows = [
        ["RMSE", material.with_units(found["rmse"]), "root mean squared error of the mean"],
        ["MAE", material.with_units(found["mae"]), "mean absolute error of the mean"],
        ["bias", material.with_units(found["bias"]), "mean of prediction minus truth"],
        [
            "CRPS",
            material.with_units(found["crps"]),
            "continuous ranked probability score: error of the whole distribution, lower is better",
        ],
        ["coverage of 95%", share(found["coverage95"]), "truth inside the 95% intervals"],
        ["coverage of 50%", share(found["coverage50"]), "truth inside the 50% intervals"],
    ]
    blocks: list[Block] = []
    theirs = shortened(str(truth.attrs.get("units", "")), 100)
    if units and theirs and theirs != units:
        blocks.append(
            Warnings(
                [f"The truth is in {theirs!r}, the result in {units!r}; nothing is converted."]
            )
        )
    blocks.append(
        Table(
            f"Scores against the truth, over {number(values.size)} values",
            ("score", "value", "meaning"),
            rows,
        )
    )
    blocks.append(_calibration_pictures(marginals.pit(values)))
    if marginals.kind == "rectified normal":
        blocks.append(
            Text(
                "A bound has a probability of its own. An interval that ends on it holds more than "
                "its name says, and a truth on it gets a random PIT value within that probability."
            )
        )
    error = material.on_grid(result.mean.values.astype(float) - truth.values)
    blocks += [
        *_first_step(result),
        Pictures(
            [
                _map(material, truth, "truth", "The truth, on the colours of the posterior mean."),
                _map(material, error, "error", "Posterior mean minus truth.", "difference"),
            ]
        ),
    ]
    return blocks


def _calibration_pictures(pit: Floats) -> Pictures:
    levels = (0.5, 0.8, 0.95)
    held = ", ".join(
        f"{level:.0%} intervals hold {share(actual)}"
        for level, actual in zip(levels, actual_coverage(pit, levels), strict=True)
    )
    low, high = share(float(np.mean(pit < 0.1))), share(float(np.mean(pit > 0.9)))
    return Pictures(
        [
            Picture.of(
                field_plots.coverage_curve(pit),
                f"Actual against nominal coverage of central intervals: {held}.",
                "Above the line intervals are too wide, below it too narrow.",
            ),
            Picture.of(
                field_plots.pit_histogram(pit),
                f"Histogram of {number(pit.size)} PIT values: {low} below 0.1 and {high} above "
                "0.9, where 10% each would be calibrated.",
                "Flat is calibrated; a hump means too wide distributions, a bowl too narrow ones, "
                "a slope a bias.",
            ),
        ]
    )


def _scales(material: Material) -> list[Block]:
    result = material.result
    fields = {"posterior mean": result.mean}
    if _has_samples(result):
        fields["one sample"] = result.data["samples"].isel(sample=0)
    if "coarse_observed" in result.data:
        fields["coarse observations"] = result.data["coarse_observed"]
    if material.truth is not None:
        fields["truth"] = material.truth
    planes = {name: plane(field) for name, field in fields.items()}
    fine = planes["posterior mean"]
    bins = distance_bins(fine)
    found = {name: semivariogram(grid, bins) for name, grid in planes.items()}
    curves = {name: (v.distance, v.semivariance) for name, v in found.items() if v.pairs.size}
    if not curves:
        return [Text("Too few cells have a value for a semivariogram.")]
    squared = f" ({result.units})²" if result.units else ""
    ends = "; ".join(
        f"{name} {number(y[0])} at {number(x[0])} {fine.unit} and {number(y[-1])} at "
        f"{number(x[-1])} {fine.unit}"
        for name, (x, y) in curves.items()
    )
    return [
        Text(
            "The semivariogram is half the mean squared difference between two cells at a "
            "distance: a posterior mean that lies below the sample at short distances leaves out "
            "detail that the data do not determine, while a sample should vary like the truth."
        ),
        *_first_step(result, "The figure shows"),
        Pictures(
            [
                Picture.of(
                    field_plots.semivariograms(curves, fine.unit, result.units),
                    f"Semivariogram{squared}: {ends}.",
                    "Up to 200\u202f000 random pairs of cells in every direction.",
                )
            ]
        ),
    ]


def _agreement(material: Material) -> list[Block]:
    found = material.residuals
    blocks: list[Block] = []
    if found:
        blocks.append(
            Text(
                "A residual is a coarse observation minus the average of the posterior mean over "
                "its cell. Residuals as large as the noise of the observations are expected; a "
                "pattern on the map is not."
            )
        )
        rows = [
            ["mean", material.with_units(found.get("mean"))],
            ["root mean square", material.with_units(found.get("rmse"))],
            ["largest in size", material.with_units(found.get("largest"))],
        ]
        number_of = found.get("n")
        over = f" over {number(number_of)} coarse cells" if number_of is not None else ""
        blocks.append(Table(f"Residuals{over}", ("residual", "value"), rows))
    if "coarse_residual" in material.result.data:
        residual = material.result.data["coarse_residual"]
        if np.isfinite(residual.values.astype(float)).any():
            picture = _map(
                material,
                residual,
                "observed minus predicted",
                "Residuals; grey where nothing was observed or no average can be formed.",
                "difference",
            )
            blocks += [*_first_step(material.result), Pictures([picture])]
    if not blocks:
        blocks.append(
            Text(
                "No observed coarse cell has predictions of its fine cells to average, so there "
                "are no residuals."
            )
        )
    return blocks


def _parameters(material: Material) -> list[Block]:
    blocks: list[Block] = []
    fit = material.result.facts.get("fit") or {}
    notes = [str(note) for note in fit.get("notes") or []]
    if fit.get("converged") is False:
        notes.insert(0, "The fit did not converge: take the result with care.")
    if notes:
        blocks.append(Warnings(notes))
    parameters = material.result.facts.get("parameters") or []
    if parameters:
        rows = [
            [
                str(p.get("name", "")),
                shown(p.get("value")),
                str(p.get("unit") or ""),
                str(p.get("meaning") or ""),
            ]
            for p in parameters
        ]
        columns = ("parameter", "value", "unit", "meaning")
        blocks.append(Table("Hyper-parameters", columns, rows))
    facts = {
        name: fit[key]
        for name, key in (
            ("converged", "converged"),
            ("iterations", "iterations"),
            ("log evidence", "log_evidence"),
        )
        if fit.get(key) is not None
    }
    facts |= fit.get("details") or {}
    if facts:
        blocks.append(_facts("Fit", facts))
    return blocks or [Text("The file holds no facts about the fit.")]


def _comparison(material: Material) -> list[Block]:
    comparison = material.result.facts.get("comparison")
    if not comparison or not comparison.get("rows"):
        return [Text("Models were not compared: one was asked for.")]
    rows = [[shown(cell) for cell in row] for row in comparison["rows"]]
    chosen = comparison.get("chosen")
    if not isinstance(chosen, int) or isinstance(chosen, bool):
        names = [row[0] for row in rows]
        chosen = names.index(str(chosen)) if str(chosen) in names else None
    folds = comparison.get("folds")
    blocks: list[Block] = [
        Text(
            "Coarse observations were left out in turn and predicted from the others."
            + (f" Folds: {folds}." if folds else "")
        )
    ]
    columns = [str(name) for name in comparison.get("columns") or []]
    blocks.append(Table("Cross-validation", columns, rows, marked=chosen))
    return blocks


def _provenance(material: Material) -> list[Block]:
    facts = material.result.facts
    blocks: list[Block] = []
    timings = facts.get("timings") or {}
    if timings:
        rows = [[str(name), _seconds(value)] for name, value in timings.items()]
        blocks.append(Table("Time taken", ("step", "time"), rows))
    versions = facts.get("versions") or {}
    if versions:
        blocks.append(_facts("Versions", versions))
    return blocks or [Text("The file holds neither timings nor versions.")]


# ---------------------------------------------------------------------- parts


def _facts(caption: str, facts: Mapping[str, Any]) -> Table:
    return Table(caption, (), [[str(name), shown(value)] for name, value in facts.items()])


def _seconds(value: Any) -> str:
    return f"{value:.1f} s" if isinstance(value, int | float) else shown(value)


def _has_samples(result: Result) -> bool:
    return "samples" in result.data and result.data["samples"].sizes.get("sample", 0) > 0


def _first_step(result: Result, what: str = "Maps show") -> list[Block]:
    """Which of several times is shown."""
    if result.time is None:
        return []
    times = result.mean[result.time].values if result.time in result.mean.coords else None
    which = "" if times is None else f", {_moment(times[0])}"
    return [Text(f"{what} the first of {number(result.mean.sizes[result.time])} times{which}.")]


def _moment(value: Any) -> str:
    """A time without the parts that are zero."""
    text = str(value.astype("datetime64[s]") if isinstance(value, np.datetime64) else value)
    return text.replace("T", " ").removesuffix(" 00:00:00").removesuffix(":00")


def _map(
    material: Material,
    field: xr.DataArray,
    title: str,
    caption: str,
    kind: field_plots.Kind = "value",
) -> Picture:
    values = plane(field).values
    found = values[np.isfinite(values)]
    about = f"Map of {material.result.name}, {title}"
    if found.size:
        alt = (
            f"{about}: from {number(found.min())} to {material.with_units(found.max())}, mean "
            f"{material.with_units(found.mean())}, {number(found.size)} of {number(values.size)} "
            "cells with a value."
        )
    else:
        alt = f"{about}: no cell has a value."
    limits = material.limits if kind == "value" else None
    label = _label(material.result) if kind == "value" else material.result.units
    figure = field_plots.field_map(field, title, label, kind, limits)
    return Picture.of(figure, alt, caption)


def _label(result: Result) -> str:
    name = result.name if len(result.name) <= 25 else result.target
    return f"{name} ({result.units})" if result.units else name


def _over_time(material: Material, time: str) -> Picture:
    result = material.result
    curves = {"posterior mean": _area_mean(result.mean).values}
    if material.truth is not None:
        curves["truth"] = _area_mean(material.truth.where(result.mean.notnull())).values
    samples = None
    if _has_samples(result):
        drawn = _area_mean(result.data["samples"].isel(sample=slice(SAMPLES_DRAWN)))
        samples = drawn.transpose("sample", time).values
    times = result.mean[time].values
    first, last = curves["posterior mean"][[0, -1]]
    return Picture.of(
        field_plots.time_series(times, curves, _label(result), "mean over the area", samples),
        f"Mean of {result.name} over the area at {number(len(times))} times: "
        f"{material.with_units(first)} at the first, {material.with_units(last)} at the last.",
        "Means over the cells predicted, weighted by area.",
    )


def _area_mean(field: xr.DataArray) -> xr.DataArray:
    """Mean over the horizontal dimensions, weighted by area; the first step of others than time."""
    kept = {*horizontal_dims(field), time_dim(field), "sample"}
    field = field.isel({dim: 0 for dim in field.dims if dim not in kept})
    return field.weighted(area_weights(field)).mean(horizontal_dims(field))
