r"""How good a prediction is: errors of the mean, and scores of the whole distribution.

Most functions take arrays of one shape and return one number, the average over all values. Missing
values are refused rather than skipped, so that two models are never compared on different points.
Predictive distributions are normal, or equal mixtures of normals as
:class:`~deconditional.Posterior` is when hyper-parameters were integrated over; those of counts are
:class:`Counts`, and what can only be simulated is :class:`Draws`.
"""

from deconditional.scores.calibration import Ends, calibration, pit_coverage, pit_histogram
from deconditional.scores.counts import Counts, Draws, dawid_sebastiani
from deconditional.scores.distributions import (
    coverage,
    crps,
    crps_each,
    crps_gaussian,
    crps_mixture,
    mixture_cdf,
    mixture_quantile,
    nll,
    pit,
    score,
)
from deconditional.scores.means import bias, mae, pearson, rmse, spearman, ssim

__all__ = [
    "Counts",
    "Draws",
    "Ends",
    "bias",
    "calibration",
    "coverage",
    "crps",
    "crps_each",
    "crps_gaussian",
    "crps_mixture",
    "dawid_sebastiani",
    "mae",
    "mixture_cdf",
    "mixture_quantile",
    "nll",
    "pearson",
    "pit",
    "pit_coverage",
    "pit_histogram",
    "rmse",
    "score",
    "spearman",
    "ssim",
]
