"""A fit in a process of its own, to be killed: ``python checkpointed_run.py KIND FOLDER PAUSE``.

It keeps ``fit.checkpoint`` in the folder and goes on from it if it is there, adds a line to ``log``
for every step of the optimiser or sampler that it takes, waits for PAUSE seconds after each, and
leaves ``result.npz`` in the end.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import gpjax.kernels as gk
import jax
import numpy as np

import deconditional as dc
from deconditional.fitting.progress import Step, listening
from deconditional.saving import resume as checkpoints

INTERVAL = 0.5
KINDS = ("map", "nuts", "climb")


def sine(n: int = 60, seed: int = 0) -> tuple[dc.Bags, np.ndarray]:
    """Noisy values of a sine at single points."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 10, n))
    return dc.Bags.from_points(x, np.arange(n) // 2), np.sin(x)[::2] + 0.2 * rng.normal(size=n // 2)


def model_of(kind: str) -> dc.BaggGP:
    """The model of a kind of fit."""
    if kind == "nuts":
        options = {"num_warmup": 40, "num_samples": 40, "num_chains": 2, "max_tree_depth": 5}
        return dc.BaggGP(gk.RBF(), n_restarts=1, method="nuts", method_options=options)
    if kind == "climb":
        steps = {"batch_size": 8, "max_steps": 160, "patience": 30}
        return dc.VBagg(
            gk.RBF(), n_inducing=8, n_restarts=2, inference="stochastic", inference_options=steps
        )
    return dc.BaggGP(gk.RBF(), n_restarts=4)


def main(kind: str, folder: Path, pause: float) -> None:
    """Fit, and write down what happens."""
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_compilation_cache_dir", str(folder.parent / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    checkpoints.SHARE = 1.0  # the interval is what is tested
    with (folder / "log").open("a") as log:

        def noted(step: Step) -> None:
            log.write(f"{time.time():.6f} {step.what} {step.done}\n")
            log.flush()
            time.sleep(pause)

        kept = dc.Checkpoint(folder / "fit.checkpoint", interval=INTERVAL)
        with listening(noted):
            model = model_of(kind).fit(*sine(), checkpoint=kept)
        log.write(f"{time.time():.6f} ended 0\n")
    report = model.fit_report_
    about = {
        "converged": report.converged,
        "log_posterior": report.log_posterior,
        "evaluations": report.evaluations,
        "notes": report.notes,
        "resumed": report.details.get("resumed", ""),
    }
    part = folder / "part.npz"
    np.savez(
        part,
        vectors=model.fitted_.vectors,
        mean=model.predict([[1.5]]).mean,
        about=json.dumps(about),
    )
    part.rename(folder / "result.npz")


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore", dc.FitWarning)
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
