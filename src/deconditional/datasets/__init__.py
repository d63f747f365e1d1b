"""Data sets with known truth."""

from deconditional.datasets.swiss_roll import SwissRoll, swiss_roll

__all__ = ["SwissRoll", "swiss_roll"]
