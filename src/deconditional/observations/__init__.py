"""What observations see of the bag means: the matrix W and the noise S of z = Wᵀf̄ + e."""

import deconditional.kernels  # noqa: F401  before GPJax starts JAX
