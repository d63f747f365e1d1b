"""What the report is made of: a result, the truth, and numbers that several sections need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deconditional.report.grids import plane
from deconditional.report.marginals import Marginals
from deconditional.report.page import number
from deconditional.report.result import Result

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Material"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Material:
    """The result, the truth on its grid, and what several sections need of them."""

    result: Result
    truth: xr.DataArray | None = None

    @cached_property
    def marginals(self) -> Marginals:
        """The distribution of every cell."""
        return self.result.marginals()

    @cached_property
    def scored(self) -> tuple[Floats, Floats, Marginals] | None:
        """Mean, truth and distribution where there are all three."""
        if self.truth is None:
            return None
        mean, truth = self.result.mean.values.astype(float), self.truth.values
        both = np.isfinite(mean) & np.isfinite(truth)
        both &= np.isfinite(self.marginals.location) & np.isfinite(self.marginals.scale)
        return mean[both], truth[both], self.marginals.select(both)

    @cached_property
    def scores(self) -> dict[str, float] | None:
        """Scores against the truth."""
        if self.scored is None:
            return None
        mean, truth, marginals = self.scored
        return marginals.score(mean, truth)

    @cached_property
    def residuals(self) -> dict[str, Any]:
        """Observed minus area mean: number, mean, root mean square and largest."""
        stored = self.result.facts.get("residuals")
        if isinstance(stored, Mapping):
            return dict(stored) if stored.get("n", 1) else {}
        if "coarse_residual" not in self.result.data:
            return {}
        found = self.result.data["coarse_residual"].values.astype(float)
        found = found[np.isfinite(found)]
        if not found.size:
            return {}
        return {
            "n": found.size,
            "mean": float(found.mean()),
            "rmse": float(np.sqrt(np.mean(found**2))),
            "largest": float(found[np.argmax(np.abs(found))]),
        }

    @cached_property
    def limits(self) -> tuple[float, float] | None:
        """Ends of the colour scale that coarse input, mean, sample and truth share."""
        fields = [self.result.mean, self.truth, self.result.data.get("coarse_observed")]
        found = [plane(field).values.ravel() for field in fields if field is not None]
        values = np.concatenate(found)
        values = values[np.isfinite(values)]
        if not values.size or values.min() == values.max():
            return None
        return float(values.min()), float(values.max())

    def on_grid(self, values: Floats) -> xr.DataArray:
        """Values of all fine cells as a field."""
        return self.result.mean.copy(data=values)

    def with_units(self, value: Any, digits: int = 4) -> str:
        """A number of the target, never apart from its units."""
        return f"{number(value, digits)}\u00a0{self.result.units}".strip()
