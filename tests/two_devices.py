"""Run by test_sharding in a process of its own, with two virtual devices; prints a number.

It is how far products of a sum over devices are off, of many points in optimised code: jaxlib
0.10.2 had the first 48 rows wrong where nothing kept the two apart.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from deconditional import bag_cross
from deconditional.fields.default_kernels import Inputs, field_kernel
from deconditional.kernels.devices import spread
from deconditional.kernels.layout import layout_bags

assert len(jax.devices()) == 2, jax.devices()

rng = np.random.default_rng(0)
points, bag = rng.normal(size=(468 * 24, 7)), np.repeat(np.arange(468), 24)
layout, _ = layout_bags(points, bag, np.full(len(bag), 1 / 24), 468)
by, x = jnp.asarray(rng.normal(size=(468, 468))), jnp.asarray(rng.normal(size=(4096, 7)))
kernel = field_kernel(Inputs(3, 3, 1))
cross = np.asarray(eqx.filter_jit(bag_cross)(kernel, x, layout))


@eqx.filter_jit
def multiplied(kernel, x, bags, by):
    return bag_cross(kernel, x, bags, dtype=by.dtype).astype(by.dtype) @ by


def off(dtype):
    product = multiplied(kernel, x, spread(layout), by.astype(dtype))
    return float(np.abs(np.asarray(product) - cross @ np.asarray(by)).max())


assert off(jnp.float32) < 1e-3
print(off(jnp.float64))
