"""Default kernels of fields and of mediators, and the priors of their length scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel, CombinationKernel, ProductKernel
from gpjax.parameters import NonNegativeReal, PositiveReal
from paramax import non_trainable

from deconditional.fitting.priors import Alike, LogNormal, Prior

FIELD_KERNELS = ("rough", "smooth")

APART = 8.0
"""Length scales between neighbouring times that are independent: a correlation of exp(-32)."""


@dataclass(frozen=True)
class Inputs:
    """Which inputs a kernel has: position, time and others, in that order.

    Attributes
    ----------
    n_time
        1 where there is time, 3 where the year goes round too.
    apart
        The step between times that have nothing to do with each other; None where they have.
    directed
        Whether position has directions, such as east and north; on most of a globe it has none.
    """

    n_position: int
    n_others: int
    n_time: int = 0
    apart: float | None = None
    directed: bool = True

    @property
    def position(self) -> list[int]:
        """Columns of position."""
        return list(range(self.n_position))

    @property
    def others(self) -> list[int]:
        """Columns of covariates, or of mediators."""
        start = self.n_position + self.n_time
        return list(range(start, start + self.n_others))

    @property
    def season(self) -> list[int]:
        """Columns that go round once a year; none where there is no season."""
        return list(range(self.n_position + 1, self.n_position + self.n_time))


@eqx.filter_jit  # GPJax transforms what it is given: compiled as one, not operation by operation
def field_kernel(inputs: Inputs, name: str = "rough") -> AbstractKernel:
    """Matérn-3/2 of position and Gaussian of the covariates, added: the kernel ``"smooth"``.

    ``"rough"`` adds a Matérn-1/2 of position, for what a smooth field and its covariates do not
    explain from one fine cell to the next; without it intervals are too narrow on real fields (see
    the results).

    With time this lasts, except for what is rough. Beside it is a pattern that changes as a
    Matérn-3/2 of time does, with a level of the whole field, and one that comes back every year
    where the year goes round. What changes of a covariate is its slope rather than the shape of
    its effect: there it has a long scale (see :func:`time_priors`).

    Times that are independent of each other have all of it anew, and a level.
    """
    is_rough = inputs.n_position and name == "rough"
    rough = [_of_position(gk.Matern12, inputs)] if is_rough else []
    if not inputs.n_time:
        return _sum([*_pattern(inputs), *rough])
    lasting = _pattern(inputs) if inputs.apart is None else []
    changing = [*_pattern(inputs, SLOPES if lasting else 1.0), *rough]
    parts = [part * _of_time(inputs) for part in changing] + [_of_time(inputs, free=True)]
    if inputs.season:
        parts += [part * _of_season(inputs) for part in _pattern(inputs, SLOPES)]
        parts.append(_of_season(inputs, free=True))
    return _sum([*lasting, *parts])


@eqx.filter_jit
def mediator_kernel(inputs: Inputs) -> AbstractKernel:
    """Matérn-3/2 of position and of time, Gaussian of the season and of the mediators, added."""
    parts = _pattern(inputs)
    if inputs.n_time:
        parts.append(_of_time(inputs, free=True))
    if inputs.season:
        parts.append(_of_season(inputs, free=True))
    return _sum(parts)


def _pattern(inputs: Inputs, scale: float = 1.0) -> list[AbstractKernel]:
    """Parts of position and of other inputs, the latter with a length scale to begin with."""
    parts: list[AbstractKernel] = []
    if inputs.n_position:
        parts.append(_of_position(gk.Matern32, inputs))
    if inputs.n_others:
        parts.append(
            gk.RBF(active_dims=inputs.others, lengthscale=jnp.full(inputs.n_others, scale))
        )
    return parts


def _of_position(family: Any, inputs: Inputs) -> AbstractKernel:
    """A kernel with a length scale along each direction, or one where there are no directions."""
    scale = jnp.ones(inputs.n_position) if inputs.directed else 1.0
    return family(active_dims=inputs.position, lengthscale=scale)


def _of_time(inputs: Inputs, free: bool = False) -> AbstractKernel:
    """How times hang together; of variance one unless it is free."""
    dims, variance = [inputs.n_position], 1.0 if free else _one()
    if inputs.apart is not None:
        scale = non_trainable(PositiveReal(inputs.apart / APART))
        return gk.RBF(active_dims=dims, lengthscale=scale, variance=variance)
    return gk.Matern32(active_dims=dims, variance=variance)


def _of_season(inputs: Inputs, free: bool = False) -> AbstractKernel:
    """How the days of a year hang together; of variance one unless it is free."""
    return gk.RBF(active_dims=inputs.season, variance=1.0 if free else _one())


def _one() -> Any:
    """The variance of a factor whose product has one already."""
    return non_trainable(NonNegativeReal(1.0))


def _sum(parts: list[AbstractKernel]) -> AbstractKernel:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


SLOPES = 3.0
"""Standard deviations of a covariate over which an effect of it is hardly more than a slope."""


def scale_priors(
    kernel: AbstractKernel,
    inputs: Inputs,
    steps: tuple[float, float],
    width: float,
    usual: Callable[[Any], Prior],
    name: str,
) -> dict[str, Prior]:
    """Priors of the length scales in a kernel that have to do with position or time, by parameter.

    Of position all directions have much the same: see :class:`~deconditional.fitting.priors.Alike`.
    Of time anything between the step from one time to the next and the span of all is as likely: a
    field of weather forgets itself from one year to the next, one of climate does not. Of
    covariates whose effect changes with time it is long, so that a few observations at a time tell
    how it changes.

    Parameters
    ----------
    steps
        The step between times and the span of all, in the units of the input.
    width
        How far places are from each other, in theirs.
    usual
        The prior of a length scale, by its mode.
    """
    step, span = steps[0], max(steps)
    of_time = LogNormal(float(np.sqrt(step * span)), max(0.5 * float(np.log(span / step)), 1.0))
    learnt = inputs.n_time and inputs.apart is None
    found: dict[str, Prior] = {}
    for place, dims, is_factor in _parts(kernel, name):
        if dims == inputs.position and inputs.directed:
            found[f"{place}.lengthscale"] = Alike(usual(width), inputs.n_position)
        elif dims == [inputs.n_position] and learnt:
            found[f"{place}.lengthscale"] = of_time
        elif dims == inputs.others and is_factor and learnt:
            scales = np.full(inputs.n_others, SLOPES) if inputs.n_others > 1 else SLOPES
            found[f"{place}.lengthscale"] = LogNormal(scales, 0.5)
    return found


def _parts(
    kernel: AbstractKernel, name: str, is_factor: bool = False
) -> Iterator[tuple[str, Any, bool]]:
    """Name and inputs of every part of a kernel, and whether it is a factor of a product."""
    if isinstance(kernel, CombinationKernel):
        inside = is_factor or isinstance(kernel, ProductKernel)
        for k, child in enumerate(kernel.kernels):
            yield from _parts(child, f"{name}.{k}", inside)
    else:
        yield name, kernel.active_dims, is_factor
