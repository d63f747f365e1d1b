"""From two datasets to bags and observations.

The unit is a coarse cell, or a coarse cell at a time. A unit with fine covariates is a bag; a unit
with a target is an observation; a unit with both is matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deconditional.errors import UsageError
from deconditional.fields.axes import Floats, Grid, Ints, span
from deconditional.fields.clock import Clock
from deconditional.fields.fine_bags import FineBags
from deconditional.fields.part import ROUNDING
from deconditional.fields.question import Question
from deconditional.fields.scaling import Spread
from deconditional.fields.several import Told
from deconditional.fields.sides import CoarseSide, FineSide
from deconditional.fields.survey import UnitTable
from deconditional.fields.units import Units
from deconditional.observations.families import check_observed

LEAST_OBSERVATIONS = 5


@dataclass(frozen=True)
class Pairing:
    """Bags and observations, before any scaling."""

    question: Question
    fine: Grid
    coarse: Grid
    # bag_unit, bag_sizes (N,): the unit of every bag, and the number of its points, which are
    # positions (if asked for) and covariates of fine cells.
    bag_unit: Ints
    bag_sizes: Ints
    # (N, p): positions (if asked for) and mediators of the bags; NaN where a mediator is missing.
    bag_mediator: Floats
    spread: Spread  # of all points of the bags
    z: Floats
    mediator: Floats  # (M, p): mediators of the observations z, NaN where missing
    own_bag: Ints  # (M,): the bag of every matched observation, else -1
    observed_unit: Ints  # (M,): index of the unit, time by time and cell by cell
    # times, clock: of the units, None where the unit is a cell; and what times are as inputs.
    times: np.ndarray | None
    clock: Clock
    target: Floats  # (units,): target of every unit, NaN where missing
    understood: tuple[tuple[str, str], ...]  # what was found, in words: pairs of label and text
    # Whether covariates have no time, so that a cell has the same points at all times.
    repeated: bool = False
    # (N,): what is in every bag: its exposure, or its area in square kilometres.
    amount: Floats | None = None
    # (units,): the share of every unit that fine cells with covariates cover.
    cover: Floats | None = None
    # How units were observed, source by source; nothing where all are of one kind.
    sources: tuple[Told, ...] = ()

    @property
    def n_position(self) -> int:
        """Columns of points and mediators that are position."""
        return self.coarse.n_position if self.question.position else 0

    @property
    def n_time(self) -> int:
        """Columns of points and mediators that are time; they follow those of position."""
        return self.clock.n_inputs

    @property
    def n_bags(self) -> int:
        """Number of bags."""
        return len(self.bag_unit)

    @property
    def observed_cell(self) -> Ints:
        """The coarse cell of every observation."""
        return self.observed_unit % self.coarse.n_cells

    @property
    def mostly_matched(self) -> bool:
        """Whether most observations have a bag of their own, so that the others can be left out."""
        return bool(np.mean(self.own_bag >= 0) > 0.5)

    @property
    def matching(self) -> str:
        """``"matched"``, ``"partly matched"`` or ``"unmatched"``."""
        share = np.mean(self.own_bag >= 0)
        return "matched" if share == 1 else "unmatched" if share == 0 else "partly matched"


def pair(fine: FineSide, coarse: CoarseSide, *, few: bool = False) -> tuple[Pairing, FineBags]:
    """Make bags and observations, or say in the user's words why not.

    Where nothing is learnt from them they may be as `few` as they are.

    Examples
    --------
    >>> from deconditional.datasets import split_cells, synthetic_fields
    >>> from deconditional.fields.sides import two_sides
    >>> roles = ("tas", ["altitude", "cloud"], ["water_vapour"])
    >>> data = split_cells(synthetic_fields(12, 24), *roles, block=(3, 4), matched=0.5)
    >>> question = Question("tas", ("altitude",), ("water_vapour",))
    >>> pairing, bags = pair(*two_sides(data.fine, data.coarse, question))
    >>> pairing.matching, bags.make()
    ('partly matched', Bags(18 bags, 216 points, 4 covariates, 12-12 points per bag))
    """
    question, grid = fine.question, coarse.grid
    units = coarse.units(fine.grid.times)
    bags, filled = _bags(fine, coarse, units)
    bag_unit = bags.table.unit
    plain = grid.is_point[bag_unit % grid.n_cells] | bool(question.exposure)
    amount = bags.table.amount * np.where(plain, 1.0, grid.square_km)
    target, amount = _as_rates(coarse, units, bag_unit, amount)
    units = replace(units, target=target)
    bag_mediator = units.mediator[bag_unit]
    bag_mediator = np.where(np.isnan(bag_mediator), filled, bag_mediator)
    places = units.places(grid, question.position)
    bag_mediator = np.concatenate([places[bag_unit], bag_mediator], 1)
    observed = np.flatnonzero(np.isfinite(units.target))
    unit_bag = np.full(units.size, -1)
    unit_bag[bag_unit] = np.arange(len(bag_unit))
    own_bag = unit_bag[observed]
    seen_mediator = np.concatenate([places, units.mediator], 1)[observed]
    seen_mediator[own_bag >= 0] = bag_mediator[own_bag[own_bag >= 0]]
    pairing = Pairing(
        question=question,
        fine=fine.grid,
        coarse=grid,
        bag_unit=bag_unit,
        bag_sizes=bags.table.count,
        bag_mediator=bag_mediator,
        spread=bags.spread(),
        z=units.target[observed],
        mediator=seen_mediator,
        own_bag=own_bag,
        observed_unit=observed,
        times=units.at.times,
        clock=units.at.clock,
        target=units.target,
        understood=(),
        repeated=fine.lasting,
        amount=amount,
        cover=bags.cover,
        sources=coarse.sources,
    )
    if few:
        return pairing, bags
    _check_link(pairing, grid.times)
    said = _understood(pairing, bags, units.at.how)
    return replace(
        pairing, understood=(*said[:1], *fine.understood, *coarse.understood, *said[1:])
    ), bags


def _bags(fine: FineSide, coarse: CoarseSide, units: Units) -> tuple[FineBags, Floats]:
    """The bags, and the means over them of mediators that the fine data has."""
    question, mediators = fine.question, fine.mediators()
    n_times = units.size // coarse.grid.n_cells
    parts = fine.parts(coarse.grid, units.at.fine_time, n_times, units.at.clock, mediators)
    remedy = "lower min_cover, or check that the grids coincide"
    bags = FineBags.of(parts, "fine covariates", remedy)
    if question.exposure:
        _check_amounts(bags.survey.units, units, coarse)
    if not question.covariates and not question.position:
        raise UsageError("there is nothing to predict from: name covariates, or use position.")
    filled = np.full((len(bags.table.unit), len(question.mediators)), np.nan)
    there = [f"mediator {name}" in mediators for name in question.mediators]
    filled[:, there] = bags.table.other_means()
    return bags, filled


def _as_rates(
    coarse: CoarseSide, units: Units, unit: Ints, amount: Floats
) -> tuple[Floats, Floats]:
    """Normal sums over units as means, NaN where there is no bag, and what rates are multiplied by.

    Raises where observations cannot be of their family.
    """
    target, amount, n_cells, first = units.target.copy(), amount.copy(), coarse.grid.n_cells, 0
    inside = np.full(len(target), np.nan)
    inside[unit] = amount
    for told in coarse.told:
        question, cells, first = told.question, slice(first, first + told.size), first + told.size
        of_source = np.isin(np.arange(len(target)) % n_cells, np.arange(n_cells)[cells])
        bags = of_source[unit]
        if told.is_normal_sum:
            target[of_source] /= inside[of_source]
        if question.family is None:
            continue
        if question.amounts is not None and units.amounts is not None:
            amount[bags] = units.amounts[unit[bags]]
        elif question.kind != "sum":
            amount[bags] = 1.0
        bags &= np.isfinite(target[unit])
        seen = unit[bags]
        names = coarse.names(seen, units.at.times)
        try:
            check_observed(question.family, target[seen], amount[bags], names)
        except ValueError as error:
            noun = coarse.grid.noun[:-1]
            raise UsageError(f"{noun}{str(error).removeprefix('bag')}") from None
    return target, amount


def _check_amounts(table: UnitTable, units: Units, coarse: CoarseSide) -> None:
    """Raise where there is no exposure at all where something was observed."""
    name, target = coarse.question.exposure, units.target
    empty = np.zeros(len(target), dtype=bool)
    empty[table.unit] = table.amount <= 0
    empty &= np.isfinite(target) & (target != 0)
    is_sum = [np.full(told.size, told.question.kind == "sum") for told in coarse.told]
    empty &= np.resize(np.concatenate(is_sum), empty.shape)
    if empty.any():
        raise UsageError(
            f"the {coarse.grid.noun} {coarse.named(empty, units.at.times)} have no {name} at all "
            f"and yet a {coarse.question.target!r} (the first {target[empty][0]:.6g}); correct one "
            "of the two, or make the target NaN there."
        )


# ---------------------------------------------------------------------- checks and words


def _check_link(p: Pairing, coarse_times: Any) -> None:
    """Raise where no observation reaches a bag, or there is too little to learn from."""
    name = p.question.target
    if len(p.z) < LEAST_OBSERVATIONS:
        raise UsageError(
            f"the target {name!r} is known in {len(p.z)} {p.coarse.noun[:-1]}(s); at least "
            f"{LEAST_OBSERVATIONS} are needed to learn from."
        )
    if np.ptp(p.z) == 0:
        raise UsageError(
            f"the target {name!r} has the same value, {p.z[0]:.6g}, in every cell; check the data."
        )
    for k, covariate in enumerate(p.question.covariates):
        low, high = (end[p.n_position + p.n_time + k] for end in (p.spread.low, p.spread.high))
        if low == high and covariate not in p.question.split:
            raise UsageError(
                f"the covariate {covariate!r} is constant ({low:.6g}) in all bags, so it "
                "says nothing; leave it out."
            )
    if p.mostly_matched or p.sources:
        return
    if p.mediator.shape[1] == 0:
        raise UsageError(
            f"some observations of {name!r} have no bag of their own, and nothing links them to "
            "the covariates; name mediators, or use position."
        )
    usable = np.isfinite(p.bag_mediator).all(1)
    if not usable.any():
        when = ""
        if p.times is not None and p.fine.times is not None:
            when = (
                f" The fine covariates are at {span(p.fine.times)}, the coarse data at "
                f"{span(coarse_times)}; give the mediators at the times of the covariates too."
            )
        raise UsageError(
            "no bag has mediators, so nothing links the covariates to the target." + when
        )
    reach = np.isfinite(p.mediator).all(1) | (p.own_bag >= 0)
    if reach.sum() < LEAST_OBSERVATIONS:
        raise UsageError(
            f"{reach.sum()} observations of {name!r} have mediators or a bag of their own; at "
            f"least {LEAST_OBSERVATIONS} are needed."
        )


def _understood(p: Pairing, bags: FineBags, on_time: str | None) -> tuple[tuple[str, str], ...]:
    question, matched, survey = p.question, int((p.own_bag >= 0).sum()), bags.survey
    cover, too_small = bags.cover[p.bag_unit], len(survey.units.unit) - p.n_bags
    partly = int((cover < 1.0 - ROUNDING).sum())
    without = [int(np.isnan(values).any(1).sum()) for values in (p.bag_mediator, p.mediator)]
    covariates = _names(question.covariates, question.position, p.n_time > 0)
    mediators = _names(question.mediators, question.position, p.n_time > 0)
    low, high = p.bag_sizes.min(), p.bag_sizes.max()
    sizes = f"{low}" if low == high else f"{low} to {high}"
    lines = {
        "fine grid": p.fine.describe(),
        "coarse grid": p.coarse.describe(),
        "covariates": f"{covariates}, known in {survey.n_present / survey.n_cells:.1%} of "
        f"{survey.n_cells} fine cells",
        "mediators": f"{mediators}, missing for {without[0]} of {p.n_bags} bags and {without[1]} "
        f"of {len(p.z)} observations",
        "bags": f"{p.n_bags} {p.coarse.noun} with fine covariates, {sizes} fine cells in each",
        "observations": f"{len(p.z)} of {len(p.target)} {p.coarse.noun} have {question.target}",
        "matching": f"{matched} observations have a bag of their own, {len(p.z) - matched} are "
        "linked through the mediators",
    }
    if p.mostly_matched and matched < len(p.z):
        lines["matching"] = (
            f"{matched} observations have a bag of their own and are learnt from; the other "
            f"{len(p.z) - matched} are left out, unless the model is one that needs mediators"
        )
    if question.split:
        lines["covariates"] += (
            f"; {', '.join(question.split)} as the mean over time at each place and the deviation "
            "from that"
        )
    if partly:
        lines["partly covered"] = (
            f"{partly} bags have covariates in a part of their cell only, and stand for it "
            f"with that part (the least is {cover.min():.0%})"
        )
    if too_small:
        lines["left out"] = (
            f"{too_small} {p.coarse.noun.removeprefix('coarse ')} with covariates over less "
            f"than {question.min_cover:.0%} of their area"
        )
    if question.exposure:
        lines["exposure"] = _amounts_in_words(p, survey.amount)
    if on_time:
        lines["time"] = on_time
    return tuple(lines.items())


def _amounts_in_words(p: Pairing, total: float) -> str:
    assert p.amount is not None
    often = f" at {p.fine.n_times} times together" if p.fine.n_times > 1 else ""
    return (
        f"{p.question.exposure}: {total:.8g} in the fine data{often}, {p.amount.sum():.8g} in the "
        f"bags, {p.amount.min():.4g} to {p.amount.max():.4g} in each; none where it is missing"
    )


def _names(names: Sequence[str], position: bool, time: bool) -> str:
    return ", ".join(["position"] * position + ["time"] * time + [*names]) or "none"
