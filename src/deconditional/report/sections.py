"""What the report says: one function for each section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from deconditional.errors import shortened
from deconditional.report import pictures
from deconditional.report.page import (
    Block,
    Pictures,
    Section,
    Table,
    Text,
    Warnings,
    number,
    share,
    shown,
)
from deconditional.report.result import Result, floats


def sections(result: Result) -> list[Section]:
    """Every section of the report, in order."""
    return [
        Section("posterior", "The result, and what to doubt", _posterior(result)),
        Section("asked", "What was asked", _asked(result)),
        Section("coverage", "Data coverage", _coverage(result)),
        Section("calibration", "Calibration", _calibration(result)),
        Section("agreement", "Agreement with the coarse observations", _agreement(result)),
        Section("parameters", "Hyper-parameters and fit", _parameters(result)),
        Section("comparison", "Model comparison", _comparison(result)),
        Section("provenance", "Timings and versions", _provenance(result)),
    ]


# ---------------------------------------------------------------------- summary


def summary(result: Result) -> Text:
    """The result in one paragraph."""
    predicted = int(np.isfinite(result.mean.values).sum())
    per = result.is_of_counts or not result.units
    units = f" {result.units}" if per else f", in {result.units}"
    where = "fine cells" if result.time is None else "values (fine cells at all times)"
    model = result.facts.get("model")
    sentences = [
        f"The model {f'{model} ' if model else ''}predicts {result.quantity} "
        f"({result.target}{units.rstrip()}) "
        f"in {number(predicted)} of {number(result.mean.size)} {where}."
    ]
    roles = result.roles()
    if roles is not None:
        sentences.append(_matching(roles, result.noun))
    rmse = result.residuals.get("rmse")
    if rmse is not None and np.isfinite(rmse):
        sentences.append(
            f"{'Summed' if result.is_of_counts else 'Averaged'} over {result.noun}, the posterior "
            f"mean differs from what was observed there by {result.seen(rmse, 3)} (root "
            "mean square)."
        )
    if result.scores is not None:
        rmse, bias, crps = (
            result.with_units(result.scores[name], 3) for name in ("rmse", "bias", "crps")
        )
        sentences.append(
            f"Against the truth given, the mean has a root mean squared error of {rmse} and a bias "
            f"of {bias}, the continuous ranked probability score is {crps}, and the 95% intervals "
            f"hold {share(result.scores['coverage95'])} of the truth."
        )
    return Text(" ".join(sentences))


def _matching(roles: list[int], noun: str) -> str:
    """A sentence on how many cells gave what, and on whether they are the same."""
    _, covariates, target, both = roles
    bags, observations = covariates + both, target + both
    if both == 0:
        how = "no cell has both, so the data are unmatched and the mediators link them."
    elif both == observations:
        how = "every observed cell has its own fine covariates, so the data are matched."
    else:
        how = f"{number(both)} cells have both, so the data are matched in part."
    return (
        f"It learnt from the fine covariates of {number(bags)} {noun} (bags) and from "
        f"observations in {number(observations)} {noun}; {how}"
    )


# ---------------------------------------------------------------------- what was asked and given


def _asked(result: Result) -> list[Block]:
    facts, attrs = result.facts, result.data.attrs
    request: dict[str, Any] = {
        "target": f"{result.name} ({result.target})",
        "units": result.units,
        "fine covariates": facts.get("covariates"),
        "mediators": facts.get("mediators"),
        "model": facts.get("model"),
        "mediation": facts.get("mediation"),
        "distribution of a cell": _distribution(result),
    }
    bounds = facts.get("bounds") or [None, None]
    if any(bound is not None for bound in bounds):
        low, high = ("none" if bound is None else shown(bound) for bound in bounds)
        request["bounds"] = f"lower {low}, upper {high}"
    kept = ("title", "source", "Conventions", "history")
    request |= {name: attrs[name] for name in kept if name in attrs}
    return [*_table("The request", request), *_table("Options", facts.get("options"))]


def _distribution(result: Result) -> str:
    if result.facts.get("model") in ("mediated", "MediatedGP"):
        return f"a mixture, taken here for {result.distribution} with its mean and spread"
    return result.distribution


def _coverage(result: Result) -> list[Block]:
    roles = result.roles()
    blocks: list[Block] = []
    cover = result.data.get("coarse_cover")
    if result.outlines is not None and cover is not None:
        caption = f"Share of each of the {result.noun} that has fine covariates."
        blocks.append(Pictures([pictures.share_of_zones(result, cover, "cover", caption)]))
    elif roles is not None:
        blocks += [*_first_step(result), Pictures([pictures.roles(result, roles)])]
    understood = result.facts.get("understood") or []
    if understood:
        rows = [[str(label), shown(text)] for label, text in understood]
        blocks.append(Table("How the files were understood", (), rows))
    return blocks or [Text("The file does not say what the coarse cells gave.")]


# ---------------------------------------------------------------------- what came out


def _posterior(result: Result) -> list[Block]:
    lower, upper = result.marginals.interval(0.95)
    drawn = [
        pictures.field(result, result.mean, "posterior mean", "The posterior mean."),
        pictures.field(
            result,
            upper - lower,
            "width of the 95% interval",
            "Width of the central interval that holds a cell's value with probability 95%.",
            "spread",
        ),
    ]
    observed = result.observed
    if observed is not None:
        caption = "The coarse observations, on the same colours; grey where there is none."
        title = "coarse input"
        if result.is_of_counts:
            caption = f"Counts over what is in the {result.noun}: crude rates, as they were given."
            title = "crude rate"
        drawn.insert(1, pictures.field(result, observed, title, caption))
    if "exceedance" in result.data and "above" in result.data.coords:
        drawn += pictures.above(result)
    if result.samples is not None:
        caption = "One draw of the posterior: a field with the detail that the mean smooths away."
        sample = result.samples.isel(sample=0)
        drawn.append(pictures.field(result, sample, "one sample", caption))
    if result.time is not None:
        drawn.append(pictures.over_time(result, result.time))
    return [*_skill(result), *_first_step(result), Pictures(drawn), summary(result)]


def _skill(result: Result) -> list[Block]:
    """Blocks on how good the result is, as far as can be seen, and what to doubt."""
    comparison, fit = result.facts.get("comparison") or {}, result.facts.get("fit") or {}
    doubts = [str(comparison["doubt"])] if comparison.get("doubt") else []
    if fit.get("converged") is False:
        doubts.append("The fit did not converge: take the result with care.")
    doubts += [str(note) for note in fit.get("notes") or []]
    flagged = (result.facts.get("extrapolation") or {}).get("share")
    if isinstance(flagged, float) and round(flagged, 3) > 0.0:  # not a doubt of 0.0%
        doubts.append(f"{share(flagged)} of the cells lie far from the data (see extrapolation).")
    said = comparison.get("skill") or "not known, as there were too few observations to compare."
    blocks: list[Block] = [Text(f"Skill beside the simplest answer: {said}")]
    return [Warnings(doubts), *blocks] if doubts else blocks


def _calibration(result: Result) -> list[Block]:
    if result.truth is not None:
        return _against_truth(result, result.truth)
    comparison = result.facts.get("comparison") or {}
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
            f"No truth was given. The figure shows {number(pit.size)} coarse observations that "
            "were left out in cross-validation and predicted from the others: they test the "
            "distributions of coarse cells, not those of fine cells."
        ),
        Pictures([pictures.held_out(pit), pictures.histogram(pit)]),
    ]


SCORES = {
    "rmse": ("RMSE", "root mean squared error of the mean"),
    "mae": ("MAE", "mean absolute error of the mean"),
    "bias": ("bias", "mean of prediction minus truth"),
    "crps": (
        "CRPS",
        "continuous ranked probability score: error of the whole distribution, lower is better",
    ),
    "coverage95": ("coverage of 95%", "truth inside the 95% intervals"),
    "coverage50": ("coverage of 50%", "truth inside the 50% intervals"),
}
"""What the scores are called, and what they mean."""


def _against_truth(result: Result, truth: xr.DataArray) -> list[Block]:
    assert result.scored is not None and result.scores is not None
    _, values, marginals = result.scored
    blocks: list[Block] = []
    theirs = shortened(str(truth.attrs.get("units", "")), 100)
    if result.units and theirs and theirs != result.units:
        warning = (
            f"The truth is in {theirs!r}, the result in {result.units!r}; nothing is converted."
        )
        blocks.append(Warnings([warning]))
    rows = []
    for key, (name, meaning) in SCORES.items():
        value = result.scores[key]
        text = share(value) if key.startswith("coverage") else result.with_units(value)
        rows.append([name, text, meaning])
    caption = f"Scores against the truth, over {number(values.size)} values"
    blocks.append(Table(caption, ("score", "value", "meaning"), rows))
    blocks.append(Pictures([pictures.held_out(marginals.pit(values))]))
    if marginals.kind == "rectified normal":
        blocks.append(
            Text(
                "A bound has a probability of its own. An interval that ends on it holds more than "
                "its name says, and a truth on it gets a random PIT value within that probability."
            )
        )
    error, caption = floats(result.mean) - truth.values, "Posterior mean minus truth."
    drawn = [
        pictures.field(result, truth, "truth", "The truth, on the colours of the posterior mean."),
        pictures.field(result, error, "error", caption, "difference"),
    ]
    return [*blocks, *_first_step(result), Pictures(drawn)]


def _agreement(result: Result) -> list[Block]:
    residuals, blocks = result.residuals, list[Block]()
    if residuals:
        blocks.append(
            Text(
                "A residual is a coarse observation minus "
                f"{'the sum' if result.is_of_counts else 'the average'} of the posterior mean over "
                "its cell. Residuals as large as the noise of the observations are expected; a "
                "pattern on the map is not."
            )
        )
        names = {"mean": "mean", "root mean square": "rmse", "largest in size": "largest"}
        rows = [[name, result.seen(residuals.get(key))] for name, key in names.items()]
        over = (
            f" over {number(residuals['n'])} {result.noun}"
            if residuals.get("n") is not None
            else ""
        )
        blocks.append(Table(f"Residuals{over}", ("residual", "value"), rows))
    residual = result.data.get("coarse_residual")
    if residual is not None and np.isfinite(floats(residual)).any():
        caption = "Residuals; grey where nothing was observed or no average can be formed."
        title = "observed minus predicted"
        picture = pictures.field(result, residual, title, caption, "difference")
        drawn = [picture]
        if result.is_of_counts:
            drawn.insert(0, pictures.fitted(result))
        blocks += [*_first_step(result), Pictures(drawn)]
    return blocks or [
        Text(
            "No observed coarse cell has predictions of its fine cells to average, so there are no "
            "residuals."
        )
    ]


# ---------------------------------------------------------------------- how it was learnt


ABOUT = ("unit", "meaning")


def _parameters(result: Result) -> list[Block]:
    fit = result.facts.get("fit") or {}
    blocks: list[Block] = []
    rows = [
        [str(p.get("name", "")), shown(p.get("value")), *(str(p.get(c) or "") for c in ABOUT)]
        for p in result.facts.get("parameters") or []
    ]
    if rows:
        blocks.append(Table("Hyper-parameters", ("parameter", "value", *ABOUT), rows))
    keys = ("converged", "iterations", "log_evidence")
    facts = {key.replace("_", " "): fit[key] for key in keys if fit.get(key) is not None}
    blocks += _table("Fit", facts | (fit.get("details") or {}))
    return blocks or [Text("The file holds no facts about the fit.")]


def _comparison(result: Result) -> list[Block]:
    comparison = result.facts.get("comparison")
    if not comparison or not comparison.get("rows"):
        return [Text("Models were not compared: there were too few observations.")]
    rows = [[shown(cell) for cell in row] for row in comparison["rows"]]
    names, chosen = [row[0] for row in rows], str(comparison.get("chosen"))
    marked = names.index(chosen) if chosen in names else None
    folds = f" Folds: {comparison['folds']}." if comparison.get("folds") else ""
    columns = [str(name) for name in comparison.get("columns") or []]
    return [
        Text(
            f"Coarse observations were left out in turn and predicted from the others.{folds} "
            "Columns named detail: means over two by two coarse cells were known in their place."
        ),
        Table("Cross-validation", columns, rows, marked=marked),
    ]


def _provenance(result: Result) -> list[Block]:
    timings = result.facts.get("timings") or {}
    blocks = [
        *_table("Time taken", {name: _seconds(value) for name, value in timings.items()}),
        *_table("Versions", result.facts.get("versions")),
    ]
    return blocks or [Text("The file holds neither timings nor versions.")]


# ---------------------------------------------------------------------- parts


def _table(caption: str, facts: Mapping[str, Any] | None) -> list[Block]:
    """A table of facts by name; nothing where there are none."""
    rows = [[str(name), shown(value)] for name, value in (facts or {}).items()]
    return [Table(caption, (), rows)] if rows else []


def _seconds(value: Any) -> str:
    return f"{value:.1f} s" if isinstance(value, int | float) else shown(value)


def _first_step(result: Result) -> list[Block]:
    """A sentence that says which of several times is shown."""
    if result.time is None:
        return []
    times = result.mean[result.time].values if result.time in result.mean.coords else None
    which = "" if times is None else f", {_moment(times[0])}"
    return [Text(f"Maps show the first of {number(result.mean.sizes[result.time])} times{which}.")]


def _moment(value: Any) -> str:
    """A time without the parts that are zero."""
    text = str(value.astype("datetime64[s]") if isinstance(value, np.datetime64) else value)
    return text.replace("T", " ").removesuffix(" 00:00:00").removesuffix(":00")
