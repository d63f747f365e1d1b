"""The estimators, one file each, thin over mediation and inference."""

import importlib
from typing import TYPE_CHECKING, Any

import deconditional.kernels  # noqa: F401  before GPJax starts JAX
from deconditional.models.bagg import BaggGP, CentroidGP
from deconditional.models.cmp import CMP
from deconditional.models.mediated import MediatedGP
from deconditional.models.pseudo_target import PseudoTarget
from deconditional.models.varcmp import VarCMP
from deconditional.models.vbagg import VarCentroidGP, VBagg

if TYPE_CHECKING:
    from deconditional.models import baselines as baselines

__all__ = [
    "CMP",
    "BaggGP",
    "CentroidGP",
    "MediatedGP",
    "PseudoTarget",
    "VBagg",
    "VarCMP",
    "VarCentroidGP",
]


def __getattr__(name: str) -> Any:
    """What others take for simple answers, imported when asked for: it needs scikit-learn."""
    if name == "baselines":
        return importlib.import_module("deconditional.models.baselines")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
