r"""Bags that come again and again with another value of some inputs, as cells do at other times.

Where some inputs are the same for all points of a bag, and k is a sum of products of a kernel of
these and a kernel of the rest, the bag average takes no notice of the former:

.. math:: \bar K_{jj'} = \sum_t \bar K^{(t)}_{u(j)u(j')}\, \kappa_t(s_j, s_{j'}),

with u(j) the bag without them, one of a few, and s their value. So 32 cells at 12 times cost what
32 cells cost.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel, ProductKernel, SumKernel
from jaxtyping import Array, Float

from deconditional.kernels.layout import Layout, layout_bags
from deconditional.kernels.sweeps import bag_cross, bag_gram

Pair = tuple[AbstractKernel | None, AbstractKernel | None]


class Repeats(eqx.Module):
    """Bags as a few of them, repeated."""

    base: Layout  # the distinct bags
    which: Array  # the distinct bag that every bag is
    shared: Float[Array, "values q"]  # distinct values of the inputs that bags do not vary in
    value: Array  # the row of `shared` that every bag has
    columns: tuple[int, ...] = eqx.field(static=True)  # which inputs these are

    def gram(self, kernel: AbstractKernel, dtype: Any = None) -> Float[Array, "N N"]:
        """The bag Gram matrix."""
        total = jnp.zeros((len(self.which), len(self.which)), self.base.points.dtype)
        for of_rest, of_shared in self._pairs(kernel):
            part = jnp.ones(())
            if of_rest is not None:
                part = bag_gram(of_rest, self.base, dtype=dtype)[self.which][:, self.which]
            if of_shared is not None:
                between = _values(of_shared, self.shared, self.shared, self.columns)
                part = part * between[self.value][:, self.value]
            total = total + part
        return total

    def cross(
        self, kernel: AbstractKernel, x: Float[Array, "m d"], dtype: Any = None
    ) -> Float[Array, "m N"]:
        """Covariance of f(x) with bag means."""
        total = jnp.zeros((len(x), len(self.which)), self.base.points.dtype)
        for of_rest, of_shared in self._pairs(kernel):
            part = jnp.ones(())
            if of_rest is not None:
                part = bag_cross(of_rest, x, self.base, dtype=dtype)[:, self.which]
            if of_shared is not None:
                at = x[:, list(self.columns)]
                part = part * _values(of_shared, at, self.shared, self.columns)[:, self.value]
            total = total + part
        return total

    def _pairs(self, kernel: AbstractKernel) -> list[Pair]:
        """Kernels of the rest and of what is shared; all that does not change in one sweep."""
        pairs = separated(kernel, self.columns)
        assert pairs is not None
        lasting = [one for one, other in pairs if other is None and one is not None]
        changing = [pair for pair in pairs if pair[1] is not None]
        return [(reduce(add, lasting), None), *changing] if lasting else changing


def repeats_of(bags: Any, kernel: AbstractKernel) -> Repeats | None:
    """The distinct bags, where the kernel can tell them from what is shared and there are few."""
    starts = np.flatnonzero(np.diff(bags.bag, prepend=-1))
    if len(starts) != bags.n_bags:  # points are not in order of their bag
        return None
    first = bags.points[starts][bags.bag]
    columns = tuple(np.flatnonzero((bags.points == first).all(0)).tolist())
    if not columns or len(columns) == bags.points.shape[1]:
        return None
    if separated(kernel, columns) is None:
        return None
    rest = bags.points.copy()
    rest[:, columns] = 0.0
    ends = [*starts[1:], len(bags.bag)]
    keys: dict[bytes, int] = {}
    which = np.array(
        [
            keys.setdefault(rest[a:b].tobytes() + bags.weights[a:b].tobytes(), len(keys))
            for a, b in zip(starts, ends, strict=True)
        ]
    )
    shared, value = np.unique(bags.points[starts][:, columns], axis=0, return_inverse=True)
    # Bags at one time are all distinct, but its kernel need not be worked out for every point.
    if 2 * len(keys) > bags.n_bags and len(shared) > 1:
        return None
    chosen = np.unique(which, return_index=True)[1]
    inside = np.isin(bags.bag, chosen)
    base, _ = layout_bags(
        rest[inside], np.searchsorted(chosen, bags.bag[inside]), bags.weights[inside], len(chosen)
    )
    return Repeats(
        base, jnp.asarray(which), jnp.asarray(shared), jnp.asarray(value.ravel()), columns
    )


def separated(kernel: AbstractKernel, columns: tuple[int, ...]) -> list[Pair] | None:
    """A kernel as a sum of products of a kernel of other inputs and one of these, if it is one.

    Examples
    --------
    >>> import gpjax as gpx
    >>> space = gpx.kernels.RBF(active_dims=[0])
    >>> time = gpx.kernels.RBF(active_dims=[1])
    >>> [[part is not None for part in pair] for pair in separated(space + space * time, (1,))]
    [[True, False], [True, True]]
    >>> separated(gpx.kernels.RBF(active_dims=[0, 1]), (1,)) is None
    True
    """
    if isinstance(kernel, SumKernel):
        every = [separated(child, columns) for child in kernel.kernels]
        return None if None in every else [pair for pairs in every for pair in pairs or ()]
    if isinstance(kernel, ProductKernel):
        found: list[Pair] = [(None, None)]
        for child in kernel.kernels:
            pairs = separated(child, columns)
            if pairs is None:
                return None
            found = [(_times(a, c), _times(b, d)) for a, b in found for c, d in pairs]
        return found
    dims = kernel.active_dims
    if not isinstance(dims, list) or not dims:
        return None
    inside = [dim in columns for dim in dims]
    if all(inside):
        return [(None, kernel)]
    return None if any(inside) else [(kernel, None)]


def _times(one: AbstractKernel | None, other: AbstractKernel | None) -> AbstractKernel | None:
    return other if one is None else one if other is None else one * other


def _values(
    kernel: AbstractKernel, x: Array, y: Array, columns: tuple[int, ...]
) -> Float[Array, "m k"]:
    """A kernel of the shared inputs, given these alone."""

    def whole(part: Array) -> Array:
        return jnp.zeros((len(part), max(columns) + 1), part.dtype).at[:, list(columns)].set(part)

    return kernel.cross_covariance(whole(x), whole(y))
