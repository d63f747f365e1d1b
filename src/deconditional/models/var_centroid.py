"""The paper's VarGPR: bags collapsed to their centroids, with inducing points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from deconditional.models.vbagg import VBagg


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
