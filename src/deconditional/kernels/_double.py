"""Importing this module sets up JAX's arithmetic, once, for everything that computes.

The small dense algebra needs 64-bit mode. Products of float32 matrices must keep all their digits:
an accelerator may round their factors to ten bits unless told otherwise. A user's own choice of
``jax_default_matmul_precision`` stays.
"""

import jax

jax.config.update("jax_enable_x64", True)
if jax.config.jax_default_matmul_precision is None:  # type: ignore[attr-defined]
    jax.config.update("jax_default_matmul_precision", "highest")
