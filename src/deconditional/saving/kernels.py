"""Kernels, networks, parameters of GPJax and priors, by name and value.

A class is found through the tables of this module and nowhere else. A kernel that they do not
describe, to the last bit, is *custom*: its numbers are saved, the kernel itself is given again when
the model is loaded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import equinox as eqx
import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel, Constant
from gpjax.parameters import NonNegativeReal, PositiveReal, Real, SigmoidBounded
from jaxtyping import Array
from paramax import AbstractUnwrappable, NonTrainable

from deconditional.errors import SavedModelError
from deconditional.fitting.priors import Flat, LogNormal, Normal, SplitLogNormal
from deconditional.kernels.radial import DeepKernel
from deconditional.saving.container import ArrayWriter, number, refuse
from deconditional.saving.nodes import Node

__all__ = ["Supplied", "UnsavedPrior", "kernel_node", "prior_node", "read_kernel", "read_prior"]

ROLES = ("kernel", "mediator_kernel")

FAMILIES: dict[str, tuple[type[AbstractKernel], tuple[str, ...]]] = {
    "RBF": (gk.RBF, ("lengthscale", "variance")),
    "Matern12": (gk.Matern12, ("lengthscale", "variance")),
    "Matern32": (gk.Matern32, ("lengthscale", "variance")),
    "Matern52": (gk.Matern52, ("lengthscale", "variance")),
    "RationalQuadratic": (gk.RationalQuadratic, ("lengthscale", "variance", "alpha")),
    "Periodic": (gk.Periodic, ("lengthscale", "variance", "period")),
    "PoweredExponential": (gk.PoweredExponential, ("lengthscale", "variance", "power")),
    "White": (gk.White, ("variance",)),
    "Linear": (gk.Linear, ("variance",)),
    "Polynomial": (gk.Polynomial, ("shift", "variance")),
    "ArcCosine": (gk.ArcCosine, ("variance", "weight_variance", "bias_variance")),
    "Constant": (Constant, ("constant",)),
}
"""Kernels of one piece: the class and its parameters."""

WHOLE = {"Polynomial": ("degree", 0, 100), "ArcCosine": ("order", 0, 2)}
"""Whole numbers that belong to a kernel, with their least and greatest value."""

COMBINATIONS: dict[str, type[AbstractKernel]] = {
    "sum": gk.SumKernel,
    "product": gk.ProductKernel,
}
WRAPPERS: dict[str, Any] = {
    "PositiveReal": PositiveReal,
    "NonNegativeReal": NonNegativeReal,
    "Real": Real,
    "SigmoidBounded": SigmoidBounded,
}

_IDENTITY = inspect.signature(eqx.nn.MLP.__init__).parameters["final_activation"].default
ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "identity": _IDENTITY,
    "tanh": jnp.tanh,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "exp": jnp.exp,
    **{
        name: getattr(jax.nn, name)
        for name in (
            *("relu", "relu6", "sigmoid", "softplus", "silu", "gelu", "elu", "selu", "celu"),
            *("leaky_relu", "hard_tanh", "hard_sigmoid", "log_sigmoid", "soft_sign", "mish"),
        )
    },
}
LARGEST_LAYER, DEEPEST_NETWORK = 1_000_000, 1_000


class _NotStandard(Exception):
    """A kernel that the tables do not describe."""


# --------------------------------------------------------------------------- parameters


def _parameter_node(value: Any, arrays: ArrayWriter) -> dict[str, Any]:
    if isinstance(value, NonTrainable):
        return {"held": _parameter_node(value.tree, arrays)}
    for name, wrapper in WRAPPERS.items():
        if type(value) is wrapper:
            (inner,) = jax.tree_util.tree_leaves(value, is_leaf=_is_held)
            about: dict[str, Any] = {"parameter": name, "raw": _parameter_node(inner, arrays)}
            if wrapper is SigmoidBounded:
                about.update(low=number(value.low), high=number(value.high))
            return about
    if isinstance(value, bool | str):
        raise _NotStandard
    if isinstance(value, int | float):
        return {"number": value if isinstance(value, int) else number(value)}
    if eqx.is_array(value):
        return arrays.ref(value)
    raise _NotStandard


def _is_held(node: Any) -> bool:
    return isinstance(node, NonTrainable)


def _read_parameter(node: Node) -> Any:
    if "held" in node:
        return NonTrainable(_read_parameter(node.only("held").node("held")))
    if "number" in node:
        value = node.only("number").number("number")
        whole = node.raw("number")
        return whole if isinstance(whole, int) else value
    if "parameter" not in node:
        return node.at({"it": node.value}, "it").jax("it")
    name = node.choice("parameter", tuple(WRAPPERS))
    raw = _read_parameter(node.node("raw"))
    if name == "SigmoidBounded":
        node.only("parameter", "raw", "low", "high")
        low, high = node.number("low"), node.number("high")
        if not low < high:
            node.wrong("low", "below its upper end")
        made: AbstractUnwrappable = SigmoidBounded(0.5 * (low + high), low=low, high=high)
    else:
        node.only("parameter", "raw")
        made = WRAPPERS[name](1.0)
    if not (eqx.is_array(raw) or (_is_held(raw) and eqx.is_array(raw.tree))):
        node.wrong("raw", "an array")
    _, structure = jax.tree_util.tree_flatten(made)
    return jax.tree_util.tree_unflatten(structure, [raw])


# --------------------------------------------------------------------------- kernels


@dataclass
class Supplied:
    """Kernels given to ``load``, for the custom ones of a file."""

    kernels: dict[str, AbstractKernel | None] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def take(self, role: str, family: str) -> AbstractKernel:
        """The kernel of a role, or an error that says what to give."""
        kernel = self.kernels.get(role)
        if kernel is None:
            refuse(
                f"its {role} is a {family[:60]}, which is no kernel of GPJax or of this package; "
                f"give it again, as in load(path, {role}={family[:60]}(...))"
            )
        if not isinstance(kernel, AbstractKernel):
            refuse(f"{role} must be a GPJax kernel, not {type(kernel).__name__}")
        self.used.add(role)
        return kernel

    def check_used(self) -> None:
        """Raise where a kernel was given that the file has no use for."""
        for role, kernel in self.kernels.items():
            if kernel is not None and role not in self.used:
                refuse(f"it has a {role} of its own; leave {role} out")


def kernel_node(
    kernel: AbstractKernel, role: str, arrays: ArrayWriter, inputs: np.ndarray | None = None
) -> dict[str, Any]:
    """A kernel in words and numbers.

    Parameters
    ----------
    role
        ``"kernel"`` or ``"mediator_kernel"``: what a custom one is asked for by.
    inputs
        Points at which a custom one is evaluated, to know it again.
    """
    trial = ArrayWriter()
    try:
        _standard_node(kernel, trial)
    except _NotStandard:
        return _custom_node(kernel, role, arrays, inputs)
    return _standard_node(kernel, arrays)


def _standard_node(kernel: Any, arrays: ArrayWriter) -> dict[str, Any]:
    for name, combination in COMBINATIONS.items():
        if type(kernel) is combination:
            _check_default(kernel, combination(kernels=list(kernel.kernels)))
            return {"family": name, "parts": [_standard_node(k, arrays) for k in kernel.kernels]}
    if type(kernel) is DeepKernel:
        _check_default(kernel, DeepKernel(kernel.base, kernel.network, kernel.active_dims))
        return {
            "family": "DeepKernel",
            "active_dims": _dims_node(kernel.active_dims),
            "base": _standard_node(kernel.base, arrays),
            "network": _network_node(kernel.network, arrays),
        }
    for name, (family, parameters) in FAMILIES.items():
        if type(kernel) is family:
            found = {p: getattr(kernel, p) for p in parameters}
            node = {
                "family": name,
                "active_dims": _dims_node(kernel.active_dims),
                "n_dims": kernel.n_dims,
                "parameters": {p: _parameter_node(v, arrays) for p, v in found.items()},
            }
            if name in WHOLE:
                whole = WHOLE[name][0]
                node[whole] = found[whole] = getattr(kernel, whole)
            _check_default(kernel, _build(name, kernel.active_dims, kernel.n_dims, found))
            return node
    raise _NotStandard


def _check_default(kernel: AbstractKernel, rebuilt: AbstractKernel) -> None:
    """A kernel with parts that its constructor would not give it is not standard.

    Copies have engines of their own, so engines are compared by their class.
    """
    leaves, others = (jax.tree_util.tree_leaves(each) for each in (kernel, rebuilt))
    if (
        type(kernel.compute_engine) is not type(rebuilt.compute_engine)
        or (kernel.active_dims, kernel.n_dims) != (rebuilt.active_dims, rebuilt.n_dims)
        or len(leaves) != len(others)
        or any(a is not b for a, b in zip(leaves, others, strict=True))
    ):
        raise _NotStandard


def _build(name: str, dims: Any, n_dims: int | None, arguments: dict[str, Any]) -> AbstractKernel:
    family = FAMILIES[name][0]
    if name == "Constant":
        return family(active_dims=dims, **arguments)
    return family(active_dims=dims, n_dims=n_dims, **arguments)


def _dims_node(dims: Any) -> Any:
    if isinstance(dims, slice):
        return {"slice": [dims.start, dims.stop, dims.step]}
    if isinstance(dims, list) and all(type(d) is int for d in dims):
        return dims
    raise _NotStandard


def _read_dims(node: Node) -> list[int] | slice:
    value = node.raw("active_dims")
    parts = value.get("slice") if isinstance(value, dict) and len(value) == 1 else value
    if not isinstance(parts, list):
        refuse(f"{node.where}.active_dims is not a list of inputs")
    allowed = (int, type(None)) if isinstance(value, dict) else (int,)
    if not all(type(p) in allowed and abs(p or 0) < LARGEST_LAYER for p in parts):
        node.wrong("active_dims", "a list of inputs")
    return slice(*parts) if isinstance(value, dict) else list(parts)


def _custom_node(
    kernel: AbstractKernel, role: str, arrays: ArrayWriter, inputs: np.ndarray | None
) -> dict[str, Any]:
    leaves: list[dict[str, Any]] = []
    for leaf in jax.tree_util.tree_leaves(kernel):
        if eqx.is_array(leaf):
            leaves.append(arrays.ref(leaf))
        elif isinstance(leaf, int | float) and not isinstance(leaf, bool):
            leaves.append({"number": number(leaf)})
        else:
            leaves.append({"other": type(leaf).__name__})
    node: dict[str, Any] = {
        "family": "custom",
        "role": role,
        "class": type(kernel).__qualname__,
        "numbers": leaves,
        "points": None,
        "values": None,
    }
    if inputs is not None:
        points = inputs[:: max(1, len(inputs) // 4)][:4]
        node["points"] = arrays.ref(points)
        node["values"] = arrays.ref(_at_pairs(kernel, points))
    return node


def _at_pairs(kernel: AbstractKernel, points: np.ndarray) -> np.ndarray:
    x = jnp.asarray(points)
    return np.asarray([[float(kernel(a, b)) for b in x] for a in x])


def read_kernel(node: Node, supplied: Supplied) -> AbstractKernel:
    """The kernel of a node."""
    families = (*FAMILIES, *COMBINATIONS, "DeepKernel", "custom")
    name = node.choice("family", families)
    if name == "custom":
        return _read_custom(node, supplied)
    if name in COMBINATIONS:
        inner = node.only("family", "parts").nodes("parts")
        if not inner:
            node.wrong("parts", "a list of kernels")
        return COMBINATIONS[name](kernels=[read_kernel(part, supplied) for part in inner])
    dims = _read_dims(node)
    if name == "DeepKernel":
        node.only("family", "active_dims", "base", "network")
        return DeepKernel(
            read_kernel(node.node("base"), supplied), _read_network(node.node("network")), dims
        )
    own = [WHOLE[name][0]] if name in WHOLE else []
    node.only("family", "active_dims", "n_dims", "parameters", *own)
    n_dims = None if node.is_null("n_dims") else node.whole("n_dims", 1, LARGEST_LAYER)
    parameters = node.node("parameters").only(*FAMILIES[name][1])
    arguments = {p: _read_parameter(parameters.node(p)) for p in FAMILIES[name][1]}
    if own:
        arguments[own[0]] = node.whole(*WHOLE[name])
    return _build(name, dims, n_dims, arguments)


def _read_custom(node: Node, supplied: Supplied) -> AbstractKernel:
    node.only("family", "role", "class", "numbers", "points", "values")
    role, family = node.choice("role", ROLES), node.text("class")
    kernel = supplied.take(role, family)
    leaves, structure = jax.tree_util.tree_flatten(kernel)
    saved = node.nodes("numbers")
    if type(kernel).__qualname__ != family or len(leaves) != len(saved):
        refuse(
            f"its {role} is a {family[:60]} with {len(saved)} numbers and parts; the one given is "
            f"a {type(kernel).__qualname__} with {len(leaves)}"
        )
    for k, (leaf, about) in enumerate(zip(leaves, saved, strict=True)):
        if "other" in about:
            continue
        if "number" in about:
            if isinstance(leaf, bool | str) or leaf != about.number("number"):
                refuse(f"{role}: number {k} was {about.raw('number')}; the kernel given has {leaf}")
            continue
        values = node.at({"it": about.value}, f"numbers[{k}]").jax("it")
        if np.shape(leaf) != values.shape:
            refuse(
                f"{role}: parameter {k} had shape {values.shape}; that of the kernel given has "
                f"shape {np.shape(leaf)}"
            )
        leaves[k] = values
    kernel = jax.tree_util.tree_unflatten(structure, leaves)
    points, values = node.maybe_array("points"), node.maybe_array("values")
    if points is not None and values is not None:
        found = _at_pairs(kernel, points)
        if not np.allclose(found, values, rtol=1e-6, atol=1e-9 * np.abs(values).max()):
            refuse(f"the {role} given has other values than the one that was saved")
    return kernel


# --------------------------------------------------------------------------- networks


def _network_node(network: Any, arrays: ArrayWriter) -> dict[str, Any]:
    """A network of Equinox: how to build it, and its weights."""
    node = _network_plan(network)
    rebuilt = _blank_network(node)
    leaves, others = (jax.tree_util.tree_leaves(each) for each in (network, rebuilt))
    structures: list[Any] = [jax.tree_util.tree_structure(each) for each in (network, rebuilt)]
    if structures[0] != structures[1] or any(
        eqx.is_array(a) != _is_blank(b) or (not eqx.is_array(a) and a is not b)
        for a, b in zip(leaves, others, strict=True)
    ):
        raise _NotStandard
    return {**node, "weights": [arrays.ref(leaf) for leaf in leaves if eqx.is_array(leaf)]}


def _network_plan(network: Any) -> dict[str, Any]:
    if type(network) is eqx.nn.MLP:
        keys = ("in_size", "out_size", "width_size", "depth", "use_bias", "use_final_bias")
        plan = {key: getattr(network, key) for key in keys}
        if not all(isinstance(value, int) for value in plan.values()) or network.scan:
            raise _NotStandard
        return {
            "network": "MLP",
            **plan,
            "activation": _activation_name(network.activation),
            "final_activation": _activation_name(network.final_activation),
        }
    if type(network) is eqx.nn.Linear:
        plan = {k: getattr(network, k) for k in ("in_features", "out_features", "use_bias")}
        if not all(isinstance(value, int) for value in plan.values()):
            raise _NotStandard
        return {"network": "Linear", **plan}
    if type(network) is eqx.nn.Lambda:
        return {"network": "Lambda", "activation": _activation_name(network.fn)}
    if type(network) is eqx.nn.Sequential:
        return {"network": "Sequential", "layers": [_network_plan(x) for x in network.layers]}
    raise _NotStandard


def _activation_name(function: Any) -> str:
    for name, known in ACTIVATIONS.items():
        if function is known:
            return name
    raise _NotStandard


def _blank_network(plan: dict[str, Any]) -> Any:
    """The network with shapes in place of weights: nothing is allocated."""
    kind, key = plan["network"], jax.random.key(0)
    rest = {k: v for k, v in plan.items() if k not in ("network", "layers", "weights")}
    for name in ("activation", "final_activation"):
        if name in rest:
            rest[name] = ACTIVATIONS[rest[name]]
    if kind == "MLP":
        return eqx.filter_eval_shape(eqx.nn.MLP, **rest, key=key)
    if kind == "Linear":
        return eqx.filter_eval_shape(eqx.nn.Linear, **rest, key=key)
    if kind == "Lambda":
        return eqx.nn.Lambda(rest["activation"])
    return eqx.nn.Sequential([_blank_network(layer) for layer in plan["layers"]])


def _is_blank(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)


def _read_network(node: Node) -> Any:
    plan = _read_plan(node, top=True)
    leaves, structure = jax.tree_util.tree_flatten(_blank_network(plan))
    weights = node.nodes("weights")
    if len(weights) != sum(map(_is_blank, leaves)):
        node.wrong("weights", "the list of weights that the network needs")
    rest = iter(weights)
    for k, leaf in enumerate(leaves):
        if _is_blank(leaf):
            values = node.at({"it": next(rest).value}, f"weights[{k}]").jax("it")
            if values.shape != leaf.shape:
                node.wrong("weights", "of the shapes that the network needs")
            leaves[k] = values
    return jax.tree_util.tree_unflatten(structure, leaves)


def _read_plan(node: Node, top: bool = False) -> dict[str, Any]:
    kind = node.choice("network", ("MLP", "Linear", "Lambda", "Sequential"))
    weights = ("weights",) if top else ()
    plan: dict[str, Any] = {"network": kind}
    if kind == "Sequential":
        layers = node.only("network", "layers", *weights).nodes("layers")
        if len(layers) > DEEPEST_NETWORK:
            node.wrong("layers", f"a list of at most {DEEPEST_NETWORK} layers")
        return {**plan, "layers": [_read_plan(layer) for layer in layers]}
    sizes = {
        "MLP": ("in_size", "out_size", "width_size"),
        "Linear": ("in_features", "out_features"),
    }
    flags = {"MLP": ("use_bias", "use_final_bias"), "Linear": ("use_bias",)}
    names = {"MLP": ("activation", "final_activation"), "Lambda": ("activation",)}
    depth = ("depth",) if kind == "MLP" else ()
    own = (*sizes.get(kind, ()), *flags.get(kind, ()), *names.get(kind, ()), *depth)
    node.only("network", *own, *weights)
    plan.update({key: node.whole(key, 1, LARGEST_LAYER) for key in sizes.get(kind, ())})
    plan.update({key: node.flag(key) for key in flags.get(kind, ())})
    plan.update({key: node.choice(key, tuple(ACTIVATIONS)) for key in names.get(kind, ())})
    plan.update({key: node.whole(key, 0, DEEPEST_NETWORK) for key in depth})
    return plan


# --------------------------------------------------------------------------- priors

PRIORS: dict[str, Any] = {each.__name__: each for each in (LogNormal, SplitLogNormal, Normal, Flat)}
NUMPYRO = {
    "Beta": ("concentration1", "concentration0"),
    "Cauchy": ("loc", "scale"),
    "Exponential": ("rate",),
    "Gamma": ("concentration", "rate"),
    "HalfCauchy": ("scale",),
    "HalfNormal": ("scale",),
    "InverseGamma": ("concentration", "rate"),
    "Laplace": ("loc", "scale"),
    "LogNormal": ("loc", "scale"),
    "Normal": ("loc", "scale"),
    "StudentT": ("df", "loc", "scale"),
    "Uniform": ("low", "high"),
}
"""Distributions of NumPyro and their parameters."""


@dataclass(frozen=True)
class UnsavedPrior:
    """Stands for a prior that could not be saved; predictions do without, another fit does not.

    Examples
    --------
    >>> UnsavedPrior("MyPrior()").log_prob(1.0)
    Traceback (most recent call last):
    deconditional.errors.SavedModelError: the prior MyPrior() was not saved with ...
    """

    text: str

    def log_prob(self, value: Any) -> Any:
        """Raise."""
        raise SavedModelError(
            f"the prior {self.text} was not saved with the model; give it again with "
            "set_params(priors={...})."
        )

    def sample(self, key: Any, sample_shape: Any = ()) -> Any:
        """Raise."""
        return self.log_prob(None)


def prior_node(prior: Any, arrays: ArrayWriter) -> dict[str, Any]:
    """A prior by name and parameters, or its text."""
    import numpyro.distributions as npd

    found: dict[str, Any] | None = None
    name = type(prior).__name__
    if name in PRIORS and type(prior) is PRIORS[name]:
        found = {f.name: getattr(prior, f.name) for f in fields(prior)}
    elif name in NUMPYRO and type(prior) is getattr(npd, name):
        found = {key: getattr(prior, key) for key in NUMPYRO[name]}
        name = f"numpyro.{name}"
    if found is None:
        text = prior.text if isinstance(prior, UnsavedPrior) else repr(prior)
        return {"prior": "other", "text": text[:1000]}
    return {"prior": name, **{k: _quantity_node(v, arrays) for k, v in found.items()}}


def _quantity_node(value: Any, arrays: ArrayWriter) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value)
    values = np.asarray(value)
    if values.dtype.kind not in "fiu":
        raise SavedModelError(f"a prior has {value!r} for a number, which cannot be saved.")
    return arrays.ref(values.astype(float))


def read_prior(node: Node) -> Any:
    """The prior of a node."""
    import numpyro.distributions as npd

    name = node.choice("prior", (*PRIORS, *(f"numpyro.{n}" for n in NUMPYRO), "other"))
    if name == "other":
        return UnsavedPrior(node.only("prior", "text").text("text"))
    if name in PRIORS:
        family, keys = PRIORS[name], tuple(f.name for f in fields(PRIORS[name]))
    else:
        name = name.removeprefix("numpyro.")
        family, keys = getattr(npd, name), NUMPYRO[name]
    node.only("prior", *keys)
    return family(**{key: _read_quantity(node, key) for key in keys})


def _read_quantity(node: Node, key: str) -> float | np.ndarray | Array:
    return node.array(key) if isinstance(node.raw(key), dict) else node.number(key)
