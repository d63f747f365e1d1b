"""Public names and where they are, a line each: read by type checkers and by the package."""

from collections.abc import Iterator
from contextlib import contextmanager

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
from deconditional.kernels import devices as _devices
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
from deconditional.observations.counts import BetaBinomial as BetaBinomial
from deconditional.observations.counts import Binomial as Binomial
from deconditional.observations.counts import NegativeBinomial as NegativeBinomial
from deconditional.observations.counts import Poisson as Poisson
from deconditional.observations.counts import Tweedie as Tweedie
from deconditional.observations.families import Family as Family
from deconditional.observations.families import Normal as Normal
from deconditional.operators import DeconditionalRegressor as DeconditionalRegressor
from deconditional.saving.api import load as load
from deconditional.saving.resume import Checkpoint as Checkpoint

__version__: str

sharding = _devices

@contextmanager
def importing() -> Iterator[None]: ...
