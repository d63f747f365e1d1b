"""Data of the experiments."""

# Imported here and not on first use: most functions have their module's name, and the module,
# once imported elsewhere, would take the function's place. None of them imports xarray by itself.
from deconditional.datasets.cells import FieldsExample, coarsen, split_cells
from deconditional.datasets.global_fields import global_fields
from deconditional.datasets.noisy_mediator import NoisyMediator, noisy_mediator
from deconditional.datasets.s_curve import s_curve
from deconditional.datasets.shrinkage_toy import ShrinkageToy, shrinkage_toy
from deconditional.datasets.surfaces import CutSurface
from deconditional.datasets.swiss_roll import swiss_roll
from deconditional.datasets.synthetic_fields import synthetic_fields
from deconditional.datasets.synthetic_globe import SyntheticGlobe, synthetic_globe

__all__ = [
    "CutSurface",
    "FieldsExample",
    "NoisyMediator",
    "ShrinkageToy",
    "SyntheticGlobe",
    "coarsen",
    "global_fields",
    "noisy_mediator",
    "s_curve",
    "shrinkage_toy",
    "split_cells",
    "swiss_roll",
    "synthetic_fields",
    "synthetic_globe",
]
