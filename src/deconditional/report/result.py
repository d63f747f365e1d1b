"""A result of ``deconditional downscale`` and the truth to hold it against, checked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deconditional.errors import UsageError, shortened, visible
from deconditional.report.grids import horizontal_dims, is_longitude, time_dim
from deconditional.report.marginals import KINDS, Marginals

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Result", "align_truth", "load_result", "read_result"]

ROLES = ("nothing", "covariates only", "target only", "both")
"""What a coarse cell gives, by its value in ``coarse_role``."""

CELLS = ("mean", "std", "latent_mean", "latent_std")
DRAWN = (*CELLS, "samples", "coarse_observed", "coarse_mean", "coarse_residual", "coarse_role")
"""Variables that pages are made of, the first of them on the fine grid."""

DEEPEST = 30
"""Lists and objects within each other in the facts."""

Places = npt.NDArray[np.int64]


def _is_list(value: Any, of: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(of, value))


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_number_or_none(value: Any) -> bool:
    return (
        value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
    )


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def _is_fit(value: Any) -> bool:
    return (
        _is_object(value)
        and isinstance(value.get("notes") or [], list)
        and _is_object(value.get("details") or {})
    )


def _is_comparison(value: Any) -> bool:
    return (
        _is_object(value)
        and _is_list(value.get("rows") or [], lambda row: isinstance(row, list) and bool(row))
        and isinstance(value.get("columns") or [], list)
        and _is_list(value.get("pit") or [], _is_number_or_none)
    )


FACTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "options": ("an object", _is_object),
    "timings": ("an object", _is_object),
    "versions": ("an object", _is_object),
    "bounds": ("two numbers", lambda v: _is_pair(v) and _is_list(v, _is_number_or_none)),
    "understood": ("a list of pairs", lambda v: _is_list(v, _is_pair)),
    "parameters": ("a list of objects", lambda v: _is_list(v, _is_object)),
    "fit": ("an object with lists of notes", _is_fit),
    "comparison": ("an object with rows and columns", _is_comparison),
    "residuals": (
        "an object of numbers",
        lambda v: _is_object(v) and all(map(_is_number_or_none, v.values())),
    ),
}
"""What each of the facts must be, where it is there."""


def _depth(value: Any) -> int:
    """Lists and objects within each other."""
    depth, level = 0, [value]
    while level and depth <= DEEPEST:
        parts = [v.values() if isinstance(v, dict) else v for v in level]
        level = [v for part in parts if not isinstance(part, _PLAIN) for v in part]
        depth += 1
    return depth


_PLAIN = (str, int, float, type(None))


def _short(value: Any) -> str:
    """A name for headings and figures."""
    return shortened(visible(str(value)), 200)


@dataclass(frozen=True)
class Result:
    """A checked result.

    Attributes
    ----------
    data
        The dataset.
    facts
        What its attribute ``deconditional`` says.
    """

    data: xr.Dataset
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def mean(self) -> xr.DataArray:
        """Posterior mean."""
        return self.data["mean"]

    @property
    def target(self) -> str:
        """Name of the target's variable."""
        return _short(self.facts.get("target") or "target")

    @property
    def name(self) -> str:
        """What the target is, in words."""
        return _short(self.facts.get("long_name") or self.target)

    @property
    def units(self) -> str:
        """Units of the target; empty where it has none."""
        stored = self.mean.attrs.get("units", "")
        return _short(self.facts.get("units") or (stored if isinstance(stored, str) else ""))

    @property
    def distribution(self) -> str:
        """Kind of the marginal distributions."""
        return str(self.facts.get("distribution") or "normal")

    @property
    def time(self) -> str | None:
        """The time dimension, where the result has more than one time."""
        dim = time_dim(self.mean)
        return dim if dim is not None and self.mean.sizes[dim] > 1 else None

    def marginals(self) -> Marginals:
        """The distribution of every cell."""
        if self.distribution == "rectified normal":
            given = self.facts.get("bounds") or [None, None]
            low, high = (
                default if bound is None else float(bound)
                for bound, default in zip(given, (-np.inf, np.inf), strict=True)
            )
            latent = [
                _floats(self.data[name].transpose(*self.mean.dims))
                for name in ("latent_mean", "latent_std")
            ]
            return Marginals("rectified normal", latent[0], latent[1], low, high)
        mean, std = _floats(self.mean), _floats(self.data["std"].transpose(*self.mean.dims))
        if self.distribution == "lognormal":
            return Marginals.lognormal(mean, std)
        return Marginals("normal", mean, std)

    def roles(self) -> list[int] | None:
        """How many coarse cells have each of the roles of :data:`ROLES`, where that is stored."""
        if "coarse_role" not in self.data:
            return None
        role = np.nan_to_num(_floats(self.data["coarse_role"])).astype(int)
        return [int(np.sum(role == value)) for value in range(len(ROLES))]


def load_result(path: str | os.PathLike[str]) -> xr.Dataset:
    """Open a result of ``deconditional downscale``.

    Raises
    ------
    UsageError
        Where the file cannot be read, or is something else.

    Examples
    --------
    >>> load_result("nowhere.nc")
    Traceback (most recent call last):
    ...
    deconditional.errors.UsageError: there is no file 'nowhere.nc'; ...
    """
    shown = repr(str(path))
    if not os.path.isfile(path):
        raise UsageError(f"there is no file {shown}; name one that deconditional downscale wrote.")
    from deconditional.fields.files import UnreadableError, open_fields

    try:
        data = open_fields(os.fspath(path), "result")
    except UnreadableError as error:
        raise UsageError(
            f"{shown} cannot be read as netCDF ({error.reason}); name one that deconditional "
            "downscale wrote."
        ) from None
    read_result(data, shown)
    return data


def read_result(data: xr.Dataset, shown: str = "the dataset") -> Result:
    """A dataset as a result, once it is known to be one.

    Examples
    --------
    >>> import xarray as xr
    >>> read_result(xr.Dataset({"t2m": 1.0}))
    Traceback (most recent call last):
    ...
    deconditional.errors.UsageError: the dataset is no result of deconditional downscale: it has
    no variable 'mean', no variable 'std' and no attribute 'deconditional'; ...
    """
    absent = [f"no variable {name!r}" for name in ("mean", "std") if name not in data]
    if "deconditional" not in data.attrs:
        absent.append("no attribute 'deconditional'")
    remedy = "name a file that deconditional downscale wrote."
    if absent:
        listed = " and ".join([", ".join(absent[:-1])] * (len(absent) > 1) + absent[-1:])
        raise UsageError(
            f"{shown} is no result of deconditional downscale: it has {listed}; {remedy}"
        )
    try:
        facts = json.loads(data.attrs["deconditional"])
    except (TypeError, ValueError, RecursionError):
        facts = None
    wrong = "" if isinstance(facts, dict) else "it is no object"
    for name, (what, fits) in FACTS.items():
        if not wrong and facts.get(name) and not fits(facts[name]):
            wrong = f"{name!r} must be {what}"
    if wrong or _depth(facts) > DEEPEST:
        raise UsageError(
            f"the attribute 'deconditional' of {shown} is damaged ({wrong or 'too deep'}); {remedy}"
        )
    result = Result(data, facts)
    _check_grid(result, shown)
    _check_distribution(result, shown)
    return result


def _check_grid(result: Result, shown: str) -> None:
    for name in (name for name in DRAWN if name in result.data):
        field = result.data[name]
        try:
            dims = horizontal_dims(field)
        except ValueError as error:
            raise UsageError(f"no map can be drawn of {name!r} in {shown}: {error}") from None
        axes = [field[dim] for dim in dims if dim in field.coords]
        odd = next((each for each in (field, *axes) if each.dtype.kind not in "fiub"), None)
        if odd is not None:
            raise UsageError(
                f"{str(odd.name)!r} in {shown} holds {odd.dtype} values, not numbers; run "
                "deconditional downscale again."
            )
        if not field.size or not all(np.isfinite(_floats(axis)).all() for axis in axes):
            raise UsageError(
                f"no map can be drawn of {name!r} in {shown}: it has no cells, or cells that are "
                "nowhere; run deconditional downscale again."
            )
        if name in CELLS and set(field.dims) != set(result.mean.dims):
            raise UsageError(f"'mean' and {name!r} of {shown} lie on different dimensions.")


def _check_distribution(result: Result, shown: str) -> None:
    kind = result.distribution
    if kind not in KINDS:
        raise UsageError(
            f"{shown} has marginals of the kind {kind!r}; this version knows {', '.join(KINDS)}. "
            "Read it with the version that wrote it."
        )
    if kind == "rectified normal":
        absent = [name for name in ("latent_mean", "latent_std") if name not in result.data]
        if absent:
            raise UsageError(
                f"{shown} has rectified normal marginals, but no variable "
                f"{' and '.join(map(repr, absent))}; run deconditional downscale again."
            )


# ---------------------------------------------------------------------- truth


def align_truth(truth: xr.DataArray | xr.Dataset, like: xr.DataArray, target: str) -> xr.DataArray:
    """The truth in the order of the result's own grid, found by its coordinates.

    The truth may be larger than the result and ordered otherwise, and its longitudes may count
    from -180 or from 0.

    Parameters
    ----------
    truth
        The field, or a dataset with a variable of the target's name.
    like
        A variable on the result's grid.
    target
        Name of the target.

    Examples
    --------
    >>> import xarray as xr
    >>> like = xr.DataArray(np.zeros(2), {"lat": [10.0, 20.0]}, ("lat",))
    >>> truth = xr.DataArray([3.0, 2.0, 1.0], {"lat": [30.0, 20.0, 10.0]}, ("lat",))
    >>> align_truth(truth, like, "t2m").values
    array([1., 2.])
    """
    import xarray as xr

    if isinstance(truth, xr.Dataset):
        if target not in truth.data_vars:
            names = ", ".join(map(str, truth.data_vars)) or "none"
            raise UsageError(
                f"the truth has no variable {target!r}, the target of the result; its variables "
                f"are: {names}. Rename the one that is meant."
            )
        truth = truth[target]
    given = truth
    single = [dim for dim in truth.dims if dim not in like.dims and truth.sizes[dim] == 1]
    truth = truth.squeeze(single, drop=True)
    truth = truth.expand_dims(
        [dim for dim in like.dims if dim not in truth.dims and like.sizes[dim] == 1]
    )
    if set(truth.dims) != set(like.dims):
        raise UsageError(
            f"the truth has the dimensions {_listed(given.dims)}, the result {_listed(like.dims)}; "
            "give the truth on the grid of the result."
        )
    for dim in like.dims:
        truth = truth.isel({dim: _places(truth, like, str(dim))})
    values = _floats(truth.transpose(*like.dims))
    return like.copy(data=values).assign_attrs(given.attrs).rename(target)


def _places(truth: xr.DataArray, like: xr.DataArray, dim: str) -> Places:
    """Positions along the truth's dimension of the values of the result's."""
    if dim not in truth.coords or dim not in like.coords:
        if truth.sizes[dim] == like.sizes[dim]:
            return np.arange(like.sizes[dim])
        raise UsageError(
            f"the truth has {truth.sizes[dim]} values along {dim!r}, the result {like.sizes[dim]}, "
            "and without coordinates they cannot be matched; give both their coordinates."
        )
    have, wanted = truth[dim].values, like[dim].values
    if _is_number(have) and _is_number(wanted):
        period = 360.0 if is_longitude(like, dim) else None
        places = _nearest(have.astype(float), wanted.astype(float), period)
    else:
        known = {value: place for place, value in enumerate(truth.indexes[dim])}
        places = np.array([known.get(value, -1) for value in like.indexes[dim]])
    if (places < 0).any():
        missing = wanted[np.argmax(places < 0)]
        raise UsageError(
            f"the truth has no value at {dim} = {missing}, one of {int((places < 0).sum())} of "
            f"{len(wanted)} that it lacks; give the truth on the grid of the result."
        )
    return places


def _nearest(
    have: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64], period: float | None
) -> Places:
    """Position of the value that is the same but for rounding; -1 where there is none."""
    if period is not None:
        have, wanted = have % period, wanted % period
        places = np.arange(len(have))
        have = np.concatenate([have - period, have, have + period])
        origin = np.concatenate([places, places, places])
    else:
        origin = np.arange(len(have))
    order = np.argsort(have)
    ordered = have[order]
    right = np.clip(np.searchsorted(ordered, wanted), 1, max(len(have) - 1, 1))
    right = np.minimum(right, len(have) - 1)
    left = np.maximum(right - 1, 0)
    closer = np.where(
        np.abs(ordered[left] - wanted) <= np.abs(ordered[right] - wanted), left, right
    )
    steps = np.abs(np.diff(np.sort(wanted)))
    step = float(steps[steps > 0].min()) if (steps > 0).any() else 0.0
    # Coordinates are often stored in single precision.
    tolerance = np.maximum(1e-3 * step, 4 * np.finfo(np.float32).eps * np.abs(wanted))
    return np.where(np.abs(ordered[closer] - wanted) <= tolerance, origin[order[closer]], -1)


def _is_number(values: npt.NDArray[Any]) -> bool:
    return bool(np.issubdtype(values.dtype, np.number))


def _listed(dims: Any) -> str:
    return ", ".join(map(str, dims))


def _floats(values: xr.DataArray) -> npt.NDArray[np.float64]:
    return np.asarray(values.values, dtype=float)
