"""The estimators, one file each, thin over mediation and inference."""

from deconditional.models.bagg import BaggGP
from deconditional.models.centroid import CentroidGP
from deconditional.models.cmp import CMP
from deconditional.models.pseudo_target import PseudoTarget

__all__ = ["CMP", "BaggGP", "CentroidGP", "PseudoTarget"]
