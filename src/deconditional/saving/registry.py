"""Names that a file may have for classes, functions and types: these tables and nothing else.

What a name stands for is imported when it is asked for, so that this package knows no model.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from inspect import signature
from typing import Any

import equinox as eqx

MODULES: dict[str, tuple[str, ...]] = {
    # models
    "deconditional.models": (
        *("BaggGP", "CMP", "CentroidGP", "MediatedGP", "PseudoTarget", "VBagg", "VarCMP"),
        "VarCentroidGP",
    ),
    # what they are made of
    "deconditional.bags": ("Bags",),
    "deconditional.fitting.map": ("Optimum",),
    "deconditional.fitting.nuts": ("Place",),
    "deconditional.fitting.report": ("FitReport",),
    "deconditional.fitting.kernel_parameters": ("KernelTemplate",),
    "deconditional.fitting.parameters": ("Interval", "Parameter", "ParameterSet"),
    "deconditional.fitting.priors": ("Alike", "Flat", "LogNormal", "Normal", "SplitLogNormal"),
    "deconditional.inference.basis": ("FourierBasis", "InducingBasis"),
    "deconditional.inference.basis_field": ("BasisField", "Coefficients"),
    "deconditional.inference.exact": ("ExactField", "ExactProblem", "Pieces", "SpreadPrior"),
    "deconditional.inference.laplace": ("FamilyProblem", "JointProblem", "Solution"),
    "deconditional.inference.newton": ("Unknowns",),
    "deconditional.inference.seen": ("Nearest", "Seen"),
    "deconditional.inference.learn": ("Fitted",),
    "deconditional.inference.moments": ("Conditioned",),
    "deconditional.observations.kinds": ("Matched", "Mediated"),
    "deconditional.observations.measurements": ("Measurements",),
    "deconditional.observations.counts": (
        *("BetaBinomial", "Binomial", "NegativeBinomial", "Poisson", "Tweedie"),
    ),
    "deconditional.observations.families": ("Normal", "OfLink"),
    "deconditional.inference.field": ("Trend",),
    "deconditional.inference.variational": (
        *("AllPairs", "BasisPieces", "Residual", "SampledPairs", "VariationalProblem"),
    ),
    "deconditional.kernels.layout": ("BagSampler", "Layout"),
    "deconditional.kernels.radial": ("DeepKernel",),
    "deconditional.kernels.tasks": ("TaskKernel",),
    "deconditional.kernels.repeats": ("Repeats",),
    "deconditional.kernels.within_bags": ("BagPairs",),
    # fields
    "deconditional.fields.downscaler": ("Downscaler",),
    "deconditional.fields.axes": ("Axis", "Lattice"),
    "deconditional.fields.frames": ("Frame",),
    "deconditional.fields.surface": ("Surface",),
    "deconditional.fields.zones.coverage": ("Rings",),
    "deconditional.fields.zones.grid": ("Zones",),
    "deconditional.fields.learn": ("Learner",),
    "deconditional.fields.mixture": ("Mixture",),
    "deconditional.fields.pair": ("Pairing",),
    "deconditional.fields.clock": ("Clock",),
    "deconditional.fields.problem": ("FitData", "Problem"),
    "deconditional.fields.question": ("Question",),
    "deconditional.fields.several": ("Told",),
    "deconditional.fields.scaling": ("InputScaling", "Spread", "TargetScaling"),
    "deconditional.fields.default_kernels": ("Inputs",),
    "deconditional.fields.recipes": ("Recipe",),
    "deconditional.fields.validation": ("Comparison", "Folds"),
    # of other packages
    "gpjax.kernels": (
        *("RBF", "Matern12", "Matern32", "Matern52", "RationalQuadratic", "Periodic", "White"),
        *("PoweredExponential", "Linear", "Polynomial", "ArcCosine", "Constant", "SumKernel"),
        *("ProductKernel", "DenseKernelComputation", "DiagonalKernelComputation"),
        "ConstantDiagonalKernelComputation",
    ),
    "gpjax.parameters": (
        *("LowerTriangular", "NonNegativeReal", "PositiveReal", "Real", "SigmoidBounded"),
    ),
    "paramax": ("NonTrainable",),
    "equinox.nn": ("MLP", "Linear", "Lambda", "Sequential"),
}
"""Classes whose objects can be in a file, by the module that has them."""

DISTRIBUTIONS = (
    *("Beta", "Cauchy", "Exponential", "Gamma", "HalfCauchy", "HalfNormal", "InverseGamma"),
    *("Laplace", "LogNormal", "Normal", "StudentT", "Uniform"),
)
"""Distributions of NumPyro."""

PREFIXES = {"equinox.nn": "nn.", "deconditional.observations.families": "family."}
"""What is before a name that another module has too."""

CLASSES = {
    f"{PREFIXES.get(module, '')}{name}": (module, name)
    for module, names in MODULES.items()
    for name in names
}

CONSTANTS = {
    **{f"jax.nn.{name}": ("jax.nn", name) for name in (
        *("relu", "relu6", "sigmoid", "softplus", "silu", "gelu", "elu", "selu", "celu"),
        *("leaky_relu", "hard_tanh", "hard_sigmoid", "log_sigmoid", "soft_sign", "mish"),
    )},
    **{f"jax.numpy.{name}": ("jax.numpy", name) for name in (
        *("tanh", "sin", "cos", "exp", "float32", "float64"),
    )},
    **{f"numpy.{name}": ("numpy", name) for name in ("float32", "float64")},
}  # fmt: skip
"""Functions that a network may have for an activation, and types of numbers."""

IDENTITY = "equinox.nn.MLP.final_activation"
"""The function that ends a network of Equinox unless another is asked for; it has no name."""


@cache
def class_of(name: str) -> Any:
    """The class of a name; KeyError where the tables do not have it."""
    module, attribute = CLASSES[name]
    return getattr(import_module(module), attribute)


def name_of_class(kind: type) -> str | None:
    """The name of a class; None where the tables do not have it."""
    for prefix in ("", *PREFIXES.values()):
        name = f"{prefix}{kind.__name__}"
        if name in CLASSES and class_of(name) is kind:
            return name
    return None


@cache
def constant(name: str) -> Any:
    """The function or type of a name; KeyError where the tables do not have it."""
    if name == IDENTITY:
        return signature(eqx.nn.MLP.__init__).parameters["final_activation"].default
    module, attribute = CONSTANTS[name]
    return getattr(import_module(module), attribute)


def name_of_constant(value: Any) -> str | None:
    """The name of a function or type; None where the tables do not have it."""
    return next((name for name in (*CONSTANTS, IDENTITY) if constant(name) is value), None)
