"""Several devices: the row tiles of a bag Gram matrix are dealt out to them.

Points are small and every device has them all; kernel tiles are many, and every device makes its
share. Each row tile meets as many column tiles as any other, give or take one, so dealing rows out
in turn gives equal shares; one sum over the devices then completes the matrix, and another its
gradient. All devices of an accelerator are used without being asked, and all cores of a processor
(:mod:`deconditional.kernels.jax_setup`), for problems that are large enough.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from deconditional.kernels.layout import Layout, is_accelerator, layout_bags, tiles_for

AXIS = "devices"

CORES_FROM, ACCELERATORS_FROM = 8192, 20_000
"""Points beyond which all cores, or accelerators, are used without being asked."""

POINTS_PER_BAG = 16
"""Points to a bag from which cores are shared: each does all of the algebra of bags by itself."""

TILES_PER_DEVICE, SMALLEST_ROW_TILE = 2, 32
"""Row tiles are divided until each device has so many, or they are so small."""

Part = TypeVar("Part")

_chosen: tuple[Any, ...] | None = None


class use_devices:
    """Choose the devices for bag kernels, from now on or for a ``with`` block.

    A model keeps to the devices it was fitted on. The choice holds for all threads of a process.

    Parameters
    ----------
    devices : int, sequence of jax.Device, or None
        The first so many devices of JAX's default platform, or these ones. None, the state at the
        start, takes all devices of an accelerator for problems of more than 20 000 points, and all
        cores of a processor for more than 8192 in bags of 16 or more.

    Examples
    --------
    >>> import deconditional.kernels.devices as sharding
    >>> with sharding.use_devices(1):
    ...     print(sharding.current_mesh())
    None
    """

    def __init__(self, devices: int | Sequence[Any] | None = None):
        global _chosen
        self._before = _chosen
        _chosen = None if devices is None else _checked(devices)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _chosen
        _chosen = self._before


def _checked(devices: int | Sequence[Any]) -> tuple[Any, ...]:
    if isinstance(devices, (int, np.integer)) and not isinstance(devices, bool):
        there = jax.local_devices()
        if not 1 <= devices <= len(there):
            raise ValueError(
                f"asked for {devices} devices, but JAX has {len(there)} of platform "
                f"{there[0].platform!r} here; ask for 1 to {len(there)}."
            )
        return tuple(there[:devices])
    chosen = tuple(devices) if isinstance(devices, (list, tuple, np.ndarray)) else ()
    if not chosen or not all(isinstance(device, jax.Device) for device in chosen):
        raise TypeError(
            "devices must be a number, a list of JAX devices (see jax.devices()) or None, not "
            f"{devices!r}."
        )
    if len(set(chosen)) < len(chosen) or len({device.platform for device in chosen}) > 1:
        raise ValueError(f"devices must be distinct and of one platform, not {list(chosen)}.")
    return chosen


def current_mesh(n_points: int = 0, n_bags: int = 1) -> Mesh | None:
    """The devices that bags with so many points are spread over; None for a single one."""
    devices = _chosen
    if devices is None:
        fits = is_accelerator() or n_points >= POINTS_PER_BAG * n_bags
        least = ACCELERATORS_FROM if is_accelerator() else CORES_FROM
        devices = tuple(jax.local_devices()) if fits and n_points > least else ()
    return Mesh(np.array(devices), (AXIS,)) if len(devices) > 1 else None


def spread(layout: Layout) -> Layout:
    """The layout, its points on all devices in use, and its tiles to be dealt out to them."""
    mesh = current_mesh(layout.points.shape[0], layout.n_bags)
    if mesh is None:
        return layout
    divided = replace(layout, row_tile=_row_tile(layout, TILES_PER_DEVICE * mesh.size), mesh=mesh)
    with jax.ensure_compile_time_eval():
        return jax.device_put(divided, NamedSharding(mesh, PartitionSpec()))


def gathered(layout: Layout) -> Layout:
    """The layout on one core, unless devices were chosen or are accelerators.

    For work of which the row tiles of a matrix are a part: every device would do the rest.
    """
    if layout.mesh is None or _chosen is not None or is_accelerator():
        return layout
    return jax.device_put(replace(layout, mesh=None), jax.local_devices()[0])


def side_by_side(tree: Any, most: int) -> int:
    """How many evaluations that need the arrays of a pytree may run at a time, each on a core."""
    arrays = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    if is_accelerator() or any(len(array.devices()) > 1 for array in arrays):
        return 1
    return max(1, min(most, os.cpu_count() or 1))


def settled(layout: Layout) -> Layout:
    """A layout that another machine made, as the devices in use would have it."""
    if tiles_for(len(layout.points)).form != layout.form:
        points, weights = np.asarray(layout.points), np.asarray(layout.weights)
        bag, real = np.repeat(np.asarray(layout.bag), layout.chunk), weights != 0
        layout, _ = layout_bags(points[real], bag[real], weights[real], layout.n_bags)
    return spread(layout)


def _row_tile(layout: Layout, wanted: int) -> int:
    """Points per row tile, halved until there are as many tiles as wanted."""
    size = layout.row_tile
    while (
        layout.points.shape[0] // size < wanted
        and size % (2 * layout.chunk) == 0
        and size >= 2 * SMALLEST_ROW_TILE
    ):
        size //= 2
    return size


def summed(mesh: Mesh | None, part: Callable[..., Part], *operands: Any) -> Part:
    """The sum over devices of ``part(device, n_devices, *operands)``; every device gets it.

    A part is a pytree of arrays, and every device needs the operands whole. Without a mesh there is
    one device.
    """
    if mesh is None:
        return part(0, 1, *operands)

    def share(index: Array, operands: Any) -> Part:
        return lax.psum(part(index[0], mesh.size, *operands), AXIS)

    whole = PartitionSpec()
    over_devices = jax.shard_map(
        share,
        mesh=mesh,
        in_specs=(PartitionSpec(AXIS), whole),
        out_specs=whole,
        check_vma=False,
    )
    return jax.jit(over_devices)(jnp.arange(mesh.size), operands)
