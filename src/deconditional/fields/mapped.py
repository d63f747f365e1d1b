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
    """Downscaling that is one of many."""

    # index, label: its place along the dimension, and what to call it.
    index: int
    label: str
    # Fine and coarse data and where to predict; nothing where they travel beside it.
    data: tuple[Any, ...]
    options: Mapping[str, Any]  # arguments of downscale beyond the data

    @property
    def file(self) -> str:
        """Name of the file that keeps the result: it says what that was made from."""
        parts = [part for data in self.data for part in _contents(data)]
        return f"{self.index:05d}-{digest(as_json(self.options), *parts)[:16]}.nc"


@dataclass(frozen=True)
class Slices:
    """All slices along a dimension with its values."""

    dim: str
    values: np.ndarray
    every: tuple[Slice, ...]

    @classmethod
    def of(
        cls,
        data: tuple[xr.Dataset, xr.Dataset, xr.Dataset | None],
        map_over: str | Mapping[str, Sequence[Any]],
        options: Mapping[str, Any],
    ) -> Slices:
        """A slice for every value of a dimension, or of an option.

        `data` are fine and coarse data and where to predict. `map_over` is a dimension of the
        coarse data, along which the others are cut too where they have it; or the name of an option
        with the values it takes, as in ``{"seed": range(10)}``.
        """
        if isinstance(map_over, Mapping):
            if len(map_over) != 1:
                raise UsageError(
                    "map_over takes one option with its values, as in {'seed': [0, 1]}."
                )
            name, given = next(iter(map_over.items()))
            choices = list(given)
            if not choices:
                raise UsageError(f"map_over has no values for {name!r}; give at least one.")
            plain = all(isinstance(c, bool | int | float | str) for c in choices)
            every = [
                Slice(k, f"{name}={value}", data, {**options, name: value})
                for k, value in enumerate(choices)
            ]
            shown = choices if plain else [str(c) for c in choices]
            return cls(str(name), np.asarray(shown), tuple(every))
        dim, coarse = map_over, data[1]
        if dim not in coarse.dims:
            there = ", ".join(map(str, coarse.dims))
            raise UsageError(
                f"the coarse data has no dimension {dim!r} to map over; it has {there}."
            )
        values = coarse[dim].values if dim in coarse.coords else np.arange(coarse.sizes[dim])
        if len(set(values.tolist())) < len(values):
            raise UsageError(f"the values of {dim!r} in the coarse data are not distinct.")
        every = []
        for k, value in enumerate(values):
            label, named = f"{dim}={time_label(value)}", ("fine", "coarse", "prediction")
            cut = (_at(d, dim, value, k, n, label) for d, n in zip(data, named, strict=True))
            every.append(Slice(k, label, tuple(cut), options))
        return cls(dim, values, tuple(every))

    def carried_out(
        self, store: str | Path, downscale: Work, jobs: int, console: Console
    ) -> xr.Dataset:
        """All results along the dimension; every slice that the folder has not yet is fitted.

        `downscale` takes the data and options of a slice to its result, in `jobs` processes of a
        Dask cluster on this machine where none is active; progress goes to the console.
        """
        folder = Path(store)
        check_folder(folder)
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"the store {str(folder)!r} is a file; name a folder.")
        folder.mkdir(exist_ok=True)
        files = [folder / each.file for each in self.every]
        todo = [each for each in self.every if not files[each.index].exists()]
        failed: dict[int, str] = {}
        work = partial(_result, downscale)
        with cluster(jobs if jobs > 1 and active_client() is None else None, None):
            outcomes = _here(todo, work) if active_client() is None else _on_cluster(todo, work)
            for each, outcome in outcomes:
                try:
                    if isinstance(outcome, BaseException):
                        raise outcome
                    write_fields(outcome, files[each.index])
                except Exception as error:
                    failed[each.index] = one_line(error)
                console.print(f"{each.label}: {'failed' if each.index in failed else 'done'}")
        return self._combined(files, failed)

    def _combined(self, files: Sequence[Path], failed: Mapping[int, str]) -> xr.Dataset:
        """All slices along the dimension; those that failed are missing values, and a warning."""
        every, dim = self.every, self.dim
        if len(failed) == len(every):
            raise UsageError(
                f"all {len(every)} slices failed; the first, {every[0].label}: {failed[0]}."
            )
        found = {}
        for each in every:
            if each.index not in failed:
                with xr.open_dataset(files[each.index], decode_timedelta=False) as data:
                    found[each.index] = data.load()
        template = found[min(found)]
        flags = xr.full_like(template[EXTRAPOLATION], NOT_PREDICTED)
        absent = template.where(False).assign(
            {"coarse_role": template["coarse_role"], EXTRAPOLATION: flags}
        )
        together = xr.concat(
            [found.get(s.index, absent) for s in every],
            dim=dim,
            data_vars="all",
            coords="minimal",
            compat="override",
            join="override",
            combine_attrs="override",
        )
        together = together.assign_coords({dim: (dim, self.values)})
        together.attrs = {k: v for k, v in template.attrs.items() if not k.startswith("fit_")}
        facts = {index: json.loads(str(d.attrs["deconditional"])) for index, d in found.items()}
        names = ("model", "parameters", "fit", "residuals", "extrapolation", "timings")
        about = [
            {"label": s.label, "failed": failed.get(s.index)}
            | {n: facts[s.index].get(n) for n in names if s.index in facts}
            for s in every
        ]
        whole = facts[min(facts)] | {"map_over": dim, "residuals": None, "slices": about}
        together.attrs["deconditional"] = as_json(whole)
        if failed:
            shown = "; ".join(f"{s.label}: {failed[s.index]}" for s in every if s.index in failed)
            warnings.warn(
                f"{len(failed)} of {len(every)} slices failed and are missing in the result "
                f"({shown}). The same call tries them again and keeps the others.",
                SliceWarning,
                stacklevel=5,
            )
        return together


def _at(data: Any, dim: str, value: Any, place: int, which: str, label: str) -> Any:
    """What belongs to one value of a dimension; all of a dataset that does not have it."""
    if data is None or dim not in data.dims:
        return data
    if which == "coarse":
        return data.isel({dim: place}, drop=True)
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


def _contents(data: xr.Dataset | None) -> Iterator[Any]:
    """What tells a dataset from others: values, or of Dask arrays what makes them."""
    yield None
    variables = {} if data is None else dict(data.variables)
    for name, variable in sorted(variables.items(), key=lambda pair: str(pair[0])):
        yield f"{name}{variable.dims}{variable.shape}{variable.dtype}"
        yield variable.values if variable.chunks is None else str(variable.data.name)


def _here(todo: Sequence[Slice], work: Work) -> Iterator[tuple[Slice, Any]]:
    for each in todo:
        outcome: Any
        try:
            with aborting():  # an interrupt means all of the slices
                outcome = work(each, *each.data)
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
        found = task(replace(each, data=()), *each.data)
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
