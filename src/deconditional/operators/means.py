r"""The conditional mean operator, and the deconditional mean operator that undoes it.

:math:`C_{X|Y}` takes the feature of a mediator to the mean embedding of the fine points given it,
:math:`C\,\ell_y = \mu_{X|Y=y}`, and its adjoint takes a function to its conditional mean,
:math:`C^\top f = E[f(X) \mid Y = \cdot\,]`. :math:`D_{X|Y}` undoes that:
:math:`D^\top E[f(X) \mid Y = \cdot\,] = f`, that is :math:`C D = \mathrm{Id}`.

Both estimates are ridge regressions of features :math:`t_j` on elements :math:`u_j` of the other
space with shares :math:`\pi_j`, the minimisers of

.. math:: \sum_j \pi_j \lVert t_j - T u_j\rVert^2 + \lambda\lVert T\rVert_{HS}^2 .

For :math:`\hat C` these are bags, :math:`t_j = \bar k_j` (for the standard estimator with the
points of a bag around it) and :math:`u_j = \ell_{y_j}`, hence
:math:`\hat C = \bar\Phi\,(L + \lambda\Pi^{-1})^{-1}\,\Psi_y^\top`. The shares are
:math:`\pi_j = n_j / n` for the standard estimator, with effective sizes where weights differ. The
shrinkage estimator has :math:`\pi_j = 1/N` and regresses bag means, which leaves the spread within
bags out of its loss. Pairs of samples are bags of one point, where the two agree.

For :math:`\hat D` they are mediators :math:`\tilde y` of observations, :math:`t_m =
\ell_{\tilde y_m}` and :math:`u_m = \hat C\ell_{\tilde y_m}`, each with share 1/M. With
:math:`W = (L + \lambda\Pi^{-1})^{-1}L_{y\tilde y}` and :math:`\hat Q = W^\top\bar K W`,

.. math:: \hat D = \Psi_{\tilde y}\,(\hat Q + M\epsilon I)^{-1}\,W^\top\bar\Phi^\top .

Applied to observations, :math:`\hat D^\top` gives the deconditional posterior mean of the field
with noise variance :math:`\sigma^2 = M\epsilon`.
"""

from __future__ import annotations

from typing import Any

import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel

from deconditional.bags import Bags
from deconditional.bags.inputs import Floats, points_array
from deconditional.fitting.kernel_parameters import kernel_template
from deconditional.models.checks import check_bags, check_kernel, mediators, observations
from deconditional.observations.kinds import ridge_shape
from deconditional.operators.functions import Features, FiniteRankOperator, Function
from deconditional.operators.ridge import LEAVE_ONE_OUT, RidgeOperator, check_bounds


def median_kernel(inputs: npt.ArrayLike, family: type[AbstractKernel] = gk.RBF) -> AbstractKernel:
    """A stationary kernel of variance one by the median heuristic, Gaussian unless said otherwise.

    A single variable has the length scale (median distance)/√2: a Gaussian kernel has fallen to
    1/e at the median distance. Several have one each, √(d/2) times the median distance in that
    variable. Distances are those of at most 1000 inputs.

    Examples
    --------
    >>> from gpjax.parameters import val
    >>> kernel = median_kernel(np.array([[0.0], [1.0], [2.0]]))
    >>> round(float(val(kernel.lengthscale)), 4)
    0.7071
    """
    x = points_array(inputs, "inputs")
    d = x.shape[1]
    kernel = family(lengthscale=jnp.ones(d)) if d > 1 else family()
    template = kernel_template(kernel, "kernel", x, 1.0)
    return template.wrapped({p.name: p.start for p in template.parameters})


class ConditionalMeanOperator(RidgeOperator):
    r"""Estimate of :math:`C_{X|Y}` from bags with mediators.

    Parameters
    ----------
    bags
        Bags with a mediator each; weights inside bags count. :meth:`from_samples` takes pairs.
    kernel, mediator_kernel
        k and ℓ, with their parameters; :func:`median_kernel` of the points and of the mediators by
        default.
    cmo
        ``"standard"`` (the paper's replicated estimator, at the cost of N³) or ``"shrinkage"``.
    ridge
        λ, or ``"leave-one-out"`` for the one that best predicts the embedding of a bag from the
        other bags; see :meth:`leave_one_out` and :func:`~deconditional.operators.search_ridge`.
    ridge_bounds
        Where to search for it: by default 1e-10 to 1e3 times the largest eigenvalue of
        :math:`\Pi^{1/2} L\,\Pi^{1/2}`.

    Attributes
    ----------
    search
        How λ was chosen, or None where it was given.
    shares : (N,)
        The shares π of the bags in the loss.

    Examples
    --------
    Where x is twice y, so are conditional means, up to the ridge:

    >>> from deconditional.operators import ConditionalMeanOperator, Function
    >>> y = np.linspace(-2, 2, 41)
    >>> cmo = ConditionalMeanOperator.from_samples(2 * y, y, ridge=1e-8)
    >>> f = Function.from_points(cmo.kernel, [0.5], [1.0])
    >>> cmo.conditional_mean(f)([0.1, 0.9]).round(3), f([0.2, 1.8]).round(3)
    (array([0.984, 0.746]), array([0.984, 0.746]))
    """

    def __init__(
        self,
        bags: Bags,
        kernel: AbstractKernel | None = None,
        mediator_kernel: AbstractKernel | None = None,
        *,
        cmo: str = "standard",
        ridge: float | str = LEAVE_ONE_OUT,
        ridge_bounds: tuple[float, float] | None = None,
    ):
        check_bags(bags)
        if bags.mediator is None:
            raise ValueError(
                "the bags have no mediator to condition on. Give one to "
                "Bags.from_points(..., mediator=y)."
            )
        k = median_kernel(bags.points) if kernel is None else kernel
        ell = median_kernel(bags.mediator) if mediator_kernel is None else mediator_kernel
        check_kernel("kernel", k, bags.points)
        check_kernel("mediator_kernel", ell, bags.mediator)
        check_bounds("ridge", ridge, ridge_bounds)
        self.bags = bags
        self.cmo = cmo
        shares = 1.0 / ridge_shape(cmo, bags.effective_sizes)
        given = Features.of_points(ell, bags.mediator)
        super().__init__(Features(k, bags), given, None, shares, "ridge", ridge, ridge_bounds)
        self.ridge = self._ridge

    @classmethod
    def from_samples(
        cls, x: npt.ArrayLike, y: npt.ArrayLike, *args: Any, **options: Any
    ) -> ConditionalMeanOperator:
        """Estimate from pairs (x_i, y_i), eq. (1) of the paper; options are those for bags.

        Samples that share a value of y are better given as bags: to leave out one of them is then
        to leave out all, and the system is smaller.
        """
        return cls(bags_of_samples(x, y), *args, **options)

    @property
    def kernel(self) -> AbstractKernel:
        """The kernel k of fine points."""
        return self.into.kernel

    @property
    def mediator_kernel(self) -> AbstractKernel:
        """The kernel ℓ of mediators."""
        return self.out_of.kernel

    def weights(self, mediator: npt.ArrayLike) -> Floats:
        """W: the weight of every bag in the embedding at every mediator, (N, M)."""
        return self.solve(self.out_of.at(mediators(mediator, self.out_of.n_inputs)).T)

    def embedding(self, mediator: npt.ArrayLike) -> Function:
        r"""The conditional mean embeddings :math:`\hat\mu_{X|Y=y}`, a family with one per mediator.

        Their inner products estimate the covariance q of the conditional mean process.
        """
        return Function(self.into, self.weights(mediator))

    def conditional_mean(self, f: Function | npt.ArrayLike) -> Function:
        r""":math:`\hat C^\top f`, the conditional mean of f as a function of the mediator.

        Parameters
        ----------
        f
            A function of the space of k, or its values at the points of the bags in their order;
            a family, or one column of values each, gives a family.
        """
        if isinstance(f, Function):
            means = self.into.cross(f.features) @ f.coefficients
        else:
            values = np.asarray(f, dtype=float)
            if values.ndim not in (1, 2) or len(values) != self.bags.n_points:
                raise ValueError(
                    f"f must be a Function or one value for each of the {self.bags.n_points} "
                    f"points of the bags; its shape is {values.shape}."
                )
            means = self.bags.means(values)
        return Function(self.out_of, self.solve(means))

    def risk(self, operator: FiniteRankOperator | None = None, ridge: float | None = None) -> float:
        r"""The empirical risk :math:`\hat{\mathcal E}_c`, eq. (11), of any operator.

        Parameters
        ----------
        operator
            From the space of ℓ to that of k; this one by default.
        ridge
            λ; that of the estimate by default.
        """
        return self._risk(operator, ridge) + float(self.shares @ self._spread())

    def leave_one_out(self, ridge: float | None = None) -> Floats:
        r"""Squared error of every bag under the operator of the other bags, in closed form.

        For the standard estimator it is :math:`\sum_i w_j^{(i)}\lVert k_{x_j^{(i)}} - \hat C_{-j}
        \ell_{y_j}\rVert^2`, for the shrinkage estimator :math:`\lVert\bar k_j - \hat C_{-j}
        \ell_{y_j}\rVert^2`. The λ of the other bags' operator is the same; the shares are their
        own. The search for λ minimises the mean with weights :attr:`shares`, less the spread within
        bags, which no λ changes.
        """
        return self._left_out(ridge, self.into.gram) + self._spread()

    def _spread(self) -> Floats:
        return self.into.scatter if self.cmo == "standard" else np.zeros(len(self.into))


def bags_of_samples(x: npt.ArrayLike, y: npt.ArrayLike) -> Bags:
    """Bags of one point each, made of pairs (x, y)."""
    return Bags.from_points(x, np.arange(len(np.asarray(x))), mediator=y)


class DeconditionalMeanOperator(RidgeOperator):
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
                f"{type(conditional).__name__}; make one of bags or samples."
            )
        check_bounds("epsilon", epsilon, epsilon_bounds)
        self.conditional = conditional
        self.mediator = mediators(mediator, conditional.out_of.n_inputs)
        targets = Features.of_points(conditional.mediator_kernel, self.mediator)
        self._weights = conditional.weights(self.mediator)
        shares = np.full(len(targets), 1.0 / len(targets))
        super().__init__(
            targets, conditional.into, self._weights, shares, "epsilon", epsilon, epsilon_bounds
        )
        self.epsilon = self._ridge

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
        z = self._observations(z)
        if mean is not None:
            z = z - self.conditional.conditional_mean(mean)(self.mediator)
        correction = Function(self.out_of, self._weights @ self.solve(z))
        return correction if mean is None else mean + correction

    def covariance(self, x: npt.ArrayLike, other: npt.ArrayLike | None = None) -> Floats:
        r"""Posterior covariance :math:`k(x, x') - \langle k_x, \hat C\hat D k_{x'}\rangle_k`.

        Eq. (9) of the paper with :math:`\sigma^2 = M\epsilon`: what conditioning and
        deconditioning together lose.
        """
        features = Features.of_points(self.out_of.kernel, x)
        others = features if other is None else Features.of_points(self.out_of.kernel, other)
        left = self.out_of.cross(features).T @ self._weights
        return features.cross(others) - left @ self._times(self.out_of.cross(others))

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
        return self._risk(operator, epsilon)

    def leave_one_out(self, epsilon: float | None = None, z: npt.ArrayLike | None = None) -> Floats:
        r"""Squared error of every mediator under the operator of the others, in closed form.

        It is :math:`\lVert\ell_{\tilde y_m} - \hat D_{-m}\hat C\ell_{\tilde y_m}\rVert^2` or, with
        observations z, the squared error of :math:`z_m` as predicted from the other observations.
        The conditional mean operator stays as it is, and so does ε.
        """
        if z is None:
            return self._left_out(epsilon, self.into.gram)
        values = self._observations(z)
        return self._left_out(epsilon, np.outer(values, values))

    def _observations(self, z: npt.ArrayLike) -> Floats:
        array = observations(z)
        if len(array) != len(self.into):
            raise ValueError(f"{len(self.into)} mediators came with {len(array)} observations.")
        return array
