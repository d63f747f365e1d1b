"""Predictions of very many points in float32 tiles, where a check shows that as good.

A tile in single precision takes two fifths of the time. What that costs depends on how much the
weights of bags magnify rounding: hardly anything by most posteriors, all digits where observations
have next to no noise. So some of the points are predicted both ways first.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from deconditional.inference.exact import ExactField
from deconditional.inference.field import Field

MANY = 2**32
"""Kernel values of predictions from which on it is worth compiling it once more: seconds."""

CHECKED = 256
"""Points that are predicted in both precisions."""

AS_GOOD = 1e-3
"""Most that mean and standard deviation may differ there, in standard deviations."""


def in_single(field: Field, x: np.ndarray, alike: int = 1) -> Field:
    """The field, in float32 tiles where x are many points and a check finds that as good.

    So many fields `alike` are predicted at x: what is compiled for one of them serves all.
    """
    if not isinstance(field, ExactField) or field.dtype == jnp.float32:
        return field
    layout = field.layout if field.repeats is None else field.repeats.base
    if alike * len(x) * len(layout.points) < MANY:
        return field
    some = jnp.asarray(x[np.linspace(0, len(x) - 1, min(CHECKED, len(x))).astype(int)])
    quick = replace(field, dtype=jnp.float32)
    (mean, variance), (quick_mean, quick_variance) = field.moments(some), quick.moments(some)
    std = jnp.sqrt(variance)
    off = jnp.maximum(jnp.abs(quick_mean - mean), jnp.abs(jnp.sqrt(quick_variance) - std))
    return quick if bool((off <= AS_GOOD * std).all()) else field
