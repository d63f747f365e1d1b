"""A globe whose temperature is linear in altitude, and a mediator that nearly says it."""

from __future__ import annotations

import numpy as np

from deconditional.bags import Bags
from deconditional.datasets.made_up import smooth
from studies.data.noisy_mediator import NoisyMediator

__all__ = ["mountain_globe"]

ROWS, COLUMNS, BLOCK, N_BAGS = 6, 12, 6, 32
SPREAD = 12.6
EXPLAINED = 0.996


def mountain_globe(seed: int = 0) -> NoisyMediator:
    """Draw altitudes on a globe of 72 cells of 36 points; 32 cells are bags, 40 observations.

    Covariates are the position on the unit sphere and the altitude. The truth falls linearly with
    altitude and has a standard deviation of 12.6 K. Mediators are the position of a cell and a
    variable that explains 99.6 % of the variance of cell means. A regression on so few positions
    knows little of a linear trend, and models that go by it alone go wrong here.

    Examples
    --------
    >>> globe = mountain_globe()
    >>> globe.bags.n_bags, globe.z.shape, round(float(globe.f.std()), 1)
    (32, (40,), 12.6)
    """
    rng = np.random.default_rng([2000, seed])
    latitude = (np.arange(ROWS * BLOCK) + 0.5) / (ROWS * BLOCK) * np.pi - np.pi / 2
    longitude = (np.arange(COLUMNS * BLOCK) + 0.5) / (COLUMNS * BLOCK) * 2 * np.pi
    latitude, longitude = np.meshgrid(latitude, longitude, indexing="ij")
    sphere = np.stack(
        [
            np.cos(latitude) * np.cos(longitude),
            np.cos(latitude) * np.sin(longitude),
            np.sin(latitude),
        ],
        -1,
    )
    altitude = smooth(rng, sphere, 0.5) + 0.5 * smooth(rng, sphere, 0.1)
    altitude = ((altitude - altitude.mean()) / altitude.std()).ravel()
    x, f = np.column_stack([sphere.reshape(-1, 3), altitude]), -SPREAD * altitude
    row, column = np.divmod(np.arange(len(x)), COLUMNS * BLOCK)
    cells = Bags.from_points(x, (row // BLOCK) * COLUMNS + column // BLOCK)
    means = cells.means(f)
    noise = np.sqrt((1.0 - EXPLAINED) / EXPLAINED) * means.std() * rng.standard_normal(len(means))
    mediator = np.column_stack([cells.means()[:, :3], (means + noise) / means.std()])
    cells = Bags.from_points(x, cells.bag, mediator=mediator)
    order = rng.permutation(len(means))
    bags, observed = np.sort(order[:N_BAGS]), np.sort(order[N_BAGS:])
    return NoisyMediator(
        x=x,
        f=f,
        bags=cells.select(bags),
        mediator=mediator[observed],
        z=means[observed],
        observed_bags=cells.select(observed),
    )
