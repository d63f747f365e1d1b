"""Learning parameters of any problem with a log posterior: priors, L-BFGS, NUTS, draws."""

import deconditional.kernels  # noqa: F401  before GPJax starts JAX
