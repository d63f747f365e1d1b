"""What a fit tells about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class FitReport:
    """How a fit went.

    Attributes
    ----------
    method
        ``"map"``, ``"draws"`` or ``"nuts"``.
    converged
        Whether the optimiser met its tolerance (for NUTS: no divergence and R-hat below 1.05).
    iterations, evaluations
        Of the best restart, and of all restarts together.
    log_evidence, log_posterior
        At the parameters reported.
    at_bounds
        Entries of the parameter vector that ended on a bound.
    restarts
        Log posterior reached by each restart, best first.
    seconds
        Wall time, compilation included; `compile_seconds` is the first evaluation alone.
    parameters
        The values found (medians of the draws, where there are several).
    details
        How the posterior was computed: inference, precision, inducing points and the like.
    notes
        What a user should know, each with its remedy.
    """

    method: str
    converged: bool
    iterations: int
    evaluations: int
    log_evidence: float
    log_posterior: float
    at_bounds: tuple[str, ...]
    restarts: tuple[float, ...]
    seconds: float
    compile_seconds: float
    parameters: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        state = "converged" if self.converged else "did NOT converge"
        lines = [
            f"{self.method} fit {state} in {self.iterations} iterations, "
            f"{self.evaluations} evaluations over {len(self.restarts)} restart(s), "
            f"{self.seconds:.1f} s ({self.compile_seconds:.1f} s of it compiling)",
            f"log evidence {self.log_evidence:.3f}, log posterior {self.log_posterior:.3f}",
        ]
        for name, value in self.parameters.items():
            shown = np.array2string(np.asarray(value), precision=4, threshold=8)
            lines.append(f"  {name} = {shown}")
        if self.details:
            lines.append("; ".join(f"{name}: {value}" for name, value in self.details.items()))
        if self.at_bounds:
            lines.append(f"at bounds: {', '.join(self.at_bounds)}")
        return "\n".join(lines + [f"note: {note}" for note in self.notes])
