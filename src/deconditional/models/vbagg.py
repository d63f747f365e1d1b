"""VBagg, Bagg-GP with inducing points, and what variational models have beside others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import equinox as eqx
import jax.numpy as jnp
import numpy.typing as npt
from jaxtyping import Array

from deconditional.inference.basis import Basis
from deconditional.inference.field import Trend
from deconditional.inference.learn import Fitted
from deconditional.models.bagg import BaggGP
from deconditional.models.options import BasisOptions


class VariationalModel(BasisOptions):
    """A model whose posterior is in a basis."""

    fitted_: Fitted

    def use_means(self, averaged: Callable[[Any], npt.ArrayLike]) -> Self:
        r"""Solve anew, at the parameters learnt, with means over other points of the same bags.

        Bags that were condensed for learning can so be replaced by all of their points: the
        posterior needs no more than :math:`\bar k(w)`, means of one function for each inducing
        point. Stochastic inference keeps what it found.

        Parameters
        ----------
        averaged
            Takes a function of points, (m, d) to (m, D), to its means over the bags, (N, D).
        """
        if self.inference == "collapsed":
            self.fitted_ = _with_means(self.fitted_, averaged)
        return self


def _with_means(fitted: Fitted, averaged: Callable[[Any], npt.ArrayLike]) -> Fitted:
    trend = fitted.problem.trend
    problems, pieces, fields = [], [], []
    for problem, vector, each in zip(fitted.problems, fitted.vectors, fitted.pieces, strict=True):
        means = jnp.asarray(averaged(_BasisAndTrend(each.basis, trend)))
        n_basis = means.shape[1] - len(trend.prior_std)
        problems.append(replace(problem, trend_means=means[:, n_basis:]))
        solved = problems[-1].solved_with(jnp.asarray(vector), each, means[:, :n_basis])
        pieces.append(solved[0])
        fields.append(solved[1])
    return replace(fitted, problems=tuple(problems), pieces=tuple(pieces), fields=tuple(fields))


class _BasisAndTrend(eqx.Module):
    """Values of a basis, followed by the trend functions, at points."""

    basis: Basis
    trend: Trend

    def __call__(self, x: Array) -> Array:
        return jnp.concatenate([self.basis.values(x), self.trend.features(x)], 1)


@dataclass(kw_only=True, eq=False, repr=False)
class VBagg(BaggGP, VariationalModel):
    """Gaussian process on matched bags, by variational inference.

    The cost of learning grows with the number of fine points times that of inducing points, and
    predictions no longer need the bags.

    Parameters
    ----------
    kernel
        As in :class:`BaggGP`.
    n_inducing
        Number of inducing points; 400 by default, or all distinct fine points if they are fewer.
    inducing
        Where they are: ``"kmeans"`` picks fine points far from one another by k-means++,
        ``"uniform"`` picks them at random, an array gives them.
    learn_inducing
        Move them with the other parameters.
    features
        Use so many random Fourier features of the kernel in place of inducing points.
    family, rank
        As in :class:`BaggGP`.
    inference
        ``"collapsed"`` integrates the inducing variables out in closed form; ``"stochastic"``
        climbs the uncollapsed bound by minibatches of observations, of a `family` too. There
        ``"collapsed"`` finds the best normal distribution of the inducing variables for every
        value of the parameters, and ``"laplace"`` takes it about the mode, which is quicker and
        puts sums over bags too high where counts are small or f varies within bags.
    trace
        How the part of the bound that the inducing points leave out is found: ``"exact"``
        or estimated from a ``"subsample"`` of points; ``"auto"`` decides by size, and
        ``fit_report_`` says how.
    inference_options
        ``trace_points`` (16), the points of a bag for that estimate. For stochastic inference also
        ``batch_size`` (64), ``learning_rate`` (0.05), ``natural_step`` (0.5, or 1 where a batch has
        all observations), ``max_steps`` (4000), ``patience`` (200) and ``tolerance`` (0.1).
    trend, fine_noise, learn_noise, fixed, priors
        As in :class:`BaggGP`.
    method, method_options, n_restarts, max_iter, points_per_bag, precision, seed
        As in :class:`BaggGP`; `max_iter` is that of collapsed inference. NUTS samples the
        parameters under the collapsed bound.

    Attributes
    ----------
    inducing_ : (d, D) array
        The inducing points.
    log_evidence_
        The bound at the parameters found.
    bound_trace_
        Stochastic inference: the smoothed bound, once in ten steps.

    Examples
    --------
    >>> import numpy as np
    >>> from deconditional import Bags, VBagg
    >>> rng = np.random.default_rng(0)
    >>> x = np.sort(rng.uniform(0, 6, 600))
    >>> bags = Bags.from_points(x, np.arange(600) // 10)
    >>> z = bags.means(np.sin(x)) + 0.01 * rng.standard_normal(60)
    >>> model = VBagg(n_inducing=30, n_restarts=2).fit(bags, z)
    >>> bool(abs(model.predict([[1.5]]).mean[0] - np.sin(1.5)) < 0.02)
    True
    >>> model.fit_report_.details["trace"]
    'exact, all 6e+03 pairs within bags'
    """


@dataclass(kw_only=True, eq=False, repr=False)
class VarCentroidGP(VBagg):
    """:class:`CentroidGP` by variational inference; takes the parameters of :class:`VBagg`.

    Its inducing points are chosen among the centroids.

    Examples
    --------
    >>> import numpy as np
    >>> from deconditional import Bags, VarCentroidGP
    >>> x = np.linspace(0, 6, 600)
    >>> bags = Bags.from_points(x, np.arange(600) // 10)
    >>> model = VarCentroidGP(n_inducing=20, n_restarts=1)
    >>> model = model.fit(bags, bags.means(np.sin(x)), noise_std=0.01)
    >>> bool(abs(model.predict([[1.5]]).mean[0] - np.sin(1.5)) < 0.02)
    True
    """

    centroids: ClassVar[bool] = True
