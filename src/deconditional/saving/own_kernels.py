"""Kernels of classes that a file cannot name: their numbers are saved, the kernel is given again.

The kernel that is given to ``load`` must have the class, the structure and, with the numbers of the
file, the values of the one that was saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel
from paramax import AbstractUnwrappable

from deconditional.saving.container import refuse

if TYPE_CHECKING:
    from deconditional.saving.objects import Reader, Writer

__all__ = ["Supplied", "custom_node", "read_custom", "role_of"]

MOST_INPUTS = 64
"""Inputs that a kernel is tried with, at most."""


@dataclass
class Supplied:
    """Kernels given to ``load``, by their role."""

    kernels: dict[str, Any] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def take(self, role: str, family: str) -> AbstractKernel:
        """The kernel of a role, or an error that says what to give."""
        kernel = self.kernels.get(role)
        if kernel is None:
            refuse(
                f"its {role} is a {family[:60]}, which is no kernel of GPJax or of this package; "
                f"give it again, as in load(path, {role}={family[:60]}(...))"
            )
        if not isinstance(kernel, AbstractKernel):
            refuse(f"{role} must be a GPJax kernel, not {type(kernel).__name__}")
        self.used.add(role)
        return kernel

    def check_used(self) -> None:
        """Raise where a kernel was given that the file has no use for."""
        for role, kernel in self.kernels.items():
            if kernel is not None and role not in self.used:
                refuse(f"it has a {role} of its own; leave {role} out")


def role_of(path: Sequence[str]) -> str:
    """What users call a kernel, by its place: the regression on mediators has theirs."""
    of_mediators = any(name.startswith(("mediat", "regress")) for name in path)
    return "mediator_kernel" if of_mediators else "kernel"


def custom_node(kernel: AbstractKernel, role: str, writer: Writer) -> dict[str, Any]:
    """The numbers of a kernel, and its values at some points the first time."""
    tried = None if role in writer.tried else _tried(kernel)
    writer.tried.add(role)
    leaves, _ = _leaves(kernel)
    return {
        "role": role,
        "class": type(kernel).__qualname__,
        "numbers": [writer.write(each) if _is_number(each) else None for each in leaves],
        "tried": writer.write(tried),
    }


def read_custom(node: dict[str, Any], reader: Reader) -> AbstractKernel:
    """The kernel that was given for the role, with the numbers of the node."""
    role, family = node["role"], node["class"]
    kernel = reader.supplied.take(role, family)
    leaves, structure = _leaves(kernel)
    saved = reader.read(node["numbers"])
    if type(kernel).__qualname__ != family or len(leaves) != len(saved):
        refuse(
            f"its {role} is a {family[:60]} with {len(saved)} numbers and parts; the one given is "
            f"a {type(kernel).__qualname__} with {len(leaves)}"
        )
    for k, (own, value) in enumerate(zip(leaves, saved, strict=True)):
        if value is None:
            continue
        shapes = [np.shape(_plain(each)) for each in (value, own)]
        if not _is_number(own) or shapes[0] != shapes[1]:
            refuse(
                f"{role}: parameter {k} had shape {shapes[0]}; that of the kernel given has "
                f"shape {shapes[1]}"
            )
        leaves[k] = value
    kernel = jax.tree_util.tree_unflatten(structure, leaves)
    tried = reader.read(node["tried"])
    if tried is not None:
        values = _values(kernel, tried["points"])
        least = 1e-9 * np.abs(tried["values"]).max()
        if not np.allclose(values, tried["values"], rtol=1e-6, atol=least):
            refuse(f"the {role} given has other values than the one that was saved")
    return kernel


def _leaves(kernel: AbstractKernel) -> tuple[list[Any], Any]:
    """Parameters, whole, and whatever else a kernel is made of."""
    return jax.tree_util.tree_flatten(kernel, is_leaf=lambda x: isinstance(x, AbstractUnwrappable))


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, AbstractUnwrappable) or eqx.is_array_like(leaf)


def _plain(leaf: Any) -> Any:
    return jax.tree_util.tree_leaves(leaf)[0] if isinstance(leaf, AbstractUnwrappable) else leaf


def _tried(kernel: AbstractKernel) -> dict[str, np.ndarray] | None:
    """Values at a few points, of as many inputs as the kernel needs."""
    for d in range(1, MOST_INPUTS + 1):
        points = np.sin(1.0 + np.arange(3.0 * d)).reshape(3, d)
        try:
            return {"points": points, "values": _values(kernel, points)}
        except Exception:  # whatever somebody's own kernel raises where inputs are missing
            continue
    return None


def _values(kernel: AbstractKernel, points: np.ndarray) -> np.ndarray:
    x = jnp.asarray(points)
    return np.asarray([[float(kernel(a, b)) for b in x] for a in x])
