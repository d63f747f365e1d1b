r"""How good a prediction is: errors of the mean, and scores of the whole distribution.

Most functions take arrays of one shape and return one number, the average over all values. Missing
values are refused rather than skipped, so that two models are never compared on different points.
Predictive distributions are normal, or equal mixtures of normals as
:class:`~deconditional.Posterior` is when hyper-parameters were integrated over.
"""

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
    pit_coverage,
    score,
)
from deconditional.scores.means import bias, mae, pearson, rmse, spearman, ssim

__all__ = [
    "bias",
    "coverage",
    "crps",
    "crps_each",
    "crps_gaussian",
    "crps_mixture",
    "mae",
    "mixture_cdf",
    "mixture_quantile",
    "nll",
    "pearson",
    "pit",
    "pit_coverage",
    "rmse",
    "score",
    "spearman",
    "ssim",
]
