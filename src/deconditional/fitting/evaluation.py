"""One evaluation of a log posterior: its value, its gradient, and what else is known there.

A problem offers ``parameters`` (a :class:`~deconditional.fitting.parameters.ParameterSet`) and
``evaluate(vector)``; nothing here knows what the model is. Problems are pytrees, so one
compilation serves every data set of the same shape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import equinox as eqx
import jax

from deconditional.fitting.parameters import ParameterSet

QUICK = {"xla_cpu_use_fusion_emitters": False}
"""Options of XLA for processors: what compiles quickly runs a quarter slower."""


class Problem(Protocol):
    """What can be fitted."""

    parameters: ParameterSet

    def evaluate(self, vector: Any) -> tuple[Any, Any]:
        """Log evidence plus log prior of an unconstrained vector, and what else is known there."""


def evaluated(problem: Problem, vector: Any) -> tuple[Any, Any, Any]:
    """The negative log posterior, its gradient, and what else is known there: compiled as one.

    Of a problem that says it `is_small`, an evaluation takes less than compiling it well. Inside
    what is compiled as a whole, how is settled there.
    """
    inside = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((problem, vector)))
    if getattr(problem, "is_small", False) and not inside:
        return quickly(_evaluate)(problem, vector)
    return _compiled(problem, vector)


def _evaluate(problem: Problem, vector: Any) -> tuple[Any, Any, Any]:
    def negative(vector: Any) -> tuple[Any, Any]:
        value, known = problem.evaluate(vector)
        return -value, known

    (value, known), gradient = jax.value_and_grad(negative, has_aux=True)(vector)
    return value, gradient, known


_compiled = eqx.filter_jit(_evaluate)


@cache
def quickly(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function compiled in two thirds of the time, where this version of XLA knows how."""
    try:
        jax.jit(lambda x: x, compiler_options=QUICK)(0.0)
    except (RuntimeError, ValueError, TypeError):
        return eqx.filter_jit(function)
    options: Any = {"compiler_options": QUICK}  # Equinox hands on what its types do not tell of
    return eqx.filter_jit(function, **options)


def loss_and_gradient(problem: Problem, vector: Any) -> tuple[Any, Any]:
    """The negative log posterior, and its gradient."""
    return evaluated(problem, vector)[:2]
