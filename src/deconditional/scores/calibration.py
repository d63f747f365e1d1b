r"""Calibration by the probability integral transform (PIT), also of predictions with atoms.

The PIT value of a truth is the probability that the prediction is below it, uniform where
predictions are calibrated. Where the distribution function jumps at the truth, all values between
the ends of the jump are as good: :class:`Ends`. Nothing has to be drawn at random for a histogram
or a coverage, as each truth is spread evenly over its jump (Czado, Gneiting and Held 2009).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from deconditional.scores.means import Floats, matched


class Ends(NamedTuple):
    """The jumps of distribution functions at their truths.

    Attributes
    ----------
    below, upto : (m,)
        Probabilities of less than the truth, and of at most the truth.
    """

    below: Floats
    upto: Floats

    def draw(self, seed: int = 0) -> Floats:
        """PIT values at random between the ends: uniform where predictions are calibrated.

        Examples
        --------
        >>> Ends(np.array([0.2, 0.5]), np.array([0.2, 0.5])).draw()
        array([0.2, 0.5])
        """
        place = np.random.default_rng(seed).uniform(size=np.shape(self.below))
        return self.below + place * (self.upto - self.below)

    def share(self, value: float) -> Floats:
        """Share of every jump that is at most a value."""
        width = self.upto - self.below
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = np.clip((value - self.below) / width, 0.0, 1.0)
        return np.where(width > 0, inside, self.below <= value)


def pit_coverage(values: npt.ArrayLike | Ends, levels: npt.ArrayLike) -> Floats:
    """Share of PIT values within the central intervals of the given probabilities.

    Examples
    --------
    >>> pit_coverage([0.1, 0.4, 0.6, 0.99], [0.5, 0.9])
    array([0.5 , 0.75])
    >>> pit_coverage(Ends(np.array([0.0]), np.array([0.5])), 0.5)  # a quarter to a half counts
    array([0.5])
    """
    levels = np.atleast_1d(np.asarray(levels, dtype=float))
    if isinstance(values, Ends):
        return np.array(
            [np.mean(values.share(0.5 + p / 2) - values.share(0.5 - p / 2)) for p in levels]
        )
    off_centre = 2 * np.abs(np.asarray(values, dtype=float) - 0.5)
    return np.array([np.mean(off_centre <= level) for level in levels])


def pit_histogram(values: npt.ArrayLike | Ends, bins: int = 10) -> Floats:
    """Heights of the histogram of PIT values, one on average: flat where calibrated.

    A valley tells of predictions that are too sure, a hill of such that are too wide, a slope of
    bias.

    Examples
    --------
    >>> pit_histogram(Ends(np.array([0.0, 0.5]), np.array([0.5, 1.0])), bins=4)
    array([1., 1., 1., 1.])
    """
    if isinstance(values, Ends):
        below, upto = matched(below=values.below, upto=values.upto)
        edges = np.linspace(0.0, 1.0, bins + 1)
        inner = [Ends(below, upto).share(edge).mean() for edge in edges[1:-1]]
        return np.diff([0.0, *inner, 1.0]) * bins
    (flat,) = matched(values=values)
    return np.histogram(flat, bins, (0.0, 1.0))[0] * bins / len(flat)


def calibration(
    values: npt.ArrayLike | Ends, levels: npt.ArrayLike = (0.5, 0.8, 0.9, 0.95)
) -> list[dict[str, float]]:
    """A row per level: what a central interval should cover, what it covers, and the error of that.

    Parameters
    ----------
    values
        PIT values, or the :class:`Ends` of predictions with atoms.
    levels
        Probabilities of central intervals.

    Returns
    -------
    list of dict
        ``level``; ``covered``; ``error``, the standard error of `covered` were predictions
        calibrated and independent. It is an upper bound where there are atoms.

    Examples
    --------
    >>> calibration([0.1, 0.4, 0.6, 0.99], levels=[0.5])
    [{'level': 0.5, 'covered': 0.5, 'error': 0.25}]
    """
    size = np.size(values.below if isinstance(values, Ends) else values)
    levels = np.atleast_1d(np.asarray(levels, dtype=float))
    return [
        {"level": float(p), "covered": float(c), "error": float(np.sqrt(p * (1 - p) / size))}
        for p, c in zip(levels, pit_coverage(values, levels), strict=True)
    ]
