"""One downscaling: two datasets read, a model fitted, the field predicted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.downscaler import Downscaler
from deconditional.fields.predict import quantile_levels
from deconditional.fields.sides import FineSide, two_sides
from deconditional.saving.resume import Checkpoint, opened

__all__ = ["downscale_once", "new_downscaler"]


def downscale_once(
    fine: xr.Dataset,
    coarse: xr.Dataset,
    on: xr.Dataset | None,
    *names: Any,
    quantiles: Sequence[float] = (),
    samples: int = 0,
    command: str = "dc.downscale",
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    **options: Any,
) -> xr.Dataset:
    """One downscaling, with a fit of its own; see :func:`deconditional.downscale`.

    Parameters
    ----------
    fine, coarse, on
        The data; without `on` the prediction is on the fine data.
    *names, **options
        Arguments of :class:`~deconditional.Downscaler`.
    quantiles, samples, command, checkpoint
        As in :func:`~deconditional.downscale`.
    """
    downscaler = new_downscaler(*names, **options)
    question = downscaler.question()
    quantile_levels(quantiles)
    sides = two_sides(fine, coarse, question)
    where = sides[0] if on is None else FineSide.of(on, question)
    downscaler.check_consistency(where)
    with opened(checkpoint) as kept:
        downscaler.learn(downscaler.prepare(*sides), checkpoint=kept)
        return downscaler.predict_side(where, quantiles, samples, command)


def new_downscaler(*names: Any, **options: Any) -> Downscaler:
    """A downscaler, or an error that names the option it does not have."""
    try:
        return Downscaler(*names, **options)
    except TypeError as error:
        raise UsageError(f"{str(error).replace('Downscaler.__init__() got an ', '')}.") from None
