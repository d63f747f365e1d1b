"""Counts in zones whose parts are known: what the study of counts is made of.

Points have an exposure, such as people, and lie in one zone each. Zones are what was counted; other
zones, whose counts nobody has seen, are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter
from scipy.sparse import csr_array
from sklearn.neighbors import NearestNeighbors

import deconditional as dc
from deconditional.errors import UsageError
from studies.command import require

__all__ = ["DECADES", "DEVELOPED_ON", "Zones", "counties", "simulated"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

COUNTIES = "counties/NAT.shp"
DECADES = (60, 70, 80, 90)
DEVELOPED_ON = (60, 80)
"""Decades whose counties were looked at while the model was chosen."""

YEARS = 3
"""Homicides of the file are means over three years, and so thirds of whole numbers."""

EARTH = 6.371
"""Radius in thousands of kilometres, the unit of positions."""


@dataclass(frozen=True)
class Zones:
    """Points in zones that were counted, and in others that are asked for.

    Attributes
    ----------
    position : (n, 2)
        Of points.
    covariates : (n, p)
        Of points, standardised.
    exposure : (n,)
        Of points.
    zone, hidden : (n,)
        The zone of every point that was counted, and the one that is asked for.
    z, truth
        Counts of the ones and of the others.
    rate : (n,) or None
        The true rates, where they are known.
    grid
        Rows and columns, where points are the first cells of a grid.
    """

    position: Floats
    covariates: Floats
    exposure: Floats
    zone: Ints
    hidden: Ints
    z: Floats
    truth: Floats
    rate: Floats | None = None
    grid: tuple[int, int] | None = None

    @property
    def x(self) -> Floats:
        """Position and covariates."""
        return np.concatenate([self.position, self.covariates], axis=1)

    @cached_property
    def bags(self) -> dc.Bags:
        """The zones that were counted; points weigh by their exposure."""
        return dc.Bags.from_points(self.x, self.zone, exposure=self.exposure)

    @cached_property
    def hidden_bags(self) -> dc.Bags:
        """The zones that are asked for."""
        return dc.Bags.from_points(self.x, self.hidden, exposure=self.exposure)

    @property
    def amounts(self) -> Any:
        """Exposure by zone and point, sparse."""
        return _amounts(self.exposure, self.zone)

    @property
    def hidden_amounts(self) -> Any:
        """The same of the zones that are asked for."""
        return _amounts(self.exposure, self.hidden)


def _amounts(exposure: Floats, zone: Ints) -> Any:
    return csr_array((exposure, (zone, np.arange(len(zone)))))


def simulated(points: int, zones: int, seed: int) -> Zones:
    """Cells of a grid in polygons, with people, three covariates, and a field of their own.

    The log rate is linear in the first covariate, curved in the second and free of the third, plus
    a rough field of position and an effect of every cell. Four times as many other polygons are
    asked for, in another year.
    """
    rng = np.random.default_rng(seed)
    columns = int(np.ceil(np.sqrt(points)))
    rows = -(-points // columns)
    shape = (rows, columns)

    def field(scale: float) -> Floats:
        values = gaussian_filter(rng.normal(size=shape), scale * columns, mode="wrap")
        return ((values - values.mean()) / values.std()).ravel()[:points]

    cells = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1).reshape(-1, 2)
    position = (cells[:points] + 0.5) / columns
    covariates = np.stack([field(0.05), field(0.02), field(0.01)], 1)
    people = 40.0 * np.exp(0.8 * field(0.03) + 0.5 * rng.normal(size=points))
    log_rate = -4.0 + 0.5 * covariates[:, 0] - 0.25 * covariates[:, 1] ** 2 + 0.4 * field(0.06)
    rate = np.exp(log_rate + 0.3 * rng.normal(size=points))
    zone, hidden = (_voronoi(position, n, rng) for n in (zones, 4 * zones))
    z, truth = (rng.poisson(_amounts(people, each) @ rate) for each in (zone, hidden))
    return Zones(
        position,
        covariates,
        people,
        zone,
        hidden,
        z.astype(float),
        truth.astype(float),
        rate,
        (rows, columns),
    )


def _voronoi(position: Floats, n: int, rng: np.random.Generator) -> Ints:
    """The nearest of n random places, for every position; those that have any, numbered anew."""
    places = position[rng.choice(len(position), n, replace=False)]
    nearest = NearestNeighbors(n_neighbors=1).fit(places).kneighbors(position)[1][:, 0]
    return np.unique(nearest, return_inverse=True)[1].astype(np.int64)


def counties(folder: Path, decade: int) -> Zones:
    """Homicides in the counties of the United States: states were counted, counties are hidden.

    Covariates are those of the county: deprivation, structure of the population, unemployment,
    divorces, median age, density, black share, inequality, households headed by women.
    """
    path = folder / COUNTIES
    if not path.exists():
        raise UsageError(f"there is no file {str(path)!r}; --data names the folder that has it.")
    require("geo", "geopandas")
    import geopandas

    table = geopandas.read_file(path)
    names = [f"{name}{decade}" for name in ("RD", "PS", "UE", "DV", "MA", "DNL", "BLK", "FH")]
    covariates = table[[*names, f"GI{decade - 1}"]].to_numpy(float)
    place = table.geometry.representative_point()
    lon, lat = np.deg2rad(place.x.to_numpy()), np.deg2rad(place.y.to_numpy())
    position = EARTH * np.stack([(lon - lon.mean()) * np.cos(lat.mean()), lat - lat.mean()], 1)
    counts = np.round(YEARS * table[f"HC{decade}"].to_numpy(float))
    state = np.unique(table["STATE_NAME"], return_inverse=True)[1].astype(np.int64)
    return Zones(
        position,
        (covariates - covariates.mean(0)) / covariates.std(0),
        YEARS * table[f"PO{decade}"].to_numpy(float),
        state,
        np.arange(len(state)),
        np.bincount(state, counts).astype(float),
        counts,
    )
