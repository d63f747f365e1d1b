"""From checked data, an observation model and options to what a problem is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel

from deconditional.fitting.kernel_parameters import KernelTemplate, kernel_template
from deconditional.fitting.parameters import ParameterSet, positive
from deconditional.fitting.priors import Prior, SplitLogNormal
from deconditional.inference.field import Trend, trend_means
from deconditional.inference.problem import BagProblem
from deconditional.models.checks import check_kernel
from deconditional.models.data import Data
from deconditional.models.options import BagOptions
from deconditional.observations.kinds import Mediated, Observation, ridge_shape

FLOAT32_FROM = 3_000
"""Points from which precision="auto" makes kernel tiles in float32."""

LengthScalePrior = Callable[[np.ndarray], Prior]


def problem_parts(
    data: Data,
    mediation: Observation,
    options: BagOptions,
    *,
    typical_z: np.ndarray | None = None,  # whose spread sets the priors of variances
    length_scale_prior: LengthScalePrior = SplitLogNormal,  # by its mode
    variance_prior: Callable[[np.ndarray], Prior] | None = None,  # of a kernel that is no sum
) -> dict[str, Any]:
    """What a problem of any inference is made of."""
    bags, z = data.bags, data.z
    typical = z if typical_z is None else typical_z
    variance = spread(typical) ** 2 or float(np.mean(typical**2)) or 1.0
    template = field_kernel(
        options.kernel, data.reach, variance, length_scale_prior=length_scale_prior
    )
    parameters = [*template.parameters, *mediation.parameters]
    if data.learn_noise:
        parameters.append(positive("noise_std", 0.2 * np.sqrt(variance), 1.0, reach=6.0))
    if options.fine_noise:
        parameters.append(positive("fine_noise_std", 0.3 * np.sqrt(variance), 1.0, reach=6.0))
    trend, overlap = prior_trend(options.trend, bags.points, z), None
    if options.fine_noise:  # what unit noise of single fine values gives to bag means
        overlap = jnp.asarray(bags.overlap() if bags.share_points else 1.0 / bags.effective_sizes)
    many = options.precision == "auto" and bags.n_points >= FLOAT32_FROM
    priors = dict(options.priors or {})
    if variance_prior and "kernel.variance" not in priors:
        whole = [p for p in template.parameters if p.name == "kernel.variance"]
        priors |= {p.name: variance_prior(p.start) for p in whole}
    return {
        "layout": bags.layout,
        "overlap": overlap,
        "z": jnp.asarray(z),
        "known_noise": jnp.asarray(data.known_noise),
        "trend": trend,
        "trend_means": trend_means(trend, bags),
        "kernel": template,
        "mediation": mediation,
        "parameters": ParameterSet.of(parameters, options.fixed, priors),
        "dtype": jnp.float32 if many or options.precision == "float32" else jnp.float64,
    }


def field_kernel(
    kernel: AbstractKernel | None,
    points: np.ndarray,
    variance: float,
    length_scale_prior: LengthScalePrior = SplitLogNormal,
) -> KernelTemplate:
    """The kernel of a field, with priors by points; a Gaussian unless the user has another."""
    if kernel is None:
        kernel = with_length_scales(gk.RBF, points.shape[1])
    check_kernel("kernel", kernel, points)
    return kernel_template(
        kernel, "kernel", points, variance, length_scale_prior=length_scale_prior
    )


def mediated(data: Data, options: Any) -> Mediated:
    """Observations that reach the bags through a conditional mean operator of the mediators.

    `options` are :class:`~deconditional.models.options.MediationOptions`.
    """
    bags, y = data.bags, data.mediator
    assert bags.mediator is not None and y is not None
    shape = ridge_shape(options.cmo, bags.effective_sizes)
    kernel = options.mediator_kernel
    if kernel is None:
        family = gk.Matern12 if options.uncertainty else gk.RBF
        kernel = with_length_scales(family, y.shape[1])
    check_kernel("mediator_kernel", kernel, bags.mediator)
    both = np.concatenate([bags.mediator, y])
    return Mediated(
        kernel=kernel_template(kernel, "mediator_kernel", both, 1.0, unit_variance=True),
        bag_mediator=jnp.asarray(bags.mediator),
        observed_mediator=jnp.asarray(y),
        ridge_shape=jnp.asarray(shape),
        own_bag=None if data.own_bag is None else jnp.asarray(data.own_bag),
        centred=options.centred,
        uncertainty=options.uncertainty,
    )


def own_starts(problem: BagProblem, options: Any) -> tuple[np.ndarray, ...]:
    """A user's kernel is a start of its own, beside the data-driven one."""
    own: dict[str, Any] = {p.name: p.start for p in problem.parameters.learnt}
    if options.kernel is not None:
        own.update(problem.kernel.own_values())
    if isinstance(problem.mediation, Mediated) and options.mediator_kernel is not None:
        own.update(problem.mediation.kernel.own_values())
    start = np.asarray(problem.parameters.pack(own))
    if np.array_equal(start, problem.parameters.start()) or not np.isfinite(start).all():
        return ()
    return (start,)


@eqx.filter_jit  # compiled as one, not operation by operation
def with_length_scales(family: Any, d: int) -> AbstractKernel:
    """A kernel with a length scale for each of d inputs."""
    return family(lengthscale=jnp.ones(d)) if d > 1 else family()


def spread(z: np.ndarray) -> float:
    """Standard deviation; zero where rounding alone tells equal observations apart."""
    found = float(np.std(z))
    return found if found > 1e-12 * float(np.abs(z).max()) else 0.0


def prior_trend(trend: str | Sequence[int], points: np.ndarray, z: np.ndarray) -> Trend:
    """The trend, with a prior that is vague but sane; linear in some covariates, or by its name.

    Any offset like those of z, slopes of a few spreads of z per spread of x. A slope that no coarse
    observation can see (a covariate whose bag means hardly vary) then stays near zero instead of
    following the noise.
    """
    offset = 10.0 * float(np.sqrt(np.mean(z**2))) or 1.0
    slope = 3.0 * spread(z) or offset
    d = points.shape[1]
    kind, columns = (trend, range(d)) if isinstance(trend, str) else ("linear", tuple(trend))
    if not all(0 <= column < d for column in columns):
        raise ValueError(f"trend names the covariates {columns}; there are {d}, counted from 0.")
    q = {"none": 0, "constant": 1, "linear": 1 + d}[kind]
    scale = np.where(np.ptp(points, axis=0) > 0, points.std(0), 1.0)
    sloped = np.isin(np.arange(d), columns).astype(float)
    prior_std = np.array([offset, *[slope] * d])[:q]
    return Trend(kind, *map(jnp.asarray, (points.mean(0), scale, sloped, prior_std)))
