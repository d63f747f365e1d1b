"""Prediction of chunked fine data: lazy, chunk by chunk, with the chunks of the input."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.fields.cluster import limit_threads
from deconditional.fields.fine_points import ROUNDING, check_mask_grid, weighted_count
from deconditional.fields.grids import Grid
from deconditional.fields.parts import Parts, Place, Reader, check_size, divided, reduced
from deconditional.fields.prediction import EXTRAPOLATION, NOT_PREDICTED, Predictor
from deconditional.fields.question import Question
from deconditional.inference.posterior import BLOCK

__all__ = ["area_means", "fine_parts", "predicted"]

Floats = npt.NDArray[np.float64]


def fine_parts(fine: xr.Dataset, grid: Grid, question: Question) -> Parts:
    """The parts of the covariates and the mask of a dataset."""
    arrays = {name: fine[name] for name in question.covariates}
    if question.mask:
        check_mask_grid(fine, grid, question.mask, question.dims)
        arrays["mask"] = fine[question.mask]
    parts = divided(arrays, grid)
    check_size(parts, len(arrays))
    return parts


def predicted(predictor: Predictor, reader: Reader, parts: Parts) -> dict[str, tuple[tuple, Any]]:
    """For each name its leading dimensions and a Dask array (..., time, y, x)."""
    limit_threads()
    leading = _leading(predictor)
    size = sum(n for _, n in leading.values())
    stack = parts.array(parts.map(_layers, predictor, reader), size)
    found: dict[str, tuple[tuple, Any]] = {}
    start = 0
    for name, (dims, n) in leading.items():
        found[name] = (dims, stack[start : start + n] if dims else stack[start])
        start += n
    return found


def _leading(predictor: Predictor) -> dict[str, tuple[tuple[str, ...], int]]:
    found: dict[str, tuple[tuple[str, ...], int]] = {"mean": ((), 1), "std": ((), 1)}
    if predictor.levels:
        found["quantiles"] = (("quantile",), len(predictor.levels))
    if predictor.target.distribution.startswith("rectified"):
        found["latent_mean"] = found["latent_std"] = ((), 1)
    found[EXTRAPOLATION] = ((), 1)
    if predictor.n_samples:
        found["samples"] = (("sample",), predictor.n_samples)
    return found


def _layers(
    predictor: Predictor, reader: Reader, place: Place, blocks: Sequence[np.ndarray]
) -> Floats:
    part = reader.part(place, blocks)
    points = part.points
    leading = _leading(predictor)
    out = np.full((sum(n for _, n in leading.values()), points.present.size), np.nan)
    inside = points.present.ravel()
    n = int(inside.sum())
    values: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    if n:
        x = _padded(predictor.x(points))
        values = predictor.layers(predictor.posterior(x))
        if predictor.n_samples:
            draws = predictor.paths(x)
            if predictor.fine_noise:
                draws = draws + _noise(predictor, place, len(x))
            values["samples"] = (("sample",), predictor.target.physical(draws))
    start = 0
    for name, (_, count) in leading.items():
        rows = slice(start, start + count)
        if name == EXTRAPOLATION:
            out[rows] = NOT_PREDICTED
        if n:
            out[rows, inside] = np.atleast_2d(values[name][1])[:, :n]
        start += count
    return out.reshape(len(out), *part.shape)


def _padded(x: Floats) -> Floats:
    """Rows up to one of a few numbers, so that few shapes are compiled."""
    size = BLOCK if len(x) > BLOCK else 1 << max(int(np.ceil(np.log2(len(x)))), 6)
    missing = -len(x) % size
    return np.concatenate([x, np.broadcast_to(x[:1], (missing, x.shape[1]))])


def _noise(predictor: Predictor, place: Place, size: int) -> Floats:
    """Noise of single fine values, that of a part whatever the order of the parts."""
    where = [part.start for part in place]
    rng = np.random.default_rng([predictor.seed, *where])
    scale = predictor.paths.noise_std
    return scale[:, None] * rng.standard_normal((predictor.n_samples, size))


# ---------------------------------------------------------------------- area means


def area_means(reader: Reader, parts: Parts, mean: Any, least_cover: float) -> Any:
    """Area means over all units, a Dask array, of a field with the chunks of the parts.

    Parameters
    ----------
    mean
        A Dask array, (time, y, x); NaN where nothing is known.
    """
    import dask.array as da
    from dask.delayed import delayed

    tasks = mean.to_delayed(optimize_graph=False).ravel()
    masks = [blocks[-1:] if reader.question.mask else () for blocks in parts.blocks]
    sums = delayed(_area_sums, pure=False)
    shared = delayed(reader, pure=False, traverse=False)
    found = [
        sums(shared, place, task, list(mask))
        for place, task, mask in zip(parts.places, tasks, masks, strict=True)
    ]
    total = reduced(found, _added)
    size = reader.n_unit_times * reader.coarse.n_cells
    divide = delayed(partial(_divided, least_cover), pure=False)
    return da.from_delayed(divide(shared, total), (size,), dtype=float)


def _area_sums(
    reader: Reader, place: Place, mean: np.ndarray, mask: Sequence[np.ndarray]
) -> tuple[Floats, Floats, Floats]:
    """Sums of area times field and of area over units, and what the mask takes of cells."""
    shape = mean.shape[0], -1
    blocks = [mean.reshape(*shape)] * max(len(reader.question.covariates), 1)
    part = reader.part(place, [*blocks, *mask])
    found, masked = reader.members(part)
    values = mean.reshape(*shape)[part.points.present][found.row]
    n = reader.n_unit_times * reader.coarse.n_cells
    sums = weighted_count(found.unit, found.area * values, n)
    return sums, weighted_count(found.unit, found.area, n), masked


def _added(found: list[tuple[Floats, ...]]) -> tuple[Floats, ...]:
    return tuple(np.sum(columns, axis=0) for columns in zip(*found, strict=True))


def _divided(least: float, reader: Reader, found: tuple[Floats, Floats, Floats]) -> Floats:
    sums, area, masked = found
    enough = (area > 0) & (reader.cover(area, masked) >= least - ROUNDING)
    return np.where(enough, sums / np.where(area > 0, area, 1.0), np.nan)
