"""The one-dimensional toy of the paper's study of the shrinkage operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deconditional.bags import Bags

__all__ = ["ShrinkageToy", "shrinkage_toy"]


@dataclass(frozen=True)
class ShrinkageToy:
    r"""Bags drawn from a conditional distribution that is known.

    Attributes
    ----------
    bags
        The bags, with mediators :math:`y_j \sim N(0, s_y^2)` and points
        :math:`x_j^{(i)} \mid y_j \sim N(y_j \sin y_j, s_x^2)`.
    mediator_std, noise_std
        :math:`s_y` and :math:`s_x`, standard deviations.
    """

    bags: Bags
    mediator_std: float
    noise_std: float

    @staticmethod
    def conditional_mean(y: npt.ArrayLike) -> np.ndarray:
        r""":math:`E[X \mid y] = y \sin y`."""
        y = np.asarray(y, dtype=float)
        return y * np.sin(y)

    def embedding(
        self, x: npt.ArrayLike, y: npt.ArrayLike, lengthscale: float, variance: float = 1.0
    ) -> np.ndarray:
        r"""The true conditional mean embedding, on all pairs of `x` and `y`.

        For the Gaussian kernel :math:`k(x, x') = v \exp(-(x - x')^2 / 2h^2)` the mean of
        :math:`k(x, X)` over :math:`X \sim N(m, s^2)` is a Gaussian in x that is wider by
        :math:`s^2`,

        .. math:: \mu_{X \mid y}(x) = \frac{v h}{\sqrt{h^2 + s^2}}
                  \exp\Bigl(-\frac{(x - m)^2}{2 (h^2 + s^2)}\Bigr), \qquad m = y \sin y.

        Parameters
        ----------
        x : (a,)
            Where the embedding is evaluated.
        y : (b,)
            Mediators.
        lengthscale, variance
            h and v.

        Returns
        -------
        (a, b) array

        Examples
        --------
        A wide kernel hardly sees the spread of X, a narrow one sees little else:

        >>> toy = shrinkage_toy(3, 5)
        >>> toy.embedding([0.0], [0.0, np.pi], lengthscale=100.0).round(4).tolist()
        [[1.0, 1.0]]
        >>> toy.embedding([0.0], [0.0], lengthscale=0.5).round(4).tolist()
        [[0.7071]]
        """
        if not (np.isfinite(lengthscale) and lengthscale > 0):
            raise ValueError(f"lengthscale must be positive and finite, not {lengthscale!r}.")
        wide = lengthscale**2 + self.noise_std**2
        away = np.asarray(x, dtype=float)[:, None] - self.conditional_mean(y)
        return variance * lengthscale / np.sqrt(wide) * np.exp(-0.5 * away**2 / wide)


def shrinkage_toy(
    n_bags: int = 50,
    bag_size: int | Sequence[int] | np.ndarray = 50,
    *,
    mediator_std: float = 2.0**0.5,
    noise_std: float = 0.5,
    seed: int = 0,
) -> ShrinkageToy:
    r"""Draw the toy: :math:`y_j \sim N(0, 2)`, :math:`x \mid y_j \sim N(y_j \sin y_j, 0.5^2)`.

    The 2 is read as a variance, like the :math:`0.5^2` beside it; ``mediator_std=2`` is the other
    reading.

    Parameters
    ----------
    n_bags
        N.
    bag_size
        Points of every bag, or one number for each bag.
    mediator_std, noise_std
        Standard deviations of y and of x given y.
    seed
        Of the draw. Mediators depend on it and on `n_bags` alone.

    Examples
    --------
    >>> toy = shrinkage_toy(3, [50, 2, 10], seed=1)
    >>> toy.bags
    Bags(3 bags, 62 points, 1 covariate, 2-50 points per bag, mediator of 1 variable)
    >>> gap = toy.bags.means()[0] - toy.conditional_mean(toy.bags.mediator[0])
    >>> bool(abs(gap[0]) < 4 * 0.5 / 50**0.5)
    True
    """
    if n_bags < 2:
        raise ValueError(f"n_bags must be at least 2, not {n_bags!r}.")
    sizes = np.asarray(bag_size)
    if not np.issubdtype(sizes.dtype, np.integer) or sizes.shape not in ((), (n_bags,)):
        raise ValueError(
            f"bag_size must be a whole number or {n_bags} of them, one for each bag, not "
            f"{bag_size!r}."
        )
    if (sizes < 1).any():
        raise ValueError(f"bag_size must be at least 1 for every bag, not {int(sizes.min())}.")
    for name, value in (("mediator_std", mediator_std), ("noise_std", noise_std)):
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, not {value!r}.")
    rng = np.random.default_rng(seed)
    y = mediator_std * rng.standard_normal(n_bags)
    bag_of = np.repeat(np.arange(n_bags), np.broadcast_to(sizes, n_bags))
    centre = ShrinkageToy.conditional_mean(y)[bag_of]
    x = centre + noise_std * rng.standard_normal(len(bag_of))
    bags = Bags.from_points(x, bag_of, mediator=y)
    return ShrinkageToy(bags, float(mediator_std), float(noise_std))
