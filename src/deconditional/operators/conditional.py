r"""The conditional mean operator, estimated from bags or from pairs of samples.

:math:`C_{X|Y}` takes the feature of a mediator to the mean embedding of the fine points given it,
:math:`C\,\ell_y = \mu_{X|Y=y}`, and its adjoint takes a function to its conditional mean,
:math:`C^\top f = E[f(X) \mid Y = \cdot\,]`. The estimate is kernel ridge regression of embeddings
on mediators,

.. math:: \hat C = \bar\Phi\,(L + \lambda\Pi^{-1})^{-1}\,\Psi_y^\top,

the minimiser of

.. math:: \hat{\mathcal E}_c(C) = \sum_j \pi_j \sum_i w_j^{(i)}
   \lVert k_{x_j^{(i)}} - C\,\ell_{y_j}\rVert_k^2 + \lambda\lVert C\rVert_{HS}^2 .

The shares are :math:`\pi_j = n_j / n` for the standard estimator, with effective sizes where
weights differ. The shrinkage estimator has :math:`\pi_j = 1/N` and regresses bag means, which
leaves the spread within bags out of its loss. Pairs of samples are bags of one point, where the two
agree.
"""

from __future__ import annotations

from typing import Any

import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel
from scipy.linalg import cho_solve

from deconditional.bags import Bags
from deconditional.bags.inputs import Floats, points_array
from deconditional.fitting.kernel_parameters import kernel_template
from deconditional.kernels.linalg import stable_cholesky
from deconditional.models.checks import check_bags, check_kernel, mediators
from deconditional.observations.mediation import ridge_shape
from deconditional.operators.functions import Features, FiniteRankOperator, Function
from deconditional.operators.ridge import LeaveOneOut, RidgeSearch

__all__ = ["ConditionalMeanOperator", "median_kernel"]


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


LEAVE_ONE_OUT = "leave-one-out"


def check_positive(name: str, value: Any, *ways: str) -> float:
    """A positive finite number."""
    number = np.ndim(value) == 0 and not isinstance(value, bool | str)
    if not number or not (0.0 < float(value) < np.inf):
        others = "".join(f" or {way!r}" for way in ways)
        raise ValueError(f"{name} must be a positive number{others}, not {value!r}.")
    return float(value)


def check_bounds(name: str, value: Any, bounds: tuple[float, float] | None) -> None:
    """Bounds belong to a search."""
    if bounds is not None and not isinstance(value, str):
        raise ValueError(
            f"{name}_bounds are for a {name} that is searched for, but {name} is {value!r}."
        )


def factorised(matrix: Floats, name: str) -> Floats:
    """Lower Cholesky factor of a Gram matrix with its ridge."""
    root = np.asarray(stable_cholesky(jnp.asarray(matrix)))
    if not np.isfinite(root).all():
        raise ValueError(
            f"the regularised Gram matrix is singular in double precision; raise {name}."
        )
    return root


class ConditionalMeanOperator(FiniteRankOperator):
    r"""Estimate of :math:`C_{X|Y}`, from :meth:`from_bags` or :meth:`from_samples`.

    Attributes
    ----------
    bags
        The bags, with mediators.
    cmo
        ``"standard"`` or ``"shrinkage"``.
    ridge
        λ.
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
        kernel: AbstractKernel,
        mediator_kernel: AbstractKernel,
        *,
        cmo: str,
        ridge: float | str,
        ridge_bounds: tuple[float, float] | None = None,
    ):
        check_bags(bags)
        if bags.mediator is None:
            raise ValueError(
                "the bags have no mediator to condition on. Give one to "
                "Bags.from_points(..., mediator=y)."
            )
        check_kernel("kernel", kernel, bags.points)
        check_kernel("mediator_kernel", mediator_kernel, bags.mediator)
        check_bounds("ridge", ridge, ridge_bounds)
        self.bags = bags
        self.cmo = cmo
        self.shares = 1.0 / ridge_shape(cmo, bags.effective_sizes)
        self.into = Features(kernel, bags)
        self.out_of = Features.of_points(mediator_kernel, bags.mediator)
        self.search: RidgeSearch | None = None
        if ridge == LEAVE_ONE_OUT:
            self.search = self._held_out().search("ridge", ridge_bounds)
            ridge = self.search.best
        self.ridge = check_positive("ridge", ridge, LEAVE_ONE_OUT)
        self._root = factorised(self.out_of.gram + np.diag(self.ridge / self.shares), "ridge")

    @classmethod
    def from_bags(
        cls,
        bags: Bags,
        kernel: AbstractKernel | None = None,
        mediator_kernel: AbstractKernel | None = None,
        *,
        cmo: str = "standard",
        ridge: float | str = LEAVE_ONE_OUT,
        ridge_bounds: tuple[float, float] | None = None,
    ) -> ConditionalMeanOperator:
        r"""The operator of bags with mediators.

        Parameters
        ----------
        bags
            Bags with a mediator each; weights inside bags count.
        kernel, mediator_kernel
            k and ℓ, with their parameters; :func:`median_kernel` of the points and of the
            mediators by default.
        cmo
            ``"standard"`` (the paper's replicated estimator, at the cost of N³) or
            ``"shrinkage"``.
        ridge
            λ, or ``"leave-one-out"`` for the one that best predicts the embedding of a bag from
            the other bags; see :meth:`leave_one_out` and
            :func:`~deconditional.operators.search_ridge`.
        ridge_bounds
            Where to search for it: by default 1e-10 to 1e3 times the largest eigenvalue of
            :math:`\Pi^{1/2} L\,\Pi^{1/2}`.
        """
        check_bags(bags)
        kernel = median_kernel(bags.points) if kernel is None else kernel
        if mediator_kernel is None and bags.mediator is not None:
            mediator_kernel = median_kernel(bags.mediator)
        return cls(bags, kernel, mediator_kernel, cmo=cmo, ridge=ridge, ridge_bounds=ridge_bounds)

    @classmethod
    def from_samples(
        cls,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        kernel: AbstractKernel | None = None,
        mediator_kernel: AbstractKernel | None = None,
        *,
        ridge: float | str = LEAVE_ONE_OUT,
        ridge_bounds: tuple[float, float] | None = None,
    ) -> ConditionalMeanOperator:
        """The operator of pairs (x_i, y_i), eq. (1) of the paper; see :meth:`from_bags`.

        Samples that share a value of y are better given as bags: to leave out one of them is then
        to leave out all, and the system is smaller.
        """
        bags = Bags.from_points(x, np.arange(len(np.asarray(x))), mediator=y)
        return cls.from_bags(bags, kernel, mediator_kernel, ridge=ridge, ridge_bounds=ridge_bounds)

    # ------------------------------------------------------------------ as an operator

    @property
    def kernel(self) -> AbstractKernel:
        """The kernel k of fine points."""
        return self.into.kernel

    @property
    def mediator_kernel(self) -> AbstractKernel:
        """The kernel ℓ of mediators."""
        return self.out_of.kernel

    @property
    def matrix(self) -> Floats:
        r""":math:`(L + \lambda\Pi^{-1})^{-1}`."""
        return self._times(np.eye(len(self.out_of)))

    def _times(self, b: Floats) -> Floats:
        return cho_solve((self._root, True), b)

    def weights(self, mediator: npt.ArrayLike) -> Floats:
        """W: the weight of every bag in the embedding at every mediator, (N, M)."""
        return self._times(self.out_of.at(self._mediators(mediator)).T)

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
        return Function(self.out_of, self._times(means))

    def _mediators(self, mediator: npt.ArrayLike) -> Floats:
        return mediators(mediator, self.out_of.n_inputs)

    # ------------------------------------------------------------------ as a regression

    def risk(self, operator: FiniteRankOperator | None = None, ridge: float | None = None) -> float:
        r"""The empirical risk :math:`\hat{\mathcal E}_c`, eq. (11), of any operator.

        Parameters
        ----------
        operator
            From the space of ℓ to that of k; this one by default.
        ridge
            λ; that of the estimate by default.
        """
        operator = self if operator is None else operator
        ridge = self.ridge if ridge is None else ridge
        mediators = Function(self.out_of, np.eye(len(self.out_of)))
        errors = operator.squared_errors(self.into, mediators)
        return float(self.shares @ (errors + self._spread())) + ridge * operator.norm**2

    def leave_one_out(self, ridge: float | None = None) -> Floats:
        r"""Squared error of every bag under the operator of the other bags, in closed form.

        For the standard estimator it is :math:`\sum_i w_j^{(i)}\lVert k_{x_j^{(i)}} - \hat C_{-j}
        \ell_{y_j}\rVert^2`, for the shrinkage estimator :math:`\lVert\bar k_j - \hat C_{-j}
        \ell_{y_j}\rVert^2`. The λ of the other bags' operator is the same; the shares are their
        own. The search for λ minimises the mean with weights :attr:`shares`, less the spread within
        bags, which no λ changes.
        """
        ridge = self.ridge if ridge is None else check_positive("ridge", ridge)
        return self._held_out().errors(ridge) + self._spread()

    def _spread(self) -> Floats:
        return self.into.scatter if self.cmo == "standard" else np.zeros(len(self.into))

    def _held_out(self) -> LeaveOneOut:
        if len(self.bags) < 2:
            raise ValueError(
                "leaving one bag out needs two bags or more; give ridge a value instead."
            )
        return LeaveOneOut(self.out_of.gram, self.into.gram, self.shares)
