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

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Bags": "bags",
    "BagDraws": "inference.rate_posterior",
    "BaggGP": "models",
    "BetaBinomial": "observations.counts",
    "Binomial": "observations.counts",
    "CMP": "models",
    "CentroidGP": "models",
    "Checkpoint": "saving.resume",
    "CheckpointError": "errors",
    "CheckpointWarning": "errors",
    "Comparison": "fields",
    "DeconditionalRegressor": "operators",
    "DeconditionalWarning": "errors",
    "DeepKernel": "kernels.radial",
    "DegenerateFitWarning": "errors",
    "Downscaler": "fields",
    "ExtrapolationWarning": "errors",
    "Family": "observations.families",
    "FeatureError": "models.feature_error",
    "FitReport": "fitting.report",
    "FitWarning": "errors",
    "JitterWarning": "errors",
    "LeakageWarning": "errors",
    "LogNormal": "fitting.priors",
    "MediatedGP": "models",
    "MediatorShiftWarning": "errors",
    "NegativeBinomial": "observations.counts",
    "NoSkillWarning": "errors",
    "Normal": "observations.families",
    "Poisson": "observations.counts",
    "Posterior": "inference.posterior",
    "PseudoTarget": "models",
    "RatePosterior": "inference.rate_posterior",
    "SampleWarning": "errors",
    "SavedModelError": "errors",
    "SliceWarning": "errors",
    "Source": "models.sources",
    "SplitLogNormal": "fitting.priors",
    "Tweedie": "observations.amounts",
    "UselessMediatorWarning": "errors",
    "VBagg": "models",
    "VarCMP": "models",
    "VarCentroidGP": "models",
    "aggregate": "fields",
    "bag_cross": "kernels.sweeps",
    "bag_gram": "kernels.sweeps",
    "cross_validate": "fields",
    "downscale": "fields",
    "feature_error": "models.feature_error",
    "load": "saving.api",
}
_MODULES = {
    "datasets": "datasets",
    "operators": "operators",
    "scores": "scores",
    "sharding": "kernels.devices",
}

if TYPE_CHECKING:
    from deconditional import datasets as datasets
    from deconditional import operators as operators
    from deconditional import scores as scores
    from deconditional.bags import Bags as Bags
    from deconditional.errors import CheckpointError as CheckpointError
    from deconditional.errors import CheckpointWarning as CheckpointWarning
    from deconditional.errors import DeconditionalWarning as DeconditionalWarning
    from deconditional.errors import DegenerateFitWarning as DegenerateFitWarning
    from deconditional.errors import ExtrapolationWarning as ExtrapolationWarning
    from deconditional.errors import FitWarning as FitWarning
    from deconditional.errors import JitterWarning as JitterWarning
    from deconditional.errors import LeakageWarning as LeakageWarning
    from deconditional.errors import MediatorShiftWarning as MediatorShiftWarning
    from deconditional.errors import NoSkillWarning as NoSkillWarning
    from deconditional.errors import SampleWarning as SampleWarning
    from deconditional.errors import SavedModelError as SavedModelError
    from deconditional.errors import SliceWarning as SliceWarning
    from deconditional.errors import UselessMediatorWarning as UselessMediatorWarning
    from deconditional.fields import Comparison as Comparison
    from deconditional.fields import Downscaler as Downscaler
    from deconditional.fields import aggregate as aggregate
    from deconditional.fields import cross_validate as cross_validate
    from deconditional.fields import downscale as downscale
    from deconditional.fitting.priors import LogNormal as LogNormal
    from deconditional.fitting.priors import SplitLogNormal as SplitLogNormal
    from deconditional.fitting.report import FitReport as FitReport
    from deconditional.inference.posterior import Posterior as Posterior
    from deconditional.inference.rate_posterior import BagDraws as BagDraws
    from deconditional.inference.rate_posterior import RatePosterior as RatePosterior
    from deconditional.kernels import devices as devices

    sharding = devices
    from deconditional.kernels.radial import DeepKernel as DeepKernel
    from deconditional.kernels.sweeps import bag_cross as bag_cross
    from deconditional.kernels.sweeps import bag_gram as bag_gram
    from deconditional.models import CMP as CMP
    from deconditional.models import BaggGP as BaggGP
    from deconditional.models import CentroidGP as CentroidGP
    from deconditional.models import MediatedGP as MediatedGP
    from deconditional.models import PseudoTarget as PseudoTarget
    from deconditional.models import VarCentroidGP as VarCentroidGP
    from deconditional.models import VarCMP as VarCMP
    from deconditional.models import VBagg as VBagg
    from deconditional.models.feature_error import FeatureError as FeatureError
    from deconditional.models.feature_error import feature_error as feature_error
    from deconditional.models.sources import Source as Source
    from deconditional.observations.amounts import Tweedie as Tweedie
    from deconditional.observations.counts import BetaBinomial as BetaBinomial
    from deconditional.observations.counts import Binomial as Binomial
    from deconditional.observations.counts import NegativeBinomial as NegativeBinomial
    from deconditional.observations.counts import Poisson as Poisson
    from deconditional.observations.families import Family as Family
    from deconditional.observations.families import Normal as Normal
    from deconditional.operators import DeconditionalRegressor as DeconditionalRegressor
    from deconditional.saving.api import load as load
    from deconditional.saving.resume import Checkpoint as Checkpoint


@contextmanager
def importing() -> Iterator[None]:
    """Leave out the search for garbage, a tenth of the time that large imports take."""
    searching = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searching:
            gc.enable()


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package is quick."""
    if name not in _MODULES and name not in _HOME:
        raise AttributeError(f"module 'deconditional' has no attribute {name!r}")
    with importing():
        home = importlib.import_module(f"deconditional.{(_MODULES | _HOME)[name]}")
    if name in _MODULES:
        return home
    globals()[name] = getattr(home, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted([*_HOME, *_MODULES, "__version__"])
