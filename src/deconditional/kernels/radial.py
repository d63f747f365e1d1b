r"""Kernels as sums of products of radial profiles of scaled inputs.

The fast path of :mod:`deconditional.kernels.sweeps` understands kernels of the form

.. math:: k(x, x') = \sum_t \sigma_t^2 \prod_f \varphi_{tf}(\lVert u_{tf}(x) - u_{tf}(x')\rVert^2),

where :math:`u(x)` selects the active dimensions, divides them by the length scales and, for a
:class:`DeepKernel`, passes them through a network first. Sums and products of GPJax's
stationary kernels are brought to that form by :func:`sum_of_products`; a term with a factor of
another kind comes back as a :class:`GenericTerm` and is evaluated point by point.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from gpjax.kernels.base import AbstractKernel, Constant, ProductKernel, SumKernel
from gpjax.parameters import val
from jaxtyping import Array, Float, Key

import deconditional.kernels.jax_setup  # noqa: F401


@dataclass(frozen=True)
class Profile:
    r"""A radial profile :math:`\varphi(s)` of the squared scaled distance `s`, with derivatives."""

    name: str
    value: Callable[[Array, Array], Array]  # φ(s; a)
    # rate, decline: a constant and a function of the same whose product is ∂φ/∂s. The constant
    # waits until tiles are summed; where a profile is its own decline, one tile serves both.
    rate: float
    decline: Callable[[Array, Array], Array]
    # Draws from the spectral measure in one dimension's scaled units: `(key, m, d, a) -> (m, d)`.
    frequencies: Callable[[Key[Array, ""], int, int, Array], Array]
    # ∂φ/∂a for profiles with a shape parameter `a`, else None.
    shape_slope: Callable[[Array, Array], Array] | None = None
    # True where the profile is not smooth at s = 0, so that rounding of s near zero matters.
    rough: bool = True
    # Log density of that measure up to a constant, by squared lengths of frequencies and d; None
    # where it is not known in closed form.
    log_spectrum: Callable[[np.ndarray, int], np.ndarray] | None = None

    def slope(self, s: Array, shape: Array) -> Array:
        r""":math:`\partial\varphi/\partial s`."""
        return self.rate * self.decline(s, shape)


def _matern_spectrum(degrees: int) -> Callable[[np.ndarray, int], np.ndarray]:
    """Spectral density of a Matérn kernel: that Student t density."""
    return lambda squared, d: -0.5 * (degrees + d) * np.log1p(squared / degrees)


def _matern_frequencies(degrees: int) -> Callable[[Key[Array, ""], int, int, Array], Array]:
    """A multivariate Student t with 2ν degrees of freedom is the spectral measure of a Matérn-ν."""

    def draw(key: Key[Array, ""], m: int, d: int, _: Array) -> Array:
        normal, gamma = jr.split(key)
        mixing = jr.chisquare(gamma, degrees, (m, 1)) / degrees
        return jr.normal(normal, (m, d)) / jnp.sqrt(mixing)

    return draw


def _rational_quadratic_frequencies(key: Key[Array, ""], m: int, d: int, alpha: Array) -> Array:
    """A rational quadratic is a Gamma(α, α) mixture of Gaussians over the inverse squared scale."""
    normal, gamma = jr.split(key)
    return jr.normal(normal, (m, d)) * jnp.sqrt(jr.gamma(gamma, alpha, (m, 1)) / alpha)


def _gaussian(s: Array, _: Array) -> Array:
    return jnp.exp(-0.5 * s)


def _matern12_decline(s: Array, _: Array) -> Array:
    r = jnp.sqrt(s)
    return jnp.where(s > 0, jnp.exp(-r) / jnp.where(s > 0, r, 1.0), 0.0)


def _matern32(s: Array, _: Array) -> Array:
    r = jnp.sqrt(3.0 * s)
    return (1.0 + r) * jnp.exp(-r)


def _matern52(s: Array, _: Array) -> Array:
    r = jnp.sqrt(5.0 * s)
    return (1.0 + r + (5.0 / 3.0) * s) * jnp.exp(-r)


def _matern52_decline(s: Array, _: Array) -> Array:
    r = jnp.sqrt(5.0 * s)
    return (1.0 + r) * jnp.exp(-r)


def _rational_quadratic_shape_slope(s: Array, alpha: Array) -> Array:
    base = 1.0 + 0.5 * s / alpha
    return base**-alpha * (0.5 * s / (alpha * base) - jnp.log(base))


PROFILES: dict[type, Profile] = {
    gk.RBF: Profile(
        "gaussian",
        value=_gaussian,
        rate=-0.5,
        decline=_gaussian,
        frequencies=lambda key, m, d, _: jr.normal(key, (m, d)),
        rough=False,
        log_spectrum=lambda squared, d: -0.5 * squared,
    ),
    gk.Matern12: Profile(
        "matern-1/2",
        value=lambda s, _: jnp.exp(-jnp.sqrt(s)),
        rate=-0.5,
        decline=_matern12_decline,
        frequencies=_matern_frequencies(1),
        log_spectrum=_matern_spectrum(1),
    ),
    gk.Matern32: Profile(
        "matern-3/2",
        value=_matern32,
        rate=-1.5,
        decline=lambda s, _: jnp.exp(-jnp.sqrt(3.0 * s)),
        frequencies=_matern_frequencies(3),
        log_spectrum=_matern_spectrum(3),
    ),
    gk.Matern52: Profile(
        "matern-5/2",
        value=_matern52,
        rate=-5.0 / 6.0,
        decline=_matern52_decline,
        frequencies=_matern_frequencies(5),
        log_spectrum=_matern_spectrum(5),
    ),
    gk.RationalQuadratic: Profile(
        "rational quadratic",
        value=lambda s, a: (1.0 + 0.5 * s / a) ** -a,
        rate=-0.5,
        decline=lambda s, a: (1.0 + 0.5 * s / a) ** (-a - 1.0),
        frequencies=_rational_quadratic_frequencies,
        shape_slope=_rational_quadratic_shape_slope,
        rough=False,
    ),
}


class DeepKernel(AbstractKernel):
    """A base kernel on learned features: ``k(x, x') = base(network(x), network(x'))``.

    The network maps one input vector to one feature vector, as Equinox's modules do. It is
    evaluated once per point, not once per pair, and its weights are learnt with the rest.

    Examples
    --------
    >>> import equinox as eqx, jax, gpjax as gpx
    >>> from deconditional import DeepKernel
    >>> network = eqx.nn.MLP(
    ...     3, 2, width_size=8, depth=1, activation=jax.nn.tanh, key=jax.random.key(0)
    ... )
    >>> kernel = DeepKernel(gpx.kernels.RBF(lengthscale=[1.0, 1.0]), network)
    """

    base: AbstractKernel
    network: Any

    def __init__(
        self,
        base: AbstractKernel,
        network: Any,
        active_dims: list[int] | slice | None = None,
    ):
        self.base = base
        self.network = network
        super().__init__(active_dims=active_dims)

    def features(self, x: Float[Array, "n d"]) -> Float[Array, "n q"]:
        """The network's output at every row of x."""
        return jax.vmap(self.network)(self.slice_input(x))

    def __call__(self, x: Float[Array, " d"], y: Float[Array, " d"]) -> Float[Array, ""]:
        """The kernel of one pair of points."""
        return self.base(self.features(x[None])[0], self.features(y[None])[0])


@dataclass(frozen=True)
class Factor:
    """One radial profile of a product, and the map from points to its inputs."""

    profile: Profile
    # From points to what is divided by length scales.
    inputs: Callable[[Float[Array, "n d"]], Float[Array, "n q"]]
    scale: Array  # one length scale, or one for every input
    shape: Array  # the profile's shape parameter; zero where it has none

    def scaled(self, x: Float[Array, "n d"]) -> Float[Array, "n q"]:
        """The scaled inputs u(x)."""
        return self.inputs(x) / self.scale


@dataclass(frozen=True)
class RadialTerm:
    """A variance times a product of radial profiles."""

    variance: Array
    factors: tuple[Factor, ...]


@dataclass(frozen=True)
class GenericTerm:
    """A kernel without a radial form: evaluated point by point."""

    kernel: AbstractKernel


Term = RadialTerm | GenericTerm


def sum_of_products(kernel: AbstractKernel) -> list[Term]:
    """Expand a kernel into terms; products distribute over sums.

    Examples
    --------
    >>> import gpjax as gpx
    >>> rough, smooth, other = (
    ...     gpx.kernels.Matern32(active_dims=[0]),
    ...     gpx.kernels.RBF(active_dims=[1]),
    ...     gpx.kernels.RBF(active_dims=[2]),
    ... )
    >>> k = (rough + smooth) * other
    >>> [[f.profile.name for f in term.factors] for term in sum_of_products(k)]
    [['matern-3/2', 'gaussian'], ['gaussian', 'gaussian']]
    """
    if isinstance(kernel, SumKernel):
        return [term for child in kernel.kernels for term in sum_of_products(child)]
    if isinstance(kernel, ProductKernel):
        expanded = [sum_of_products(child) for child in kernel.kernels]
        if any(isinstance(term, GenericTerm) for terms in expanded for term in terms):
            return [GenericTerm(kernel)]
        return [_product(combination) for combination in itertools.product(*expanded)]
    if isinstance(kernel, Constant):
        return [RadialTerm(jnp.squeeze(val(kernel.constant)), ())]
    if isinstance(kernel, DeepKernel):
        return _through_network(kernel)
    if type(kernel) in PROFILES:
        return [_single_factor(kernel)]
    return [GenericTerm(kernel)]


def _product(terms: tuple[Any, ...]) -> RadialTerm:
    variance = jnp.asarray(1.0)
    for term in terms:
        variance = variance * term.variance
    return RadialTerm(variance, tuple(f for term in terms for f in term.factors))


def _single_factor(kernel: Any) -> RadialTerm:
    shape = jnp.asarray(val(kernel.alpha) if isinstance(kernel, gk.RationalQuadratic) else 0.0)
    scale = jnp.asarray(val(kernel.lengthscale))
    factor = Factor(PROFILES[type(kernel)], kernel.slice_input, scale, shape)
    return RadialTerm(jnp.squeeze(val(kernel.variance)), (factor,))


def _through_network(kernel: DeepKernel) -> list[Term]:
    terms = sum_of_products(kernel.base)
    if any(isinstance(term, GenericTerm) for term in terms):
        return [GenericTerm(kernel)]

    def compose(factor: Factor) -> Factor:
        return replace(factor, inputs=lambda x: factor.inputs(kernel.features(x)))

    return [
        RadialTerm(term.variance, tuple(compose(f) for f in term.factors))
        for term in terms
        if isinstance(term, RadialTerm)
    ]


def prior_variance(kernel: AbstractKernel, x: Float[Array, "n d"]) -> Float[Array, " n"]:
    """k(x, x) at every row of x, without forming a matrix."""
    total = jnp.zeros(x.shape[0], x.dtype)
    for term in sum_of_products(kernel):
        if isinstance(term, RadialTerm):
            total = total + term.variance
        else:
            total = total + jax.vmap(lambda p, k=term.kernel: k(p, p))(x)
    return total


def radial_terms(kernel: AbstractKernel) -> list[RadialTerm]:
    """The terms of a kernel that has a spectral measure; a ``TypeError`` for others."""
    terms = sum_of_products(kernel)
    radial = [term for term in terms if isinstance(term, RadialTerm)]
    if len(radial) < len(terms):
        raise TypeError(
            "random Fourier features need a sum or product of Gaussian, Matérn and rational "
            f"quadratic kernels; {type(kernel).__name__} has no known spectral measure."
        )
    return radial


def wave_features(
    term: RadialTerm, omegas: Sequence[Array], x: Array, size: int, dtype: Any
) -> Array:
    """Cosines, then sines, of `size` frequencies at every row of x, (m, 2 size)."""
    kind = dtype or x.dtype
    phase = jnp.zeros((x.shape[0], size), kind)
    for factor, omega in zip(term.factors, omegas, strict=True):
        phase = phase + factor.scaled(x).astype(kind) @ omega.T.astype(kind)
    return jnp.concatenate([jnp.cos(phase), jnp.sin(phase)], axis=1)


def spectral_features(
    kernel: AbstractKernel,
    n_features: int,  # cosines and sines together
    key: Key[Array, ""],
    d: int,  # inputs of the kernel
    dtype: Any = None,  # of phases, cosines and sines; that of the points by default
) -> Callable[[Float[Array, "n d"]], Float[Array, "n features"]]:
    r"""Random Fourier features :math:`\phi` with :math:`E[\phi(x)^\top\phi(x')] = k(x, x')`.

    The spectral measure of a product of kernels is the convolution of their measures, so one
    frequency of a term is drawn per factor and the phases add up. `n_features` is spread over
    the terms of a sum. Kernels without a radial form raise a ``TypeError``.
    """
    terms = radial_terms(kernel)
    pairs = max(1, n_features // (2 * len(terms)))
    keys = jr.split(key, len(terms))
    point = jax.ShapeDtypeStruct((1, d), float)

    def draw(factor: Factor, factor_key: Key[Array, ""]) -> Array:
        size = jax.eval_shape(factor.scaled, point).shape[1]
        return factor.profile.frequencies(factor_key, pairs, size, factor.shape)

    frequencies = [
        [draw(factor, jr.fold_in(keys[t], f)) for f, factor in enumerate(term.factors)]
        for t, term in enumerate(terms)
    ]

    def features(x: Array) -> Array:
        blocks = []
        for term, draws in zip(terms, frequencies, strict=True):
            waves = wave_features(term, draws, x, pairs, dtype)
            blocks.append(jnp.sqrt(term.variance / pairs).astype(waves.dtype) * waves)
        return jnp.concatenate(blocks, axis=1)

    return features
