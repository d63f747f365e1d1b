"""What is asked of two datasets: which variables play which part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from deconditional.errors import UsageError
from deconditional.fields.clock import AT_THEIR_TIMES, MODES, PERIODS

CHOICES = {
    "time": MODES,
    "window": (None, *PERIODS, AT_THEIR_TIMES),
    "kind": (None, "mean", "sum"),
}
"""What some parts of a question can be."""


@dataclass(frozen=True)
class Question:
    """What is asked: which variables play which part.

    `position` is a covariate and a mediator too. `mask` is a fine variable between 0 and 1, the
    share of a cell that counts (land, say), and `min_cover` the least share of a coarse cell that
    fine cells with covariates must cover to make it a bag. `time` says how times hang together (see
    :class:`~deconditional.fields.clock.Clock`), `window` which times a coarse value is the mean
    over (:mod:`~deconditional.fields.clock`). `kind` is what an observation is of its cell or
    zone, the ``"mean"`` or the ``"sum"``; `exposure` a fine variable, the amount in every cell
    (people, say): means are weighted by it, and sums are of it times the field. `family` says how
    observations scatter, None is normal; `amounts` is a coarse variable that rates are multiplied
    by, people tested, say. `split` are covariates that enter twice, which data says
    (:mod:`~deconditional.fields.between`).
    """

    target: str
    covariates: tuple[str, ...]
    mediators: tuple[str, ...]
    position: bool = True
    mask: str | None = None
    min_cover: float = 0.5
    dims: Mapping[str, str] | None = None
    time: str = "ignore"
    kind: str | None = None
    exposure: str | None = None
    window: str | None = None
    family: Any = None
    amounts: str | None = None
    split: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no dataset could answer."""
        for part in ("covariates", "mediators"):
            for name in getattr(self, part):
                if not isinstance(name, str) or not name:
                    raise UsageError(
                        f"{part} must be names of variables, and one of them is {name!r}; write "
                        f"{part}=['a', 'b']."
                    )
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                words = ", ".join(word for word in choices if word)
                raise UsageError(f"{name} must be one of {words}, not {value!r}.")
        for name in ("mask", "exposure"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise UsageError(
                    f"{name} must be the name of a fine variable, not {type(value).__name__}."
                )
        if self.target in self.covariates:
            raise UsageError(
                f"{self.target!r} is both the target and a covariate; leave one of the two out."
            )
        if self.exposure is not None and self.exposure in (self.target, self.mask):
            raise UsageError(f"{self.exposure!r} is the exposure; it cannot be the target or mask.")
        if not 0 <= self.min_cover <= 1:
            raise UsageError(
                f"min_cover is a share of a coarse cell, between 0 and 1, not {self.min_cover!r}."
            )
        if self.dims is not None and not isinstance(self.dims, Mapping):
            raise UsageError(
                f"dims must look like {{'y': 'lat', 'x': 'lon'}}, not {type(self.dims).__name__}."
            )

    def check_points(self) -> None:
        """Raise where observations at points are to be sums."""
        if self.kind != "sum":
            return
        kind = type(self.family).__name__
        way = f"name a column of the points that says it, as in dc.{kind}(exposure='hours')"
        way = "leave kind='sum' out" if self.family is None else way
        raise UsageError(
            f"{self.target!r} is known at points, and a point has neither area nor people, so it "
            f"is not known what each is counted or summed over; {way}."
        )

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs of a model beyond position and time."""
        return *self.covariates, *(f"{name}, mean over time" for name in self.split)

    @property
    def coarse_names(self) -> tuple[str, ...]:
        """The variables that are wanted of the coarse data."""
        return self.target, *self.mediators


def listed(names: Any, part: str) -> tuple[Any, ...]:
    """Names that a user gave, one or several; raises where they are none, or one comes twice."""
    if not isinstance(names, Iterable):
        raise UsageError(
            f"{part} must be names of variables, not {names!r}; write {part}=['a', 'b']."
        )
    found = (names,) if isinstance(names, str) else tuple(names)
    twice = [name for name in found if found.count(name) > 1]
    if twice:
        raise UsageError(f"{twice[0]!r} is named twice among the {part}; once is enough.")
    return found


def check_dims(question: Question, given: Iterable[Any]) -> None:
    """Raise where a dimension that was named is in none of the data; a table has its columns."""
    there: set[Any] = set()
    for data in given:
        for part in ("columns", "variables", "dims"):
            there |= set(getattr(data, part, ()))
    for role, name in (question.dims or {}).items():
        if name not in there:
            raise UsageError(
                f"dims names {name!r} as {role}, but neither dataset has it; correct it (--dims "
                f"{role}=...), or leave it out."
            )


def resolved(question: Question, fine: Any, coarse: Any) -> Question:
    """The question, once it is known which of the data has the exposure of a family."""
    family = question.family
    if not question.target:
        raise UsageError("target must be the name of a variable of the coarse data.")
    if family is None:
        return question
    name = getattr(family, family.amount)
    kind = type(family).__name__
    if name is None and family.amount == "trials":
        raise UsageError(
            f"dc.{kind} needs to know how many were tried: dc.{kind}(trials='tested'), a column of "
            "the coarse data."
        )
    if name is None:
        by_area = family.counts and family.amount == "exposure"
        return replace(question, kind="sum" if by_area else question.kind)
    every = fine if isinstance(fine, list | tuple) else [fine]
    if (
        family.amount == "exposure"
        and any(hasattr(each, "data_vars") and name in each for each in every)
    ) or any(getattr(each, "name", None) == name for each in every):
        return replace(question, kind="sum", exposure=name)
    if name in coarse:
        return replace(question, amounts=name)
    raise UsageError(
        f"the {family.amount} {name!r} of dc.{kind} is neither a variable of the fine data nor one "
        f"of the coarse data; correct dc.{kind}({family.amount}=...)."
    )
