"""Kernels as sums of products of radial profiles, and their fused averages over bags."""

import deconditional.kernels.jax_setup  # noqa: F401
