"""How far predictions with random Fourier features are from predictions with the kernel itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class FeatureError:
    """Differences between approximate and exact predictions at a sample of query points.

    Attributes
    ----------
    features, points
        Number of features, and of points compared.
    mean_rms, mean_max
        Root mean square and largest difference of the means, in units of the field.
    std_rms, std_max
        The same of the standard deviations.
    relative
        `mean_rms` over the root mean square of the exact standard deviation: what the
        approximation adds to an error bar. A tenth is harmless.
    """

    features: int
    points: int
    mean_rms: float
    mean_max: float
    std_rms: float
    std_max: float
    relative: float

    def __str__(self) -> str:
        return (
            f"{self.features} features at {self.points} points: mean off by {self.mean_rms:.3g} "
            f"(at most {self.mean_max:.3g}), {100 * self.relative:.1f}% of a posterior standard "
            f"deviation; standard deviation off by {self.std_rms:.3g} (at most {self.std_max:.3g})"
        )


def feature_error(
    model: Any, x: npt.ArrayLike, features: int = 2000, *, points: int = 2000, seed: int = 0
) -> FeatureError:
    """Compare ``model.predict(x, features=features)`` with ``model.predict(x)``.

    Parameters
    ----------
    model
        A fitted model.
    x : (m, d)
        Query points.
    features
        Number of random Fourier features.
    points
        Compare at so many of the query points, drawn with `seed`.

    Examples
    --------
    >>> import numpy as np
    >>> from deconditional import BaggGP, Bags, feature_error
    >>> x = np.linspace(0, 6, 600)
    >>> bags = Bags.from_points(x, np.arange(600) // 10)
    >>> model = BaggGP(n_restarts=1).fit(bags, bags.means(np.sin(x)), noise_std=0.05)
    >>> few, many = (feature_error(model, x, features=f) for f in (50, 2000))
    >>> bool(many.mean_rms < few.mean_rms)
    True
    """
    array = np.asarray(x, dtype=float)
    if len(array) > points:
        array = array[np.random.default_rng(seed).choice(len(array), points, replace=False)]
    exact, approximate = model.predict(array), model.predict(array, features=features)
    mean = np.abs(approximate.mean - exact.mean)
    std = np.abs(approximate.std - exact.std)
    rms = float(np.sqrt(np.mean(mean**2)))
    spread = float(np.sqrt(np.mean(exact.variance)))
    return FeatureError(
        features=int(features),
        points=len(array),
        mean_rms=rms,
        mean_max=float(mean.max()),
        std_rms=float(np.sqrt(np.mean(std**2))),
        std_max=float(std.max()),
        relative=rms / spread if spread > 0 else float("inf") if rms > 0 else 0.0,
    )
