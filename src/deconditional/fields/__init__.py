"""Gridded fields: xarray in, xarray out."""

try:
    import cf_xarray  # noqa: F401
    import xarray  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError(
        f"gridded fields need {error.name}: pip install 'deconditional[fields]'."
    ) from None

from deconditional.errors import SliceWarning
from deconditional.fields.aggregation import Aggregate, aggregate
from deconditional.fields.cross_validation import cross_validate
from deconditional.fields.downscaler import Downscaler
from deconditional.fields.downscaling import downscale
from deconditional.fields.validation import Comparison

__all__ = [
    "Aggregate",
    "Comparison",
    "Downscaler",
    "SliceWarning",
    "aggregate",
    "cross_validate",
    "downscale",
]
