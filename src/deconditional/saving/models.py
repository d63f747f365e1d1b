"""Fitted estimators as JSON and arrays, and back.

The posterior is saved as it was computed, one entry of the leading axis for each draw of the
parameters, so that loading computes nothing anew and predictions are the same to the bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from paramax import AbstractUnwrappable

from deconditional.bags import Bags
from deconditional.errors import SavedModelError
from deconditional.fitting.parameters import (
    IDENTITY,
    LOG,
    KernelTemplate,
    Parameter,
    ParameterSet,
    interval,
)
from deconditional.fitting.report import FitReport
from deconditional.inference.basis import FourierBasis, InducingBasis
from deconditional.inference.collapsed import Coefficients
from deconditional.inference.exact import Conditioned
from deconditional.inference.field import BasisField, ExactField
from deconditional.inference.problem import ExactProblem, Matched, Mediated, Pieces, Weighted
from deconditional.inference.residual import AllPairs, FourierPairs, Residual, SampledPairs
from deconditional.inference.trend import Trend
from deconditional.inference.variational import BasisPieces, VariationalProblem
from deconditional.kernels.layout import CHUNK_SIZES, BagSampler, Layout, layout_bags
from deconditional.kernels.tile_sizes import FORMS, Tiles, tiles_for
from deconditional.kernels.within_bags import own_pairs
from deconditional.models import CMP, MediatedGP, PseudoTarget, TiltedGP, UnlinkedGP
from deconditional.models.base import BagModel
from deconditional.models.checks import check_kernel
from deconditional.models.mediated import PARTS_OF_A_WEAK_LINK, PARTS_OF_AN_OPEN_LINK
from deconditional.models.readings import Reading
from deconditional.models.variational import VariationalModel
from deconditional.saving.container import ArrayWriter, number, refuse
from deconditional.saving.kernels import Supplied, kernel_node, prior_node, read_kernel, read_prior
from deconditional.saving.nodes import Node, as_number
from deconditional.saving.values import (
    estimators,
    labels_node,
    options_node,
    read_labels,
    read_options,
)

__all__ = ["bags_node", "estimator_node", "fingerprint", "read_bags", "read_estimator"]

TILES: dict[str, Any] = {"float32": jnp.float32, "float64": jnp.float64}
LARGEST_TILE = 65_536
SCALARS = ("noise_std", "fine_noise_std", "bag_noise_std", "ridge")
KEYS = ("threefry2x32", "rbg", "unsafe_rbg")


def estimator_node(
    model: Any, arrays: ArrayWriter, roles: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A fitted estimator; `roles` renames its kernels for those who give custom ones again."""
    name = type(model).__name__
    if estimators().get(name) is not type(model):
        raise SavedModelError(
            f"a {name} cannot be saved; only estimators of this package can: "
            f"{', '.join(estimators())}."
        )
    if isinstance(model, PseudoTarget):
        model._fitted()
        return {"class": name, **_pseudo_node(model, arrays)}
    if isinstance(model, MediatedGP):
        model._fitted()
        return {"class": name, **_mediated_node(model, arrays)}
    model._check_fitted()
    return {"class": name, **_model_node(model, arrays, roles or {})}


def read_estimator(node: Node, supplied: Supplied) -> Any:
    """The fitted estimator of a node."""
    known = estimators()
    name = node.choice("class", tuple(known))
    sizes: dict[str, int] = {}
    inner = Node(node.value, node.where, node.archive, sizes)
    if known[name] is PseudoTarget:
        return _read_pseudo(inner, supplied)
    if known[name] is MediatedGP:
        return _read_mediated(inner, supplied)
    return _read_model(inner, known[name], supplied)


def fingerprint(model: Any) -> str:
    """SHA-256 of the data a model was fitted to.

    Parameters
    ----------
    model
        A fitted estimator or :class:`~deconditional.Downscaler`.

    Examples
    --------
    >>> import numpy as np
    >>> from deconditional import BaggGP, Bags
    >>> bags = Bags.from_points(np.arange(20.0), np.arange(20) // 2)
    >>> fixed = {"kernel.lengthscale": 1.0, "kernel.variance": 1.0, "noise_std": 0.1}
    >>> one, other = (BaggGP(fixed=fixed).fit(bags, z) for z in (np.arange(10.0), np.ones(10)))
    >>> len(fingerprint(one)), fingerprint(one) == fingerprint(other)
    (64, False)
    """
    if hasattr(model, "pairing_"):
        p = model.pairing_
        return _digest([*_bag_arrays(p.bags), p.bag_mediator, p.z, p.mediator, p.own_bag])
    if isinstance(model, MediatedGP):
        model._fitted()
        stages = [fingerprint(each) for each in (model.model_, model.regressor_)]
        return hashlib.sha256("".join(stages).encode()).hexdigest()
    if isinstance(model, PseudoTarget):
        stages = [fingerprint(model._fitted()), fingerprint(model.regressor_)]
        return hashlib.sha256("".join(stages).encode()).hexdigest()
    model._check_fitted()
    problem = model._problem_
    found = [*_bag_arrays(model.bags_), problem.z, problem.known_noise]
    if isinstance(problem.mediation, Mediated):
        found += [problem.mediation.observed_mediator, problem.mediation.own_bag]
    if isinstance(problem.mediation, Weighted):
        found += [problem.mediation.matrix]
    return _digest(found)


def _bag_arrays(bags: Bags) -> list[Any]:
    return [bags.points, bags.bag, bags.weights, bags.mediator, bags.point]


def _digest(arrays: Sequence[Any]) -> str:
    """Of all arrays in turn, their types and shapes included."""
    total = hashlib.sha256()
    for array in arrays:
        if array is None:
            total.update(b"none;")
            continue
        values = np.asarray(array)
        values = np.ascontiguousarray(values, "<i8" if values.dtype.kind in "iu" else "<f8")
        total.update(f"{values.dtype.str}{values.shape};".encode())
        total.update(values.tobytes())
    return total.hexdigest()


# --------------------------------------------------------------------------- bags


def bags_node(bags: Bags, arrays: ArrayWriter) -> dict[str, Any]:
    """Bags, and what they are in words."""
    return {
        "summary": repr(bags),
        "ids": labels_node(bags.ids, arrays),
        "points": arrays.ref(bags.points),
        "bag": arrays.ref(bags.bag),
        "weights": arrays.ref(bags.weights),
        "mediator": None if bags.mediator is None else arrays.ref(bags.mediator),
        "point": arrays.ref(bags.point),
    }


def read_bags(node: Node) -> Bags:
    """Bags, checked as those that users make are."""
    keys = ("summary", "ids", "points", "bag", "weights", "mediator", "point")
    node.only(*keys, optional=("tiles",)).text("summary")
    bags = Bags(
        points=node.array("points", "n d"),
        bag=node.array("bag", "n", "i").astype(np.int64),
        weights=node.array("weights", "n"),
        ids=read_labels(node.node("ids")),
        mediator=node.maybe_array("mediator", "N p"),
        point=node.array("point", "n", "i").astype(np.int64),
    )
    if not len(bags.points) or bags.bag.min() < 0 or bags.bag.max() >= bags.n_bags:
        node.wrong("bag", "a bag for each point")
    if not bags.sizes.all() or bags.point.min() < 0:
        node.wrong("bag", "such that every bag has points")
    if not np.isfinite(bags.points).all():
        node.wrong("points", "finite")
    if not (np.isfinite(bags.weights) & (bags.weights >= 0)).all():
        node.wrong("weights", "finite and not negative")
    if "tiles" in node:
        _lay_out(bags, node.node("tiles"))
    return bags


def _tiles_node(layout: Layout) -> dict[str, Any]:
    """How bags were laid out: what decides the order of sums."""
    return {
        "form": layout.form,
        "rows": layout.row_tile,
        "columns": layout.tile,
        "chunk": layout.chunk,
    }


def _lay_out(bags: Bags, node: Node) -> None:
    """Lay bags out as they were, if that was on a device like this one."""
    form = node.only("form", "rows", "columns", "chunk").choice("form", FORMS)
    rows, columns = (node.whole(key, 1, LARGEST_TILE) for key in ("rows", "columns"))
    chunk = node.whole("chunk", 1, LARGEST_TILE)
    if form != "product" or tiles_for(bags.n_points).form != form:
        return
    if chunk not in CHUNK_SIZES or max(rows, columns) % min(rows, columns):
        node.wrong("chunk", "what divides a tile")
    laid_out = layout_bags(
        *(bags.points, bags.bag, bags.weights, bags.n_bags, chunk), tiles=Tiles(rows, columns, form)
    )
    bags.__dict__["_layout_and_source"] = laid_out


# --------------------------------------------------------------------------- parameters


def _parameter_node(parameter: Parameter, arrays: ArrayWriter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "start": arrays.ref(parameter.start),
        "prior": prior_node(parameter.prior, arrays),
        "transform": _transform_node(parameter),
        "reach": number(parameter.reach),
    }


def _transform_node(parameter: Parameter) -> Any:
    for name, transform in (("log", LOG), ("identity", IDENTITY)):
        if parameter.transform == transform:
            return name
    # The two ends of an interval are where the logistic map ends.
    low, high = (float(parameter.transform.forward(jnp.asarray(end))) for end in (-np.inf, np.inf))
    return {"low": low, "high": high}


def _read_parameter(node: Node) -> Parameter:
    node.only("name", "start", "prior", "transform", "reach")
    transforms = {"log": LOG, "identity": IDENTITY}
    if isinstance(node.raw("transform"), dict):
        ends = node.node("transform").only("low", "high")
        low, high = ends.number("low"), ends.number("high")
        if not -np.inf < low < high < np.inf:
            node.wrong("transform", "an interval")
        transform = interval(low, high)
    else:
        transform = transforms[node.choice("transform", tuple(transforms))]
    return Parameter(
        node.text("name"),
        node.array("start"),
        read_prior(node.node("prior")),
        transform,
        node.number("reach"),
    )


def _template_node(
    template: KernelTemplate, role: str, arrays: ArrayWriter, inputs: np.ndarray
) -> dict[str, Any]:
    return {
        "kernel": kernel_node(template.kernel, role, arrays, inputs),
        "parameters": [_parameter_node(p, arrays) for p in template.parameters],
        "positions": list(template._positions),
    }


def _read_template(node: Node, supplied: Supplied, what: str, inputs: np.ndarray) -> KernelTemplate:
    node.only("kernel", "parameters", "positions")
    kernel = read_kernel(node.node("kernel"), supplied)
    check_kernel(what, kernel, inputs)
    parameters = tuple(_read_parameter(p) for p in node.nodes("parameters"))
    positions = node.items("positions")
    leaves, _ = _kernel_leaves(kernel)
    if not all(type(p) is int and 0 <= p < len(leaves) for p in positions):
        node.wrong("positions", "a list of places among the kernel's numbers")
    if len(set(positions)) != len(positions) or len(positions) != len(parameters):
        node.wrong("positions", "one place for each parameter")
    for parameter, position in zip(parameters, positions, strict=True):
        if np.shape(_value(leaves[position])) != parameter.shape:
            refuse(f"{node.where}: {parameter.name[:60]} does not have the shape of its kernel's")
    return KernelTemplate(kernel, parameters, tuple(positions))


def _kernel_leaves(kernel: Any) -> tuple[list[Any], Any]:
    return jax.tree_util.tree_flatten(kernel, is_leaf=lambda x: isinstance(x, AbstractUnwrappable))


def _value(leaf: Any) -> Any:
    from gpjax.parameters import val

    return val(leaf)


def _values_node(values: Mapping[str, Any], arrays: ArrayWriter) -> dict[str, Any]:
    return {name: arrays.ref(np.asarray(value, dtype=float)) for name, value in values.items()}


def _read_values(node: Node) -> dict[str, np.ndarray]:
    return {name: node.array(name) for name in node.value}


# --------------------------------------------------------------------------- one model


def _model_node(model: BagModel, arrays: ArrayWriter, roles: Mapping[str, str]) -> dict[str, Any]:
    problem, bags = model._problem_, model.bags_
    role = roles.get("kernel", "kernel")
    inputs = {role: bags.points, "mediator_kernel": bags.mediator}
    if role == "mediator_kernel":
        inputs = {role: bags.points}
    node: dict[str, Any] = {
        "options": options_node(model, arrays, roles, inputs),
        "data": {
            "sha256": fingerprint(model),
            "observations": len(problem.z),
        },
        "bags": {**bags_node(bags, arrays), "tiles": _tiles_node(problem.layout)},
        "problem": _problem_node(problem, arrays, role, bags),
        "vectors": arrays.ref(model._vectors_),
        "posterior": _posterior_node(model, arrays),
        "parameters": _values_node(model.parameters_, arrays),
        "log_evidence": number(model.log_evidence_),
        "report": report_node(model.fit_report_),
        "own_bag": None,
        "diagnostics": None,
        "draws": None,
        "bound_trace": None,
        "inducing": None,
        "notes": None,
    }
    if getattr(model, "_own_bag", None) is not None:
        node["own_bag"] = arrays.ref(np.asarray(model._own_bag, dtype=np.int64))
    if hasattr(model, "nuts_diagnostics_"):
        node["diagnostics"] = {
            key: value if isinstance(value, int) else number(value)
            for key, value in model.nuts_diagnostics_.items()
        }
        node["draws"] = _values_node(model.parameter_draws_, arrays)
    if hasattr(model, "bound_trace_"):
        node["bound_trace"] = arrays.ref(model.bound_trace_)
    if hasattr(model, "inducing_"):
        node["inducing"] = arrays.ref(model.inducing_)
    if isinstance(problem, VariationalProblem):
        node["notes"] = {
            "fit": list(model._fit_notes),
            "retried": model._retried,
            "trace": model._trace_used,
        }
    return node


def _read_model(node: Node, family: Any, supplied: Supplied) -> Any:
    extras = ("own_bag", "diagnostics", "draws", "bound_trace", "inducing", "notes")
    node.only(
        *("class", "options", "data", "bags", "problem", "vectors", "posterior", "parameters"),
        *("log_evidence", "report", *extras),
    )
    model = family(**read_options(node.node("options"), family, supplied))
    if type(model.seed) is not int:
        refuse(f"{node.where}.options.seed is not a whole number")
    model._check_options()
    bags = read_bags(node.node("bags"))
    problem = _read_problem(node.node("problem"), bags, supplied)
    if problem.trend.kind != model.trend or (problem.overlap is not None) != model.fine_noise:
        refuse(f"{node.where}: its options are not those of its posterior")
    if (
        isinstance(model, CMP) != isinstance(problem.mediation, Mediated)
        or isinstance(model, TiltedGP | UnlinkedGP) != isinstance(problem.mediation, Weighted)
        or isinstance(model, VariationalModel) != isinstance(problem, VariationalProblem)
    ):
        refuse(f"{node.where}: its posterior is not that of a {family.__name__}")
    model.bags_ = bags
    model.n_features_in_ = bags.points.shape[1]
    model._problem_ = problem
    node.sizes["v"] = problem.parameters.size
    model._vectors_ = node.array("vectors", "S v")
    model._solved_ = _read_posterior(node.node("posterior"), problem)
    if not model._solved_:
        refuse(f"{node.where} has no posterior")
    found = _read_values(node.node("parameters"))
    model.parameters_ = {name: value[()] for name, value in found.items()}
    names = {p.name for p in problem.parameters.learnt} | set(problem.parameters.fixed)
    if set(model.parameters_) != names - {"inducing"}:
        refuse(f"{node.where}.parameters are not those of the model")
    model.kernel_ = problem.kernel.wrapped(model.parameters_)
    if isinstance(problem.mediation, Mediated):
        model.mediator_kernel_ = problem.mediation.kernel.wrapped(model.parameters_)
    model.priors_ = {k: v for k, v in problem.parameters.priors.items() if k != "inducing"}
    model.log_evidence_ = node.number("log_evidence")
    model.fit_report_ = read_report(node.node("report"), model.parameters_)
    _read_extras(node, model)
    data = node.node("data").only("sha256", "observations")
    if data.whole("observations") != len(problem.z) or data.text("sha256") != fingerprint(model):
        refuse(f"{node.where}: the data in it is not the data its fingerprint belongs to")
    return model


def _read_extras(node: Node, model: Any) -> None:
    """What only some models have."""
    if hasattr(type(model), "_own_bag"):
        own_bag = node.maybe_array("own_bag", "M", "i")
        model._own_bag = None if own_bag is None else own_bag.astype(np.int64)
    elif not node.is_null("own_bag"):
        node.wrong("own_bag", "part of this model")
    if not node.is_null("diagnostics"):
        model.nuts_diagnostics_ = {
            key: value if type(value) is int else as_number(value, f"{node.where}.diagnostics")
            for key, value in node.named("diagnostics")
        }
        model.parameter_draws_ = _read_values(node.node("draws"))
    elif not node.is_null("draws"):
        node.wrong("draws", "part of this model")
    if not node.is_null("bound_trace"):
        model.bound_trace_ = node.array("bound_trace")
    if not node.is_null("inducing"):
        model.inducing_ = node.array("inducing", "r d")
    if not node.is_null("notes"):
        notes = node.node("notes").only("fit", "retried", "trace")
        model._fit_notes = notes.texts("fit")
        model._retried = notes.flag("retried")
        model._trace_used = notes.text("trace")
    elif isinstance(model._problem_, VariationalProblem):
        node.wrong("notes", "an object")


def report_node(report: FitReport) -> dict[str, Any]:
    """How a fit went; its parameters are those of the model."""
    return {
        "method": report.method,
        "converged": bool(report.converged),
        "iterations": int(report.iterations),
        "evaluations": int(report.evaluations),
        "log_evidence": number(report.log_evidence),
        "log_posterior": number(report.log_posterior),
        "at_bounds": list(report.at_bounds),
        "restarts": [number(value) for value in report.restarts],
        "seconds": number(report.seconds),
        "compile_seconds": number(report.compile_seconds),
        "details": dict(report.details),
        "notes": list(report.notes),
    }


def read_report(node: Node, parameters: Mapping[str, Any]) -> FitReport:
    """How a fit went."""
    node.only(
        *("method", "converged", "iterations", "evaluations", "log_evidence", "log_posterior"),
        *("at_bounds", "restarts", "seconds", "compile_seconds", "details", "notes"),
    )
    details = node.node("details")
    return FitReport(
        method=node.text("method"),
        converged=node.flag("converged"),
        iterations=node.whole("iterations"),
        evaluations=node.whole("evaluations"),
        log_evidence=node.number("log_evidence"),
        log_posterior=node.number("log_posterior"),
        at_bounds=node.texts("at_bounds"),
        restarts=tuple(as_number(v, f"{node.where}.restarts") for v in node.items("restarts")),
        seconds=node.number("seconds"),
        compile_seconds=node.number("compile_seconds"),
        parameters=parameters,
        details={key: details.text(key) for key in details.value},
        notes=node.texts("notes"),
    )


# --------------------------------------------------------------------------- the problem


def _problem_node(problem: Any, arrays: ArrayWriter, role: str, bags: Bags) -> dict[str, Any]:
    trend = problem.trend
    node: dict[str, Any] = {
        "inference": "basis" if isinstance(problem, VariationalProblem) else "exact",
        "tiles": jnp.dtype(problem.dtype).name,
        "z": arrays.ref(problem.z),
        "known_noise": arrays.ref(problem.known_noise),
        "overlap": None if problem.overlap is None else arrays.ref(problem.overlap),
        "trend": {
            "kind": trend.kind,
            "centre": arrays.ref(trend.centre),
            "scale": arrays.ref(trend.scale),
            "prior_std": arrays.ref(trend.prior_std),
            "means": arrays.ref(problem.trend_means),
        },
        "kernel": _template_node(problem.kernel, role, arrays, bags.points),
        "mediation": None,
        "learnt": [_parameter_node(p, arrays) for p in problem.parameters.learnt],
        "fixed": _values_node(problem.parameters.fixed, arrays),
    }
    if isinstance(problem.mediation, Mediated):
        m = problem.mediation
        node["mediation"] = {
            "kernel": _template_node(
                m.kernel, "mediator_kernel", arrays, np.asarray(m.bag_mediator)
            ),
            "bag_mediator": arrays.ref(m.bag_mediator),
            "observed_mediator": arrays.ref(m.observed_mediator),
            "ridge_shape": arrays.ref(m.ridge_shape),
            "own_bag": None if m.own_bag is None else arrays.ref(m.own_bag),
            "centred": bool(m.centred),
            "uncertainty": bool(m.uncertainty),
        }
    if isinstance(problem.mediation, Weighted):
        node["mediation"] = {"weights": arrays.ref(problem.mediation.matrix)}
    if isinstance(problem, VariationalProblem):
        node["locations"] = None if problem.locations is None else arrays.ref(problem.locations)
        node["key"] = _key_node(problem.key, arrays)
        node["n_features"] = problem.n_features
        node["residual"] = _residual_node(problem.residual)
    return node


def _read_problem(node: Node, bags: Bags, supplied: Supplied) -> Any:
    inference = node.choice("inference", ("exact", "basis"))
    basis = ("locations", "key", "n_features", "residual") if inference == "basis" else ()
    node.only(
        *("inference", "tiles", "z", "known_noise", "overlap", "trend", "kernel", "mediation"),
        *("learnt", "fixed", *basis),
    )
    about = node.node("trend").only("kind", "centre", "scale", "prior_std", "means")
    kind = about.choice("kind", ("none", "constant", "linear"))
    n_trend = {"none": 0, "constant": 1, "linear": 1 + bags.points.shape[1]}[kind]
    node.sizes["q"] = n_trend
    z = node.jax("z", "M")
    mediation = node.maybe("mediation", lambda m: _read_mediation(m, supplied)) or Matched()
    if isinstance(mediation, Matched) and len(z) != bags.n_bags:
        refuse(f"{node.where} has {len(z)} observations for {bags.n_bags} bags and no mediation")
    parameters = ParameterSet(
        tuple(_read_parameter(p) for p in node.nodes("learnt")), _read_values(node.node("fixed"))
    )
    tiles = TILES[node.choice("tiles", tuple(TILES))]
    parts: dict[str, Any] = {
        "layout": bags.layout,
        "overlap": None if node.is_null("overlap") else node.matrix_or_diagonal("overlap", "N"),
        "z": z,
        "known_noise": node.matrix_or_diagonal("known_noise", "M"),
        "trend": Trend(
            kind, about.jax("centre", "d"), about.jax("scale", "d"), about.jax("prior_std", "q")
        ),
        "trend_means": about.jax("means", "N q"),
        "kernel": _read_template(node.node("kernel"), supplied, "kernel", bags.points),
        "mediation": mediation,
        "parameters": parameters,
        "dtype": tiles,
    }
    templates = [parts["kernel"]]
    templates += [mediation.kernel] if isinstance(mediation, Mediated) else []
    names = [p.name for p in parameters.learnt]
    known = {*names, *parameters.fixed}
    wanted = {p.name for template in templates for p in template.parameters}
    wanted |= {"fine_noise_std"} if parts["overlap"] is not None else set()
    wanted |= {"ridge"} if isinstance(mediation, Mediated) else set()
    if len(names) + len(parameters.fixed) != len(known) or not wanted <= known:
        refuse(f"{node.where}: its parameters are not those its kernels have")
    _check_shapes(node, parameters, templates)
    if inference == "exact":
        return ExactProblem(**parts)
    n_features = None if node.is_null("n_features") else node.whole("n_features", 1, 2**31)
    locations = node.maybe_jax("locations", "r d")
    residual = node.maybe("residual", lambda r: _read_residual(r, bags))
    if (n_features is None) != (residual is not None):
        refuse(f"{node.where}: its basis is neither inducing points nor features")
    if n_features is None and (locations is None) != ("inducing" in names):
        refuse(f"{node.where}: its inducing points are missing")
    return VariationalProblem(
        **parts,
        locations=locations,
        residual=residual,
        key=_read_key(node.node("key")),
        n_features=n_features,
    )


def _check_shapes(
    node: Node, parameters: ParameterSet, templates: Sequence[KernelTemplate]
) -> None:
    shapes = {p.name: p.shape for template in templates for p in template.parameters}
    found = {p.name: p.shape for p in parameters.learnt}
    found.update({name: np.shape(value) for name, value in parameters.fixed.items()})
    for name, shape in found.items():
        expected = () if name in SCALARS else shapes.get(name)
        if name == "inducing":
            expected = (shape[0] if shape else 0, node.sizes["d"])
        if shape != expected:
            refuse(f"{node.where}: the parameter {name[:60]} has an impossible shape")


def _read_mediation(node: Node, supplied: Supplied) -> Mediated | Weighted:
    if "weights" in node.value:
        return Weighted(node.only("weights").jax("weights", "N M"))
    node.only(
        *("kernel", "bag_mediator", "observed_mediator", "ridge_shape", "own_bag", "centred"),
        "uncertainty",
    )
    bag_mediator = node.jax("bag_mediator", "N p")
    own_bag = node.maybe_jax("own_bag", "M", "i")
    if own_bag is not None and not ((own_bag >= -1) & (own_bag < len(bag_mediator))).all():
        node.wrong("own_bag", "a list of bags")
    return Mediated(
        kernel=_read_template(
            node.node("kernel"), supplied, "mediator_kernel", np.asarray(bag_mediator)
        ),
        bag_mediator=bag_mediator,
        observed_mediator=node.jax("observed_mediator", "M p"),
        ridge_shape=node.jax("ridge_shape", "N"),
        own_bag=own_bag,
        centred=node.flag("centred"),
        uncertainty=node.flag("uncertainty"),
    )


def _residual_node(residual: Any) -> Any:
    """How the residual is found; its points are those of the bags."""
    if residual is None:
        return None
    if isinstance(residual, AllPairs):
        return {"kind": "pairs", "diagonal": residual.pairs is not None}
    if isinstance(residual, SampledPairs):
        points = residual.points_per_bag
        return {"kind": "subsample", "diagonal": residual.diagonal, "points": points}
    return {"kind": "features", "diagonal": residual.diagonal, "features": residual.n_features}


def _read_residual(node: Node, bags: Bags) -> AllPairs | SampledPairs | FourierPairs:
    kind, diagonal = node.choice("kind", ("pairs", "subsample", "features")), node.flag("diagonal")
    if kind == "pairs":
        node.only("kind", "diagonal")
        return AllPairs(own_pairs(bags) if diagonal else None)
    if kind == "subsample":
        node.only("kind", "diagonal", "points")
        sampler = BagSampler.of(bags.points, bags.bag, bags.weights, bags.n_bags)
        return SampledPairs(sampler, node.whole("points", 1, 128), diagonal)
    node.only("kind", "diagonal", "features")
    return FourierPairs(node.whole("features", 1, 2**31), diagonal)


def _key_node(key: Any, arrays: ArrayWriter) -> dict[str, Any]:
    return {"kind": str(jax.random.key_impl(key)), "data": arrays.ref(jax.random.key_data(key))}


def _read_key(node: Node) -> Any:
    kind = node.only("kind", "data").choice("kind", KEYS)
    data = node.array("data", kind="i").astype(np.uint32)
    key = jax.random.wrap_key_data(jnp.asarray(data), impl=kind)
    if key.shape != ():
        node.wrong("data", "one key")
    return key


# --------------------------------------------------------------------------- the posterior


def _stacked(parts: Sequence[Any], arrays: ArrayWriter) -> dict[str, Any]:
    """One array of all draws; weak types are those of the first."""
    ref = arrays.ref(np.stack([np.asarray(part) for part in parts]))
    if getattr(parts[0], "weak_type", False) and np.ndim(parts[0]) == 0:
        ref["weak"] = True
    return ref


class _Draws:
    """The draws of one saved array after another."""

    def __init__(self, node: Node, n: int):
        self.node, self.n = node, n

    def __call__(self, key: str, sizes: str = "") -> list[Any]:
        values = self.node.array(key, f"S {sizes}")
        if self.node.raw(key).get("weak", False) and values.ndim == 1:
            return [jnp.asarray(value) for value in values.tolist()]
        return [jnp.asarray(value) for value in values]

    def maybe(self, key: str, sizes: str) -> list[Any]:
        return [None] * self.n if self.node.is_null(key) else self(key, sizes)

    def square(self, key: str, size: str) -> list[Any]:
        """Matrices, or vectors of diagonals."""
        ndim = self.node.array(key).ndim
        return self(key, f"{size} {size}" if ndim == 3 else size)


def _kernels_node(kernels: Sequence[Any], arrays: ArrayWriter) -> list[Any]:
    """The numbers of the kernel, draw by draw; null for what is no array."""
    leaves = [jax.tree_util.tree_leaves(kernel) for kernel in kernels]
    return [
        _stacked(each, arrays) if eqx.is_array(each[0]) else None
        for each in zip(*leaves, strict=True)
    ]


def _read_kernels(node: Node, template: KernelTemplate, n: int) -> list[Any]:
    leaves, structure = _kernel_leaves(template.kernel)
    leaves = [_value(leaf) for leaf in leaves]
    saved = node.items("kernel")
    if len(saved) != len(leaves):
        node.wrong("kernel", "a list of the kernel's numbers")
    draws = [list(leaves) for _ in range(n)]
    for k, value in enumerate(saved):
        if value is None:
            if eqx.is_array(leaves[k]):
                node.wrong("kernel", "complete")
            continue
        found = _Draws(node.at({"it": value}, f"kernel[{k}]"), n)
        shape = np.shape(leaves[k])
        if not eqx.is_array(leaves[k]) or found.node.array("it").shape != (n, *shape):
            node.wrong("kernel", "of the shapes of the kernel's numbers")
        for s, leaf in enumerate(found("it", " ".join(map(str, shape)))):
            draws[s][k] = leaf
    return [jax.tree_util.tree_unflatten(structure, each) for each in draws]


def _posterior_node(model: BagModel, arrays: ArrayWriter) -> dict[str, Any]:
    pieces = [each for each, _ in model._solved_]
    fields = [each for _, each in model._solved_]

    def stacked(parts: Sequence[Any], *names: str) -> dict[str, Any]:
        columns = {name: [getattr(part, name) for part in parts] for name in names}
        return {
            name: None if values[0] is None else _stacked(values, arrays)
            for name, values in columns.items()
        }

    if isinstance(fields[0], ExactField):
        return {
            "kernel": _kernels_node([f.kernel for f in fields], arrays),
            **stacked(pieces, "gram", "weights", "noise", "embedding_scale"),
            **stacked(fields, "fine_noise_variance"),
            **stacked([f.conditioned for f in fields], *Conditioned._fields),
            **(stacked(fields, "z") if isinstance(model, Reading) else {}),
        }
    residuals = [p.residual for p in pieces]
    residual = None
    if residuals[0] is not None:
        residual = {
            **stacked(residuals, "covariance", "mean_variance"),
            "estimated": bool(residuals[0].estimated),
        }
    return {
        "pieces": {
            "basis": _basis_node([p.basis for p in pieces], arrays),
            **stacked(pieces, "means", "weights", "noise", "embedding_scale"),
            "residual": residual,
        },
        "basis": _basis_node([f.basis for f in fields], arrays),
        **stacked([f.coefficients for f in fields], "mean", "explained", "precision_root"),
        **stacked(fields, "log_evidence", "fine_noise_variance"),
    }


def _basis_node(bases: Sequence[Any], arrays: ArrayWriter) -> dict[str, Any]:
    kernels = _kernels_node([b.kernel for b in bases], arrays)
    if isinstance(bases[0], FourierBasis):
        return {
            "kind": "fourier",
            "kernel": kernels,
            "key": _key_node(bases[0].key, arrays),
            "n_features": bases[0].n_features,
        }
    found = {
        name: _stacked([getattr(b, name) for b in bases], arrays)
        for name in ("locations", "root", "jitter")
    }
    return {"kind": "inducing", "kernel": kernels, **found}


def _read_posterior(node: Node, problem: Any) -> list[tuple[Any, Any]]:
    n = node.sizes["S"]
    if isinstance(problem, ExactProblem):
        return _read_exact(node, problem, n)
    node.only(
        *("pieces", "basis", "mean", "explained", "precision_root", "log_evidence"),
        "fine_noise_variance",
    )
    bases = _read_bases(node.node("basis"), problem, n)
    draws = _Draws(node, n)
    mean = draws("mean", "D")
    explained = draws.maybe("explained", "D M")
    precision = draws.maybe("precision_root", "D D")
    if (explained[:1] == [None]) == (precision[:1] == [None]):
        refuse(f"{node.where} has two forms of one covariance, or none")
    evidence, fine = draws("log_evidence"), draws("fine_noise_variance")
    pieces = _read_pieces(node.node("pieces"), problem, n)
    return [
        (
            pieces[s],
            BasisField(
                bases[s],
                problem.trend,
                Coefficients(mean[s], explained[s], precision[s]),
                evidence[s],
                fine[s],
            ),
        )
        for s in range(n)
    ]


def _read_exact(node: Node, problem: Any, n: int) -> list[tuple[Any, Any]]:
    sizes = {
        "log_evidence": "",
        "root": "M M",
        "projection": "N M",
        "coefficients": "N",
        "trend": "q",
        "trend_root": "q q",
        "whitened_trend": "M q",
    }
    node.only(
        *("kernel", "gram", "weights", "noise", "embedding_scale", "fine_noise_variance"),
        *sizes,
        optional=["z"],
    )
    kernels = _read_kernels(node, problem.kernel, n)
    draws = _Draws(node, n)
    z = draws("z", "M") if "z" in node else [problem.z] * n
    gram, noise = draws("gram", "N N"), draws("noise", "M M")
    weights = draws.maybe("weights", "N M")
    if node.is_null("weights") != isinstance(problem.mediation, Matched):
        node.wrong("weights", "what the mediation needs")
    scale, fine = draws("embedding_scale"), draws("fine_noise_variance")
    columns = {name: draws(name, each) for name, each in sizes.items()}
    return [
        (
            Pieces(gram[s], weights[s], noise[s], scale[s]),
            ExactField(
                kernel=kernels[s],
                layout=problem.layout,
                weights=weights[s],
                noise=noise[s],
                z=z[s],
                conditioned=Conditioned(**{name: column[s] for name, column in columns.items()}),
                trend=problem.trend,
                trend_means=problem.trend_means,
                fine_noise_variance=fine[s],
                dtype=problem.dtype,
            ),
        )
        for s in range(n)
    ]


def _read_pieces(node: Node, problem: Any, n: int) -> list[BasisPieces]:
    node.only("basis", "means", "weights", "noise", "embedding_scale", "residual")
    bases = _read_bases(node.node("basis"), problem, n)
    draws = _Draws(node, n)
    means, weights = draws("means", "D N"), draws.maybe("weights", "N M")
    if node.is_null("weights") != isinstance(problem.mediation, Matched):
        node.wrong("weights", "what the mediation needs")
    noise, scale = draws.square("noise", "M"), draws("embedding_scale")
    residual: list[Residual | None] = [None] * n
    if not node.is_null("residual"):
        about = node.node("residual").only("covariance", "mean_variance", "estimated")
        rest = _Draws(about, n)
        covariance, variance = rest.square("covariance", "N"), rest("mean_variance")
        residual = [Residual(covariance[s], variance[s], about.flag("estimated")) for s in range(n)]
    if (residual[0] is None) != (problem.residual is None):
        node.wrong("residual", "what the basis needs")
    return [
        BasisPieces(bases[s], means[s], residual[s], weights[s], noise[s], scale[s])
        for s in range(n)
    ]


def _read_bases(node: Node, problem: Any, n: int) -> list[Any]:
    """Bases of all draws; their size and that of the trend is D."""
    d, q = node.sizes["d"], node.sizes["q"]
    kernels = _read_kernels(node, problem.kernel, n)
    if problem.n_features is not None:
        node.only("kind", "kernel", "key", "n_features").choice("kind", ("fourier",))
        key = _read_key(node.node("key"))
        if node.whole("n_features") != problem.n_features:
            node.wrong("n_features", "that of the problem")
        bases: list[Any] = [
            FourierBasis(kernel, key, problem.n_features, d, problem.dtype) for kernel in kernels
        ]
        features = jax.eval_shape(bases[0].features, jax.ShapeDtypeStruct((1, d), float))
        size = features.shape[1]
    else:
        node.only("kind", "kernel", "locations", "root", "jitter").choice("kind", ("inducing",))
        draws = _Draws(node, n)
        locations, root = draws("locations", "r d"), draws("root", "r r")
        bases = [
            InducingBasis(kernel, w, r, jitter, problem.dtype)
            for kernel, w, r, jitter in zip(kernels, locations, root, draws("jitter"), strict=True)
        ]
        size = node.sizes["r"]
    if node.sizes.setdefault("D", size + q) != size + q:
        refuse(f"{node.where} is not of the size of the rest of the model")
    return bases


# --------------------------------------------------------------------------- pseudo-targets


def _pseudo_node(model: PseudoTarget, arrays: ArrayWriter) -> dict[str, Any]:
    return {
        "options": options_node(model, arrays),
        "regressor": estimator_node(model.regressor_, arrays, {"kernel": "mediator_kernel"}),
        "model": estimator_node(model.model_, arrays),
        "pseudo_targets": arrays.ref(model.pseudo_targets_),
        "pseudo_target_covariance": arrays.ref(model.pseudo_target_covariance_),
        "report": report_node(model.fit_report_),
    }


def _read_pseudo(node: Node, supplied: Supplied) -> PseudoTarget:
    node.only(
        *("class", "options", "regressor", "model", "pseudo_targets"),
        *("pseudo_target_covariance", "report"),
    )
    model = PseudoTarget(**read_options(node.node("options"), PseudoTarget, supplied))
    model.regressor_ = read_estimator(node.node("regressor"), supplied)
    model.model_ = read_estimator(node.node("model"), supplied)
    for stage in (model.regressor_, model.model_):
        if not isinstance(stage, BagModel):
            refuse(f"{node.where}: a stage of it is not a model of bags")
    model.pseudo_targets_ = node.array("pseudo_targets", "N")
    model.pseudo_target_covariance_ = node.array("pseudo_target_covariance", "N N")
    if len(model.pseudo_targets_) != model.model_.bags_.n_bags:
        node.wrong("pseudo_targets", "one for each bag")
    model.fit_report_ = read_report(node.node("report"), model.model_.parameters_)
    return model


EARLIER_PARTS = {"pseudo-targets": 2, "tilted": 1, "conditional": 1}
"""Members of mixtures in files that do not say their parts."""


def _mediated_node(model: MediatedGP, arrays: ArrayWriter) -> dict[str, Any]:
    return {
        "options": options_node(model, arrays),
        "regressor": estimator_node(model.regressor_, arrays, {"kernel": "mediator_kernel"}),
        "explained_share": number(model.explained_share_),
        "members": {name: estimator_node(m, arrays) for name, m in model.members_.items()},
        "parts": dict(model.parts_),
        "report": report_node(model.fit_report_),
    }


def _read_mediated(node: Node, supplied: Supplied) -> MediatedGP:
    node.only(
        *("class", "options", "regressor", "explained_share", "members", "report"),
        optional=["parts"],
    )
    model = MediatedGP(**read_options(node.node("options"), MediatedGP, supplied))
    model.regressor_ = read_estimator(node.node("regressor"), supplied)
    model.explained_share_ = node.number("explained_share")
    if "parts" in node:
        names = tuple(dict.fromkeys([*PARTS_OF_A_WEAK_LINK, *PARTS_OF_AN_OPEN_LINK]))
        parts = node.node("parts").only(optional=[*names])
        model.parts_ = {name: parts.whole(name, 1, 100) for name in names if name in parts}
        if not model.parts_:
            refuse(f"{node.where}: it has no parts")
    else:
        present = node.node("members")
        model.parts_ = {name: n for name, n in EARLIER_PARTS.items() if name in present}
    members = node.node("members").only(*model.parts_)
    model.members_ = {name: read_estimator(members.node(name), supplied) for name in model.parts_}
    for stage in (model.regressor_, *model.members_.values()):
        if not isinstance(stage, BagModel):
            refuse(f"{node.where}: a stage of it is not a model of bags")
    if len({each.n_features_in_ for each in model.members_.values()}) > 1:
        refuse(f"{node.where}: its members have different covariates")
    model.fit_report_ = read_report(node.node("report"), model.model_.parameters_)
    return model
