r"""The deconditional mean operator, which undoes a conditional expectation.

:math:`D_{X|Y}` is defined by :math:`D^\top E[f(X) \mid Y = \cdot\,] = f`, that is
:math:`C D = \mathrm{Id}`. Given a conditional mean operator :math:`\hat C` and mediators
:math:`\tilde y` of observations, with :math:`W = (L + R)^{-1}L_{y\tilde y}` and
:math:`\hat Q = W^\top\bar K W`,

.. math:: \hat D = \Psi_{\tilde y}\,(\hat Q + M\epsilon I)^{-1}\,W^\top\bar\Phi^\top

minimises the reconstruction risk

.. math:: \hat{\mathcal E}_d(D) = \tfrac1M \sum_m
   \lVert\ell_{\tilde y_m} - D\hat C\ell_{\tilde y_m}\rVert_\ell^2 + \epsilon\lVert D\rVert_{HS}^2 .

Applied to observations, :math:`\hat D^\top` gives the deconditional posterior mean of the field
with noise variance :math:`\sigma^2 = M\epsilon`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve

from deconditional.bags.inputs import Floats
from deconditional.models.checks import mediators, observations
from deconditional.operators.conditional import (
    LEAVE_ONE_OUT,
    ConditionalMeanOperator,
    check_bounds,
    check_positive,
    factorised,
)
from deconditional.operators.functions import Features, FiniteRankOperator, Function
from deconditional.operators.ridge import LeaveOneOut, RidgeSearch

__all__ = ["DeconditionalMeanOperator"]


class DeconditionalMeanOperator(FiniteRankOperator):
    r"""Estimate of :math:`D_{X|Y}` from a conditional mean operator and further mediators.

    Parameters
    ----------
    conditional
        The conditional mean operator.
    mediator : (M, p) or (M,)
        The mediators :math:`\tilde y` of the observations.
    epsilon
        ε, or ``"leave-one-out"`` for the one that best reconstructs the feature of a mediator from
        the other mediators; see :meth:`leave_one_out` and
        :func:`~deconditional.operators.search_ridge`. Features of mediators have no noise, so with
        a smooth ℓ that is too small an ε for noisy observations:
        :class:`~deconditional.DeconditionalRegressor` chooses by the evidence of z.
    epsilon_bounds
        Where to search for it: by default 1e-10 to 1e3 times the largest eigenvalue of
        :math:`\hat Q / M`.

    Attributes
    ----------
    search
        How ε was chosen, or None where it was given.

    Examples
    --------
    Conditional means of a function give the function back:

    >>> from deconditional.operators import ConditionalMeanOperator, Function
    >>> y = np.linspace(-2, 2, 60)
    >>> x = y + 0.3 * np.sin(40 * y)
    >>> cmo = ConditionalMeanOperator.from_samples(x, y, ridge=1e-3)
    >>> dmo = DeconditionalMeanOperator(cmo, np.linspace(-2, 2, 30), epsilon=1e-7)
    >>> f = cmo.embedding([0.5])
    >>> z = cmo.conditional_mean(f)(dmo.mediator)[:, 0]
    >>> np.abs(dmo.recover(z)(x) - f(x)[:, 0]).max() < 0.01
    np.True_
    """

    def __init__(
        self,
        conditional: ConditionalMeanOperator,
        mediator: npt.ArrayLike,
        *,
        epsilon: float | str,
        epsilon_bounds: tuple[float, float] | None = None,
    ):
        if not isinstance(conditional, ConditionalMeanOperator):
            raise TypeError(
                "conditional must be a ConditionalMeanOperator, not "
                f"{type(conditional).__name__}; make one with from_bags or from_samples."
            )
        check_bounds("epsilon", epsilon, epsilon_bounds)
        self.conditional = conditional
        self.mediator = mediators(mediator, conditional.out_of.n_inputs)
        self.into = Features.of_points(conditional.mediator_kernel, self.mediator)
        self.out_of = conditional.into
        self._weights = conditional.weights(self.mediator)
        self._q = self._weights.T @ self.out_of.gram @ self._weights
        self.search: RidgeSearch | None = None
        if epsilon == LEAVE_ONE_OUT:
            self.search = self._held_out(self.into.gram).search("epsilon", epsilon_bounds)
            epsilon = self.search.best
        self.epsilon = check_positive("epsilon", epsilon, LEAVE_ONE_OUT)
        ridge = len(self.into) * self.epsilon
        self._root = factorised(self._q + ridge * np.eye(len(self.into)), "epsilon")

    # ------------------------------------------------------------------ as an operator

    @property
    def matrix(self) -> Floats:
        r""":math:`(\hat Q + M\epsilon I)^{-1}W^\top`."""
        return self._solve(self._weights.T)

    def _solve(self, b: Floats) -> Floats:
        return cho_solve((self._root, True), b)

    def _times(self, b: Floats) -> Floats:
        return self._solve(self._weights.T @ b)

    def embedding(self, x: npt.ArrayLike) -> Function:
        r"""The deconditional mean embeddings :math:`\hat\mu_{X=x|Y} = \hat D k_x`, one per point.

        The inner product of a conditional mean with one of them recovers the function at x.
        """
        return Function(self.into, self._times(self.out_of.at(x).T))

    def recover(self, z: npt.ArrayLike, mean: Function | None = None) -> Function:
        r"""The fine function behind conditional means, eq. (2) and, with a prior mean, eq. (8).

        Parameters
        ----------
        z : (M,)
            Observed conditional means at the mediators of this operator.
        mean
            Prior mean m, an element of the space of k: :math:`m + \hat D^\top(z - \hat C^\top m)`.
        """
        z = observations(z)
        if len(z) != len(self.into):
            raise ValueError(f"{len(self.into)} mediators came with {len(z)} observations.")
        if mean is not None:
            z = z - self.conditional.conditional_mean(mean)(self.mediator)
        correction = Function(self.out_of, self._weights @ self._solve(z))
        return correction if mean is None else mean + correction

    def covariance(self, x: npt.ArrayLike, other: npt.ArrayLike | None = None) -> Floats:
        r"""Posterior covariance :math:`k(x, x') - \langle k_x, \hat C\hat D k_{x'}\rangle_k`.

        Eq. (9) of the paper with :math:`\sigma^2 = M\epsilon`: what conditioning and
        deconditioning together lose.
        """
        features = Features.of_points(self.out_of.kernel, x)
        others = features if other is None else Features.of_points(self.out_of.kernel, other)
        left = self.out_of.cross(features).T @ self._weights
        right = left if other is None else self.out_of.cross(others).T @ self._weights
        return features.cross(others) - left @ self._solve(right.T)

    # ------------------------------------------------------------------ as a regression

    def risk(
        self, operator: FiniteRankOperator | None = None, epsilon: float | None = None
    ) -> float:
        r"""The empirical reconstruction risk :math:`\hat{\mathcal E}_d`, eq. (12), of any operator.

        Parameters
        ----------
        operator
            From the space of k to that of ℓ; this one by default.
        epsilon
            ε; that of the estimate by default.
        """
        operator = self if operator is None else operator
        epsilon = self.epsilon if epsilon is None else epsilon
        errors = operator.squared_errors(self.into, Function(self.out_of, self._weights))
        return float(errors.mean()) + epsilon * operator.norm**2

    def leave_one_out(self, epsilon: float | None = None, z: npt.ArrayLike | None = None) -> Floats:
        r"""Squared error of every mediator under the operator of the others, in closed form.

        It is :math:`\lVert\ell_{\tilde y_m} - \hat D_{-m}\hat C\ell_{\tilde y_m}\rVert^2` or, with
        observations z, the squared error of :math:`z_m` as predicted from the other observations.
        The conditional mean operator stays as it is, and so does ε.
        """
        epsilon = self.epsilon if epsilon is None else check_positive("epsilon", epsilon)
        outputs = self.into.gram
        if z is not None:
            z = observations(z)
            if len(z) != len(self.into):
                raise ValueError(f"{len(self.into)} mediators came with {len(z)} observations.")
            outputs = np.outer(z, z)
        return self._held_out(outputs).errors(epsilon)

    def _held_out(self, outputs: Floats) -> LeaveOneOut:
        m = len(self.into)
        if m < 2:
            raise ValueError(
                "leaving one observation out needs two or more; give epsilon a value instead."
            )
        return LeaveOneOut(self._q, outputs, np.full(m, 1.0 / m))
