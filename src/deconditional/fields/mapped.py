"""Many downscalings that differ in one thing: the time, the member of an ensemble, an option.

Each is a slice with a fit of its own. Slices go to the workers of a Dask cluster, or are computed
one after the other. A slice that is done is kept in a folder, so nothing is
computed twice; one that fails is reported and takes nothing else down.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from rich.console import Console

from deconditional.errors import DeconditionalWarning, SliceWarning, UsageError, one_line
from deconditional.fields.axes import time_label
from deconditional.fields.cluster import active_client, cluster, limit_threads
from deconditional.fields.description import as_json
from deconditional.fields.io import write_fields
from deconditional.fields.predict import EXTRAPOLATION, NOT_PREDICTED
from deconditional.fitting.interrupts import aborting
from deconditional.saving.identity import digest
from deconditional.saving.outputs import check_folder

RETRIES = 2

Work = Callable[..., xr.Dataset]


@dataclass(frozen=True)
class Slice:
    """Downscaling that is one of many: its data, options and name.

    Attributes
    ----------
    index, label
        Its place along the dimension, and what to call it.
    fine, coarse, on
        Its data; None where they travel beside it.
    options
        Arguments of ``downscale`` beyond the data.
    identity
        A digest of data and options.
    """

    index: int
    label: str
    fine: Any
    coarse: Any
    on: Any
    options: Mapping[str, Any]
    identity: str

    def __str__(self) -> str:
        return self.label


def slices(
    fine: xr.Dataset,
    coarse: xr.Dataset,
    on: xr.Dataset | None,
    map_over: str | Mapping[str, Sequence[Any]],
    options: Mapping[str, Any],
) -> tuple[str, np.ndarray, list[Slice]]:
    """The dimension, its values, and a slice for each.

    Parameters
    ----------
    map_over
        A dimension of the coarse data, along which the fine data is cut too where it has it; or
        the name of an option with the values it takes, as in ``{"seed": range(10)}``.
    """
    if isinstance(map_over, Mapping):
        if len(map_over) != 1:
            raise UsageError("map_over takes one option with its values, as in {'seed': [0, 1]}.")
        name, given = next(iter(map_over.items()))
        choices = list(given)
        if not choices:
            raise UsageError(f"map_over has no values for {name!r}; give at least one.")
        cut = [
            _slice(k, f"{name}={value}", fine, coarse, on, {**options, name: value})
            for k, value in enumerate(choices)
        ]
        return str(name), _labels(choices), cut
    dim = map_over
    if dim not in coarse.dims:
        there = ", ".join(map(str, coarse.dims))
        raise UsageError(f"the coarse data has no dimension {dim!r} to map over; it has {there}.")
    values = coarse[dim].values if dim in coarse.coords else np.arange(coarse.sizes[dim])
    if len(set(values.tolist())) < len(values):
        raise UsageError(f"the values of {dim!r} in the coarse data are not distinct.")
    cut = []
    for k, value in enumerate(values):
        label = f"{dim}={time_label(value)}"
        points = _at(fine, dim, value, k, "fine", label)
        target = None if on is None else _at(on, dim, value, k, "prediction", label)
        cut.append(_slice(k, label, points, coarse.isel({dim: k}, drop=True), target, options))
    return dim, values, cut


def _at(data: xr.Dataset, dim: str, value: Any, place: int, which: str, label: str) -> xr.Dataset:
    """What belongs to one value of a dimension; all of a dataset that does not have it."""
    if dim not in data.dims:
        return data
    if dim not in data.coords:
        if place >= data.sizes[dim]:
            raise UsageError(f"the {which} data has nothing for {label}; cut the coarse data.")
        return data.isel({dim: place}, drop=True)
    try:
        return data.sel({dim: value}, drop=True)
    except (KeyError, TypeError):
        raise UsageError(
            f"the {which} data has no {label}; leave {dim!r} out of it, or cut the coarse data to "
            "the values that both have."
        ) from None


def _slice(
    k: int,
    label: str,
    fine: xr.Dataset,
    coarse: xr.Dataset,
    on: xr.Dataset | None,
    options: Mapping[str, Any],
) -> Slice:
    parts = [part for data in (fine, coarse, on) for part in _contents(data)]
    return Slice(k, label, fine, coarse, on, options, digest(as_json(options), *parts)[:16])


def _contents(data: xr.Dataset | None) -> Iterator[Any]:
    """What tells a dataset from others: values, or of Dask arrays what makes them."""
    yield None
    variables = {} if data is None else dict(data.variables)
    for name, variable in sorted(variables.items(), key=lambda pair: str(pair[0])):
        yield f"{name}{variable.dims}{variable.shape}{variable.dtype}"
        yield variable.values if variable.chunks is None else str(variable.data.name)


def _labels(choices: Sequence[Any]) -> np.ndarray:
    plain = all(isinstance(c, bool | int | float | str) for c in choices)
    return np.asarray(choices if plain else [str(c) for c in choices])


# ---------------------------------------------------------------------- carrying out


def downscale_slices(
    cut: Sequence[Slice],
    store: str | Path,
    downscale: Work,
    jobs: int = 1,
    console: Console | None = None,
) -> tuple[dict[int, Path], dict[int, str]]:
    """Fit and predict every slice that is not in the folder yet.

    Parameters
    ----------
    cut
        The slices.
    store
        A folder for one file per slice, whose name says what it was made from.
    downscale
        Takes the data and options of a slice to its result.
    jobs
        Processes of a Dask cluster on this machine, where none is active.
    console
        Where progress goes.

    Returns
    -------
    tuple
        Files of the slices that are done, and reasons of those that failed.
    """
    folder = Path(store)
    check_folder(folder)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"the store {str(folder)!r} is a file; name a folder.")
    folder.mkdir(exist_ok=True)
    files = {s.index: folder / f"{s.index:05d}-{s.identity}.nc" for s in cut}
    done = {k: file for k, file in files.items() if file.exists()}
    todo = [s for s in cut if s.index not in done]
    failed: dict[int, str] = {}
    work, quiet = partial(_result, downscale), console or Console(quiet=True)
    with cluster(jobs if jobs > 1 and active_client() is None else None, None):
        outcomes = _here(todo, work) if active_client() is None else _on_cluster(todo, work)
        for each, outcome in outcomes:
            try:
                if isinstance(outcome, BaseException):
                    raise outcome
                done[each.index] = write_fields(outcome, files[each.index])
            except Exception as error:
                failed[each.index] = one_line(error)
            quiet.print(f"{each.label}: {'done' if each.index in done else 'failed'}")
    return done, failed


def _here(todo: Sequence[Slice], work: Work) -> Iterator[tuple[Slice, Any]]:
    for each in todo:
        outcome: Any
        try:
            with aborting():  # an interrupt means all of the slices
                outcome = work(each, each.fine, each.coarse, each.on)
        except Exception as error:
            outcome = error
        yield each, outcome


def _on_cluster(todo: Sequence[Slice], work: Work) -> Iterator[tuple[Slice, Any]]:
    from dask.delayed import delayed
    from distributed import as_completed

    client = active_client()
    assert client is not None
    limit_threads()
    task = delayed(work, pure=False)
    futures = {}
    for each in todo:  # Dask sees the data of a slice only outside of it
        bare = replace(each, fine=None, coarse=None, on=None)
        found = task(bare, each.fine, each.coarse, each.on)
        futures[client.compute(found, retries=RETRIES)] = each
    try:
        for future in as_completed(futures):
            yield futures[future], future.exception() or future.result()
            future.release()
    finally:
        client.cancel(list(futures))


def _result(
    downscale: Work, each: Slice, fine: xr.Dataset, coarse: xr.Dataset, on: xr.Dataset | None
) -> xr.Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconditionalWarning)  # what they say is in the facts
        return downscale(fine, coarse, on=on, **each.options).compute()


# ---------------------------------------------------------------------- coming together


def combined(
    dim: str,
    values: np.ndarray,
    cut: Sequence[Slice],
    done: Mapping[int, Path],
    failed: Mapping[int, str],
) -> xr.Dataset:
    """All slices along the dimension; those that failed are missing values, and a warning."""
    if not done:
        label, reason = cut[0].label, failed.get(cut[0].index, "nothing was computed")
        raise UsageError(f"all {len(cut)} slices failed; the first, {label}: {reason}.")
    found = {}
    for index, file in sorted(done.items()):
        with xr.open_dataset(file, decode_timedelta=False) as data:
            found[index] = data.load()
    template = found[min(found)]
    parts = [found.get(s.index, template.where(False)) for s in cut]
    together = xr.concat(
        [p.drop_vars("coarse_role") for p in parts],
        dim=dim,
        data_vars="all",
        coords="minimal",
        compat="override",
        join="override",
        combine_attrs="override",
    )
    roles = [found.get(s.index, template)["coarse_role"] for s in cut]
    together["coarse_role"] = xr.concat(roles, dim=dim)
    if EXTRAPOLATION in together:  # failed slices made it a float
        flags = together[EXTRAPOLATION].fillna(NOT_PREDICTED).astype(np.int8)
        together[EXTRAPOLATION] = flags
    together = together.assign_coords({dim: (dim, values)})
    facts = [_facts(found[s.index]) if s.index in found else None for s in cut]
    whole = _facts(template) | {
        "map_over": dim,
        "residuals": None,
        "slices": [
            {
                "label": s.label,
                "failed": failed.get(s.index),
                **({} if fact is None else _of_slice(fact)),
            }
            for s, fact in zip(cut, facts, strict=True)
        ],
    }
    together.attrs = {k: v for k, v in template.attrs.items() if not k.startswith("fit_")} | {
        "deconditional": as_json(whole)
    }
    if failed:
        shown = "; ".join(f"{s.label}: {failed[s.index]}" for s in cut if s.index in failed)
        warnings.warn(
            f"{len(failed)} of {len(cut)} slices failed and are missing in the result ({shown}). "
            "The same call tries them again and keeps the others.",
            SliceWarning,
            stacklevel=3,
        )
    return together


def _facts(data: xr.Dataset) -> dict[str, Any]:
    return json.loads(str(data.attrs["deconditional"]))


def _of_slice(facts: Mapping[str, Any]) -> dict[str, Any]:
    names = ("model", "parameters", "fit", "residuals", "extrapolation", "timings")
    return {name: facts.get(name) for name in names}
