"""Importing this module turns on JAX's 64-bit mode, which the small dense algebra needs."""

import jax

jax.config.update("jax_enable_x64", True)
