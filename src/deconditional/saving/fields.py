"""Fitted downscalers: what was paired, scalings, the models, and what is said about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import xarray as xr

from deconditional.errors import SavedModelError, UsageError
from deconditional.fields.downscaler import Downscaler
from deconditional.fields.grids import Axis, Grid
from deconditional.fields.pairing import Fine, Pairing
from deconditional.fields.question import Question
from deconditional.fields.scaling import InputScaling, Spread, TargetScaling
from deconditional.fields.validation import Blocks, Comparison
from deconditional.saving.container import ArrayWriter, number, refuse
from deconditional.saving.kernels import Supplied
from deconditional.saving.models import (
    bags_node,
    estimator_node,
    fingerprint,
    read_bags,
    read_estimator,
)
from deconditional.saving.nodes import Node, as_array, as_number
from deconditional.saving.values import options_node, read_options, read_times, times_node

__all__ = ["downscaler_node", "read_downscaler", "units"]


def units(downscaler: Downscaler) -> str:
    """Of the target."""
    target = downscaler.coarse_[downscaler.pairing_.question.target]
    return str(target.attrs.get("units", ""))


def downscaler_node(downscaler: Downscaler, arrays: ArrayWriter) -> dict[str, Any]:
    """A fitted downscaler."""
    if type(downscaler) is not Downscaler:
        raise SavedModelError(f"a {type(downscaler).__name__} cannot be saved.")
    downscaler._check_fitted()
    models = list(downscaler.candidates_.values())
    own = next((k for k, m in enumerate(models) if m is downscaler.model_), None)
    if own is None:  # fitted anew, to the logarithm corrected
        own = len(models)
        models.append(downscaler.model_)
    target, inputs, mediators = (
        downscaler.target_scaling_,
        downscaler.input_scaling_,
        downscaler.mediator_scaling_,
    )
    return {
        "class": "Downscaler",
        "options": options_node(downscaler, arrays),
        "data": {"sha256": fingerprint(downscaler), "observations": len(downscaler.pairing_.z)},
        "units": units(downscaler),
        "pairing": _pairing_node(downscaler.pairing_, arrays),
        "target_scaling": {
            "centre": number(target.centre),
            "scale": number(target.scale),
            "log": bool(target.log),
            "bounds": [number(end) for end in target.bounds],
        },
        "input_scaling": {k: arrays.ref(getattr(inputs, k)) for k in ("centre", "scale")},
        "mediator_scaling": {k: arrays.ref(getattr(mediators, k)) for k in ("centre", "scale")},
        "coarse": _coarse_node(downscaler, arrays),
        "blocks": _blocks_node(downscaler._blocks, arrays),
        "models": [estimator_node(model, arrays) for model in models],
        "candidates": list(downscaler.candidates_),
        "model": {"name": downscaler.model_name_, "index": own},
        "comparison": _comparison_node(downscaler.comparison_, arrays),
        "parameters": [_row_node(row) for row in downscaler.parameters_],
        "timings": {name: number(value) for name, value in downscaler.timings_.items()},
    }


def read_downscaler(node: Node, supplied: Supplied) -> Downscaler:
    """The fitted downscaler of a node."""
    node.only(
        *("class", "options", "data", "units", "pairing", "target_scaling", "input_scaling"),
        *("mediator_scaling", "coarse", "blocks", "models", "candidates", "model", "comparison"),
        *("parameters", "timings"),
    )
    found = Downscaler(**read_options(node.node("options"), Downscaler, supplied))
    _check_options(node.node("options"), found)
    question = found.question()
    pairing = _read_pairing(node.node("pairing"), question)
    found.pairing_ = pairing
    target = node.node("target_scaling").only("centre", "scale", "log", "bounds")
    ends = [as_number(v, f"{target.where}.bounds") for v in target.items("bounds")]
    if len(ends) != 2 or not ends[0] < ends[1] or not target.number("scale") > 0:
        refuse(f"{target.where} is no scaling")
    found.target_scaling_ = TargetScaling(
        target.number("centre"), target.number("scale"), target.flag("log"), (ends[0], ends[1])
    )
    found.input_scaling_ = _read_scaling(node.node("input_scaling"), "d")
    found.mediator_scaling_ = _read_scaling(node.node("mediator_scaling"), "p")
    found.coarse_ = _read_coarse(node.node("coarse"), pairing)
    found._blocks = node.maybe("blocks", _read_blocks)
    models = [read_estimator(each, supplied) for each in node.nodes("models")]
    names = node.texts("candidates")
    chosen = node.node("model").only("name", "index")
    own = chosen.whole("index")
    if len(set(names)) != len(names) or not names or not own < len(models) <= len(names) + 1:
        node.wrong("candidates", "the names of its models")
    if chosen.text("name") not in names or len(models) < len(names):
        node.wrong("model", "one of its candidates")
    if own < len(names) and names[own] != chosen.text("name"):
        node.wrong("model", "the candidate of its name")
    found.candidates_ = dict(zip(names, models, strict=False))
    found.model_name_, found.model_ = chosen.text("name"), models[own]
    last = getattr(found.model_, "model_", found.model_)
    if last.n_features_in_ != node.sizes["d"] or last.fine_noise != found.fine_noise:
        refuse(f"{node.where}: its model is not one of its covariates and options")
    found.fit_report_ = found.model_.fit_report_
    found.comparison_ = node.maybe("comparison", _read_comparison)
    rows = node.nodes("parameters")
    found.parameters_ = [_read_row(r.only("name", "value", "unit", "meaning")) for r in rows]
    words = [row[key] for row in found.parameters_ for key in ("name", "unit", "meaning")]
    if not all(isinstance(word, str) for word in words):
        node.wrong("parameters", "a table of names, values, units and meanings")
    timings = node.node("timings")
    found.timings_ = {name: timings.number(name) for name in timings.value}
    data = node.node("data").only("sha256", "observations")
    if data.whole("observations") != len(pairing.z) or data.text("sha256") != fingerprint(found):
        refuse(f"{node.where}: the data in it is not the data its fingerprint belongs to")
    if node.text("units") != units(found):
        node.wrong("units", "that of the target")
    return found


def _check_options(node: Node, downscaler: Downscaler) -> None:
    """Raise where an argument is of a kind that predictions would stumble over."""
    names = [*_listed(downscaler.covariates), *_listed(downscaler.mediators)]
    dims = {} if downscaler.dims is None else downscaler.dims
    if isinstance(dims, dict):
        names += [*dims, *dims.values()]
    right = (
        all(isinstance(name, str) for name in names)
        and isinstance(dims, dict)
        and isinstance(downscaler.mask, str | None)
        and all(isinstance(v, bool) for v in (downscaler.fine_noise, downscaler.position))
        and type(downscaler.seed) is int
    )
    if not right:
        refuse(f"{node.where} are not those of a downscaler")


def _listed(names: Any) -> tuple[Any, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _read_scaling(node: Node, size: str) -> InputScaling:
    node.only("centre", "scale")
    scaling = InputScaling(node.array("centre", size), node.array("scale", size))
    if not (scaling.scale > 0).all():
        node.wrong("scale", "positive")
    return scaling


def _blocks_node(blocks: Blocks | None, arrays: ArrayWriter) -> Any:
    if blocks is None:
        return None
    fold, region = arrays.ref(blocks.fold), arrays.ref(blocks.region)
    return {"fold": fold, "region": region, "how": blocks.how}


def _read_blocks(node: Node) -> Blocks:
    node.only("fold", "region", "how")
    fold, region = (node.array(key, "M", "i").astype(np.int64) for key in ("fold", "region"))
    return Blocks(fold, region, node.text("how"))


def _row_node(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a table: texts, numbers and lists of numbers."""
    return {key: _cell_node(value) for key, value in row.items()}


def _cell_node(value: Any) -> Any:
    if isinstance(value, str):
        return {"text": value}
    return [_cell_node(v) for v in value] if isinstance(value, list) else number(value)


def _read_row(node: Node) -> dict[str, Any]:
    return {key: _read_cell(node, key, value) for key, value in node.value.items()}


def _read_cell(node: Node, key: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_read_cell(node, key, v) for v in value]
    if isinstance(value, dict):
        return node.at(value, key).only("text").text("text")
    return as_number(value, f"{node.where}.{key}")


# --------------------------------------------------------------------------- the pairing


def _axis_node(axis: Axis, arrays: ArrayWriter) -> dict[str, Any]:
    return {
        "name": axis.name,
        "coordinate": axis.coordinate,
        "kind": axis.kind,
        "centres": arrays.ref(axis.centres),
        "bounds": arrays.ref(axis.bounds),
        "tolerance": number(axis.tolerance),
    }


def _read_axis(node: Node, size: str, kinds: tuple[str, str]) -> Axis:
    node.only("name", "coordinate", "kind", "centres", "bounds", "tolerance")
    return Axis(
        node.text("name"),
        node.text("coordinate"),
        node.choice("kind", kinds),  # type: ignore[arg-type]
        node.array("centres", size),
        node.array("bounds", f"{size} 2"),
        node.number("tolerance"),
    )


def _grid_node(grid: Grid, arrays: ArrayWriter) -> dict[str, Any]:
    return {
        "y": _axis_node(grid.y, arrays),
        "x": _axis_node(grid.x, arrays),
        "time": grid.time,
        "times": times_node(grid.times, arrays),
        "mapping": grid.mapping,
    }


def _read_grid(node: Node, prefix: str) -> Grid:
    node.only("y", "x", "time", "times", "mapping")
    y = _read_axis(node.node("y"), f"{prefix}y", ("latitude", "plane"))
    x = _read_axis(node.node("x"), f"{prefix}x", ("longitude", "plane"))
    if (y.kind == "plane") != (x.kind == "plane"):
        refuse(f"{node.where} has axes of two kinds")
    return Grid(
        y,
        x,
        _maybe_text(node, "time"),
        read_times(None if node.is_null("times") else node.node("times")),
        _maybe_text(node, "mapping"),
    )


def _maybe_text(node: Node, key: str) -> str | None:
    return None if node.is_null(key) else node.text(key)


ARRAYS = {
    "bag_mediator": ("N p", "f"),
    "z": ("M", "f"),
    "mediator": ("M p", "f"),
    "own_bag": ("M", "i"),
    "observed_unit": ("M", "i"),
    "target": ("units", "f"),
}


class _ChunksLeftBehind:
    """Stands for chunked fine data, which is not in the file."""

    def bags(self, *_: Any) -> NoReturn:
        """Raise: smaller bags cannot be made of what is not there."""
        raise UsageError(
            "this asks for the chunked fine data of the fit, which a saved model does not have; "
            "fit again."
        )


def _fine_node(fine: Fine, arrays: ArrayWriter) -> dict[str, Any]:
    return {
        "grid": _grid_node(fine.grid, arrays),
        "bags": bags_node(fine.bags, arrays),
        "bag_unit": arrays.ref(fine.bag_unit),
        "sizes": arrays.ref(fine.sizes),
        "too_small": int(fine.too_small),
        "filled": arrays.ref(fine.filled),
        "known": number(fine.known),
        "n_cells": int(fine.n_cells),
        "spread": {key: arrays.ref(value) for key, value in fine.spread._asdict().items()},
        "chunked": fine.chunks is not None,
    }


def _read_fine(node: Node) -> Fine:
    node.only(
        *("grid", "bags", "bag_unit", "sizes", "too_small", "filled", "known", "n_cells"),
        *("spread", "chunked"),
    )
    spread = node.node("spread").only(*Spread._fields)
    return Fine(
        grid=_read_grid(node.node("grid"), "f"),
        bags=read_bags(node.node("bags")),
        bag_unit=node.array("bag_unit", "N", "i").astype(np.int64),
        sizes=node.array("sizes", "N", "i").astype(np.int64),
        too_small=node.whole("too_small"),
        filled=node.array("filled", "N m"),
        known=node.number("known"),
        n_cells=node.whole("n_cells"),
        spread=Spread(*(spread.array(key, "d") for key in Spread._fields)),
        chunks=_ChunksLeftBehind() if node.flag("chunked") else None,
    )


def _pairing_node(pairing: Pairing, arrays: ArrayWriter) -> dict[str, Any]:
    return {
        "understood": [list(pair) for pair in pairing.understood],
        "fine": _fine_node(pairing.fine, arrays),
        "coarse": _grid_node(pairing.coarse, arrays),
        "times": times_node(pairing.times, arrays),
        **{name: arrays.ref(getattr(pairing, name)) for name in ARRAYS},
    }


def _read_pairing(node: Node, question: Question) -> Pairing:
    node.only("understood", "fine", "coarse", "times", *ARRAYS)
    fine, coarse = _read_fine(node.node("fine")), _read_grid(node.node("coarse"), "c")
    found: dict[str, Any] = {
        name: node.array(name, sizes, kind) for name, (sizes, kind) in ARRAYS.items()
    }
    times = read_times(None if node.is_null("times") else node.node("times"))
    # Before anything is made of a grid: its cells are as many as the file has values for them.
    n_units = coarse.n_cells * (1 if times is None else len(times))
    if len(found["target"]) != n_units:
        node.wrong("target", "one value for each cell and time")
    places = {
        "observed_unit": (found["observed_unit"], 0, n_units),
        "fine.bag_unit": (fine.bag_unit, 0, n_units),
        "own_bag": (found["own_bag"], -1, len(fine.bags)),
    }
    for name, (values, least, most) in places.items():
        if not ((values >= least) & (values < most)).all():
            node.wrong(name, "a list of places")
    words = node.items("understood")
    if not all(
        isinstance(w, list) and len(w) == 2 and all(isinstance(t, str) for t in w) for w in words
    ):
        node.wrong("understood", "a list of labels and texts")
    for name in ("own_bag", "observed_unit"):
        found[name] = found[name].astype(np.int64)
    understood = tuple((w[0], w[1]) for w in words)
    pairing = Pairing(
        question=question, fine=fine, coarse=coarse, times=times, understood=understood, **found
    )
    wanted = pairing.n_position + len(question.covariates)
    if node.sizes["d"] != wanted or node.sizes["p"] != pairing.n_position + len(question.mediators):
        refuse(f"{node.where}: its points do not have the variables that are asked for")
    return pairing


# --------------------------------------------------------------------------- the coarse data


def _coarse_node(downscaler: Downscaler, arrays: ArrayWriter) -> dict[str, Any]:
    """What predictions say of the coarse data: coordinates, attributes, history."""
    data, p = downscaler.coarse_, downscaler.pairing_
    axes = {}
    for role, axis in (("y", p.coarse.y), ("x", p.coarse.x)):
        variable = data[axis.coordinate]
        values = np.asarray(variable.values)
        axes[role] = {
            "values": arrays.ref(values),
            "attributes": _attributes_node(variable, arrays),
        }
    return {
        **axes,
        "target": _attributes_node(data[p.question.target], arrays),
        "attributes": _attributes_node(data, arrays),
    }


def _read_coarse(node: Node, pairing: Pairing) -> xr.Dataset:
    """A dataset with the coordinates, and the target, of the coarse data."""
    node.only("y", "x", "target", "attributes")
    coords = {}
    for role, axis in (("y", pairing.coarse.y), ("x", pairing.coarse.x)):
        about = node.node(role).only("values", "attributes")
        values = as_array(about.raw("values"), f"{about.where}.values", node.archive)
        if values.shape != (axis.size,):
            about.wrong("values", "one for each cell")
        coords[axis.coordinate] = ((axis.name,), values, _read_attributes(about.node("attributes")))
    dims = [pairing.coarse.y.name, pairing.coarse.x.name]
    shape: tuple[int, ...] = pairing.coarse.shape
    target = pairing.target
    if pairing.times is not None:
        name = pairing.coarse.time or "time"
        dims, shape = [name, *dims], (len(pairing.times), *shape)
        coords[name] = ((name,), pairing.times, {})
    attributes = _read_attributes(node.node("target"))
    return xr.Dataset(
        {pairing.question.target: (dims, target.reshape(shape), attributes)},
        coords=coords,
        attrs=_read_attributes(node.node("attributes")),
    )


def _attributes_node(data: Any, arrays: ArrayWriter) -> dict[str, Any]:
    """Attributes of a variable or a dataset; what is neither text nor number becomes text."""
    found: dict[str, Any] = {}
    for key, value in data.attrs.items():
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, bool | int | str):
            found[str(key)] = value
        elif isinstance(value, float):
            found[str(key)] = {"float": number(value)}
        elif isinstance(value, np.ndarray | list | tuple) and np.asarray(value).dtype.kind in "fiu":
            found[str(key)] = {"numbers": arrays.ref(np.asarray(value))}
        else:
            found[str(key)] = str(value)
    return found


def _read_attributes(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in node.value.items():
        if isinstance(value, bool | int | str):
            found[key] = value
            continue
        inner = node.at(value, key)
        if "float" in inner:
            found[key] = inner.only("float").number("float")
        else:
            where = f"{inner.where}.numbers"
            found[key] = as_array(inner.only("numbers").raw("numbers"), where, node.archive)
    return found


# --------------------------------------------------------------------------- the comparison


def _comparison_node(comparison: Comparison | None, arrays: ArrayWriter) -> Any:
    if comparison is None:
        return None
    return {
        "rows": [_row_node(row) for row in comparison.rows],
        "chosen": comparison.chosen,
        "how": comparison.how,
        "pit": {name: arrays.ref(values) for name, values in comparison.pit.items()},
    }


def _read_comparison(node: Node) -> Comparison:
    node.only("rows", "chosen", "how", "pit")
    rows = tuple(_read_row(row) for row in node.nodes("rows"))
    pit = node.node("pit")
    chosen = node.text("chosen")
    if not rows or chosen not in {row.get("model") for row in rows} or chosen not in pit:
        node.wrong("chosen", "one of the models compared")
    return Comparison(rows, chosen, node.text("how"), {name: pit.array(name) for name in pit.value})
