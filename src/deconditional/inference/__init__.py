"""Objectives and posteriors, one module per kind of inference."""

import deconditional.kernels  # noqa: F401  before GPJax starts JAX
