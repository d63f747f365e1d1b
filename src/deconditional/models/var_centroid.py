"""The paper's VarGPR: bags collapsed to their centroids, with inducing points."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

import numpy.typing as npt

from deconditional.bags import Bags
from deconditional.models.base import learnt
from deconditional.models.data import Data
from deconditional.models.solvers import Variational
from deconditional.models.vbagg import VBagg
from deconditional.observations.kinds import Matched
from deconditional.saving.resume import Checkpoint, opened

__all__ = ["VarCentroidGP"]


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
        with opened(checkpoint) as kept:
            data = Data.of_centroids(bags, z, noise_std, noise_cov, self).matched()
            return learnt(self, data, Matched(), Variational.of(self), kept)
