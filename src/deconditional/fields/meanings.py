"""What the learnt parameters of a downscaling mean, in the units of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gpjax.kernels.base import ProductKernel

from deconditional.fields.frames import EARTH_RADIUS
from deconditional.fields.learn import STAGED, final_stage
from deconditional.fields.problem import Problem
from deconditional.fields.scaling import InputScaling, TargetScaling
from deconditional.models import CMP, MediatedGP

SHAPES = {"Matern32": "smooth", "Matern12": "rough", "Matern52": "very smooth", "RBF": "Gaussian"}
NOISES = {
    "noise_std": "the noise of coarse observations",
    "fine_noise_std": "the noise of single fine cells",
    "measurement_noise_std": "what measured means over coarse cells miss beside the regression",
}


def meanings_of(model: Any, problem: Problem) -> list[dict[str, Any]]:
    """Name, value, unit and meaning of every parameter of a fitted model."""
    learnt, kernels = {}, {}
    if isinstance(model, STAGED):
        first = model.regressor_
        for key, value in first.parameters_.items():
            learnt[f"mediator_{key}" if key.startswith("kernel") else f"mediator.{key}"] = value
        kernels["mediator_kernel"] = first.kernel_
    last = final_stage(model)
    learnt.update(last.parameters_)
    if isinstance(last, MediatedGP):
        learnt["measurement_noise_std"] = learnt.pop("noise_std")
    kernels["kernel"] = last.kernel_
    if isinstance(last, CMP):
        kernels["mediator_kernel"] = last.mediator_kernel_
    pairing = problem.pairing
    inputs = {
        "kernel": (problem.inputs, pairing.question.inputs),
        "mediator_kernel": (problem.mediators, pairing.question.mediators),
    }
    n_places = pairing.n_position, pairing.n_time
    units = Units(inputs, n_places, pairing.coarse.spherical, problem.target, problem.units)
    return units.meanings(learnt, kernels)


@dataclass(frozen=True)
class Units:
    """Units of what models learn from.

    Attributes
    ----------
    inputs
        For ``kernel`` and ``mediator_kernel``: scaling and names of inputs beyond position and
        time.
    n_places, spherical
        How many inputs are position and how many time, and whether they lie on the sphere.
    target, units
        Scaling and units of the target.
    """

    inputs: Mapping[str, tuple[InputScaling, Sequence[str]]]
    n_places: tuple[int, int]
    spherical: bool
    target: TargetScaling
    units: str

    @property
    def of_process(self) -> str:
        """Units of the target, or of its logarithm."""
        return f"log {self.units}".strip() if self.target.log else self.units

    def meanings(
        self, parameters: Mapping[str, Any], kernels: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Name, value, unit and meaning of learnt parameters, beside the fitted kernels."""
        out = []
        unit = self.of_process
        for name, value in parameters.items():
            array = np.asarray(value, dtype=float)
            family, _, rest = name.partition(".")
            source = family.removeprefix("source")
            of_source = f" of source {int(source) + 1}" if source.isdigit() else ""
            if (own := rest if of_source else name.removeprefix("mediator.")) in NOISES:
                what = NOISES[own] + of_source
                stage = "mediation: " if family == "mediator" else ""
                row = (array * self.target.scale, unit, f"{stage}standard deviation of {what}")
            elif family in kernels and rest.endswith(("lengthscale", "variance")):
                row = self._of_kernel(array, rest, kernels[family], family)
                if family == "mediator_kernel":
                    text = f"mediation: {row[2].replace('covariates', 'mediators')}"
                    # An operator leaves the scale of its kernel to the ridge, a regression none.
                    relative = "ridge" in parameters and rest.endswith("variance")
                    row = (array, "1", f"{text} (relative)") if relative else (row[0], row[1], text)
            elif name == "ridge":
                row = (array, "1", "regularisation of the link between mediators and bags")
            elif family not in kernels:
                row = (array, "", f"parameter of how observations scatter{of_source}")
            else:
                row = (array, "", "parameter of a kernel of your own, in standardised inputs")
            if rest.endswith("variance") and family in kernels and row[1] == unit:
                name = f"{name.removesuffix('variance')}std"
            shown = np.round(np.asarray(row[0], dtype=float), 6)
            out.append({"name": name, "value": shown.tolist(), "unit": row[1], "meaning": row[2]})
        return out

    def _of_kernel(
        self, value: np.ndarray, rest: str, kernel: Any, family: str
    ) -> tuple[np.ndarray, str, str]:
        scaling, names = self.inputs[family]
        n_places, spherical = self.n_places, self.spherical
        *path, _ = rest.split(".")
        part, factors = kernel, []
        for index in path:
            if isinstance(part, ProductKernel):
                factors = part.kernels
            part = part.kernels[int(index)]
        what = _seen(part, n_places)
        kind = SHAPES.get(type(part).__name__, type(part).__name__)
        if rest.endswith("variance"):
            every = " and ".join(dict.fromkeys(_seen(each, n_places) for each in factors or [part]))
            text = f"spread of the {kind} part in {every}"
            return np.sqrt(value) * self.target.scale, self.of_process, text
        if what == "position":
            scale = EARTH_RADIUS / 1000.0 if spherical else float(scaling.scale[0]) / 1000.0
            along = ", east, north and up" if spherical else ", along y and x"
            text = f"length scale of the {kind} part in position{along if value.ndim else ''}"
            return value * scale, "km", text
        if what == "time":
            scale = float(scaling.scale[n_places[0]])
            return value * scale, "years", f"length scale of the {kind} part in time"
        if what == "season":
            return value, "radii of the year's circle", f"length scale of the {kind} part in season"
        if what == "covariates":
            chosen = [names[d - sum(n_places)] for d in part.active_dims]
            text = f"length scales of the {kind} part in {', '.join(chosen)}"
            if value.ndim:
                return value * scaling.scale[part.active_dims], "units of each", text
            return value, "standard deviations", text
        return value, "standard deviations", f"length scale of the {kind} part"


def _seen(part: Any, n_places: tuple[int, int]) -> str:
    """What the inputs of a part of a kernel are, in a word."""
    dims = part.active_dims if isinstance(part.active_dims, list) else None
    if dims is None:
        return "inputs"
    ends = np.cumsum([n_places[0], min(n_places[1], 1), max(n_places[1] - 1, 0)])
    kinds = {("position", "time", "season", "covariates")[k] for k in np.digitize(dims, ends)}
    return kinds.pop() if len(kinds) == 1 else "inputs"
