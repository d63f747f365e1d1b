"""Gaussian-process downscaling of coarse observations that need not match the fine covariates.

The path from arrays to a posterior is five lines:

>>> import deconditional as dc
>>> data = dc.datasets.swiss_roll(n_points=500, n_bags=20, seed=0)
>>> bags = dc.Bags.from_points(data.x, data.bag_of, mediator=data.bags.mediator)
>>> model = dc.CMP(n_restarts=1).fit(bags, data.z)
>>> post = model.predict(data.x)
>>> post.mean.shape, post.std.shape
((500,), (500,))

Importing a part that computes turns on JAX's 64-bit mode: the small dense algebra needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Bags": "bags",
    "BaggGP": "models",
    "CMP": "models",
    "CentroidGP": "models",
    "Checkpoint": "checkpoints",
    "CheckpointError": "checkpoints",
    "CheckpointWarning": "checkpoints",
    "Comparison": "fields",
    "DeconditionalRegressor": "operators",
    "DeconditionalWarning": "cautions",
    "DeepKernel": "kernels",
    "DegenerateFitWarning": "cautions",
    "Downscaler": "fields",
    "ExtrapolationWarning": "cautions",
    "FeatureError": "approximation",
    "FitReport": "fit",
    "FitWarning": "cautions",
    "JitterWarning": "cautions",
    "LeakageWarning": "cautions",
    "LogNormal": "priors",
    "MediatedGP": "models",
    "MediatorShiftWarning": "cautions",
    "Normal": "priors",
    "Posterior": "posterior",
    "PseudoTarget": "models",
    "SampleWarning": "posterior",
    "SavedModelError": "saving",
    "SliceWarning": "fields",
    "SplitLogNormal": "priors",
    "UselessMediatorWarning": "cautions",
    "VBagg": "models",
    "VarCMP": "models",
    "VarCentroidGP": "models",
    "bag_cross": "bag_kernels",
    "bag_gram": "bag_kernels",
    "cross_validate": "fields",
    "downscale": "fields",
    "feature_error": "approximation",
    "load": "saving",
}
_MODULES = ("datasets", "operators", "scores", "sharding")

if TYPE_CHECKING:
    from deconditional import datasets as datasets
    from deconditional import operators as operators
    from deconditional import scores as scores
    from deconditional import sharding as sharding
    from deconditional.approximation import FeatureError as FeatureError
    from deconditional.approximation import feature_error as feature_error
    from deconditional.bag_kernels import bag_cross as bag_cross
    from deconditional.bag_kernels import bag_gram as bag_gram
    from deconditional.bags import Bags as Bags
    from deconditional.cautions import DeconditionalWarning as DeconditionalWarning
    from deconditional.cautions import DegenerateFitWarning as DegenerateFitWarning
    from deconditional.cautions import ExtrapolationWarning as ExtrapolationWarning
    from deconditional.cautions import FitWarning as FitWarning
    from deconditional.cautions import JitterWarning as JitterWarning
    from deconditional.cautions import LeakageWarning as LeakageWarning
    from deconditional.cautions import MediatorShiftWarning as MediatorShiftWarning
    from deconditional.cautions import UselessMediatorWarning as UselessMediatorWarning
    from deconditional.checkpoints import Checkpoint as Checkpoint
    from deconditional.checkpoints import CheckpointError as CheckpointError
    from deconditional.checkpoints import CheckpointWarning as CheckpointWarning
    from deconditional.fields import Comparison as Comparison
    from deconditional.fields import Downscaler as Downscaler
    from deconditional.fields import SliceWarning as SliceWarning
    from deconditional.fields import cross_validate as cross_validate
    from deconditional.fields import downscale as downscale
    from deconditional.fit import FitReport as FitReport
    from deconditional.kernels import DeepKernel as DeepKernel
    from deconditional.models import CMP as CMP
    from deconditional.models import BaggGP as BaggGP
    from deconditional.models import CentroidGP as CentroidGP
    from deconditional.models import MediatedGP as MediatedGP
    from deconditional.models import PseudoTarget as PseudoTarget
    from deconditional.models import VarCentroidGP as VarCentroidGP
    from deconditional.models import VarCMP as VarCMP
    from deconditional.models import VBagg as VBagg
    from deconditional.operators import DeconditionalRegressor as DeconditionalRegressor
    from deconditional.posterior import Posterior as Posterior
    from deconditional.posterior import SampleWarning as SampleWarning
    from deconditional.priors import LogNormal as LogNormal
    from deconditional.priors import Normal as Normal
    from deconditional.priors import SplitLogNormal as SplitLogNormal
    from deconditional.saving import SavedModelError as SavedModelError
    from deconditional.saving import load as load


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package is quick."""
    if name in _MODULES:
        return importlib.import_module(f"deconditional.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(f"deconditional.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'deconditional' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_HOME, *_MODULES, "__version__"])
