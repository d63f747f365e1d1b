r"""Cells whose values may be bounded or positive: normals that are exponentiated or cut off.

A cell is normal, lognormal, or a rectified normal: a normal whose draws beyond a bound are set onto
it, so that the bound itself has a probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from deconditional.scores.distributions import (
    Distributions,
    crps_gaussian,
    mixture_cdf,
    mixture_quantile,
    usual_scores,
)
from deconditional.scores.means import Floats

Kind = Literal["normal", "lognormal", "rectified normal"]
KINDS: tuple[Kind, ...] = ("normal", "lognormal", "rectified normal")


@dataclass(frozen=True)
class Marginals(Distributions):
    """One distribution per cell, described by its normal part.

    Attributes
    ----------
    kind
        ``normal``, ``lognormal`` or ``rectified normal``.
    location, scale
        Mean and standard deviation of the normal: of the cell itself, of its logarithm, or of the
        cell before its bounds.
    low, high
        The bounds of a rectified normal; infinite where there is none.

    Examples
    --------
    >>> cells = Marginals("rectified normal", np.array([0.0]), np.array([1.0]), low=0.0)
    >>> cells.interval(0.95)
    (array([0.]), array([1.96]))
    """

    kind: Kind
    location: Floats
    scale: Floats
    low: float = -np.inf
    high: float = np.inf

    @classmethod
    def lognormal(cls, mean: Floats, std: Floats) -> Marginals:
        """Lognormal cells from their mean and standard deviation.

        Examples
        --------
        >>> Marginals.lognormal(np.array([1.0]), np.array([1.0])).location  # -log(2) / 2
        array([-0.3466])
        """
        positive = mean > 0
        ratio = np.divide(std, mean, out=np.full_like(mean, np.nan), where=positive)
        variance = np.log1p(ratio**2)
        log_mean = np.log(mean, out=np.full_like(mean, np.nan), where=positive)
        return cls("lognormal", log_mean - 0.5 * variance, np.sqrt(variance))

    def select(self, where: npt.NDArray[np.bool_]) -> Marginals:
        """The cells where a mask holds, in one row."""
        return Marginals(self.kind, self.location[where], self.scale[where], self.low, self.high)

    def quantile(self, level: float) -> Floats:
        """The value below which a cell lies with this probability."""
        normal = mixture_quantile(self.location[None], self.scale[None] ** 2, level)
        return np.exp(normal) if self.kind == "lognormal" else np.clip(normal, self.low, self.high)

    def pit(self, truth: Floats, seed: int = 0) -> Floats:
        """Probability that a cell is below its truth: uniform where the cells are calibrated.

        A truth on a bound could be anywhere within the bound's probability and gets a random place
        there.

        Examples
        --------
        >>> Marginals("normal", np.zeros(2), np.ones(2)).pit(np.array([0.0, 1.96]))
        array([0.5  , 0.975])
        """
        if self.kind == "lognormal":
            return self._below(_log(truth))
        place = np.random.default_rng(seed).uniform(size=truth.shape)
        at_low, at_high = self._below(self.low), self._below(self.high)
        below = np.where(truth == self.low, place * at_low, self._below(truth))
        below = np.where(truth == self.high, at_high + place * (1.0 - at_high), below)
        return np.where(truth < self.low, 0.0, np.where(truth > self.high, 1.0, below))

    def crps(self, truth: Floats) -> float:
        """Continuous ranked probability score, the mean over cells.

        Examples
        --------
        >>> Marginals("normal", np.zeros(1), np.ones(1)).crps(np.zeros(1))
        0.2337
        """
        if self.kind == "normal":
            return crps_gaussian(self.location, self.scale, truth)
        each = self._crps_lognormal(truth) if self.kind == "lognormal" else self._crps_bound(truth)
        return float(np.mean(each))

    def score(self, mean: Floats, truth: Floats) -> dict[str, float]:
        """Errors of the mean, and scores of the distributions, against the truth."""
        return usual_scores(mean, self.interval, truth, self.crps(truth))

    def _below(self, value: npt.ArrayLike) -> Floats:
        """Probability that the normal part is below a value."""
        return mixture_cdf(self.location[None], self.scale[None] ** 2, value)

    def _standard(self, value: Floats | float) -> Floats:
        """Value less location in units of scale; a cell without spread gives 0 or infinity."""
        gap = value - self.location
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(gap == 0, 0.0, gap / self.scale)

    def _crps_lognormal(self, truth: Floats) -> Floats:
        r"""CRPS of lognormals of mean m: y(2F(y) - 1) - 2m(Φ((log y - μ - σ²)/σ) + Φ(σ/√2) - 1)."""
        mean = np.exp(self.location + 0.5 * self.scale**2)
        standard = self._standard(_log(truth))
        return truth * (2 * ndtr(standard) - 1) - 2 * mean * (
            ndtr(standard - self.scale) + ndtr(self.scale / np.sqrt(2)) - 1
        )

    def _crps_bound(self, truth: Floats) -> Floats:
        """CRPS of rectified normals: (F - step)² is 1 between a bound and a truth beyond it."""
        inside = np.clip(truth, self.low, self.high)
        z, low, high = (self._standard(end) for end in (inside, self.low, self.high))
        with np.errstate(invalid="ignore"):
            spread = self.scale * (
                _squared_cdf(z) - _squared_cdf(low) + _squared_cdf(-z) - _squared_cdf(-high)
            )
        point = np.abs(inside - np.clip(self.location, self.low, self.high))
        return np.where(self.scale > 0, spread, point) + np.abs(truth - inside)


def _log(truth: Floats) -> Floats:
    """The logarithm, minus infinity for what has none."""
    return np.log(truth, out=np.full_like(truth, -np.inf), where=truth > 0)


def _squared_cdf(z: Floats) -> Floats:
    """The integral of Φ² from minus infinity to z."""
    z = np.maximum(z, -40.0)  # Φ is zero there in double precision
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return z * ndtr(z) ** 2 + 2 * ndtr(z) * density - ndtr(np.sqrt(2) * z) / np.sqrt(np.pi)
