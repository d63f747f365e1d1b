r"""Means of functions over all points of bags, :math:`\bar k(w)` among them, part by part.

Models with inducing points learn from bags that are condensed to a few points each. Their posterior
needs the bags only through the means of as many functions as there are inducing points, and these
can be had of every point, however many there are: sums over parts, added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from deconditional.fields.cluster import limit_threads
from deconditional.fields.fine_points import weighted_count
from deconditional.fields.pairing import Pairing
from deconditional.fields.parts import Place, Reader, reduced
from deconditional.fields.scaling import InputScaling

__all__ = ["averager"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Functions = Callable[[Any], Any]

BLOCK = 8192
"""Points whose functions are evaluated at a time."""


def averager(pairing: Pairing, which: Ints, scaling: InputScaling) -> Callable[[Functions], Floats]:
    """What takes functions of standardised points to their means over some bags, (N, D)."""
    if pairing.fine.chunks is not None:
        return partial(_of_chunks, pairing.fine.chunks, pairing.bag_unit[which], scaling)
    return partial(_in_memory, pairing.fine.bags.select(which), scaling)


class Sums(NamedTuple):
    """Of area times functions, and of area, over the points of units."""

    unit: Ints
    total: Floats
    area: Floats

    @classmethod
    def joined(cls, found: Sequence[Sums]) -> Sums:
        """Of all points."""
        every = np.concatenate([each.unit for each in found])
        units, index = np.unique(every, return_inverse=True)
        add = csr_array((np.ones(len(index)), (index, np.arange(len(index)))))
        total, area = (
            add @ np.concatenate([getattr(each, name) for each in found])
            for name in ("total", "area")
        )
        return cls(units, total, area)


def _in_memory(bags: Any, scaling: InputScaling, functions: Functions) -> Floats:
    found = _summed(
        bags.bag, np.arange(len(bags.bag)), bags.weights, bags.points, scaling, functions
    )
    return found.total / found.area[:, None]


def _of_chunks(chunks: Any, units: Ints, scaling: InputScaling, functions: Functions) -> Floats:
    from dask.base import compute

    tasks = chunks.parts.map(_of_part, chunks.reader, (units, scaling, functions))
    limit_threads()
    (found,) = compute(reduced(tasks, Sums.joined))
    place = np.searchsorted(found.unit, units)
    return found.total[place] / found.area[place, None]


def _of_part(reader: Reader, asked: Any, place: Place, blocks: Sequence[np.ndarray]) -> Sums:
    units, scaling, functions = asked
    part = reader.part(place, blocks)
    found, _ = reader.members(part)
    wanted = np.isin(found.unit, units)
    rows = part.points.rows(reader.question.position)
    return _summed(
        found.unit[wanted], found.row[wanted], found.area[wanted], rows, scaling, functions
    )


def _summed(
    unit: Ints, row: Ints, area: Floats, points: Floats, scaling: InputScaling, functions: Functions
) -> Sums:
    """Sums over memberships: the unit, point and area of each."""
    units, index = np.unique(unit, return_inverse=True)
    shares = csr_array((area, (index, row)), shape=(len(units), len(points)))
    total: Any = 0.0
    for rows, values in _values(points, scaling, functions, np.unique(row)):
        total = total + shares[:, rows] @ values
    if not len(units):
        total = np.zeros((0, _evaluated(functions, scaling(points[:0])).shape[1]))
    return Sums(units.astype(np.int64), total, weighted_count(index, area, len(units)))


def _values(
    points: Floats, scaling: InputScaling, functions: Functions, needed: Ints
) -> Iterator[tuple[Ints, Floats]]:
    """Functions at the points that are needed, a block of one size after the other."""
    for start in range(0, len(needed), BLOCK):
        rows = needed[start : start + BLOCK]
        padded = np.resize(rows, BLOCK) if len(needed) > BLOCK else rows
        values = np.asarray(_evaluated(functions, jnp.asarray(scaling(points[padded]))), float)
        yield rows, values[: len(rows)]


@eqx.filter_jit
def _evaluated(functions: Functions, x: Any) -> Any:
    return functions(x)
