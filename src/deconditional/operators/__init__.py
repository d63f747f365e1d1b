r"""Conditional and deconditional mean operators, and regression with them.

The view from reproducing kernel Hilbert spaces: functions and operators that can be applied, added
and measured. Ridges are given, or chosen by leaving one out or by the evidence; kernels are given
or set by the median heuristic. The Gaussian-process view of the same estimators, with uncertainty
and learnt kernels, is :class:`~deconditional.CMP`.
"""

import deconditional.kernels  # noqa: F401  before GPJax starts JAX
from deconditional.operators.functions import Features, FiniteRankOperator, Function
from deconditional.operators.means import (
    ConditionalMeanOperator,
    DeconditionalMeanOperator,
    median_kernel,
)
from deconditional.operators.regressor import DeconditionalRegressor
from deconditional.operators.ridge import Evidence, LeaveOneOut, RidgeSearch, search_ridge

__all__ = [
    "ConditionalMeanOperator",
    "DeconditionalMeanOperator",
    "DeconditionalRegressor",
    "Evidence",
    "Features",
    "FiniteRankOperator",
    "Function",
    "LeaveOneOut",
    "RidgeSearch",
    "median_kernel",
    "search_ridge",
]
