"""The paper's GPR: bags collapsed to their centroids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from deconditional.models.bagg import BaggGP


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
