"""What models are fitted to: a pairing, and the scalings between it and standardised units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from sklearn.neighbors import KNeighborsRegressor

from deconditional.bags import Bags
from deconditional.fields.axes import Floats, Ints
from deconditional.fields.pair import Pairing
from deconditional.fields.scaling import InputScaling, Spread, TargetScaling
from deconditional.fields.several import Told
from deconditional.models.sources import Source


@dataclass(frozen=True)
class Problem:
    """A pairing, and how it is standardised."""

    pairing: Pairing
    # The target as it was given: results repeat its coordinates and what is said of it.
    coarse: xr.Dataset
    # target, inputs, mediators: scalings of the target, of points of bags, and of mediators.
    target: TargetScaling
    inputs: InputScaling
    mediators: InputScaling
    # Means over time of the covariates that were divided; None where there are none.
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

    def by_source(self, used: Ints) -> dict[str, Any]:
        """The source of some observations and the noise that is known; nothing of one kind."""
        p = self.pairing
        if not p.sources:
            return {}
        unit, amount = p.observed_unit[used], p.amount
        number = np.repeat(np.arange(len(p.sources)), [told.size for told in p.sources])[unit]
        noise = np.concatenate([told.noise_std for told in p.sources])[unit]
        sums = np.array([told.is_normal_sum for told in p.sources])[number]
        if amount is not None:
            noise = noise / np.where(sums, amount[p.own_bag[used]], 1.0)
        return {"told": p.sources, "source": number, "noise": noise / self.target.scale}

    @property
    def support(self) -> tuple[Floats, Floats]:
        """Least and greatest value of every input over all points of the bags, standardised."""
        return self.inputs.box(self.pairing.spread.low, self.pairing.spread.high)


@dataclass(frozen=True)
class FitData:
    """What a model is fitted to, in standardised units."""

    bags: Bags
    z: Floats
    mediator: Floats | None
    own_bag: Ints | None
    # used, bag_of: the observations and the bags it takes.
    used: Ints
    bag_of: Ints
    # What rates are multiplied by, and what the model calls it.
    amounts: tuple[str, Floats] | None = None
    # told, source, noise: of several sources: how each was observed, the source and the noise of
    # every observation.
    told: tuple[Told, ...] = ()
    source: Ints | None = None
    noise: Floats | None = None

    def given(self, z: Floats) -> tuple[Any, ...]:
        """What ``fit`` takes first: bags and observations, or a list of sources."""
        if self.source is None or self.noise is None:
            return self.bags, z
        found = []
        for k, told in enumerate(self.told):
            rows, family = np.flatnonzero(self.source == k), told.question.family
            noise = None if told.learns_noise else self.noise[rows]
            each: Any = Source(self.bags.select(rows), z[rows], family, noise, bias=told.bias)
            if family is not None and self.amounts is not None:
                each = replace(each, **{family.amount: self.amounts[1][rows]})
            found.append(each)
        return (found,)

    def rows(self, rest: Ints) -> FitData:
        """Some of the observations; without mediators, and some of the bags."""
        found: dict[str, Any] = {"z": self.z[rest], "used": self.used[rest]}
        for name in ("mediator", "own_bag", "source", "noise"):
            array = getattr(self, name)
            found[name] = None if array is None else array[rest]
        if self.mediator is None:
            found |= {"bags": self.bags.select(rest), "bag_of": self.bag_of[rest]}
        if self.amounts is not None:
            found["amounts"] = self.amounts[0], self.amounts[1][rest]
        return replace(self, **found)

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of ``fit`` beyond bags and z."""
        found: dict[str, Any] = {} if self.mediator is None else {"mediator": self.mediator}
        if self.amounts is not None and not self.told:
            found[self.amounts[0]] = self.amounts[1]
        return found if self.own_bag is None else {**found, "own_bag": self.own_bag}

    def at_observations(self, per_bag: Floats) -> Floats:
        """A property of bags at the observations: their own bag's, or that of similar mediators."""
        if self.mediator is None:
            return per_bag
        near = KNeighborsRegressor(min(5, len(per_bag)), weights="distance")
        found = near.fit(self.bags.mediator, per_bag).predict(self.mediator)
        if self.own_bag is None:
            return found
        return np.where(self.own_bag >= 0, per_bag[self.own_bag], found)
