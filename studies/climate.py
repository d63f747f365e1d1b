"""Mediated downscaling of atmospheric fields: the paper's climate experiment.

Fine fields are averaged over square blocks. A random half of the coarse cells keeps its bag of fine
covariates, the other half its coarse target, and a coarse mediator, known in all cells, links them.
The setting is the paper's: inputs are latitude, longitude and fine covariates, standardised;
kernels are a Matérn-3/2 of position plus a Gaussian of the rest; the prior has mean zero; fine
values carry noise of their own (high-resolution noise); variational models have 800 inducing
points; every fine cell is predicted and scored. Exact models stand beside them.

What differs: parameters are learnt by L-BFGS on the collapsed bound, not by Adam; inducing points
are those of k-means++, not uniform over the grid; predictions are exact given those, without random
Fourier features; priors hold the parameters.

With a file of the published layout (``orog clt albisccp pctisccp ttop`` on 360 x 720 cells) the
target is the temperature at cloud top and a block has 17 x 17 cells. Without one, the fields are
those of :func:`~deconditional.datasets.global_fields`: a climatology of surface temperature, not
CMIP6, and a different problem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np

import deconditional as dc
from deconditional import scores
from deconditional.errors import UsageError
from studies.climate_fields import Fields, Floats, draw_data, draw_posterior, fields, split
from studies.command import known, option, positive, require, whole
from studies.frame import Outcome, Study, Task, fit_and_predict
from studies.records import Record, Results
from studies.tables import count, markdown, mean_and_sd, summary, wilcoxon_table

__all__ = ["MODELS", "Climate"]

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


# ---------------------------------------------------------------------- models


def field_kernel(n_inputs: int) -> Any:
    """Matérn-3/2 of latitude and longitude, Gaussian of the rest, added."""
    rest = n_inputs - 2
    return gk.Matern32(active_dims=[0, 1], lengthscale=jnp.ones(2)) + gk.RBF(
        active_dims=list(range(2, n_inputs)), lengthscale=jnp.ones(rest)
    )


def _paper(n_inputs: int) -> dict[str, Any]:
    return {"kernel": field_kernel(n_inputs), "trend": "none", "fine_noise": True, "n_restarts": 1}


def _pseudo(base: Any, propagate: bool) -> Any:
    return dc.PseudoTarget(
        base, field_kernel(3), propagate=propagate, trend=base.trend, n_restarts=1
    )


def _vargpr(d: int, inducing: int, **changes: Any) -> Any:
    return dc.VarCentroidGP(**(_paper(d) | changes), n_inducing=inducing)


def _vbagg(d: int, inducing: int, **changes: Any) -> Any:
    return dc.VBagg(**(_paper(d) | changes), n_inducing=inducing)


def _varcmp(d: int, inducing: int) -> Any:
    return dc.VarCMP(**_paper(d), mediator_kernel=field_kernel(3), n_inducing=inducing)


def _cmp(d: int, **changes: Any) -> Any:
    # Condensed bags would misstate the share of high-resolution noise in a bag mean.
    own = {"mediator_kernel": field_kernel(3), "fine_noise": False}
    return dc.CMP(**(_paper(d) | own | changes))


MODELS: dict[str, Callable[[int, int], Any]] = {
    "vargpr": lambda d, inducing: _pseudo(_vargpr(d, inducing), propagate=False),
    "vbagg": lambda d, inducing: _pseudo(_vbagg(d, inducing), propagate=False),
    "varcmp": _varcmp,
    "cmp": lambda d, inducing: _cmp(d),
    "u-cmp": lambda d, inducing: _cmp(d, uncertainty=True),
    "vargpr, fair": lambda d, inducing: _pseudo(_vargpr(d, inducing, trend="linear"), True),
    "vbagg, fair": lambda d, inducing: _pseudo(_vbagg(d, inducing, trend="linear"), True),
    "u-cmp, centred": lambda d, inducing: _cmp(d, uncertainty=True, centred=True, trend="constant"),
    "oracle": lambda d, inducing: _vbagg(d, inducing, trend="linear"),
}
"""Name of a model -> what makes it for a number of inputs and of inducing points.

The first three are the paper's, with its mean of zero, its high-resolution noise, and
pseudo-targets taken at face value. *Fair* baselines have a linear trend and pass on the covariance
of their pseudo-targets. The oracle is given the covariates of the cells whose target is known, and
needs no mediation."""

EXACT = ("cmp", "u-cmp", "u-cmp, centred")
"""Models that learn from condensed bags, without high-resolution noise."""


# ---------------------------------------------------------------------- the study


def _points(text: str) -> int | None:
    return None if text == "all" else positive(text)


COLUMNS = {
    "seeds": count,
    "RMSE": mean_and_sd("rmse", ".2f"),
    "MAE": mean_and_sd("mae", ".2f"),
    "Pearson": mean_and_sd("pearson"),
    "Spearman": mean_and_sd("spearman"),
    "SSIM": mean_and_sd("ssim"),
    "SSIM, R = 1": mean_and_sd("ssim_unit_range"),
    "CRPS": mean_and_sd("crps", ".2f"),
    "coverage of 95%": mean_and_sd("coverage95"),
    "fit (s)": mean_and_sd("fit_seconds", ".0f"),
}


@dataclass(frozen=True)
class Climate(Study):
    """Atmospheric fields with the paper's pipeline: half of the cells give covariates."""

    name: ClassVar[str] = "climate"
    help: ClassVar[str] = "mediated downscaling of atmospheric fields (section 5.2)"
    title: ClassVar[str] = "Mediated downscaling of atmospheric fields"
    needs: ClassVar[tuple[str, ...]] = ("fields", "xarray", "cf_xarray", "netCDF4")

    data: str | None = option(
        None,
        "fields of the published layout (orog clt albisccp pctisccp ttop on 360 x 720 cells); "
        "without it, a global climatology",
        metavar="FILE.nc",
    )
    month: int | None = option(None, "of the climatology (default: 3)", type=whole, metavar="1..12")
    seeds: int = option(10, "draws of cells", quick=1, type=whole)
    models: tuple[str, ...] = option((), "some models (default: all)", metavar="NAME")
    inducing: int = option(800, "inducing points", quick=100)
    exact_points: int | None = option(
        16,
        "points that stand for a bag in exact models, or all",
        quick=8,
        type=_points,
        metavar="N",
    )
    thin: int = option(1, "average so many fine cells each way first", quick=2)

    @property
    def fields(self) -> Fields:
        """The fields that are downscaled."""
        return fields(self.data, 3 if self.month is None else self.month, self.thin)

    def settings(self) -> Record:
        """Which fields these are, told by their numbers, and how models learn from them."""
        return {
            "source": self.fields.source,
            "fields": self.fields.digest,
            "fine cells": list(self.fields.truth.shape),
            "coarse cells": list(self.fields.target.shape),
            "inducing": self.inducing,
            "exact_points": self.exact_points,
        }

    def tasks(self) -> list[Task]:
        """Every model on every draw of the cells that give covariates."""
        chosen = known("model", self.models, [*MODELS])
        if self.seeds < 1:
            raise UsageError(f"the number of seeds must be at least 1, not {self.seeds}.")
        if self.data is not None and self.month is not None:
            raise UsageError("a month is one of the climatology; a file of fields has its own.")
        if self.month is not None and self.month not in range(1, 13):
            raise UsageError(f"months run from 1 to 12, not {self.month}.")
        if self.data is None:
            require("demo", "itur")
        for seed in range(self.seeds):
            split(self.fields, seed)
        return [Task("half", name, seed) for seed in range(self.seeds) for name in chosen]

    def fit(self, task: Task) -> list[Outcome]:
        """Scores of one model on one draw, over all fine cells with covariates."""
        data, drawn = self.fields, split(self.fields, task.seed)
        model = MODELS[task.model](drawn.x.shape[1], self.inducing)
        exact = task.model in EXACT
        bags = drawn.bags
        if exact and self.exact_points is not None:
            bags = bags.condense(self.exact_points, task.seed)

        def fit() -> None:
            if task.model == "oracle":
                model.fit(drawn.matched, drawn.z)
            else:
                model.fit(bags, drawn.z, mediator=drawn.mediator)

        posterior, seconds = fit_and_predict(
            fit, lambda: model.predict(drawn.x, fine_noise=not exact)
        )
        maps = {name: np.full(data.truth.shape, np.nan) for name in ("mean", "std")}
        maps["mean"][drawn.known] = drawn.z_mean + drawn.z_std * np.asarray(posterior.mean)
        maps["std"][drawn.known] = drawn.z_std * np.asarray(posterior.std)
        return [
            Outcome(
                task,
                [map_scores(data, maps) | seconds],
                {"log_evidence": model.fit_report_.log_evidence},
                lambda path: draw_posterior(path, f"{task.model}, seed {task.seed}", data, maps),
            )
        ]

    def picture(self, task: Task) -> str | None:
        """Maps of every model for the first draw."""
        return f"posterior-{task.model.replace(', ', '-')}.png" if task.seed == 0 else None

    def figures(self, results: Results) -> None:
        """The data of the first draw: ``data.png``."""
        draw_data(results.folder / "data.png", self.fields, split(self.fields, 0))

    def table(self, results: Results) -> list[str]:
        """Scores next to the paper's, and paired tests."""
        fine, coarse = self.fields.truth.shape, self.fields.target.shape
        few = self.exact_points
        points = "all points" if few is None else f"{few} condensed points"
        present = [name for name in MODELS if results.where(model=name)]
        lines = [
            f"Fields: {self.fields.source}; {fine[0]} x {fine[1]} fine cells, {coarse[0]} x "
            f"{coarse[1]} coarse ones, half of which give covariates and the other half the "
            f"target. {self.inducing} inducing points; exact models learn from {points} of every "
            "bag. Scores are over all fine cells with covariates, without weights.",
            "",
            *summary(results, "half", MODELS, COLUMNS),
            "",
            "SSIM is that of Wang et al. (2004): Gaussian windows of standard deviation 1.5 cells, "
            "constants (0.01 R)² and (0.03 R)², with R the range of the truth, and with R = 1, "
            "which are the constants of the published code, for values in kelvin. cmp, u-cmp and "
            "u-cmp, centred have no high-resolution noise.",
            "",
            "## The paper",
            "",
            "Cloud-top temperature of CMIP6; 10 seeds. According to the published code the month "
            "is March 1950, the correlation is Spearman's, and SSIM has R = 1.",
            "",
            *markdown(
                ["model", "RMSE", "MAE", "correlation", "SSIM"],
                [[name, *cells] for name, cells in PAPER.items()],
            ),
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
        return lines


def _ssim(mean: Floats, truth: Floats, data_range: float | None) -> float:
    try:
        return scores.ssim(mean, truth, data_range)
    except ValueError:  # no window is free of missing values
        return float("nan")


def map_scores(data: Fields, maps: Mapping[str, Floats]) -> dict[str, float]:
    """Scores of maps of mean and standard deviation, where there is a truth."""
    known = np.isfinite(data.truth) & np.isfinite(maps["mean"])
    mean, std, truth = (values[known] for values in (maps["mean"], maps["std"], data.truth))
    reach = 1.959963984540054 * std
    return {
        "rmse": scores.rmse(mean, truth),
        "mae": scores.mae(mean, truth),
        "pearson": scores.pearson(mean, truth),
        "spearman": scores.spearman(mean, truth),
        "ssim": _ssim(maps["mean"], data.truth, None),
        "ssim_unit_range": _ssim(maps["mean"], data.truth, 1.0),
        "crps": scores.crps_gaussian(mean, std, truth),
        "coverage95": scores.coverage(mean - reach, mean + reach, truth),
    }
