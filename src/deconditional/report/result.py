"""A result of ``deconditional downscale`` and its truth: what several sections need of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr

from deconditional.errors import shortened, visible
from deconditional.fields.axes import Floats
from deconditional.fields.description import residual_summary
from deconditional.fields.result import ROLES as WRITTEN_ROLES
from deconditional.fields.zones.grid import DIM
from deconditional.report.grids import plane, time_dim
from deconditional.report.maps import Outlines, without_outliers
from deconditional.report.page import number
from deconditional.scores.marginals import Marginals

ROLES = tuple(role.replace("_", " ") for role in WRITTEN_ROLES.split())
"""What a coarse cell gives, by its value in ``coarse_role``."""


@dataclass(frozen=True)
class Result:
    """A result that has been checked, and the truth if there is one."""

    data: xr.Dataset  # the dataset
    facts: dict[str, Any] = field(default_factory=dict)  # what its attribute deconditional says
    truth: xr.DataArray | None = None  # the true field, on the grid of the posterior mean

    @property
    def mean(self) -> xr.DataArray:
        """Posterior mean of the target."""
        return self.data["mean"]

    @property
    def samples(self) -> xr.DataArray | None:
        """Draws of the posterior, where the file has some."""
        samples = self.data.get("samples")
        return samples if samples is not None and samples.sizes.get("sample", 0) else None

    @cached_property
    def outlines(self) -> Outlines | None:
        """Borders of the zones that were observed, where these are polygons or points."""
        return Outlines.of(self.data)

    @property
    def is_of_counts(self) -> bool:
        """Whether the field is a rate, and what was observed are counts of it."""
        return "rate" in self.data

    @property
    def observed(self) -> xr.DataArray | None:
        """What was observed, on the scale of the field: counts over what they are counts of."""
        observed = self.data.get("coarse_observed")
        if observed is None or not self.is_of_counts or "coarse_amount" not in self.data:
            return observed
        return observed / self.data["coarse_amount"]

    @property
    def noun(self) -> str:
        """What coarse cells are called."""
        if self.outlines is None:
            return "coarse cells"
        return "points" if self.outlines.is_point else "polygons"

    @property
    def target(self) -> str:
        """Name of the target's variable."""
        return _short(self.facts.get("target") or "target")

    @property
    def name(self) -> str:
        """What the target is, in words."""
        return _short(self.facts.get("long_name") or self.target)

    @property
    def units(self) -> str:
        """Units of the target; empty where it has none."""
        stored = self.mean.attrs.get("units", "")
        told = "" if self.is_of_counts else self.facts.get("units")
        return _short(told or (stored if isinstance(stored, str) else ""))

    @property
    def label(self) -> str:
        """Name and units of the target, for a colour bar."""
        name = self.name if len(self.name) <= 25 else self.target
        return f"{name} ({self.units})" if self.units else name

    def with_units(self, value: Any, digits: int = 4) -> str:
        """A number of the target, never apart from its units."""
        return f"{number(value, digits)}\u00a0{self.units}".strip()

    def seen(self, value: Any, digits: int = 4) -> str:
        """A number of what was observed: of counts it has no units of the rate."""
        return number(value, digits) if self.is_of_counts else self.with_units(value, digits)

    @property
    def quantity(self) -> str:
        """What the field is, in a sentence."""
        return f"the rate of {self.name}" if self.is_of_counts else self.name

    @property
    def distribution(self) -> str:
        """The kind of the marginal distributions, in words."""
        return str(self.facts.get("distribution") or "normal")

    @cached_property
    def time(self) -> str | None:
        """The time dimension, where the result has more than one time."""
        dim = time_dim(self.mean)
        return dim if dim is not None and self.mean.sizes[dim] > 1 else None

    @cached_property
    def marginals(self) -> Marginals:
        """The distribution of every cell."""
        latent = "latent_" if self.distribution == "rectified normal" else ""
        mean, std = (
            floats(self.data[f"{latent}{part}"].transpose(*self.mean.dims))
            for part in ("mean", "std")
        )
        if self.distribution == "lognormal":
            return Marginals.lognormal(mean, std)
        if not latent:
            return Marginals("normal", mean, std)
        low, high = self.facts.get("bounds") or [None, None]
        low, high = -np.inf if low is None else low, np.inf if high is None else high
        return Marginals("rectified normal", mean, std, float(low), float(high))

    @cached_property
    def scored(self) -> tuple[Floats, Floats, Marginals] | None:
        """Mean, truth and distribution where there are all three."""
        if self.truth is None:
            return None
        mean, truth = floats(self.mean), self.truth.values
        known = np.isfinite(mean) & np.isfinite(truth)
        known &= np.isfinite(self.marginals.location) & np.isfinite(self.marginals.scale)
        return mean[known], truth[known], self.marginals.select(known)

    @cached_property
    def scores(self) -> dict[str, float] | None:
        """Scores of the result against the truth, if that is known."""
        if self.scored is None:
            return None
        mean, truth, marginals = self.scored
        return marginals.score(mean, truth)

    @cached_property
    def residuals(self) -> dict[str, Any]:
        """Observed minus area mean: number, mean, root mean square and largest; empty if none."""
        residuals = self.facts.get("residuals")
        if not isinstance(residuals, dict):
            if "coarse_residual" not in self.data:
                return {}
            residuals = residual_summary(floats(self.data["coarse_residual"]))
        return residuals if residuals.get("n", 1) else {}

    @cached_property
    def limits(self) -> tuple[float, float] | None:
        """Ends of the colour scale that coarse input, mean, sample and truth share."""
        fields = [self.mean, self.truth, self.observed]
        values = np.concatenate([_drawn(each) for each in fields if each is not None])
        values = values[np.isfinite(values)]
        if not values.size or values.min() == values.max():
            return None
        high = without_outliers(values) if self.is_of_counts else values.max()
        return float(values.min()), float(high)

    def roles(self) -> list[int] | None:
        """Number of coarse cells of each of the :data:`ROLES`, where that is stored."""
        if "coarse_role" not in self.data:
            return None
        role = np.nan_to_num(floats(self.data["coarse_role"])).astype(int)
        return [int(np.sum(role == value)) for value in range(len(ROLES))]


def _drawn(field: xr.DataArray) -> Floats:
    """The values of a field that a map shows."""
    of_zones = zone_values(field)
    return plane(field).values.ravel() if of_zones is None else of_zones


def zone_values(field: xr.DataArray) -> Floats | None:
    """A value of every zone, at the first time; None of what is no field of zones."""
    if f"coarse_{DIM}" not in field.dims:
        return None
    return floats(field.isel({dim: 0 for dim in field.dims if dim != f"coarse_{DIM}"}))


def floats(values: xr.DataArray) -> Floats:
    """The values of a field in double precision."""
    return np.asarray(values.values, dtype=float)


def _short(value: Any) -> str:
    """A name cut to what headings and figures have room for."""
    return shortened(visible(str(value)), 200)
