"""Mediated downscaling of atmospheric fields: the paper's climate experiment.

Fine fields are averaged over square blocks. A random half of the coarse cells keeps its bag of fine
covariates, the other half its coarse target, and a coarse mediator, known in all cells, links them.
The setting is the paper's: inputs are latitude, longitude and fine covariates, standardised;
kernels are a Matérn-3/2 of position plus a Gaussian of the rest; the prior has mean zero; fine
values carry noise of their own (high-resolution noise); variational models have 800 inducing
points; every fine cell is predicted and scored. Exact models stand beside them.

What differs: parameters are learnt by L-BFGS on the collapsed bound, not by Adam; inducing points
are those of k-means++, not uniform over the grid; predictions are exact given those, without random
Fourier features; priors hold the parameters.

With a file of the published layout (``orog clt albisccp pctisccp ttop`` on 360 x 720 cells) the
target is the temperature at cloud top and a block has 17 x 17 cells. Without one, the fields are
those of :func:`~deconditional.datasets.global_fields`: a climatology of surface temperature, not
CMIP6, and a different problem.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

import deconditional as dc
from deconditional import scores
from deconditional.errors import UsageError
from deconditional.fitting.workers import carry_out, check_jobs
from deconditional.saving.outputs import output_folder, write_atomically
from studies.plots import can_draw
from studies.provenance import code_digest
from studies.records import Record, Results

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["MODELS", "Fields", "Split", "fields", "run", "split"]

Floats = npt.NDArray[np.float64]

SCORES = ("rmse", "mae", "pearson", "spearman", "ssim", "ssim_unit_range", "crps", "coverage95")


class Layout(NamedTuple):
    """Which variable plays which part, and how many fine cells a coarse cell has each way."""

    target: str
    covariates: tuple[str, ...]
    mediator: str
    block: int


PUBLISHED = Layout("ttop", ("orog", "clt", "albisccp"), "pctisccp", 17)
"""The paper's CMIP6 file: temperature and pressure at cloud top, altitude, cloud cover, albedo."""

CLIMATOLOGY = Layout("tas", ("altitude", "rain", "cloud"), "water_vapour", 12)


# ---------------------------------------------------------------------- data


@dataclass(frozen=True)
class Fields:
    """Fine fields, from south to north and west to east, and their block means.

    Attributes
    ----------
    layout
        Names of the variables, and the block.
    lat, lon
        Centres of the fine rows and columns, in degrees.
    covariates : (rows, columns, d)
        NaN where unknown.
    truth : (rows, columns)
        The target on fine cells.
    target, mediator : (rows / block, columns / block)
        Means over blocks.
    source, unit
        Where the fields are from, and the unit of the target.
    """

    layout: Layout
    lat: Floats
    lon: Floats
    covariates: Floats
    truth: Floats
    target: Floats
    mediator: Floats
    source: str
    unit: str

    @property
    def digest(self) -> str:
        """A name for the numbers themselves: another file of the same name has another."""
        made_of = (self.lat, self.lon, self.covariates, self.truth, self.mediator)
        return hashlib.sha256(b"".join(part.tobytes() for part in made_of)).hexdigest()[:10]


def fields(data: str | Path | None = None, month: int = 3, thin: int = 1) -> Fields:
    """The fields of the experiment, cut to whole blocks.

    Parameters
    ----------
    data
        A netCDF file or Zarr store with the variables of :data:`PUBLISHED`; without it, the global
        fields of `month`.
    month
        Of the climatology.
    thin
        Average this many fine cells each way first, for a quick try.
    """
    if data is None:
        from deconditional.datasets import global_fields

        dataset, layout = global_fields(month), CLIMATOLOGY
        source = f"global climatology of itur, month {month}"
    else:
        from deconditional.fields.io import open_fields

        dataset, layout = open_fields(data, "climate"), PUBLISHED
        source = f"{Path(data).name}"
    names = (layout.target, *layout.covariates, layout.mediator)
    lat, lon, maps = _maps(dataset, names, source)
    lat, lon = (_block_means(axis, (thin,)) for axis in (lat, lon))
    maps = {name: _block_means(values, (thin, thin)) for name, values in maps.items()}
    block = layout.block
    rows, columns = len(lat) // block * block, len(lon) // block * block
    if rows // block * (columns // block) < 4:
        raise UsageError(
            f"{source}: a grid of {len(lat)} x {len(lon)} cells has fewer than four blocks of "
            f"{block} x {block}."
        )
    maps = {name: values[:rows, :columns] for name, values in maps.items()}
    truth = maps[layout.target]
    return Fields(
        layout,
        lat[:rows],
        lon[:columns],
        np.stack([maps[name] for name in layout.covariates], axis=-1),
        truth,
        _block_means(truth, (block, block)),
        _block_means(maps[layout.mediator], (block, block)),
        source,
        str(dataset[layout.target].attrs.get("units", "")),
    )


def _maps(
    dataset: Any, names: Sequence[str], source: str
) -> tuple[Floats, Floats, dict[str, Floats]]:
    """Latitudes, longitudes, and the variables, from south to north and west to east."""
    from deconditional.fields.grids import find_grid

    missing = [name for name in names if name not in dataset.data_vars]
    if missing:
        raise UsageError(
            f"{source} has no variable {missing[0]!r}; the experiment reads {', '.join(names)}."
        )
    grid = find_grid(dataset, names, "climate")
    y, x = grid.y.name, grid.x.name
    maps = {}
    for name in names:
        field = dataset[name]
        other = [dim for dim in field.dims if dim not in (y, x)]
        long = [f"{field.sizes[dim]} steps of {dim}" for dim in other if field.sizes[dim] > 1]
        if long:
            raise UsageError(f"{source}: {name} has {long[0]}; the experiment takes a single one.")
        maps[name] = np.asarray(field.squeeze(other).transpose(y, x).values, dtype=float)
    lat, lon = grid.y.centres, grid.x.centres
    up, across = np.argsort(lat), np.argsort(lon)
    inner = np.ix_(up, across)
    return lat[up], lon[across], {name: values[inner] for name, values in maps.items()}


def _block_means(values: Floats, block: tuple[int, ...]) -> Floats:
    """Plain means over blocks of cells, of what is known; the rest past the last block is cut."""
    kept = [length // size for length, size in zip(values.shape, block, strict=True)]
    values = values[tuple(slice(k * size) for k, size in zip(kept, block, strict=True))]
    blocks = values.reshape([n for pair in zip(kept, block, strict=True) for n in pair])
    within = tuple(range(1, blocks.ndim, 2))
    known = np.isfinite(blocks).sum(within)
    total = np.nansum(blocks, within)
    return np.divide(total, known, out=np.full(total.shape, np.nan), where=known > 0)


@dataclass(frozen=True)
class Split:
    """One draw: bags of half of the cells, observations of the other half, standardised.

    Attributes
    ----------
    bags, z, mediator
        What mediated models learn from.
    matched
        Bags of the cells that give `z`: what a model may have that need not be mediated.
    gives_covariates, gives_target : (rows, columns) of coarse cells
        Which cells have their bags in `bags`, and which their targets in `z`.
    x
        Standardised inputs of all fine cells with covariates; `known` says which those are.
    """

    bags: dc.Bags
    z: Floats
    mediator: Floats
    matched: dc.Bags
    gives_covariates: npt.NDArray[np.bool_]
    gives_target: npt.NDArray[np.bool_]
    x: Floats
    known: npt.NDArray[np.bool_]
    z_mean: float
    z_std: float


def split(data: Fields, seed: int) -> Split:
    """Divide the cells at random, and standardise with what the two halves show."""
    size = data.layout.block
    rows, columns = data.target.shape
    known = np.asarray(np.isfinite(data.covariates).all(-1))
    usable = known.reshape(rows, size, columns, size).any((1, 3))
    usable &= np.isfinite(data.target) & np.isfinite(data.mediator)
    cells = np.random.default_rng(seed).permutation(np.flatnonzero(usable))
    if len(cells) < 4:
        raise UsageError(f"{data.source}: only {len(cells)} coarse cells have all variables.")
    half = len(cells) // 2
    covered, observed = np.sort(cells[:half]), np.sort(cells[half:])
    gives = np.zeros(usable.size, dtype=bool)
    gives[covered] = True

    cell_of = np.arange(usable.size).reshape(usable.shape).repeat(size, 0).repeat(size, 1)[known]
    position = np.stack(np.meshgrid(data.lat, data.lon, indexing="ij"), -1)
    x = np.concatenate([position, data.covariates], -1)[known]
    mine = gives[cell_of]
    spread = x[mine].std(0)
    names = ("lat", "lon", *data.layout.covariates)
    if not (spread > 0).all():
        constant = names[int(np.argmin(spread))]
        raise UsageError(f"{data.source}: {constant} is constant where covariates are given.")
    x = (x - x[mine].mean(0)) / spread

    centre_lat, centre_lon = (_block_means(axis, (size,)) for axis in (data.lat, data.lon))
    y = np.stack(np.meshgrid(centre_lat, centre_lon, indexing="ij"), -1).reshape(-1, 2)
    y = np.column_stack([y, data.mediator.ravel()])
    y = (y - y[usable.ravel()].mean(0)) / y[usable.ravel()].std(0)

    z = data.target.ravel()[observed]
    level, scale = float(z.mean()), float(z.std())
    return Split(
        _bags(x, cell_of, covered, y),
        (z - level) / scale,
        y[observed],
        _bags(x, cell_of, observed, y),
        gives.reshape(usable.shape),
        np.isin(np.arange(usable.size), observed).reshape(usable.shape),
        x,
        known,
        level,
        scale,
    )


def _bags(x: Floats, cell_of: npt.NDArray[np.int64], cells: Any, y: Floats) -> dc.Bags:
    members = np.isin(cell_of, cells)
    order = np.searchsorted(cells, cell_of[members])
    return dc.Bags.from_points(x[members], order, mediator=y[cells])


# ---------------------------------------------------------------------- models


def field_kernel(n_inputs: int) -> Any:
    """Matérn-3/2 of latitude and longitude, Gaussian of the rest, added."""
    import gpjax.kernels as gk
    import jax.numpy as jnp

    rest = n_inputs - 2
    return gk.Matern32(active_dims=[0, 1], lengthscale=jnp.ones(2)) + gk.RBF(
        active_dims=list(range(2, n_inputs)), lengthscale=jnp.ones(rest)
    )


def _paper(n_inputs: int) -> dict[str, Any]:
    return {"kernel": field_kernel(n_inputs), "trend": "none", "fine_noise": True, "n_restarts": 1}


def _pseudo(base: Any, propagate: bool) -> Any:
    return dc.PseudoTarget(
        base, field_kernel(3), propagate=propagate, trend=base.trend, n_restarts=1
    )


def _vargpr(d: int, inducing: int, **changes: Any) -> Any:
    return dc.VarCentroidGP(**(_paper(d) | changes), n_inducing=inducing)


def _vbagg(d: int, inducing: int, **changes: Any) -> Any:
    return dc.VBagg(**(_paper(d) | changes), n_inducing=inducing)


def _varcmp(d: int, inducing: int) -> Any:
    return dc.VarCMP(**_paper(d), mediator_kernel=field_kernel(3), n_inducing=inducing)


def _cmp(d: int, **changes: Any) -> Any:
    # Condensed bags would misstate the share of high-resolution noise in a bag mean.
    own = {"mediator_kernel": field_kernel(3), "fine_noise": False}
    return dc.CMP(**(_paper(d) | own | changes))


MODELS: dict[str, Callable[[int, int], Any]] = {
    "vargpr": lambda d, inducing: _pseudo(_vargpr(d, inducing), propagate=False),
    "vbagg": lambda d, inducing: _pseudo(_vbagg(d, inducing), propagate=False),
    "varcmp": _varcmp,
    "cmp": lambda d, inducing: _cmp(d),
    "u-cmp": lambda d, inducing: _cmp(d, uncertainty=True),
    "vargpr, fair": lambda d, inducing: _pseudo(_vargpr(d, inducing, trend="linear"), True),
    "vbagg, fair": lambda d, inducing: _pseudo(_vbagg(d, inducing, trend="linear"), True),
    "u-cmp, centred": lambda d, inducing: _cmp(d, uncertainty=True, centred=True, trend="constant"),
    "oracle": lambda d, inducing: _vbagg(d, inducing, trend="linear"),
}
"""Name of a model -> what makes it for a number of inputs and of inducing points.

The first three are the paper's, with its mean of zero, its high-resolution noise, and
pseudo-targets taken at face value. *Fair* baselines have a linear trend and pass on the covariance
of their pseudo-targets. The oracle is given the covariates of the cells whose target is known, and
needs no mediation."""

EXACT = ("cmp", "u-cmp", "u-cmp, centred")
"""Models that learn from condensed bags, without high-resolution noise."""


# ---------------------------------------------------------------------- the runs


class Task(NamedTuple):
    """One model on one draw of cells."""

    matching: str
    model: str
    seed: int

    def __str__(self) -> str:
        return f"{self.model}, seed {self.seed}"


def run(
    seeds: int = 10,
    models: Sequence[str] | None = None,
    *,
    out: str | Path,
    data: str | Path | None = None,
    month: int | None = None,
    inducing: int = 800,
    exact_points: int | None = 16,
    thin: int = 1,
    jobs: int = 1,
    overwrite: bool = False,
    figures: bool = True,
    command: str | None = None,
    console: Console | None = None,
) -> Results:
    """Fit what has no record yet; write ``results.json``, ``table.md`` and maps.

    Parameters
    ----------
    seeds
        Draws of the cells that give covariates.
    models
        Some of :data:`MODELS`; all by default.
    out, overwrite
        Folder of the results, and whether to discard what it holds.
    data, month, thin
        See :func:`fields`.
    inducing
        Inducing points of variational models.
    exact_points
        Points that stand for a bag in exact models, see :meth:`~deconditional.Bags.condense`; None
        takes all.
    jobs
        Fits at a time, each in a process of its own.
    figures
        Draw the data and, for every model, the posterior of the first seed.
    command
        What the table says made it.
    console
        Where to print.
    """
    from rich.console import Console

    from studies import climate_output

    console = Console(highlight=False) if console is None else console
    for name in models or ():
        if name not in MODELS:
            choice = ", ".join(repr(each) for each in MODELS)
            raise UsageError(f"unknown model {name!r}; choose from {choice}.")
    if seeds < 1:
        raise UsageError(f"the number of seeds must be at least 1, not {seeds}.")
    if data is not None and month is not None:
        raise UsageError("a month is one of the climatology; a file of fields has its own.")
    month = 3 if month is None else month
    if month not in range(1, 13):
        raise UsageError(f"months run from 1 to 12, not {month}.")
    check_jobs(jobs)
    if figures:
        can_draw()
    found = fields(data, month, thin)
    for seed in range(seeds):
        split(found, seed)
    folder = output_folder(out)
    settings = {
        "experiment": "climate",
        "source": found.source,
        "fields": found.digest,
        "fine cells": list(found.truth.shape),
        "coarse cells": list(found.target.shape),
        "inducing": inducing,
        "exact_points": exact_points,
        "version": dc.__version__,
    }
    results = Results.open(folder, settings, overwrite=overwrite)
    if figures:
        climate_output.draw_data(folder, found, split(found, 0))
    chosen = list(dict.fromkeys(models or MODELS))
    tasks = [Task("half", name, seed) for seed in range(seeds) for name in chosen]
    pictures = folder if figures else None
    pending = [task for task in tasks if task not in results or _undrawn(task, pictures)]
    code = code_digest()
    work = partial(
        _worked,
        source=(data, month, thin),
        inducing=inducing,
        exact_points=exact_points,
        pictures=pictures,
    )
    for task, outcome in carry_out(pending, work, console, jobs):
        if isinstance(outcome, Exception):  # must not cost the others their turn
            results.failed(task, outcome, console)
        elif task not in results:
            record, how = outcome
            results.add(record, {**how, "code": code})
    write_atomically(
        folder / "table.md", climate_output.table(results, list(MODELS), settings, command)
    )
    return results


def _undrawn(task: Task, pictures: Path | None) -> bool:
    from studies.climate_output import picture

    return task.seed == 0 and pictures is not None and not (pictures / picture(task.model)).exists()


def _worked(
    task: Task,
    source: tuple[str | Path | None, int, int],
    inducing: int,
    exact_points: int | None,
    pictures: Path | None,
) -> tuple[Record, Record]:
    """The record of a task, and how its fit went; draws maps for the first seed."""
    from deconditional.errors import FitWarning
    from studies import climate_output

    data = fields(*source)
    drawn = split(data, task.seed)
    model = MODELS[task.model](drawn.x.shape[1], inducing)
    bags = drawn.bags
    if task.model in EXACT and exact_points is not None:
        bags = bags.condense(exact_points, task.seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        began = time.perf_counter()
        if task.model == "oracle":
            model.fit(drawn.matched, drawn.z)
        else:
            model.fit(bags, drawn.z, mediator=drawn.mediator)
        fitted = time.perf_counter()
        posterior = model.predict(drawn.x, fine_noise=task.model not in EXACT)
        mean = drawn.z_mean + drawn.z_std * np.asarray(posterior.mean)
        std = drawn.z_std * np.asarray(posterior.std)
        predicted = time.perf_counter()
    notes = [str(w.message) for w in caught if issubclass(w.category, FitWarning)]
    maps = {name: np.full(data.truth.shape, np.nan) for name in ("mean", "std")}
    maps["mean"][drawn.known], maps["std"][drawn.known] = mean, std
    if task.seed == 0 and pictures is not None:
        climate_output.draw_posterior(pictures, task.model, data, drawn, maps)
    record: Record = {
        "matching": task.matching,
        "model": task.model,
        "seed": task.seed,
        **_scores(data, maps),
        "fit_seconds": fitted - began,
        "predict_seconds": predicted - fitted,
    }
    return record, {"warnings": notes, "log_evidence": model.fit_report_.log_evidence}


def _ssim(mean: Floats, truth: Floats, data_range: float | None) -> float:
    try:
        return scores.ssim(mean, truth, data_range)
    except ValueError:  # no window is free of missing values
        return float("nan")


def _scores(data: Fields, maps: Mapping[str, Floats]) -> dict[str, float]:
    known = np.isfinite(data.truth) & np.isfinite(maps["mean"])
    mean, std, truth = (values[known] for values in (maps["mean"], maps["std"], data.truth))
    reach = 1.959963984540054 * std
    return {
        "rmse": scores.rmse(mean, truth),
        "mae": scores.mae(mean, truth),
        "pearson": scores.pearson(mean, truth),
        "spearman": scores.spearman(mean, truth),
        "ssim": _ssim(maps["mean"], data.truth, None),
        "ssim_unit_range": _ssim(maps["mean"], data.truth, 1.0),
        "crps": scores.crps_gaussian(mean, std, truth),
        "coverage95": scores.coverage(mean - reach, mean + reach, truth),
    }
