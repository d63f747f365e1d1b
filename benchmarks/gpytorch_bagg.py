"""A Bagg-GP as a user of GPyTorch would write it: the opponent of ``against-gpytorch``.

An exact GP whose inputs are bag numbers. Its kernel is the matrix of bag means P'KP, formed from
the n x n kernel matrix of all points; gradients come from autograd, everything is in double
precision. The constant mean is integrated out through a constant kernel, as in our model.

Run as ``python gpytorch_bagg.py PROBLEM.npz TRACE.json OPTIMISER STEPS PATIENCE ENOUGH THREADS``.
The problem holds `x`, `bag` and `z`, the variance of the constant, the start of the parameters, and
the name of the kernel. The trace has, for every evaluation of the objective with its gradient, the
seconds since the start of the fit, the log evidence and the parameters.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.constraints import Positive

OPTIMISERS = ("lbfgs", "adam")
HALF_INTEGERS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}


def positive() -> Positive:
    """Positive parameters through their logarithm, as ours are."""
    return Positive(transform=torch.exp, inv_transform=torch.log)


class BagMeanKernel(gpytorch.kernels.Kernel):
    """Covariance of the means of a field over bags of points."""

    def __init__(self, base: gpytorch.kernels.Kernel, x: torch.Tensor, bag: torch.Tensor):
        super().__init__()
        self.base = base
        self.x = x
        sizes = torch.bincount(bag)
        self.weights = torch.zeros(len(x), len(sizes), dtype=x.dtype)
        self.weights[torch.arange(len(x)), bag] = 1.0 / sizes[bag].to(x.dtype)

    def forward(
        self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, **params: Any
    ) -> torch.Tensor:
        """P'KP between the bags whose numbers are given."""
        between = self.weights.T @ (self.base(self.x).to_dense() @ self.weights)
        rows, columns = (x[..., 0].long() for x in (x1, x2))
        return between[rows, rows] if diag else between[rows][:, columns]


class BaggGP(gpytorch.models.ExactGP):
    """An exact GP on bag means."""

    def __init__(self, problem: dict[str, np.ndarray], likelihood: Any):
        x, z = (torch.as_tensor(problem[name]) for name in ("x", "z"))
        bag = torch.as_tensor(problem["bag"]).long()
        super().__init__(torch.arange(len(z), dtype=torch.double)[:, None], z, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        name = str(problem["kernel"])
        options = {"ard_num_dims": x.shape[1], "lengthscale_constraint": positive()}
        base = (
            gpytorch.kernels.RBFKernel(**options)
            if name == "gaussian"
            else gpytorch.kernels.MaternKernel(nu=HALF_INTEGERS[name], **options)
        )
        self.scaled = gpytorch.kernels.ScaleKernel(base, outputscale_constraint=positive())
        offset = gpytorch.kernels.ConstantKernel(constant_constraint=positive())
        self.covar_module = BagMeanKernel(self.scaled, x, bag) + offset
        self.double()
        base.lengthscale = torch.as_tensor(problem["lengthscale"])
        self.scaled.outputscale = float(problem["variance"])
        offset.constant = torch.as_tensor(problem["offset_variance"])
        offset.raw_constant.requires_grad_(False)
        likelihood.noise = float(problem["noise_variance"])

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The prior of the bag means."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def fit(
    problem: dict[str, np.ndarray],
    optimiser: str = "lbfgs",
    steps: int = 300,
    patience: int = 20,
    enough: float = math.inf,
) -> list[dict[str, Any]]:
    """Maximise the log evidence; every evaluation with its time.

    Ends after `steps` evaluations, when the log evidence is `enough`, or when the best of the last
    `patience` ones is not a thousandth of a nat better than what was known before them.
    """
    if optimiser not in OPTIMISERS:
        raise ValueError(f"optimiser must be one of {', '.join(OPTIMISERS)}, not {optimiser!r}.")
    began = time.perf_counter()
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=positive()).double()
    model = BaggGP(problem, likelihood)
    model.train()
    likelihood.train()
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    learnt = [p for p in model.parameters() if p.requires_grad]
    trace: list[dict[str, Any]] = []

    def evaluate() -> torch.Tensor:
        for parameter in learnt:
            parameter.grad = None
        now = {
            "lengthscale": model.scaled.base_kernel.lengthscale.detach().ravel().tolist(),
            "variance": float(model.scaled.outputscale.detach()),
            "noise_variance": float(likelihood.noise.detach()),
        }
        loss = -evidence(model(*model.train_inputs), model.train_targets)
        loss.backward()
        value = -float(loss.detach()) * len(model.train_targets)
        trace.append({"seconds": time.perf_counter() - began, "log_evidence": value, **now})
        return loss

    def stalled() -> bool:
        values = [step["log_evidence"] for step in trace]
        if len(values) >= steps or values[-1] >= enough or not math.isfinite(values[-1]):
            return True
        return len(values) > patience and max(values[-patience:]) < (max(values[:-patience]) + 1e-3)

    # Without this GPyTorch would switch to conjugate gradients for many bags; Cholesky is exact.
    with gpytorch.settings.fast_computations(False, False, False):
        if optimiser == "adam":
            adam = torch.optim.Adam(learnt, lr=0.1)
            while not trace or not stalled():
                evaluate()
                adam.step()
        else:
            # The loss is per observation, so the tolerance is that of the sum over its number.
            lbfgs = torch.optim.LBFGS(
                learnt,
                lr=1.0,
                max_iter=10,
                history_size=20,
                tolerance_grad=1e-7,
                tolerance_change=1e-9,
                line_search_fn="strong_wolfe",
            )
            while not trace or not stalled():
                before = len(trace)
                lbfgs.step(evaluate)
                if len(trace) - before <= 1:  # the optimiser itself sees no way to go on
                    break
    return trace


def peak_bytes() -> int:
    """Peak resident memory; on Linux, ru_maxrss of a new process would count its parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(given: list[str]) -> int:
    """Fit the problem of a file and write the trace."""
    problem_path, trace_path, optimiser, steps, patience, enough, threads = given
    torch.set_num_threads(int(threads))
    with np.load(problem_path) as stored:
        problem = {name: stored[name] for name in stored.files}
    trace = fit(problem, optimiser, int(steps), int(patience), float(enough))
    facts = {
        "optimiser": optimiser,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "gpytorch": gpytorch.__version__,
        "peak_bytes": peak_bytes(),
        "trace": trace,
    }
    Path(trace_path).write_text(json.dumps(facts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
