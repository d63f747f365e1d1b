"""A synthetic globe of the size of the paper's climate experiment, with known truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deconditional.bags import Bags
from deconditional.datasets.made_up import smooth

__all__ = ["SyntheticGlobe", "synthetic_globe"]


@dataclass(frozen=True)
class SyntheticGlobe:
    """Fine covariates in one half of the coarse cells, coarse values in the other half.

    Attributes
    ----------
    bags
        Cells of fine points, covariates latitude, longitude, altitude, cloud and albedo, with the
        cell's latitude, longitude and pressure as mediator; every variable standardised.
    z, mediator
        Coarse values of the field in the other cells, and their mediators.
    x, f
        All fine points and the field there.
    """

    bags: Bags
    z: np.ndarray
    mediator: np.ndarray
    x: np.ndarray
    f: np.ndarray


def synthetic_globe(
    rows: int = 21, columns: int = 42, block: int = 17, noise_std: float = 0.05, seed: int = 0
) -> SyntheticGlobe:
    """Random smooth fields on a grid of `rows` x `columns` cells of `block` x `block` points.

    The defaults are the paper's sizes: 882 cells of 289 points. The field is a gradient with
    latitude, a fall with altitude, a curved answer to cloud and albedo and a smooth remainder; the
    pressure of a cell follows the field's mean with an error of its own.

    Examples
    --------
    >>> globe = synthetic_globe(rows=4, columns=6, block=3)
    >>> globe.bags.n_bags, globe.bags.n_points, len(globe.z), globe.x.shape
    (12, 108, 12, (216, 5))
    """
    rng = np.random.default_rng(seed)
    lat = (np.arange(rows * block) + 0.5) / (rows * block) * np.pi - np.pi / 2
    lon = (np.arange(columns * block) + 0.5) / (columns * block) * 2 * np.pi - np.pi
    lat, lon = np.meshgrid(lat, lon, indexing="ij")
    sphere = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], -1)
    altitude = np.maximum(smooth(rng, sphere, 0.4) + 0.5 * smooth(rng, sphere, 0.05) - 0.3, 0.0)
    cloud = np.tanh(smooth(rng, sphere, 0.2) + 0.5 * smooth(rng, sphere, 0.06))
    albedo = 0.6 * cloud + 0.4 * smooth(rng, sphere, 0.1)
    f = (
        2.0 * np.cos(lat)
        - 0.9 * altitude
        - 0.6 * cloud
        + 0.3 * np.sin(2.0 * albedo)
        + 0.4 * smooth(rng, sphere, 0.5)
    )
    f = (f - f.mean()) / f.std()
    fine = [lat, lon, altitude, cloud, albedo]
    x = np.stack([_standard(v).ravel() for v in fine], 1)
    cell = (np.arange(rows * block)[:, None] // block) * columns
    cell = (cell + np.arange(columns * block) // block).ravel()
    cells = Bags.from_points(x, cell)
    means = cells.means(f.ravel())
    pressure = _standard(means + 0.3 * means.std() * rng.standard_normal(len(means)))
    mediator = np.column_stack([cells.means()[:, :2], pressure])
    order = rng.permutation(rows * columns)
    covered, observed = np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
    bags = Bags.from_points(x, cell, mediator=mediator).select(covered)
    z = means[observed] + noise_std * rng.standard_normal(len(observed))
    return SyntheticGlobe(bags, z, mediator[observed], x, f.ravel())


def _standard(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / values.std()
