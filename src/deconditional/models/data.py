"""Data as users give them to `fit`, checked before any work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from deconditional.bags import Bags
from deconditional.models.checks import (
    check_bags,
    known_covariance,
    observations,
    observed_mediators,
    own_bags,
)
from deconditional.models.options import BagOptions


@dataclass(frozen=True)
class Data:
    """Bags and coarse observations."""

    # bags, z: the bags, thinned out where that was asked for, and the observations.
    bags: Bags
    z: np.ndarray
    # The covariance of the observations' errors that the user knows; a vector if diagonal.
    known_noise: np.ndarray
    learn_noise: bool  # whether there is noise to be learnt on top
    reach: np.ndarray  # points whose distances set the priors of length scales
    mediator: np.ndarray | None = None  # mediators of the observations, where they are unmatched
    # The bag whose mean an observation is, or -1; None where there are none of these.
    own_bag: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        bags: Any,
        z: npt.ArrayLike | None,
        noise_std: npt.ArrayLike | None,
        noise_cov: npt.ArrayLike | None,
        options: BagOptions,
        centroids: bool = False,
    ) -> Self:
        """Bags and observations that nothing links yet.

        With `centroids` bags are single points, their weighted centroids. Predictions are asked for
        at fine points, which spread wider: they set the priors.
        """
        options.check_options()
        check_bags(bags)
        whole = bags
        if centroids:
            bags = bags.centroids()
        if options.points_per_bag is not None:
            bags = bags.subsample(options.points_per_bag, seed=options.seed)
        array = observations(z)
        known = known_covariance(len(array), noise_std, noise_cov)
        learn = noise_std is None if options.learn_noise is None else options.learn_noise
        if not learn and noise_std is None and noise_cov is None:
            raise ValueError(
                "learn_noise=False leaves the observations without noise; give noise_std or "
                "noise_cov to fit, or let the noise be learnt."
            )
        return cls(bags, array, known, learn, (whole if centroids else bags).points)

    def matched(self) -> Self:
        """Check that the data have one observation for every bag."""
        if len(self.z) != self.bags.n_bags:
            raise ValueError(
                f"{self.bags.n_bags} bags came with {len(self.z)} observations, but this model "
                "needs one for every bag. Use CMP, or PseudoTarget around this model, with "
                "mediators for unmatched data."
            )
        return self

    def linked(self, mediator: npt.ArrayLike | None, own_bag: npt.ArrayLike | None) -> Self:
        """Add mediators of the observations, and the bags of their own."""
        y = observed_mediators(self.bags, len(self.z), mediator)
        own = own_bags(own_bag, len(self.z), self.bags.n_bags)
        return replace(self, mediator=y, own_bag=own)
