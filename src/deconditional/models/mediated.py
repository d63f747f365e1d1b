r"""The model for unmatched data: a field whose bag means are measured by their mediators.

.. math:: f \sim GP(h^\top\beta, k), \qquad t = \bar f + e, \quad e \sim N(0, S),

with t and S what a regression of z on its mediator makes of the mediators of the bags
(:mod:`deconditional.observations.measurements`), and the hyper-parameters of k averaged.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel

from deconditional.bags import Bags
from deconditional.errors import DegenerateFitWarning, tell_of
from deconditional.fitting.draws import DRAWS
from deconditional.fitting.interrupts import stoppable
from deconditional.fitting.priors import LogNormal, Prior, SplitLogNormal
from deconditional.inference.exact import SpreadPrior
from deconditional.inference.learn import learn
from deconditional.inference.posterior import Gaussians, Posterior
from deconditional.kernels.linalg import suitable_threads
from deconditional.models.bagg import BaggGP
from deconditional.models.base import BagModel, learning, stages
from deconditional.models.cautions import of_pseudo_targets
from deconditional.models.data import Data
from deconditional.models.families import families_asked
from deconditional.models.mediated_rates import check_linked, fit_rates, held_out_beside
from deconditional.models.mediator_checks import PRIOR_IS_LEFT
from deconditional.models.options import BasisOptions
from deconditional.models.problems import problem_parts
from deconditional.models.regression import Unmatched, explained_share, of_two_stages
from deconditional.models.report import take
from deconditional.models.solvers import Posed, pose
from deconditional.models.sources import Given, Source, sources_of
from deconditional.models.vbagg import VBagg
from deconditional.observations.families import Family
from deconditional.observations.kinds import Matched
from deconditional.observations.measurements import Measurements
from deconditional.saving.resume import Checkpoint, CheckpointPart, opened, within

EXACT_UP_TO = 3_000
"""Bags or observations beyond which inducing points take over, unless their number is given."""


def length_scale_prior(mode: np.ndarray) -> Prior:
    """Prior of length scales that is wider below its mode than that of matched models.

    Of matched data short ones need evidence, and mediators have little. A prior that asked for it
    would have its way, and intervals would be too narrow.
    """
    return SplitLogNormal(mode, below=1.2, above=1.5)


def variance_prior(median: np.ndarray) -> Prior:
    """Prior of the variance of the field: next to none.

    How much bag means vary is told by the observations (:class:`SpreadPrior`), and how much more
    the field varies within bags by its length scales. A prior about the variance of the
    observations would count these twice, and take short length scales for improbable.
    """
    return LogNormal(median, 3.0)


@dataclass(kw_only=True, eq=False, repr=False)
class MediatedGP(BagModel):
    r"""The fine field from unmatched observations: the model to begin with.

    A Gaussian process regression of the observations on their mediators says what the mean of a bag
    with mediator y is, and how much of it is the bag's own. That makes the mediator of a bag a
    measurement of its mean, with errors of two kinds: the bag's own, and those of the regression,
    which bags have in common. The field is a Gaussian process seen through these measurements,
    as in :class:`BaggGP`; a bag that was observed itself is seen through its observations.

    Parameters
    ----------
    kernel
        k, any GPJax kernel of the fine covariates; a Gaussian with a length scale per covariate by
        default.
    mediator_kernel
        ℓ, of the regression; a Matérn-3/2 with a length scale per variable by default.
    trend, mediator_trend
        Of the field and of the regression: ``"none"``, ``"constant"`` or ``"linear"``, or linear in
        some inputs, by their numbers; without a `mediator_trend` both have the same.
    method
        ``"draws"``: predictions are averaged over a few draws of the hyper-parameters of the field,
        weighed by their posterior. ``"map"`` takes the most probable ones, ``"nuts"`` samples.
    method_options
        For draws: ``num_draws``, 16 by default. For NUTS as in :class:`BaggGP`.
    priors
        As in :class:`BaggGP`; names that begin with ``mediator_kernel.`` and ``mediator_noise_std``
        are those of the regression. Length scales of the field have
        ``SplitLogNormal(mode, below=1.2, above=1.5)`` unless a prior is given, and the variance of
        a kernel that is no sum ``LogNormal(median, 3.0)``.
    n_inducing
        Inducing points of the field and of the regression; None: exact inference up to 3000 bags
        and observations, 400 inducing points beyond. With inducing points the errors of the
        regression are taken bag by bag.
    learn_noise
        Whether measurements have more noise, alike for all bags, than the regression has found. By
        default where bags have observations of their own, or where `fixed` or `priors` name it.
    n_restarts
        Of both fits.
    family
        As in :class:`BaggGP`, of observations that are counts, shares or amounts. Mediators measure
        the links of mean rates then, and both fits are in a basis.
    fine_noise, fixed, max_iter, points_per_bag, precision, seed
        As in :class:`BaggGP`. `fixed` takes the names of `priors`.

    Attributes
    ----------
    regressor_
        The regression of observations on mediators, a :class:`BaggGP` of single points.
    explained_share_
        Share of the variance of the observations that it predicts, each left out once.
    measurements_
        Bag means as their mediators measure them: ``values`` and ``noise``, a covariance.

    Examples
    --------
    >>> from deconditional import MediatedGP
    >>> from deconditional.datasets import swiss_roll
    >>> data = swiss_roll(n_points=500, n_bags=20, matching="indirect", seed=0)
    >>> model = MediatedGP(n_restarts=1).fit(data.bags, data.z, mediator=data.mediator)
    >>> lower, upper = model.predict(data.x).interval(0.95)
    >>> bool(((data.f > lower) & (data.f < upper)).mean() > 0.8)
    True
    """

    mediator_kernel: AbstractKernel | None = field(default=None, kw_only=False)
    mediator_trend: str | tuple[int, ...] | None = None
    method: str = "draws"
    n_restarts: int = 2
    n_inducing: int | None = None
    family: Family | None = None

    def fit(
        self,
        bags: Bags | Sequence[Source],
        z: npt.ArrayLike | None = None,
        mediator: npt.ArrayLike | None = None,
        *,
        exposure: npt.ArrayLike | None = None,
        trials: npt.ArrayLike | None = None,
        own_bag: npt.ArrayLike | None = None,
        noise_std: npt.ArrayLike | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> Self:
        """Fit to bags with mediators and observations with mediators; see :meth:`CMP.fit`.

        With a `family`, `exposure` or `trials` are those of the observations. Of a list of
        :class:`~deconditional.Source` the first has mediators, and the others see bags of their
        own; all are seen in a basis.
        """
        amounts: dict[str, Any] = {"exposure": exposure, "trials": trials, "mediator": mediator}
        with opened(checkpoint) as kept, stoppable():
            if families_asked(self, bags, exposure, trials):
                refused = {"own_bag": own_bag}
                sources = sources_of(self, bags, z, noise_std, None, refused=refused, **amounts)
                return self._fit_sources(sources, kept)
            data = Unmatched.of(bags, z, mediator, own_bag)
            with suitable_threads(max(data.bags.n_bags, len(data.z))):
                return self._fit(data, noise_std, kept)

    def _fit_sources(self, sources: Sequence[Given], kept: CheckpointPart | None) -> Self:
        """The field from links that mediators measure, and from what other sources see of it."""
        first = sources[0]
        data = Unmatched.of(first.bags, first.z, first.mediator, None)
        sources = [replace(first, mediator=data.mediator), *sources[1:]]
        check_linked(sources)
        found = fit_rates(self, data, sources, kept, length_scale_prior=length_scale_prior)
        self.__dict__.update({k: v for k, v in vars(found[0]).items() if k.endswith("_")})
        return self._with_regression(data._replace(z=first.crude), *found[1:])

    def _fit(
        self, data: Unmatched, noise_std: npt.ArrayLike | None, kept: CheckpointPart | None
    ) -> Self:
        began = time.perf_counter()
        of_field, of_regression = self.parameters_apart()
        of_field.check_options()
        exact = self.n_inducing is None and max(data.bags.n_bags, len(data.z)) <= EXACT_UP_TO
        in_a_basis: dict[str, Any] = {"by": VBagg, "n_inducing": self.n_inducing}
        with warnings.catch_warnings():
            # A regression that explains nothing is spoken of below, as a useless mediator.
            warnings.simplefilter("ignore", DegenerateFitWarning)
            regressor = data.regress(
                self.mediator_kernel,
                noise_std,
                within(kept, "regressor"),
                learn_noise=True,  # bag effects, whatever the noise of observations
                trend=self.trend_of_mediators,
                n_restarts=self.n_restarts,
                max_iter=self.max_iter,
                seed=self.seed,
                method=self.method,
                method_options=self.method_options,
                **({} if exact else in_a_basis),
                **of_regression,
            )
        measurements, drawn = data.measurements(
            regressor, self.number_of_draws, not exact, self.seed
        )
        seen = Data.of(data.bags, measurements.values, 0.0, None, of_field)
        named = "noise_std" in {**(of_field.fixed or {}), **(of_field.priors or {})}
        learns = named or data.own_bag is not None
        learns = learns if self.learn_noise is None else self.learn_noise
        seen = replace(seen, known_noise=measurements.noise, learn_noise=learns)
        posed = _posed(seen, data.z, of_field, exact)
        others = [
            replace(posed.problem, z=jnp.asarray(each.values), known_noise=jnp.asarray(each.noise))
            for each in drawn
        ]
        part = within(kept, "field").get("checkpoint")
        at = stages(of_field, seen.bags, posed.problem, part)
        fitted = learn(posed.problem, learning(of_field, posed), at, others)
        take(self, seen.bags, fitted, posed, at, began)
        return self._with_regression(data, regressor, measurements)

    def _with_regression(self, data: Unmatched, regressor: BaggGP, measured: Measurements) -> Self:
        """The model with what the regression and both fits together have to tell."""
        found = of_pseudo_targets(data.bags, data.mediator, data.z, data.has_own, PRIOR_IS_LEFT)
        share = explained_share(regressor)
        self.regressor_, self.explained_share_, self.measurements_ = regressor, share, measured
        report, first = self.fit_report_, regressor.fit_report_
        said = f"{share:.0%} of the variance of the observations, by the mediators"
        report = replace(report, evaluations=report.evaluations + first.evaluations)
        self.fit_report_ = of_two_stages(first, report, found, {"explained": said})
        tell_of(found)
        return self

    @property
    def number_of_draws(self) -> int:
        """Number of draws of the regression's parameters; a sampler of the field takes as many."""
        if self.method == "map":
            return 0
        return int((self.method_options or {}).get("num_draws", DRAWS))

    def parameters_apart(self) -> tuple[Self, dict[str, Any]]:
        """The model with parameters of the field alone, and what is said of the regression's."""
        given = {option: dict(getattr(self, option) or {}) for option in ("fixed", "priors")}
        own: dict[str, Any] = {
            option: {name: v for name, v in each.items() if not name.startswith("mediator_")}
            for option, each in given.items()
        }
        return replace(self, **own), {
            option: {
                n.removeprefix("mediator_"): v for n, v in each.items() if n not in own[option]
            }
            for option, each in given.items()
        }

    def predict_coarse(self, mediator: npt.ArrayLike) -> Posterior:
        """Posterior of the conditional mean at new mediators, from the regression."""
        self.check_fitted()
        return self.regressor_.predict(mediator)

    def predict_held_out(self, folds: npt.ArrayLike) -> Gaussians:
        """Every observation as those of the other folds predict it, by the regression.

        See :meth:`BaggGP.predict_held_out`. Of a list of sources, observations of the others are
        predicted by the field, beside what the mediators of the first one measure.
        """
        fitted = self.check_fitted()
        others = getattr(fitted.problem, "sources", ())[1:]
        if not others:
            return self.regressor_.predict_held_out(folds)
        return cast(Gaussians, held_out_beside(self, fitted, np.asarray(folds)))

    @property
    def trend_of_mediators(self) -> str | tuple[int, ...]:
        """The trend of the regression."""
        return self.trend if self.mediator_trend is None else self.mediator_trend

    @property
    def model_(self) -> Self:
        """The model of the field, which is this one."""
        return self


def _posed(seen: Data, z: np.ndarray, options: MediatedGP, exact: bool) -> Posed:
    """Measured bag means, which vary as much as the observations z do."""
    priors: dict[str, Any] = {"typical_z": z, "length_scale_prior": length_scale_prior}
    if exact:  # in a basis bags are many, and say how much they vary
        priors["variance_prior"] = variance_prior
    parts = problem_parts(seen, Matched(), options, **priors)
    how = options if exact else BasisOptions(n_inducing=options.n_inducing)
    posed = pose(how, parts, seen.bags, options.seed)
    if not exact:
        return posed
    spread = SpreadPrior.of(z, options.trend != "none")
    return posed._replace(problem=replace(posed.problem, spread=spread))
