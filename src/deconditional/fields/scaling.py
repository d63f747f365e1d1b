r"""Between the user's units and the standardised ones in which models work.

The field is :math:`F = \mathrm{clip}(T^{-1}(\mu + s f))` with f the Gaussian process, T nothing or
the logarithm, and the clip at the physical bounds, if there are any. Quantiles and samples of F are
those of f, mapped; mean and standard deviation have closed forms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr

from deconditional.errors import UsageError
from deconditional.fields.axes import Floats
from deconditional.observations.families import link_of

HEMISPHERE = 0.5
"""How far from the centre of the unit sphere the mean of all places on half of it is."""


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation, least and greatest value of every column of some points."""

    mean: Floats
    std: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, values: Floats) -> Spread:
        """Spread of the rows of an array."""
        return cls(values.mean(0), values.std(0), values.min(0), values.max(0))


@dataclass(frozen=True)
class InputScaling:
    """Standardisation of covariates or mediators; positions share one scale, so stay isotropic.

    On the sphere they are turned to point east, north and up in the middle of the area.

    Attributes
    ----------
    centre, scale
        Of every column.
    turn : (3, 3)
        Directions of a local frame; None where positions are as they are.

    Examples
    --------
    >>> values = np.array([[0.0, 10.0], [2.0, 30.0]])
    >>> InputScaling.of(Spread.of(values), n_position=0, spherical=False)(values).tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    """

    centre: Floats
    scale: Floats
    turn: Floats | None = None

    @classmethod
    def of(cls, spread: Spread, n_position: int, spherical: bool, n_time: int = 0) -> InputScaling:
        """Scaling that standardises the values the model learns from.

        Where the year goes round is on a circle, which stays as it is.
        """
        centre = np.array(spread.mean)
        scale = np.where(spread.high > spread.low, spread.std, 1.0)
        turn = local_frame(spread.mean) if spherical and n_position else None
        if spherical:
            centre[:n_position], scale[:n_position] = 0.0, 1.0
        elif n_position:
            scale[:n_position] = max(float(np.sqrt(np.mean(scale[:n_position] ** 2))), 1e-300)
        circle = slice(n_position + 1, n_position + n_time)
        centre[circle], scale[circle] = 0.0, 1.0
        return cls(centre, scale, turn)

    def __call__(self, values: Floats) -> Floats:
        """Standardise values."""
        values = (values - self.centre) / self.scale
        if self.turn is None:
            return values
        return np.concatenate([values[..., :3] @ self.turn.T, values[..., 3:]], axis=-1)

    def box(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Least and greatest standardised values of what lies between two ends."""
        middle, half = self(0.5 * (low + high)), 0.5 * (high - low) / self.scale
        if self.turn is not None:
            half[:3] = np.abs(self.turn) @ half[:3]
        return middle - half, middle + half


def local_frame(middle: Floats) -> Floats | None:
    """East, north and up, the rows of a matrix, at the mean of places on the unit sphere.

    None where places are spread over more than half of the globe, whose middle says nothing, and
    at a pole, where no direction is east.

    Examples
    --------
    >>> local_frame(np.array([0.0, 0.9, 0.0])).round(3).tolist()
    [[-1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    x, y, z = middle[:3]
    size, across = float(np.sqrt(x**2 + y**2 + z**2)), float(np.hypot(x, y))
    if size <= HEMISPHERE or across <= 1e-9:
        return None
    east, up = np.array([-y, x, 0.0]) / across, np.array([x, y, z]) / size
    return np.stack([east, np.cross(up, east), up]) + 0.0


@dataclass(frozen=True)
class TargetScaling:
    """Standardisation, transformation and physical bounds of the target.

    Attributes
    ----------
    log
        Whether the process is that of the logarithm.
    bounds
        Least and greatest physical value; infinite where there is none.
    link
        That of a family: observations stay as they are, and rates come from the process by it.

    Examples
    --------
    >>> scaling = TargetScaling.of(np.array([1.0, 3.0]), None, (0.0, None))
    >>> scaling.physical(np.array([-5.0, 0.0])).tolist(), scaling.distribution
    ([0.0, 2.0], 'rectified normal')
    """

    centre: float
    scale: float
    log: bool
    bounds: tuple[float, float]
    link: str | None = None

    @classmethod
    def of(
        cls,
        z: Floats,
        transform: str | None,
        bounds: tuple[float | None, float | None] | None,
        link: str | None = None,
    ) -> TargetScaling:
        """Scaling that standardises the observations; raises where they are outside the bounds."""
        if link is not None:
            return cls(0.0, 1.0, False, (-np.inf, np.inf), link)
        if transform not in (None, "log"):
            raise UsageError(f"transform must be 'log' or nothing, not {transform!r}.")
        try:
            low, high = bounds if bounds is not None else (None, None)
            ends = (-np.inf if low is None else float(low), np.inf if high is None else float(high))
        except (TypeError, ValueError):
            raise UsageError(
                "bounds are the least and the greatest value, None where there is no such limit, "
                f"as in (0, None); not {bounds!r}."
            ) from None
        if not ends[0] < ends[1]:
            raise UsageError(
                f"the bounds {bounds} leave no room between them; give the lesser one first."
            )
        if transform == "log":
            if ends[0] > 0 or np.isfinite(ends[1]):
                raise UsageError(
                    f"transform='log' keeps the field positive by itself and takes no other bounds "
                    f"than (0, None), not {bounds}; leave one of the two out."
                )
            ends = (-np.inf, np.inf)
        outside = (z < ends[0]) | (z > ends[1])
        if outside.any():
            raise UsageError(
                f"{int(outside.sum())} observed values lie outside the bounds {ends} (the first is "
                f"{z[outside][0]:.6g}); correct them or the bounds."
            )
        if transform == "log" and not (z > 0).all():
            raise UsageError(
                f"transform='log' needs positive values; {int((z <= 0).sum())} observed values are "
                "not. Leave it out, or use bounds=(0, None)."
            )
        values = np.log(z) if transform == "log" else z
        return cls(float(values.mean()), float(values.std()) or 1.0, transform == "log", ends)

    @property
    def bounded(self) -> bool:
        """Whether the target has a physical bound."""
        return bool(np.isfinite(self.bounds).any())

    @property
    def distribution(self) -> str:
        """Name of the marginal distribution of the field."""
        kinds = {"log": "lognormal", "logit": "logit-normal"}
        name = kinds.get(str(self.link), "lognormal" if self.log else "normal")
        return f"{'rectified ' if self.bounded else ''}{name}"

    def standardised(self, z: Floats) -> Floats:
        """Observations as the model sees them."""
        return ((np.log(z) if self.log else z) - self.centre) / self.scale

    def physical(self, f: Floats) -> Floats:
        """Values of the field from values of the process: for quantiles and samples."""
        values = self.centre + self.scale * f
        if self.link is not None:
            return np.asarray(link_of(self.link).rate(values))
        with np.errstate(over="ignore"):
            return np.clip(np.exp(values) if self.log else values, *self.bounds)

    def moments(self, means: Floats, variances: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the field, from components (S, m) of the process."""
        sd = np.sqrt(variances)
        if self.link is not None:
            link = link_of(self.link)
            expected = link.expected(means, variances), link.expected_square(means, variances)
            return _mixed(*map(np.asarray, expected))
        if self.log:
            mu = self.centre + self.scale * means
            return _mixed(*clipped_moments(mu, self.scale * sd, True, self.bounds))
        # In standardised units, where a variance is not small against a squared mean.
        ends = [(end - self.centre) / self.scale for end in self.bounds]
        mean, std = _mixed(*clipped_moments(means, sd, False, (ends[0], ends[1])))
        return np.clip(self.centre + self.scale * mean, *self.bounds), self.scale * std

    def process(self, values: Any) -> Floats:
        """Values of the process of values of the field; infinite beyond what it can be."""
        field = np.asarray(values, dtype=float)
        if self.link is not None:
            return np.asarray(link_of(self.link).eta(field))
        with np.errstate(divide="ignore", invalid="ignore"):
            inner = np.log(field) if self.log else field
        low, high = self.bounds
        f = (inner - self.centre) / self.scale
        return np.where(field >= high, np.inf, np.where(field < low, -np.inf, f))

    def slope(self, means: Floats, variances: Floats) -> Floats:
        """Derivative of the field's mean by the mean of the process."""
        step = 1e-4
        up, _ = self.moments(means + step, variances)
        down, _ = self.moments(means - step, variances)
        return (up - down) / (2 * step)


def clipped_moments(
    mu: Floats, sd: Floats, log: bool, bounds: tuple[float, float]
) -> tuple[Floats, Floats]:
    r"""First and second moment of clip(F, bounds), with F or log F normal.

    Examples
    --------
    >>> mean, second = clipped_moments(np.array([0.0]), np.array([1.0]), False, (0.0, np.inf))
    >>> bool(np.isclose(mean[0], 1 / np.sqrt(2 * np.pi))), float(second[0])
    (True, 0.5)
    """
    sd = np.maximum(sd, 1e-300)
    low, high = bounds
    # What is beyond the largest number is infinite, also where it is squared.
    with np.errstate(over="ignore", divide="ignore"):
        if log:
            low, high = max(low, 0.0), max(high, 0.0)
            a, b = (np.log(low) - mu) / sd, (np.log(high) - mu) / sd
            inside = [
                np.exp(k * mu + 0.5 * (k * sd) ** 2 + _log_mass(a - k * sd, b - k * sd))
                for k in (1, 2)
            ]
        else:
            a, b = (low - mu) / sd, (high - mu) / sd
            # Differences in the upper tail are taken in the lower one, where they are exact.
            mass = np.where(a > 0, ndtr(-a) - ndtr(-b), ndtr(b) - ndtr(a))
            first = _density(b) - _density(a)
            tails = [np.nan_to_num(t, posinf=0.0, neginf=0.0) * _density(t) for t in (a, b)]
            second = tails[1] - tails[0]
            inside = [
                mu * mass - sd * first,
                (mu**2 + sd**2) * mass - 2 * mu * sd * first - sd**2 * second,
            ]
    out = []
    for k, part in zip((1, 2), inside, strict=True):
        total = part
        if np.isfinite(low):
            total = total + low**k * ndtr(a)
        if np.isfinite(high):
            total = total + high**k * ndtr(-b)
        out.append(total)
    return np.clip(out[0], low, high), out[1]


def _mixed(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of an even mixture, from the moments of its components."""
    mean = first.mean(0)
    with np.errstate(over="ignore", invalid="ignore"):
        variance = np.where(np.isfinite(second).all(0), second.mean(0) - mean**2, np.inf)
    return mean, np.sqrt(np.maximum(variance, 0.0))


def _log_mass(a: Any, b: Any) -> Any:
    """Logarithm of the probability between two ends, in either tail."""
    a, b = np.where(a > 0, -b, a), np.where(a > 0, -a, b)
    below = log_ndtr(b)
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = below + np.log1p(-np.exp(log_ndtr(a) - below))
    return np.where(np.isneginf(below), -np.inf, inside)


def _density(t: Any) -> Any:
    return np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi)
