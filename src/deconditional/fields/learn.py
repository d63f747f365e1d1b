"""Models fitted to a problem: which, to what data, and again where the target is a logarithm.

The field of a target with ``transform="log"`` is the exponential of a process, and what was
observed is the mean of the exponential over a cell, whose logarithm is more than the mean of the
process. By how much depends on the spread within the cell, which a fit tells: so the model is
fitted again to observations less what the last fit says is missing, a few times.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone

from deconditional.bags import Bags
from deconditional.errors import Caution, FitWarning, UsageError, shortened, visible
from deconditional.fields.count_comparison import compared_counts
from deconditional.fields.fine_bags import FineBags
from deconditional.fields.mixture import Mixture, mixed
from deconditional.fields.opponents import BILINEAR, REGRESSION, Trial, detail, interpolated, others
from deconditional.fields.problem import FitData, Problem
from deconditional.fields.recipes import (
    OF_FAMILIES,
    SIMPLE,
    SIMPLICITY,
    Recipe,
    candidates,
    condensed_size,
    family_size,
)
from deconditional.fields.validation import (
    MIXTURE,
    Comparison,
    Folds,
    Predicted,
    Tried,
    compared,
    folds_of,
)
from deconditional.fitting.interrupts import Stop, current
from deconditional.kernels.linalg import suitable_threads
from deconditional.models import MediatedGP, PseudoTarget, VarCentroidGP
from deconditional.models.regression import bag_gap
from deconditional.models.vbagg import VariationalModel
from deconditional.saving.kinds import LeftBehind
from deconditional.saving.resume import CheckpointPart, within

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

STAGED = (PseudoTarget, MediatedGP)
"""Models with a regression on mediators before the model of the field."""

LOG_PASSES = 6
"""Most fits of a logarithmic field, each with a better idea of the spread within bags."""

LOG_TOLERANCE = 0.01
"""Change of the logarithms of the observations that is worth another fit."""


@dataclass(frozen=True)
class Learnt:
    """Candidates that were fitted, by name, and the comparison that chose one of them.

    Attributes
    ----------
    seconds
        The time that each stage took.
    untried
        Candidates that an interrupt left out.
    """

    models: dict[str, Any]
    data: dict[str, FitData]
    seconds: dict[str, float]
    comparison: Comparison | None
    untried: tuple[str, ...]

    @property
    def chosen(self) -> str:
        """The name of the candidate to take."""
        return next(iter(self.models)) if self.comparison is None else self.comparison.chosen


def final_stage(model: Any) -> Any:
    """The model of the field itself, of one that may have a regression before it."""
    return model.model_ if isinstance(model, STAGED) else model


@dataclass(frozen=True)
class Learner:
    """Fits models to a problem.

    Attributes
    ----------
    bags
        The fine data, which is not saved.
    folds
        Of the comparison of candidates; None where there are too few observations.
    n_folds
        How many were asked for.
    seconds
        The time that all of this took to prepare.
    series
        Both sides at all times, where the problem is a sample of them.
    matched
        Whether observations without a bag of their own are left out however many they are.
    side
        The fine data itself.
    """

    problem: Problem
    recipe: Recipe
    folds: Folds | None
    n_folds: int
    bags: FineBags | LeftBehind = field(metadata={"left_behind": "the fine data of the fit"})
    seconds: float = 0.0
    series: Any = field(default=None, metadata={"left_behind": "the series that was fitted to"})
    matched: bool = False
    side: Any = field(default=None, metadata={"left_behind": "the fine data of the fit"})

    @classmethod
    def of(cls, problem: Problem, recipe: Recipe, bags: FineBags, n_folds: int) -> Learner:
        """The learner of a problem."""
        pairing, folds = problem.pairing, None
        n_places = len(np.unique(pairing.observed_cell))
        n_folds = min(n_folds, len(pairing.z) // 2)
        if len(pairing.z) > 3 and n_places > 1:
            folds = folds_of(pairing, "space", n_folds, recipe.seed)
            folds = replace(folds, how=f"{folds.how}, parameters held")
        return cls(problem, recipe, folds, n_folds, bags, matched=bool(pairing.sources))

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates."""
        p, model = self.problem.pairing, self.recipe.model
        if model == "auto" and (p.question.family is not None or p.sources):
            return OF_FAMILIES[:1]
        if model == "auto":
            matching = "matched" if p.mostly_matched else p.matching
            known = bool(p.question.covariates)
            found = candidates(matching, p.n_bags, len(p.z), bool(p.n_position), known)
            return found if self.folds is not None else found[:1]
        return (model,) if isinstance(model, str) else (type(model).__name__,)

    def is_matched(self, name: str) -> bool:
        """Whether a model sees observations as means of bags, and none but these."""
        matched = self.matched or self.problem.pairing.mostly_matched
        return (name == MIXTURE or self.recipe.takes_bags(name)) and matched

    def data(self, name: str) -> FitData:
        """What a model is fitted to."""
        problem, p = self.problem, self.problem.pairing
        z = problem.z
        if self.is_matched(name):
            used = np.flatnonzero(p.own_bag >= 0)
            own = p.own_bag[used]
            bags, family = self._bags(name, own), p.question.family
            amounts = None
            if (family is not None or p.sources) and p.amount is not None:
                name = "exposure" if family is None else family.amount
                amounts, bags = (name, p.amount[own]), replace(bags, exposure=None)
            return FitData(bags, z[used], None, None, used, own, amounts, **problem.by_source(used))
        kept = np.flatnonzero(np.isfinite(p.bag_mediator).all(1))
        if not kept.size:
            raise UsageError(f"no bag has mediators, which {name} needs; use bagg-gp.")
        place = np.full(p.n_bags + 1, -1)
        place[kept] = np.arange(len(kept))
        used = np.flatnonzero(np.isfinite(p.mediator).all(1))
        if not used.size:
            raise UsageError(f"no observation has mediators, which {name} needs; use bagg-gp.")
        mediator = problem.mediators(p.bag_mediator[kept])
        return FitData(
            replace(self._bags(name, kept), mediator=mediator),
            z[used],
            problem.mediators(p.mediator[used]),
            place[p.own_bag][used] if p.matching == "partly matched" else None,
            used,
            kept,
        )

    def _points_per_bag(self, name: str) -> int | None:
        size = self.recipe.points_per_bag
        if size is None:
            return None
        if size == "auto" and (self.recipe.family is not None or self.problem.pairing.sources):
            return family_size(int(self.problem.pairing.bag_sizes.sum()))
        if size == "auto":
            p = self.problem.pairing
            again = p.repeated or (name in SIMPLE and p.clock.windows is None)
            n_bags = len(np.unique(p.bag_unit % p.coarse.n_cells)) if again else p.n_bags
            return condensed_size(name, n_bags, p.n_time > 0 and not self.matched)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"points_per_bag must be 'auto', None or a number, not {size!r}.")
        return size

    def _bags(self, name: str, which: Ints) -> Bags:
        """Some of the bags as a model sees them."""
        p, size = self.problem.pairing, self._points_per_bag(name)
        placed = p.n_position + p.n_time if name in SIMPLE else None
        bags = self.bags.make(which, size, self.recipe.seed, placed)
        return replace(bags, points=self.problem.inputs(bags.points))

    def fit(
        self, name: str, data: FitData, z: Floats, checkpoint: CheckpointPart | None = None
    ) -> Any:
        """One model, fitted; its posterior rests on all points of the bags."""
        model = self.recipe.model
        if isinstance(model, str):
            model = self.recipe.estimator(name, self.is_matched(name))
        else:
            held = self.recipe.held
            model = clone(model).set_params(**({} if held is None else {"fixed": held}))
        try:
            model.fit(*data.given(z), **data.arguments(), **within(checkpoint))
        except (TypeError, ValueError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"{name}: {error}") from error
        inner = final_stage(model)
        of_bags = (
            self.recipe.family is None
            and not data.told
            and isinstance(inner, VariationalModel)
            and not isinstance(inner, VarCentroidGP)
        )
        if of_bags and (self.problem.pairing.bag_sizes[data.bag_of] > data.bags.sizes).any():
            bags, inputs = self.bags, self.problem.inputs
            inner.use_means(lambda functions: bags.averages(data.bag_of, inputs, functions))
        return model

    # ------------------------------------------------------------------ candidates

    def learn(
        self, stage: Callable[[str], None], kept: CheckpointPart | None, stop: Stop
    ) -> Learnt:
        """Fit the candidates and compare them."""
        models: dict[str, Any] = {}
        data, seconds = {}, {}
        for name in self.names:
            stage(f"learning {name}")
            began = time.perf_counter()
            data[name] = self.data(name)
            models[name] = self.fit(name, data[name], data[name].z, **within(kept, name))
            seconds[f"learning {name}"] = time.perf_counter() - began
            if stop.used:
                break
        comparison = None
        family = self.problem.pairing.question.family
        if self.folds is not None and (family is None or family.counts):
            began = time.perf_counter()
            stage("comparing with simple answers")
            with suitable_threads(len(self.problem.z)):
                comparison = self.comparison(models, data, seconds)
            seconds["comparing"] = time.perf_counter() - began
        untried = tuple(name for name in self.names if name not in models)
        return Learnt(models, data, seconds, comparison, untried)

    def comparison(
        self, models: Mapping[str, Any], data: Mapping[str, FitData], seconds: Mapping[str, float]
    ) -> Comparison:
        """Fitted models and bilinear interpolation, on observations that all of them have."""
        assert self.folds is not None
        if self.recipe.family is not None or self.problem.pairing.sources:
            return compared_counts(self, models, data)
        used = reduce(np.intersect1d, [each.used for each in data.values()])
        trials, grouped = [], all(self.is_matched(name) for name in models)
        if grouped:
            trials = list(detail(self.problem.pairing, used, self.n_folds, self.recipe.seed))
        tried = []
        for name, model in models.items():
            its = data[name]
            held_out = Predicted(model.predict_held_out(self.folds.fold[its.used]), its.z)
            seen = [
                Predicted(model.predict_from_means(trial.shares), its.z).of(trial.asked)
                for trial in trials
            ]
            kept = held_out.of(np.isin(its.used, used))
            spent, gap = seconds[f"learning {name}"], _gap(models, name, its)
            simple = SIMPLICITY.get(name, 0)
            tried.append(Tried(name, kept, spent, Predicted.joined(seen), gap, simple))
        if grouped and (self.series is None or self.series.is_short) and len(tried) > 1:
            tried = mixed(tried)
        if grouped and self.problem.pairing.question.covariates:
            tried.append(self.interpolated(used, self.folds, trials, REGRESSION))
        return self.judged([*tried, self.interpolated(used, self.folds, trials)])

    def judged(self, tried: Sequence[Tried]) -> Comparison:
        """The comparison of what was tried, in the target's units."""
        assert self.folds is not None
        target, units = self.problem.target, shortened(visible(self.problem.units), 40)
        named = f"log {units}".strip() if target.log else units
        return compared(tried, target.scale, self.folds.how, named)

    def interpolated(
        self, used: Ints, folds: Folds, trials: Sequence[Trial] = (), name: str = BILINEAR
    ) -> Tried:
        """A simple answer for some observations, in the other folds and in trials."""
        began, pairing, z = time.perf_counter(), self.problem.pairing, self.problem.z[used]
        x = None
        if name == REGRESSION:
            columns = pairing.n_position + pairing.n_time
            x = self.bags.means[pairing.own_bag[used], columns:]

        def tried(trials: Iterable[Trial]) -> Predicted | None:
            return Predicted.joined(
                [Predicted.value(interpolated(pairing, used, z, t, x), z[t.asked]) for t in trials]
            )

        held_out, seen = tried(others(folds.fold[used])), tried(trials)
        assert held_out is not None
        return Tried(name, held_out, time.perf_counter() - began, seen)

    def together(
        self,
        shares: Mapping[str, int],
        models: Mapping[str, Any],
        data: Mapping[str, FitData],
        kept: CheckpointPart | None,
    ) -> Any:
        """A fitted model, or the mixture of several, corrected where the target is a logarithm."""
        found = {name: models[name] for name in shares}
        if self.problem.target.log:
            found = {n: self.corrected(n, model, data[n], kept) for n, model in found.items()}
        return Mixture(found, shares) if len(found) > 1 else next(iter(found.values()))

    def corrected(
        self, name: str, model: Any, data: FitData, kept: CheckpointPart | None = None
    ) -> Any:
        """A model fitted again with what the mean of logarithms lacks of the logarithm of means."""
        scale = self.problem.target.scale
        missing = np.zeros(len(data.z))
        for k in range(LOG_PASSES - 1):
            if current().used:
                break
            before, missing = missing, data.at_observations(_log_gap(model, scale) / scale)
            if np.sqrt(np.mean((missing - before) ** 2)) * scale < LOG_TOLERANCE:
                break
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FitWarning)
                part = within(kept, f"{name}, correction {k + 1}")
                again = self.fit(name, data, data.z - missing, **part)
            if current().used:
                break
            model = again
        return model


def _gap(models: Mapping[str, Any], name: str, data: FitData) -> float | None:
    """The distance of bag means from a regression on mediators, if a model has made one."""
    regressor = next((m.regressor_ for m in models.values() if isinstance(m, STAGED)), None)
    if regressor is None or data.bags.mediator is None:
        return None
    means = data.bags.means(models[name].predict(data.bags.points).mean)
    return bag_gap(regressor, data.bags.mediator, means)


def _log_gap(model: Any, scale: float) -> Floats:
    """For every bag, log of the mean of exp(f) less the mean of f, in units of the logarithm."""
    bags = final_stage(model).bags_
    post = model.predict(bags.points)
    mean, variance = scale * post.mean, scale**2 * post.variance
    centre = bags.means(mean)
    spread = np.exp(mean - centre[bags.bag] + 0.5 * variance)
    return np.log(bags.means(spread))


def interrupted(learnt: Learnt, name: str, converged: bool) -> Sequence[Caution]:
    """What an interrupt left undone, beyond the fit that it ended."""
    found = []
    if learnt.untried:
        found.append(
            f"the interrupt left {', '.join(learnt.untried)} untried, so {name} was not chosen by "
            "comparison. Fit again, or name a model."
        )
    if converged:
        found.append(
            "the correction for the logarithm was interrupted and is that of an earlier pass. Fit "
            "again for more."
        )
    return [Caution(FitWarning, note) for note in found]
