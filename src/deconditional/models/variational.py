"""What variational models have beside others: other points of the same bags, once fitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import equinox as eqx
import jax.numpy as jnp
import numpy.typing as npt
from jaxtyping import Array

from deconditional.inference.basis import Basis
from deconditional.inference.learn import Fitted
from deconditional.inference.trend import Trend
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
