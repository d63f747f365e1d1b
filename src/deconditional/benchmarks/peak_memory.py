"""Print the peak resident memory, in bytes, of a CMP evaluation, gradient and prediction.

Run as ``python -m deconditional.benchmarks.peak_memory POINTS``: peak memory is a property of a
whole process, so it needs one of its own.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from deconditional.datasets import swiss_roll
from deconditional.fit import _loss_and_gradient
from deconditional.models import CMP


def main(points: int) -> int:
    """Evaluate, differentiate, predict; then report."""
    data = swiss_roll(n_points=points, n_bags=200)
    model = CMP()
    problem = model._problem(data.bags, data.z, data.mediator, None, None)
    vector = jnp.asarray(problem.parameters.start())
    jax.block_until_ready(_loss_and_gradient(problem, vector))
    _, field = problem.solve(vector)
    for start in range(0, points, 4096):
        jax.block_until_ready(field.moments(jnp.asarray(np.resize(data.x[start:], (4096, 3)))))
    print(_peak_bytes())
    return 0


def _peak_bytes() -> int:
    """Linux counts the parent's memory into ru_maxrss of a new process, but not into VmHWM."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    except (OSError, StopIteration):
        unit = 1024 if sys.platform.startswith("linux") else 1
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
