"""Bagg-GP: a Gaussian process seen through the means of matched bags, or at their centroids."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy.typing as npt

from deconditional.bags import Bags
from deconditional.models.base import BagModel, learnt
from deconditional.models.data import Data
from deconditional.models.families import families_asked, fit_sources
from deconditional.models.options import FamilyOptions
from deconditional.models.sources import Source, sources_of
from deconditional.observations.kinds import Matched
from deconditional.saving.resume import Checkpoint, opened


@dataclass(kw_only=True, eq=False, repr=False)
class BaggGP(BagModel, FamilyOptions):
    """Exact Gaussian process on matched bags: observation j is the mean of the field over bag j.

    Parameters
    ----------
    kernel
        Any GPJax kernel of the fine covariates; by default a Gaussian with a length scale for each.
        Its own parameter values are one of the starts of the fit.
    family
        How observations scatter about their means: None for normal errors, or
        :class:`~deconditional.Poisson`, :class:`~deconditional.NegativeBinomial`,
        :class:`~deconditional.Binomial`, :class:`~deconditional.BetaBinomial`,
        :class:`~deconditional.Tweedie` or a family of one's own. Inference is in a basis then, with
        a function at each distinct point, 1000 at most.
    rank
        Where sources have a `task`: rank of the matrix that says how targets go together.
    trend
        ``"none"``, ``"constant"`` or ``"linear"`` in the covariates, integrated out. A tuple of
        their numbers, from 0, is linear in these alone.
    fine_noise
        Learn a high-resolution noise ς²: spread of single fine values around the smooth field.
    learn_noise
        Learn one noise variance for all observations. By default only if `fit` is not given
        `noise_std`.
    fixed
        Parameters to hold, by name, as in ``{"noise_std": 0.1}``.
    priors
        Priors that replace the data-driven ones, by name: :class:`~deconditional.LogNormal` or any
        NumPyro distribution. ``model.priors_`` shows those in use.
    method
        ``"map"``; or, to average predictions over the posterior of the parameters, ``"draws"`` (a
        few, weighed about the most probable ones) or ``"nuts"``.
    method_options
        For draws: ``num_draws``. For NUTS: ``num_warmup``, ``num_samples``, ``num_chains``,
        ``max_tree_depth``, ``progress_bar``.
    n_restarts, max_iter
        Of the optimiser.
    points_per_bag
        Use at most so many points of every bag, drawn with `seed`.
    precision
        Kernel tiles in ``"float32"`` or ``"float64"``; ``"auto"`` takes float32 from 3000 points
        on, and for predictions at very many points where a check finds mean and standard deviation
        within a thousandth of a standard deviation. The rest is always float64.
    seed
        For restarts, NUTS and `points_per_bag`.

    Examples
    --------
    >>> import numpy as np
    >>> from deconditional import BaggGP, Bags
    >>> rng = np.random.default_rng(0)
    >>> x = np.sort(rng.uniform(0, 6, 600))
    >>> bags = Bags.from_points(x, np.arange(600) // 10)
    >>> z = bags.means(np.sin(x)) + 0.01 * rng.standard_normal(60)
    >>> post = BaggGP(n_restarts=2).fit(bags, z).predict(np.array([[1.5]]))
    >>> bool(abs(post.mean[0] - np.sin(1.5)) < 0.02)
    True
    """

    centroids: ClassVar[bool] = False
    """Whether bags are collapsed to their centroids."""

    def fit(
        self,
        bags: Bags | Sequence[Source],
        z: npt.ArrayLike | None = None,
        *,
        exposure: npt.ArrayLike | None = None,
        trials: npt.ArrayLike | None = None,
        noise_std: npt.ArrayLike | None = None,
        noise_cov: npt.ArrayLike | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> Self:
        """Fit to one observation per bag.

        Parameters
        ----------
        bags
            The bags; or a list of :class:`~deconditional.Source`, and nothing else.
        z : (N,)
            The observed mean of every bag, in the order of ``bags.ids``.
        exposure, trials
            What rates are multiplied by, where there is a `family`: one number, or one for each
            observation; ``bags.exposure`` by default where bags have one.
        noise_std
            Known noise: one standard deviation, or one for each observation.
        noise_cov
            Known covariance of the observations' errors, in addition.
        checkpoint
            A file that keeps how far the fit is. The same call goes on from there if it was
            stopped; a fit that ends removes it. :class:`~deconditional.Checkpoint` has options.
        """
        with opened(checkpoint) as kept:
            if families_asked(self, bags, exposure, trials):
                amounts: dict[str, Any] = {"exposure": exposure, "trials": trials}
                sources = sources_of(self, bags, z, noise_std, noise_cov, **amounts)
                return fit_sources(self, sources, kept)
            data = Data.of(bags, z, noise_std, noise_cov, self, self.centroids).matched()
            return learnt(self, data, Matched(), kept)


@dataclass(kw_only=True, eq=False, repr=False)
class CentroidGP(BaggGP):
    """Gaussian process regression that treats each bag as one point, its weighted centroid.

    Takes the same parameters as :class:`BaggGP`. A baseline: it ignores how the field varies
    inside a bag.

    Examples
    --------
    >>> import numpy as np
    >>> from deconditional import Bags, CentroidGP
    >>> x = np.linspace(0, 6, 600)
    >>> bags = Bags.from_points(x, np.arange(600) // 10)
    >>> model = CentroidGP(n_restarts=1).fit(bags, bags.means(np.sin(x)), noise_std=0.01)
    >>> bool(abs(model.predict([[1.5]]).mean[0] - np.sin(1.5)) < 0.02)
    True
    """

    centroids: ClassVar[bool] = True
