"""The estimators, one file each, thin over mediation and inference."""

import deconditional.kernels  # noqa: F401  before GPJax starts JAX
from deconditional.models.bagg import BaggGP, CentroidGP
from deconditional.models.cmp import CMP
from deconditional.models.mediated import MediatedGP
from deconditional.models.pseudo_target import PseudoTarget
from deconditional.models.varcmp import VarCMP
from deconditional.models.vbagg import VarCentroidGP, VBagg

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
