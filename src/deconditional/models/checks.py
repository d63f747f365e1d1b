"""What users give to fit and predict, checked before any work, with errors in their words."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel

from deconditional.bags import Bags


def check_bags(bags: Any) -> None:
    """Raise unless `bags` are Bags."""
    if not isinstance(bags, Bags):
        raise TypeError(
            f"bags must be a deconditional.Bags, not {type(bags).__name__}; make one with "
            "Bags.from_points(x, bag_of), Bags.from_list or Bags.from_frame."
        )


def check_count(name: str, value: Any) -> None:
    """Raise unless this is a positive whole number."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a positive whole number, not {value!r}.")


def check_kernel(name: str, kernel: Any, inputs: np.ndarray) -> None:
    """Raise unless this is a kernel that fits the inputs."""
    if not isinstance(kernel, AbstractKernel):
        raise TypeError(
            f"{name} must be a GPJax kernel such as gpjax.kernels.RBF(), not {kernel!r}."
        )
    dims = _highest_dimension(kernel)
    if dims >= inputs.shape[1]:
        raise ValueError(
            f"{name} uses input {dims}, but there are only {inputs.shape[1]}; inputs count from 0."
        )
    try:
        point = jax.ShapeDtypeStruct(inputs.shape[1:], float)
        value = jax.eval_shape(lambda x: kernel(x, x), point)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} does not fit inputs of {inputs.shape[1]} variable(s); give it that many "
            f"length scales, or active_dims ({str(error).splitlines()[0]})"
        ) from None
    if value.shape != ():
        raise ValueError(f"{name} must give one number for a pair of points.")


def _highest_dimension(kernel: Any) -> int:
    """The highest active dimension named anywhere in a kernel; -1 if none is."""
    parts = getattr(kernel, "kernels", ())
    own = kernel.active_dims if isinstance(kernel.active_dims, list) else [-1]
    return max([*own, *(_highest_dimension(part) for part in parts)])


def numbers(values: Any, what: str) -> np.ndarray:
    """An array of numbers."""
    try:
        return np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{what} must be numbers.") from None


def rows_of(values: npt.ArrayLike, d: int, what: str, needed: str, remedy: str) -> np.ndarray:
    """Rows of d numbers, one or more, all of them finite; of one variable also as a list.

    `what` is the name of a row, `needed` says in an error of which shape they are to be.
    """
    array = numbers(values, f"{what}s")
    if array.ndim == 1 and d == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] != d or len(array) == 0:
        raise ValueError(f"{needed}; the shape of these is {np.shape(values)}.")
    finite = np.isfinite(array).all(1)
    if not finite.all():
        row = int(np.argmin(finite))
        raise ValueError(f"{what} {row} has a missing or infinite value. {remedy}")
    return array


def observations(z: npt.ArrayLike | None) -> np.ndarray:
    """Coarse observations as a vector."""
    if z is None:
        raise TypeError("fit(bags, z) needs the observations z.")
    array = numbers(z, "the observations z")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"z must be a list of observations; its shape is {np.shape(z)}.")
    if not np.isfinite(array).all():
        raise ValueError(
            f"observation {int(np.argmin(np.isfinite(array)))} of z is missing or infinite. "
            "Drop it, with its mediator."
        )
    return array


def mediators(mediator: npt.ArrayLike, p: int) -> np.ndarray:
    """Mediators of p variables, one row each; a single row may be a list."""
    given = numbers(mediator, "mediators")
    given = given[None] if given.ndim == 1 and given.size == p > 1 else given
    needed = f"the bags' mediator has {p} variable(s), and mediators need a row of as many each"
    return rows_of(given, p, "mediator", needed, "Drop it, with its observation.")


def observed_mediators(bags: Bags, m: int, mediator: npt.ArrayLike | None) -> np.ndarray:
    """Mediators of m observations: those of the bags where none are given."""
    if bags.mediator is None:
        raise ValueError(
            "the bags have no mediator, so nothing links them to the observations. Give one to "
            "Bags.from_points(..., mediator=y), or use BaggGP, which needs none, on matched data."
        )
    if mediator is None:
        if m != bags.n_bags:
            raise ValueError(
                f"{m} observations came for {bags.n_bags} bags and no mediator for them. "
                "Unmatched observations need fit(..., mediator=y_tilde)."
            )
        mediator = bags.mediator
    y = mediators(mediator, bags.mediator.shape[1])
    if len(y) != m:
        raise ValueError(f"{m} observations came with {len(y)} mediators.")
    return y


def own_bags(own_bag: npt.ArrayLike | None, m: int, n_bags: int) -> np.ndarray | None:
    """The bag of every observation, -1 for none; None where no observation has one."""
    if own_bag is None:
        return None
    array = np.asarray(own_bag)
    if array.shape != (m,) or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"own_bag must hold one whole number for each of the {m} observations: the index of "
            "its bag, or -1."
        )
    if array.min() < -1 or array.max() >= n_bags:
        raise ValueError(f"own_bag names a bag outside 0 to {n_bags - 1}; -1 stands for no bag.")
    return None if (array < 0).all() else array


def query_points(x: npt.ArrayLike, d: int) -> np.ndarray:
    """Points of d covariates to predict at."""
    needed = f"the model was fitted on {d} covariates; predict needs points by {d} covariates"
    return rows_of(x, d, "query point", needed, "Drop such points first.")


def known_covariance(
    m: int, noise_std: npt.ArrayLike | None, noise_cov: npt.ArrayLike | None
) -> np.ndarray:
    """The covariance of m observations' errors that the user knows; a vector if diagonal."""
    known = np.zeros(m)
    if noise_std is not None:
        std = numbers(noise_std, "noise_std")
        if std.shape not in ((), (m,)) or not (np.isfinite(std) & (std >= 0)).all():
            raise ValueError(
                "noise_std must hold one finite, not negative standard deviation for each of "
                f"the {m} observations; its shape is {std.shape}."
            )
        known += np.broadcast_to(std, (m,)) ** 2
    if noise_cov is not None:
        known = np.diag(known) + _covariance(numbers(noise_cov, "noise_cov"), m)
    return known


def _covariance(cov: np.ndarray, m: int) -> np.ndarray:
    if cov.shape != (m, m) or not np.isfinite(cov).all():
        raise ValueError(f"noise_cov must be a finite {m} x {m} matrix; its shape is {cov.shape}.")
    largest = np.abs(cov).max()
    if np.abs(cov - cov.T).max() > 1e-8 * largest:
        raise ValueError("noise_cov is not symmetric, so it is not a covariance.")
    if np.linalg.eigvalsh(cov).min() < -1e-8 * largest:
        raise ValueError("noise_cov has negative eigenvalues, so it is not a covariance.")
    return 0.5 * (cov + cov.T)
