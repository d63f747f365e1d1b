"""Print the peak resident memory, in bytes, of a CMP evaluation, gradient and prediction.

Run as ``python -m benchmarks.peak_memory POINTS``: peak memory is a property of a
whole process, so it needs one of its own.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems import problem_of
from benchmarks.timing import peak_bytes
from deconditional.datasets import swiss_roll
from deconditional.fitting.map import loss_and_gradient
from deconditional.models import CMP


def main(points: int) -> int:
    """Evaluate, differentiate, predict; then report."""
    data = swiss_roll(n_points=points, n_bags=200)
    model = CMP()
    problem = problem_of(model, data.bags, data.z, data.mediator)
    vector = jnp.asarray(problem.parameters.start())
    jax.block_until_ready(loss_and_gradient(problem, vector))
    _, field = problem.solve(vector)
    for start in range(0, points, 4096):
        jax.block_until_ready(field.moments(jnp.asarray(np.resize(data.x[start:], (4096, 3)))))
    print(peak_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
