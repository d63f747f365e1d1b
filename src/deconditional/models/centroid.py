"""The paper's GPR: bags collapsed to their centroids."""

from __future__ import annotations

import os
from typing import Self

import numpy as np
import numpy.typing as npt

from deconditional.bags import Bags
from deconditional.models.bagg import BaggGP
from deconditional.saving.resume import Checkpoint

__all__ = ["CentroidGP", "Centroids"]


class Centroids(BaggGP):
    """A matched model that sees each bag as one point, its weighted centroid."""

    def fit(
        self,
        bags: Bags,
        z: npt.ArrayLike,
        *,
        noise_std: npt.ArrayLike | None = None,
        noise_cov: npt.ArrayLike | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> Self:
        """Fit to the centroids of the bags; see :meth:`BaggGP.fit`."""
        if isinstance(bags, Bags):
            self._fine_points = bags.points
            bags = bags.centroids()
        return super().fit(bags, z, noise_std=noise_std, noise_cov=noise_cov, checkpoint=checkpoint)

    def _typical_points(self, bags: Bags) -> np.ndarray:
        """Predictions are asked for at fine points, which spread wider than centroids."""
        return self._fine_points


class CentroidGP(Centroids):
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
