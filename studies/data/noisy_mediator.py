"""A field with known truth whose mediator explains as much of the bags as is asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deconditional.bags import Bags

__all__ = ["NoisyMediator", "noisy_mediator"]

WAVES = 3000
LENGTHS = (1.0, 0.6)
WITHIN = 0.45
NOISE = 0.05


@dataclass(frozen=True)
class NoisyMediator:
    """Cells of fine points: one half keeps its points, the other its coarse values.

    Attributes
    ----------
    x : (n, 2), f : (n,)
        All fine points, and the truth there.
    bags
        D1: the cells that keep their points, with mediator y.
    mediator : (M, 1), z : (M,)
        D2: mediators and coarse values of the others.
    observed_bags
        The points of these others, which no model of unmatched data is shown.
    """

    x: np.ndarray
    f: np.ndarray
    bags: Bags
    mediator: np.ndarray
    z: np.ndarray
    observed_bags: Bags


def noisy_mediator(
    explained: float = 0.6, n_cells: int = 200, points_per_cell: int = 30, seed: int = 0
) -> NoisyMediator:
    r"""Draw cells, a field, and mediators that explain a share of its cell means.

    f is a draw of a Gaussian process in two covariates with a Gaussian kernel of length scales 1
    and 0.6. A cell has points that are scattered about a centre in [-2, 2]² with standard deviation
    0.45. With :math:`\bar f` the standardised mean of a cell, its mediator is
    :math:`\sqrt{\rho}\,\bar f + \sqrt{1 - \rho}\,\varepsilon`: ρ is the share of the variance
    of cell means that it explains. Coarse values have noise of 5 % of their standard deviation.

    Parameters
    ----------
    explained
        ρ, from 0, a useless mediator, to 1.
    n_cells, points_per_cell, seed
        Of the draw; the first half of the cells are bags.

    Examples
    --------
    >>> data = noisy_mediator(explained=0.9, seed=1)
    >>> cells = data.observed_bags
    >>> bool(abs(np.corrcoef(data.mediator[:, 0], data.z)[0, 1] ** 2 - 0.9) < 0.1)
    True
    """
    if not 0 <= explained <= 1:
        raise ValueError(f"explained is a share between 0 and 1, not {explained}.")
    if n_cells < 4 or points_per_cell < 1:
        raise ValueError("at least four cells and a point in each are needed.")
    rng = np.random.default_rng([1000, seed])
    centres = rng.uniform(-2.0, 2.0, (n_cells, 1, 2))
    x = centres + WITHIN * rng.standard_normal((n_cells, points_per_cell, 2))
    frequencies = rng.standard_normal((WAVES, 2)) / np.array(LENGTHS)
    phases = rng.uniform(0.0, 2.0 * np.pi, WAVES)
    amplitudes = rng.standard_normal(WAVES) * np.sqrt(2.0 / WAVES)
    f = np.cos(x @ frequencies.T + phases) @ amplitudes
    means = f.mean(1)
    noise = rng.standard_normal(n_cells)
    standardised = (means - means.mean()) / means.std()
    y = np.sqrt(explained) * standardised + np.sqrt(1.0 - explained) * noise
    z = means + NOISE * means.std() * rng.standard_normal(n_cells)
    half = n_cells // 2

    def bags(cells: slice) -> Bags:
        chosen = x[cells]
        of = np.repeat(np.arange(len(chosen)), points_per_cell)
        return Bags.from_points(chosen.reshape(-1, 2), of, mediator=y[cells])

    return NoisyMediator(
        x=x.reshape(-1, 2),
        f=f.ravel(),
        bags=bags(slice(0, half)),
        mediator=y[half:, None],
        z=z[half:],
        observed_bags=bags(slice(half, None)),
    )
