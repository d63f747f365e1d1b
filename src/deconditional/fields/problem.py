"""What models are fitted to: a pairing, and the scalings between it and standardised units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.fields.pair import Pairing
from deconditional.fields.scaling import InputScaling, Spread, TargetScaling

__all__ = ["Problem"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """A pairing, and how it is standardised.

    Attributes
    ----------
    coarse
        The target as it was given: results repeat its coordinates and what is said of it.
    target, inputs, mediators
        Scalings of the target, of points of bags, and of mediators.
    means
        Means over time of the covariates that were divided; None where there are none.
    """

    pairing: Pairing
    coarse: xr.Dataset
    target: TargetScaling
    inputs: InputScaling
    mediators: InputScaling
    means: xr.Dataset | None = None

    @classmethod
    def of(
        cls,
        pairing: Pairing,
        coarse: xr.Dataset,
        transform: str | None,
        bounds: tuple[float | None, float | None] | None,
        means: xr.Dataset | None = None,
    ) -> Problem:
        """The problem of a pairing; raises where observations lie outside what was asked for."""
        family = pairing.question.family
        link = None if family is None else family.link
        kinds = (pairing.n_position, pairing.coarse.spherical, pairing.n_time)
        both = np.concatenate([pairing.bag_mediator, pairing.mediator])
        known = both[np.isfinite(both).all(1)]
        known = known if len(known) else np.zeros((1, both.shape[1]))
        return cls(
            pairing,
            coarse[[pairing.question.target]],
            TargetScaling.of(pairing.z, transform, bounds, link),
            InputScaling.of(pairing.spread, *kinds),
            InputScaling.of(Spread.of(known), *kinds),
            means if pairing.question.split else None,
        )

    @property
    def target_attributes(self) -> Mapping[str, Any]:
        """Attributes of the target."""
        return self.coarse[self.pairing.question.target].attrs

    @property
    def units(self) -> str:
        """Units of the target."""
        return str(self.target_attributes.get("units", ""))

    @property
    def long_name(self) -> str:
        """What to call the target in titles."""
        return str(self.target_attributes.get("long_name", self.pairing.question.target))

    @property
    def z(self) -> Floats:
        """Standardised observations."""
        return self.target.standardised(self.pairing.z)

    def fitted(self, means: Any) -> Any:
        """Means over units as what was observed of them: counts, of rates."""
        pairing = self.pairing
        if pairing.question.family is None or pairing.amount is None:
            return means
        amount = np.full(len(pairing.target), np.nan)
        amount[pairing.bag_unit] = pairing.amount
        return means * amount

    @property
    def support(self) -> tuple[Floats, Floats]:
        """Least and greatest value of every input over all points of the bags, standardised."""
        return self.inputs.box(self.pairing.spread.low, self.pairing.spread.high)
