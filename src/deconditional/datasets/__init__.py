"""Data of the experiments."""

from deconditional.datasets.swiss_roll import SwissRoll, swiss_roll
from deconditional.datasets.synthetic_globe import SyntheticGlobe, synthetic_globe

__all__ = ["SwissRoll", "SyntheticGlobe", "swiss_roll", "synthetic_globe"]
