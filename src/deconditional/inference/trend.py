r"""The trend :math:`m(x) = h(x)^\top\beta`, with :math:`\beta\sim N(0, \mathrm{diag}(b)^2)`."""

from __future__ import annotations

from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from deconditional.fitting.parameters import library


class Trend(eqx.Module):
    """h(x): nothing, a constant, or a constant and the standardised covariates."""

    kind: str = eqx.field(static=True)  # `"none"`, `"constant"` or `"linear"`
    # centre, scale: of the covariates.
    centre: Array
    scale: Array
    # One for every covariate that a linear trend has a slope in, zero for others: so trends in more
    # and in fewer covariates share what is compiled.
    sloped: Array
    prior_std: Float[Array, " q"]  # b, the prior standard deviation of every coefficient

    def __loaded__(self) -> Trend:
        """The trend itself, once its parts are known to have a size for each other."""
        q = {"none": 0, "constant": 1, "linear": 1 + len(self.centre)}[self.kind]
        shapes = {self.centre.shape, self.scale.shape, self.sloped.shape}
        if self.prior_std.shape != (q,) or len(shapes) > 1:
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
        centre, scale, sloped = map(of.asarray, (self.centre, self.scale, self.sloped))
        return of.concatenate([ones, sloped * ((x - centre) / scale)], axis=1)

    def whitened(self, features: Float[Array, "m q"]) -> Float[Array, "m q"]:
        """Features whose coefficients have unit prior variance."""
        return features * self.prior_std
