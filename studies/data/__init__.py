"""Data sets with known truth that only studies, benchmarks and tests need."""

from studies.data.mountain_globe import mountain_globe
from studies.data.noisy_mediator import NoisyMediator, noisy_mediator
from studies.data.shrinkage_toy import ShrinkageToy, shrinkage_toy
from studies.data.synthetic_globe import SyntheticGlobe, synthetic_globe

__all__ = [
    "NoisyMediator",
    "ShrinkageToy",
    "SyntheticGlobe",
    "mountain_globe",
    "noisy_mediator",
    "shrinkage_toy",
    "synthetic_globe",
]
