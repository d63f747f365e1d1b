"""Two-stage kernel ridge regression: conditional mean operator first, fine field second."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import gpjax.kernels as gk
import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score

from deconditional.bags import Bags
from deconditional.bags.inputs import Floats
from deconditional.models.checks import mediators, observations, query_points
from deconditional.models.data import Data
from deconditional.models.options import BagOptions
from deconditional.operators.functions import Function
from deconditional.operators.means import (
    ConditionalMeanOperator,
    DeconditionalMeanOperator,
    bags_of_samples,
    median_kernel,
)
from deconditional.operators.ridge import (
    LEAVE_ONE_OUT,
    Evidence,
    LeaveOneOut,
    RidgeSearch,
    check_bounds,
    check_positive,
)

EVIDENCE = "evidence"


@dataclass(kw_only=True, eq=False, repr=False)
class DeconditionalRegressor(RegressorMixin, BaseEstimator):
    r"""The fine field by two kernel ridge regressions, one upon the other.

    Stage one regresses embeddings of bags on their mediators, stage two regresses the observations
    on the embeddings at theirs. Without a trend, the prediction is the posterior mean of
    :class:`~deconditional.CMP` with the same kernels, the same λ and noise variance Mε. Nothing is
    optimised by gradients: kernels are as given, and ridges are found by a search over one number
    each. For uncertainty, and for kernels that are learnt, use that class.

    Parameters
    ----------
    kernel, mediator_kernel
        k and ℓ, GPJax kernels with their parameters. By default a Gaussian kernel of the points and
        a Matérn-3/2 of all mediators, with length scales by the median heuristic,
        :func:`~deconditional.operators.median_kernel`.
    cmo, ridge, ridge_bounds
        Of the first stage; see
        :class:`~deconditional.operators.ConditionalMeanOperator`.
    epsilon
        ε of the second stage. ``"evidence"``: the one with the greatest restricted likelihood of
        the observations, given the first stage. ``"leave-one-out"``: the one that best predicts an
        observation from the others. That need not be one that recovers the field, since errors
        which hardly change conditional means may be large in the field.
    trend
        ``"constant"``: a constant is added to the field and fitted by generalised least squares,
        without a penalty. ``"none"``: the field is shrunk towards zero.
    epsilon_bounds
        Where to search; see :func:`~deconditional.operators.search_ridge`.

    Attributes
    ----------
    conditional_, deconditional_
        The two operators.
    function_, intercept_
        The field is their sum.
    ridge_, epsilon_
        The ridges used.
    ridge_search_, epsilon_search_
        How they were chosen; None where they were given.
    n_features_in_
        Number of covariates.

    Examples
    --------
    >>> import deconditional as dc
    >>> from deconditional.operators import DeconditionalRegressor
    >>> data = dc.datasets.swiss_roll(n_points=500, n_bags=20, seed=0)
    >>> model = DeconditionalRegressor().fit(data.bags, data.z)
    >>> model.score(data.x, data.f) > 0.5
    True
    """

    kernel: AbstractKernel | None = field(default=None, kw_only=False)
    mediator_kernel: AbstractKernel | None = field(default=None, kw_only=False)
    cmo: str = "standard"
    ridge: float | str = LEAVE_ONE_OUT
    epsilon: float | str = EVIDENCE
    trend: str = "constant"
    ridge_bounds: tuple[float, float] | None = None
    epsilon_bounds: tuple[float, float] | None = None

    def fit(
        self,
        bags: Bags | tuple[npt.ArrayLike, npt.ArrayLike],
        z: npt.ArrayLike,
        mediator: npt.ArrayLike | None = None,
    ) -> Self:
        """Fit both regressions to bags and observations.

        Parameters
        ----------
        bags
            Bags with a mediator each, or a pair (x, y) of fine points and the mediator of each.
        z : (M,)
            Coarse observations.
        mediator : (M, p) or (M,), optional
            The mediator of every observation. Leave it out when observation j is that of bag j.
        """
        if self.trend not in ("none", "constant"):
            raise ValueError(f"trend must be 'none' or 'constant', not {self.trend!r}.")
        check_bounds("epsilon", self.epsilon, self.epsilon_bounds)
        data = Data.of(_as_bags(bags), z, None, None, BagOptions()).linked(mediator, None)
        bags, z, observed = data.bags, data.z, np.asarray(data.mediator)
        mediator_kernel = self.mediator_kernel
        if mediator_kernel is None:
            both = np.concatenate([np.asarray(bags.mediator), observed])
            mediator_kernel = median_kernel(both, gk.Matern32)
        conditional = ConditionalMeanOperator(
            bags,
            self.kernel,
            mediator_kernel,
            cmo=self.cmo,
            ridge=self.ridge,
            ridge_bounds=self.ridge_bounds,
        )
        embeddings = conditional.embedding(observed)
        drift = embeddings.coefficients.sum(0) if self.trend == "constant" else None
        if drift is not None and np.abs(drift).max() < 1e-8:
            raise ValueError(
                "the mediators of the observations have nothing in common with those of the bags, "
                "so no constant can be fitted. Check the mediators and the length scale of "
                "mediator_kernel."
            )
        self.epsilon_search_ = self._search(embeddings.inner(embeddings), z, drift)
        epsilon = self.epsilon if self.epsilon_search_ is None else self.epsilon_search_.best
        epsilon = check_positive("epsilon", epsilon, EVIDENCE, LEAVE_ONE_OUT)
        self.conditional_ = conditional
        self.deconditional_ = DeconditionalMeanOperator(conditional, observed, epsilon=epsilon)
        self.intercept_ = 0.0
        if drift is not None:  # by generalised least squares
            solved = self.deconditional_.solve(drift)
            self.intercept_ = float(solved @ z / (solved @ drift))
            z = z - self.intercept_ * drift
        self.function_: Function = self.deconditional_.recover(z)
        self.ridge_ = conditional.ridge
        self.ridge_search_ = conditional.search
        self.epsilon_ = self.deconditional_.epsilon
        self.n_features_in_ = bags.points.shape[1]
        return self

    def _search(self, q: Floats, z: Floats, drift: Floats | None) -> RidgeSearch | None:
        if self.epsilon not in (EVIDENCE, LEAVE_ONE_OUT):
            return None
        if len(z) < 2 + (drift is not None):
            raise ValueError(
                f"{len(z)} observations are too few to choose epsilon by; give it a value."
            )
        if np.ptp(z) == 0:
            raise ValueError(
                "all observations are equal: nothing to choose epsilon by; give it a value."
            )
        if self.epsilon == EVIDENCE:
            return Evidence(q, z, drift).search("epsilon", self.epsilon_bounds)
        shares = np.full(len(z), 1.0 / len(z))
        return LeaveOneOut(q, np.outer(z, z), shares, drift).search("epsilon", self.epsilon_bounds)

    def predict(self, x: npt.ArrayLike) -> Floats:
        """The field at points x, (m,)."""
        self._check_fitted()
        return self.intercept_ + self.function_(query_points(x, self.n_features_in_))

    def predict_coarse(self, mediator: npt.ArrayLike) -> Floats:
        """The conditional mean of the field at mediators, (M,)."""
        self._check_fitted()
        y = mediators(mediator, self.conditional_.out_of.n_inputs)
        smooth = self.conditional_.conditional_mean(self.function_)(y)
        return smooth + self.intercept_ * self.conditional_.weights(y).sum(0)

    def score(self, x: npt.ArrayLike, f: npt.ArrayLike, sample_weight: Any = None) -> float:
        """Coefficient of determination R² of the field at points x against its values f."""
        return float(r2_score(observations(f), self.predict(x), sample_weight=sample_weight))

    def _check_fitted(self) -> None:
        if not hasattr(self, "function_"):
            raise NotFittedError("this DeconditionalRegressor is not fitted; call fit first.")


def _as_bags(bags: Any) -> Bags:
    if isinstance(bags, Bags):
        return bags
    if isinstance(bags, tuple) and len(bags) == 2:
        return bags_of_samples(*bags)
    raise TypeError(
        "bags must be a deconditional.Bags or a pair (x, y) of points and mediators, not "
        f"{type(bags).__name__}."
    )
