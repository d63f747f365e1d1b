"""From fine cells to the posterior of the target there, in the target's units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from deconditional.fields.fine_points import FinePoints
from deconditional.fields.scaling import InputScaling, TargetScaling
from deconditional.inference.posterior import Gaussians, Paths, Posterior

__all__ = ["EXTRAPOLATION", "NOT_PREDICTED", "Predictor", "layers"]

Floats = npt.NDArray[np.float64]

EXTRAPOLATION = "extrapolation"
"""Name of the variable that flags cells far from the data."""

NOT_PREDICTED = -1
"""Its value where nothing was predicted."""


def layers(
    marginals: Gaussians, scaling: TargetScaling, levels: Sequence[float]
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """For each name its leading dimensions, if any, and values (..., points).

    Mean and standard deviation of the target, quantiles, and moments before bounds.
    """
    mean, std = scaling.moments(marginals.component_means, marginals.component_variances)
    found: dict[str, tuple[tuple[str, ...], np.ndarray]] = {"mean": ((), mean), "std": ((), std)}
    if levels:
        values = marginals.quantile(np.asarray(levels))
        found["quantiles"] = (("quantile",), scaling.physical(values))
    if scaling.distribution.startswith("rectified"):
        found["latent_mean"] = ((), scaling.centre + scaling.scale * marginals.mean)
        found["latent_std"] = ((), scaling.scale * marginals.std)
    return found


@dataclass(frozen=True)
class Predictor:
    """All that a prediction needs of a fitted downscaler; it can travel to other processes.

    Attributes
    ----------
    fields
        Posteriors of the process, one for each draw of the hyper-parameters.
    fine_noise
        Whether the noise of single fine values counts.
    inputs, target
        To and from the units of the process.
    support
        Least and greatest value of every input that was learnt from, in those units.
    position
        Whether position is a covariate.
    levels, n_samples, seed
        Quantiles and samples that are asked for.
    """

    fields: Sequence[Any]
    fine_noise: bool
    inputs: InputScaling
    target: TargetScaling
    support: tuple[Floats, Floats]
    position: bool
    levels: tuple[float, ...] = ()
    n_samples: int = 0
    seed: int = 0

    def x(self, points: FinePoints) -> Floats:
        """Inputs of the process at fine points."""
        return self.inputs(points.rows(self.position))

    def posterior(self, x: Floats) -> Posterior:
        """Of the process."""
        return Posterior(self.fields, x, self.fine_noise, self.support)

    def layers(self, posterior: Posterior) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        """What is asked for, samples apart."""
        return {
            **layers(posterior, self.target, self.levels),
            EXTRAPOLATION: ((), posterior.extrapolation),
        }

    @cached_property
    def paths(self) -> Paths:
        """Samples as functions, the same in every process."""
        return Paths(self.fields, self.n_samples, self.seed)

    def __getstate__(self) -> dict[str, Any]:
        """Without the functions, which every process draws anew."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
