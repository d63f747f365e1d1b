"""Run by test_sharding in a process of its own, with two virtual devices; prints a number.

It is how far products of a sum over devices are off, of many points in optimised code: jaxlib
0.10.2 had the first 48 rows wrong where nothing kept the two apart. Predictions of a fit of as many
points, which hang on such products, must not depend on the order of what is asked for.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from deconditional import BaggGP, Bags, bag_cross
from deconditional.fields.default_kernels import Inputs, field_kernel
from deconditional.inference import exact
from deconditional.kernels.devices import spread
from deconditional.kernels.layout import layout_bags

assert len(jax.devices()) == 2, jax.devices()

rng = np.random.default_rng(0)
points, bag = rng.normal(size=(468 * 24, 7)), np.repeat(np.arange(468), 24)
layout, _ = layout_bags(points, bag, np.full(len(bag), 1 / 24), 468)
by, x = jnp.asarray(rng.normal(size=(468, 468))), jnp.asarray(rng.normal(size=(4096, 7)))
kernel = field_kernel(Inputs(3, 3, 1))
cross = np.asarray(eqx.filter_jit(bag_cross)(kernel, x, layout))
product = eqx.filter_jit(lambda k, x, bags, by: bag_cross(k, x, bags) @ by)(
    kernel, x, spread(layout), by
)

fit = BaggGP(kernel, n_restarts=1, max_iter=1).fit(Bags.from_points(points, bag), np.asarray(by[0]))
asked = rng.normal(size=(2 * 4096, 7))
for exact.MANY in (2**40, 0):  # in the precision of the fit, and quickly
    forward, backward = fit.predict(asked), fit.predict(asked[::-1])
    assert np.abs(forward.mean - backward.mean[::-1]).max() < 1e-3
    assert np.abs(forward.std - backward.std[::-1]).max() < 1e-3

print(float(np.abs(np.asarray(product) - cross @ np.asarray(by)).max()))
