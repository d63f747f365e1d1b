"""The model for unmatched data: several readings of one regression, mixed."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from deconditional.bags import Bags
from deconditional.errors import Caution, DegenerateFitWarning, UselessMediatorWarning, tell_of
from deconditional.fitting.interrupts import stoppable
from deconditional.fitting.report import FitReport
from deconditional.inference.posterior import CoarsePosterior, Gaussians, Posterior
from deconditional.models.bagg import BaggGP
from deconditional.models.base import BagModel
from deconditional.models.cautions import of_pseudo_targets
from deconditional.models.checks import query_points
from deconditional.models.cmp import CMP
from deconditional.models.links import MAY_BE_NARROW, PRIOR_IS_LEFT, no_link
from deconditional.models.readings import JointGP, MeasuredGP, TiltedGP, UnlinkedGP
from deconditional.models.regression import (
    Unmatched,
    bag_gap,
    enough,
    explained_share,
    leaves_much_open,
)
from deconditional.saving.api import FittedData, Savable
from deconditional.saving.resume import Checkpoint, Part, opened, within

__all__ = ["PARTS", "MediatedGP"]

PARTS = {"measured": 8, "tilted": 4, "conditional": 1}
"""Members, and how many parts of the mixture each has: posteriors at hyper-parameters drawn."""

PARTS_OF_A_WEAK_LINK = {"measured": 32, "tilted": 8, "conditional": 8, "unlinked": 6}
"""Where mediators predict little: more hangs on hyper-parameters, and there may be no link."""

PARTS_OF_AN_OPEN_LINK = {"conditional": 24, "joint": 4, "u-cmp": 32}
"""Where a regression by itself leaves much open, and the field helps to learn it."""

PARTS_WITHOUT_A_LINK = {"unlinked": 32}
"""Where mediators measure nothing: the prior is left, whose width hangs on draws that are rare."""

FAMILIES: dict[str, Any] = {"measured": MeasuredGP, "tilted": TiltedGP, "unlinked": UnlinkedGP}

WITH_THE_FIELD: dict[str, Any] = {
    "joint": partial(JointGP, n_draws=PARTS_OF_AN_OPEN_LINK["joint"]),
    "u-cmp": CMP,
}
"""Members that learn a regression of their own together with the field."""

WEAK = 0.5
"""Share of the variance of z below which a link is weak."""

MOST_GAP = 2.0
"""Standard deviations that bag means may be off the regression, root mean square."""


@dataclass(kw_only=True, eq=False, repr=False)
class MediatedGP(Savable, BaseEstimator):
    r"""The fine field from unmatched observations: the model to begin with.

    A regression of the observations on their mediators says what bag means may be. Observations
    cannot tell how far to follow it, since every way explains them equally well:

    ``measured``
        the mediator of a bag is a measurement of its mean, with the error that observations have
        about the regression, independent from bag to bag; as pseudo-targets, freed of what
        attenuates them;
    ``conditional``
        only the way from bag means to observations counts (as in :class:`CMP` with its
        uncertainty); right where the fine kernel implies all that the mediator says;
    ``tilted``
        that, with bag effects, what the mediator does not explain of a bag, no larger than the
        regression expects.

    The posterior is their mixture, each at several draws of its hyper-parameters: eight of the
    first, one of the second, four of the third. Three cases have another one. Shares are of the
    variance of the M observations, predicted shares with each of them left out once.

    A weak link
        The regression predicts less than a half. More draws, 32 : 8 : 8, since more hangs on what
        is not known of the field, and six parts of what is left without a link (below).
    An open link
        Observations are too few for a regression by itself: its errors have a share of 5 % or more,
        and bag effects are less than 60 % of all error. Then models that learn a regression
        together with the field take the place of two readings: U-CMP (``u-cmp``, 32 parts of 60)
        and the same with the priors that readings have, at draws of its hyper-parameters
        (``joint``, 4), beside 24 draws of the conditional one. All is as usual if bag means of one
        of the two are more than two standard deviations off the regression, root mean square.
    No link
        The regression predicts less than 5 % + (1 + 2 p)/M with p mediators, and less than 35 %.
        Then the prior of the field takes the place of all (``unlinked``), with bag means that vary
        about the mean of the observations as these do.

    Parameters
    ----------
    kernel
        k, any GPJax kernel of the fine covariates; a Gaussian with a length scale per covariate by
        default.
    mediator_kernel
        ℓ; a Matérn-3/2 with a length scale per variable by default.
    trend
        Of the field and of the regression: ``"none"``, ``"constant"`` or ``"linear"``.
    fine_noise, n_restarts, max_iter, points_per_bag, precision, seed
        As in :class:`BaggGP`.

    Attributes
    ----------
    members_
        The fitted models, by name.
    parts_
        How many parts of the mixture each of them has.
    regressor_
        The regression of observations on mediators, a :class:`BaggGP` of single points.
    explained_share_
        Share of the variance of the observations that it predicts, each left out once.
    fit_report_
        Of all fits together.

    Examples
    --------
    >>> from deconditional import MediatedGP
    >>> from deconditional.datasets import swiss_roll
    >>> data = swiss_roll(n_points=500, n_bags=20, matching="indirect", seed=0)
    >>> model = MediatedGP(n_restarts=1).fit(data.bags, data.z, mediator=data.mediator)
    >>> list(model.members_)
    ['conditional', 'joint', 'u-cmp']
    >>> lower, upper = model.predict(data.x).interval(0.95)
    >>> bool(((data.f > lower) & (data.f < upper)).mean() > 0.8)
    True
    """

    kernel: AbstractKernel | None = field(default=None, kw_only=False)
    mediator_kernel: AbstractKernel | None = field(default=None, kw_only=False)
    trend: str = "constant"
    fine_noise: bool = False
    n_restarts: int = 4
    max_iter: int = 300
    points_per_bag: int | None = None
    precision: str = "auto"
    seed: int = 0

    def fit(
        self,
        bags: Bags,
        z: npt.ArrayLike,
        mediator: npt.ArrayLike | None = None,
        *,
        own_bag: npt.ArrayLike | None = None,
        noise_std: npt.ArrayLike | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> Self:
        """Fit to bags with mediators and observations with mediators; see :meth:`CMP.fit`."""
        with opened(checkpoint) as kept, stoppable():
            return self._fit(Unmatched.of(bags, z, mediator, own_bag), noise_std, kept)

    def _fit(self, data: Unmatched, noise_std: npt.ArrayLike | None, kept: Part | None) -> Self:
        with _told_once():
            with _heard() as of_regression:
                regressor = self._regressor(data, noise_std, kept)
            share, least = explained_share(regressor), enough(*data.mediator.shape)
            without_link = share < least
            # A regression that explains nothing is spoken of below, as a useless mediator.
            untold = [
                caution
                for caution in of_regression
                if without_link and caution.category is DegenerateFitWarning
            ]
            tell_of([caution for caution in of_regression if caution not in untold])
            parts = PARTS if share >= WEAK else PARTS_OF_A_WEAK_LINK
            helped: dict[str, BagModel] = {}
            if without_link:
                parts = PARTS_WITHOUT_A_LINK
            elif leaves_much_open(data.measurements(regressor)):
                helped = self._with_the_field(data, regressor, noise_std, kept)
                parts = PARTS_OF_AN_OPEN_LINK if helped else parts
            members = self._readings(data, regressor, parts, kept)
            fits = [regressor, *helped.values(), *members.values()]
            if "conditional" in parts:
                members["conditional"] = members["tilted"].conditional(parts["conditional"])
            for member in members.values():
                member.forget()
            outcome = PRIOR_IS_LEFT if without_link else MAY_BE_NARROW
            found = of_pseudo_targets(data.bags, data.mediator, data.z, data.has_own, outcome)
            told = any(caution.category is UselessMediatorWarning for caution in found)
            if data.needs_mediators and not told:
                found += no_link(share, least)
            tell_of(found)
        self.regressor_, self.explained_share_ = regressor, share
        self.members_: dict[str, BagModel] = {name: (members | helped)[name] for name in parts}
        self.parts_ = {**parts}
        report = _together([each.fit_report_ for each in fits])
        kept_notes = [note for note in report.notes if note not in [c.text for c in untold]]
        self.fit_report_ = replace(
            report,
            details={**report.details, **self._mixed()},
            notes=(*kept_notes, *(caution.text for caution in found)),
        )
        return self

    def _mixed(self) -> dict[str, str]:
        """Details of the mixture, for the report."""
        share = self.explained_share_
        mixed = ", ".join(f"{n} {name}" for name, n in self.parts_.items())
        return {
            "explained": f"{share:.0%} of the variance of the observations, by the mediators",
            "mixture": f"parts: {mixed}",
        }

    def _shared(self) -> dict[str, Any]:
        """Options of all members."""
        own = ("kernel", "mediator_kernel")
        return {k: v for k, v in self.get_params(deep=False).items() if k not in own}

    def _regressor(
        self, data: Unmatched, noise_std: npt.ArrayLike | None, kept: Part | None
    ) -> BaggGP:
        return data.regress(
            self.mediator_kernel,
            noise_std,
            within(kept, "regressor"),
            learn_noise=True,  # bag effects, whatever the noise of observations
            trend=self.trend,
            n_restarts=self.n_restarts,
            max_iter=self.max_iter,
            seed=self.seed,
        )

    def _readings(
        self, data: Unmatched, regressor: BaggGP, parts: dict[str, int], kept: Part | None
    ) -> dict[str, Any]:
        """The readings that a mixture of parts needs, fitted."""
        members: dict[str, Any] = {}
        for name, family in FAMILIES.items():
            if name in parts or (name == "tilted" and "conditional" in parts):
                member = family(self.kernel, n_draws=parts.get(name, 1), **self._shared())
                members[name] = member.fit(data, regressor, **within(kept, name))
        return members

    def _with_the_field(
        self,
        data: Unmatched,
        regressor: BaggGP,
        noise_std: npt.ArrayLike | None,
        kept: Part | None,
    ) -> dict[str, BagModel]:
        """Models that learn a regression of their own; none if bag means of one contradict ours.

        Observations cannot tell: a field that is far off in every bag may explain them as well.
        """
        assert data.bags.mediator is not None
        found: dict[str, BagModel] = {}
        cautions: list[Caution] = []
        for name, family in WITH_THE_FIELD.items():
            options = {"centred": True, "uncertainty": True, **self._shared()}
            model = family(self.kernel, self.mediator_kernel, **options)
            given = {"own_bag": data.own_bag, "noise_std": noise_std, **within(kept, name)}
            with _heard() as said:
                found[name] = model.fit(data.bags, data.z, data.mediator, **given)
            means = model.predict_bags(model.bags_).mean
            if bag_gap(regressor, data.bags.mediator, means) > MOST_GAP:
                return {}
            cautions += said
        tell_of(cautions)
        return found

    # ------------------------------------------------------------------ predicting

    def predict(
        self, x: npt.ArrayLike, fine_noise: bool = False, features: int | None = None
    ) -> Posterior:
        """Posterior of the fine field; see :meth:`BaggGP.predict`."""
        self._fitted()
        array = query_points(x, self.model_.n_features_in_)
        if fine_noise and not self.fine_noise:
            raise ValueError("this model has no high-resolution noise; fit with fine_noise=True.")
        points = self.model_.bags_.points
        fields = {name: model.fields(features) for name, model in self.members_.items()}
        mixed = [fields[name][s] for name, s in self._mixture()]
        return Posterior(mixed, array, fine_noise, (points.min(0), points.max(0)))

    def predict_bags(self, bags: Bags) -> CoarsePosterior:
        """Joint posterior of the means of f over new bags."""
        self._fitted()
        found = {name: model.predict_bags(bags) for name, model in self.members_.items()}
        return CoarsePosterior(
            np.stack([found[name].component_means[s] for name, s in self._mixture()]),
            np.stack([found[name].component_covariances[s] for name, s in self._mixture()]),
        )

    def predict_coarse(self, mediator: npt.ArrayLike) -> Posterior:
        """Posterior of the conditional mean at new mediators, from the regression."""
        self._fitted()
        return self.regressor_.predict(mediator)

    def predict_held_out(self, folds: npt.ArrayLike) -> Gaussians:
        """Every observation as those of the other folds predict it, by the regression.

        See :meth:`BaggGP.predict_held_out`.
        """
        self._fitted()
        return self.regressor_.predict_held_out(folds)

    def _fitted_data(self) -> FittedData:
        self._fitted()
        facts, arrays = self.model_._fitted_data()
        return FittedData(facts, [*arrays, *self.regressor_._fitted_data().arrays])

    @property
    def model_(self) -> BagModel:
        """The first of the members; its parameters stand for all."""
        return next(iter(self.members_.values()))

    def _mixture(self) -> list[tuple[str, int]]:
        """The components: names of members and numbers of draws.

        A draw of a member that has few of them, for its part, comes several times.
        """
        draws = {name: len(model.fitted_.fields) for name, model in self.members_.items()}
        common = math.lcm(*draws.values())
        times = {name: self.parts_[name] * common // n for name, n in draws.items()}
        least = math.gcd(*times.values())
        return [
            (name, s)
            for name, n in draws.items()
            for s in range(n)
            for _ in range(times[name] // least)
        ]

    def _fitted(self) -> None:
        if not hasattr(self, "members_"):
            raise NotFittedError("this MediatedGP is not fitted; call fit first.")


@contextmanager
def _heard() -> Iterator[list[Caution]]:
    """Warnings that would have been given meanwhile, each once."""
    found: list[Caution] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    told: list[tuple[Any, str]] = [(w.category, str(w.message)) for w in caught]
    found += [Caution(*each) for each in dict.fromkeys(told)]


@contextmanager
def _told_once() -> Iterator[None]:
    """Warnings that several fits give are given once, when all are done."""
    with _heard() as found:
        yield
    tell_of(found)


def _together(reports: Sequence[FitReport]) -> FitReport:
    """The report of the last, with the evidence of the first and the effort and notes of all."""
    last = reports[-1]
    resumed = [r.details["resumed"] for r in reports if "resumed" in r.details]
    return replace(
        last,
        log_evidence=reports[0].log_evidence,
        converged=all(r.converged for r in reports),
        iterations=sum(r.iterations for r in reports),
        evaluations=sum(r.evaluations for r in reports),
        seconds=sum(r.seconds for r in reports),
        compile_seconds=sum(r.compile_seconds for r in reports),
        details={**last.details, **({"resumed": ", ".join(resumed)} if resumed else {})},
        notes=tuple(dict.fromkeys(note for r in reports for note in r.notes)),
    )
