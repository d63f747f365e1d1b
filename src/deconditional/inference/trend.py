r"""The trend :math:`m(x) = h(x)^\top\beta`, with :math:`\beta\sim N(0, \mathrm{diag}(b)^2)`."""

from __future__ import annotations

from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from deconditional.fitting.parameters import library


class Trend(eqx.Module):
    """h(x): nothing, a constant, or a constant and the standardised covariates.

    Attributes
    ----------
    kind
        ``"none"``, ``"constant"`` or ``"linear"``.
    columns
        The covariates of a linear trend; None where it is linear in all.
    centre, scale
        Of the covariates.
    prior_std
        b, the prior standard deviation of every coefficient.
    """

    kind: str = eqx.field(static=True)
    centre: Array
    scale: Array
    prior_std: Float[Array, " q"]
    columns: tuple[int, ...] | None = eqx.field(static=True, default=None)

    def __loaded__(self) -> Trend:
        """The trend itself, once its parts are known to have a size for each other."""
        d = len(self.centre)
        chosen = range(d) if self.columns is None else self.columns
        if not all(0 <= column < d for column in chosen):
            raise ValueError("it is linear in covariates that are not there")
        q = {"none": 0, "constant": 1, "linear": 1 + len(chosen)}[self.kind]
        if self.prior_std.shape != (q,) or self.centre.shape != self.scale.shape:
            raise ValueError(f"it has no {self.kind} trend")
        return self

    def features(self, x: Any) -> Any:
        """H at every row of x, (m, q); in NumPy where x is."""
        of = library(x)
        if self.kind == "none":
            return of.zeros((x.shape[0], 0), x.dtype)
        ones = of.ones((x.shape[0], 1), x.dtype)
        if self.kind == "constant":
            return ones
        centre, scale = of.asarray(self.centre), of.asarray(self.scale)
        slopes = (x - centre) / scale
        if self.columns is not None:
            slopes = slopes[:, list(self.columns)]
        return of.concatenate([ones, slopes], axis=1)

    def whitened(self, features: Float[Array, "m q"]) -> Float[Array, "m q"]:
        """Features whose coefficients have unit prior variance."""
        return features * self.prior_std
