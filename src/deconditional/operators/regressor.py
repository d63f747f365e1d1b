"""Two-stage kernel ridge regression: conditional mean operator first, fine field second."""

from __future__ import annotations

from typing import Any, Self

import gpjax.kernels as gk
import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel
from scipy.linalg import cho_solve
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score

from deconditional.bags import Bags
from deconditional.bags.inputs import Floats
from deconditional.models.checks import mediators, observations, query_points
from deconditional.operators.conditional import (
    LEAVE_ONE_OUT,
    ConditionalMeanOperator,
    check_bounds,
    check_positive,
    factorised,
    median_kernel,
)
from deconditional.operators.deconditional_mean import DeconditionalMeanOperator
from deconditional.operators.functions import Function
from deconditional.operators.ridge import Evidence, LeaveOneOut, RidgeSearch

__all__ = ["DeconditionalRegressor"]

EVIDENCE = "evidence"


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
    cmo
        ``"standard"`` or ``"shrinkage"``, the estimator of the conditional mean operator.
    ridge
        λ of the first stage, or ``"leave-one-out"`` for the one that best predicts the embedding of
        a bag from the other bags.
    epsilon
        ε of the second stage. ``"evidence"``: the one with the greatest restricted likelihood of
        the observations, given the first stage. ``"leave-one-out"``: the one that best predicts an
        observation from the others. That need not be one that recovers the field, since errors
        which hardly change conditional means may be large in the field.
    trend
        ``"constant"``: a constant is added to the field and fitted by generalised least squares,
        without a penalty. ``"none"``: the field is shrunk towards zero.
    ridge_bounds, epsilon_bounds
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

    def __init__(
        self,
        kernel: AbstractKernel | None = None,
        mediator_kernel: AbstractKernel | None = None,
        *,
        cmo: str = "standard",
        ridge: float | str = LEAVE_ONE_OUT,
        epsilon: float | str = EVIDENCE,
        trend: str = "constant",
        ridge_bounds: tuple[float, float] | None = None,
        epsilon_bounds: tuple[float, float] | None = None,
    ):
        self.kernel = kernel
        self.mediator_kernel = mediator_kernel
        self.cmo = cmo
        self.ridge = ridge
        self.epsilon = epsilon
        self.trend = trend
        self.ridge_bounds = ridge_bounds
        self.epsilon_bounds = epsilon_bounds

    def fit(
        self,
        bags: Bags | tuple[npt.ArrayLike, npt.ArrayLike],
        z: npt.ArrayLike,
        mediator: npt.ArrayLike | None = None,
    ) -> Self:
        """Fit to bags and observations.

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
        bags, z = _as_bags(bags), observations(z)
        observed = _observed_mediators(bags, z, mediator)
        mediator_kernel = self.mediator_kernel
        if mediator_kernel is None:
            mediator_kernel = median_kernel(
                np.concatenate([np.asarray(bags.mediator), observed]), gk.Matern32
            )
        conditional = ConditionalMeanOperator.from_bags(
            bags,
            self.kernel,
            mediator_kernel,
            cmo=self.cmo,
            ridge=self.ridge,
            ridge_bounds=self.ridge_bounds,
        )
        weights = conditional.weights(observed)
        q = weights.T @ conditional.into.gram @ weights
        drift = weights.sum(0) if self.trend == "constant" else None
        if drift is not None and np.abs(drift).max() < 1e-8:
            raise ValueError(
                "the mediators of the observations have nothing in common with those of the bags, "
                "so no constant can be fitted. Check the mediators and the length scale of "
                "mediator_kernel."
            )
        self.epsilon_search_ = self._search(q, z, drift)
        epsilon = self.epsilon if self.epsilon_search_ is None else self.epsilon_search_.best
        epsilon = check_positive("epsilon", epsilon, EVIDENCE, LEAVE_ONE_OUT)
        self.conditional_ = conditional
        self.deconditional_ = DeconditionalMeanOperator(conditional, observed, epsilon=epsilon)
        self.intercept_ = 0.0 if drift is None else _constant(q, epsilon, drift, z)
        offset = 0.0 if drift is None else self.intercept_ * drift
        self.function_: Function = self.deconditional_.recover(z - offset)
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
        held_out = LeaveOneOut(q, np.outer(z, z), shares, drift)
        return held_out.search("epsilon", self.epsilon_bounds)

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
        x, y = bags
        return Bags.from_points(x, np.arange(len(np.asarray(x))), mediator=y)
    raise TypeError(
        "bags must be a deconditional.Bags or a pair (x, y) of points and mediators, not "
        f"{type(bags).__name__}."
    )


def _observed_mediators(bags: Bags, z: Floats, mediator: npt.ArrayLike | None) -> Floats:
    """The mediators of the observations: those of the bags where none are given."""
    if bags.mediator is None:
        raise ValueError(
            "the bags have no mediator, so nothing links them to the observations. Give one "
            "to Bags.from_points(..., mediator=y)."
        )
    if mediator is None and len(z) != bags.n_bags:
        raise ValueError(
            f"{len(z)} observations came for {bags.n_bags} bags and no mediator for them. "
            "Unmatched observations need fit(..., mediator=y_tilde)."
        )
    given = bags.mediator if mediator is None else mediator
    observed = mediators(given, bags.mediator.shape[1])
    if len(observed) != len(z):
        raise ValueError(f"{len(z)} observations came with {len(observed)} mediators.")
    return observed


def _constant(q: Floats, epsilon: float, drift: Floats, z: Floats) -> float:
    """The constant by generalised least squares."""
    root = factorised(q + len(z) * epsilon * np.eye(len(z)), "epsilon")
    solved = cho_solve((root, True), drift)
    return float(solved @ z / (solved @ drift))
