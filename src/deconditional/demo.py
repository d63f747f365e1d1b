"""A small case with known truth: temperature over hills, seen in coarse cells.

The fine grid has 60 x 60 cells, the coarse one 10 x 10. In a random half of the coarse cells the
position and altitude of all fine cells are known, but no temperature; in the other half only the
mean temperature is. The two halves are linked by a coarse mediator: position, and a smoothed,
noisy terrain index as a climate model might have it. The fine temperature is wanted everywhere.
"""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import deconditional as dc
from deconditional.outputs import UsageError, output_folder

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Hills", "hills", "interpolated", "run"]

SIZE = 10.0
"""Length of a side of the map, in tens of kilometres."""


@dataclass(frozen=True)
class Hills:
    """Fine fields as (n, n) arrays, rows from south to north, and what is seen of them.

    Attributes
    ----------
    easting, northing, altitude
        The fine covariates.
    truth
        The fine temperature.
    cell : (n, n) int
        The coarse cell of every fine cell.
    has_covariates : (N,)
        True where a coarse cell gives its fine covariates, false where it gives its temperature.
    mediator : (N, 3)
        Easting and northing of the coarse cells, and a terrain index.
    z : (M,)
        The temperatures of the coarse cells that give them.
    """

    easting: np.ndarray
    northing: np.ndarray
    altitude: np.ndarray
    truth: np.ndarray
    cell: np.ndarray
    has_covariates: np.ndarray
    mediator: np.ndarray
    z: np.ndarray

    @property
    def x(self) -> np.ndarray:
        """Fine covariates, one row per fine cell."""
        return np.stack([self.easting, self.northing, self.altitude], axis=-1).reshape(-1, 3)

    @property
    def bags(self) -> dc.Bags:
        """The coarse cells that give their fine covariates."""
        every = dc.Bags.from_points(self.x, self.cell.ravel(), mediator=self.mediator)
        return every.select(self.has_covariates)


def hills(cells: int = 10, per_cell: int = 6, noise_std: float = 0.1, seed: int = 0) -> Hills:
    """Draw hills, their temperature, and what is seen of it.

    Temperature falls by 6.5 degrees per kilometre of altitude on top of a smooth regional pattern.

    Examples
    --------
    >>> data = hills(seed=1)
    >>> data.truth.shape, data.bags.n_bags, len(data.z)
    ((60, 60), 50, 50)
    """
    rng = np.random.default_rng(seed)
    n = cells * per_cell
    centres = (np.arange(n) + 0.5) * SIZE / n
    easting, northing = np.meshgrid(centres, centres)
    ruggedness = np.zeros((n, n))
    for _ in range(40):
        east, north = rng.uniform(-0.5, SIZE + 0.5, 2)
        width, height = rng.uniform(0.25, 0.9), rng.uniform(0.2, 1.3)
        distance = (easting - east) ** 2 + (northing - north) ** 2
        ruggedness += height * np.exp(-0.5 * distance / width**2)
    altitude = 2.5 * (1.0 - np.exp(-ruggedness))  # kilometres; no peak stands far above the rest
    regional = 2.5 * np.sin(0.5 * easting + 0.3) + 1.5 * np.cos(0.45 * northing) - 0.4 * northing
    truth = 18.0 + regional - 6.5 * altitude
    rows = np.arange(n) // per_cell
    cell = rows[:, None] * cells + rows[None, :]
    mean_altitude = _cell_means(altitude, cell)
    terrain = 0.8 * mean_altitude + 0.15 * mean_altitude.std() * rng.standard_normal(cells**2)
    has_covariates = np.zeros(cells**2, dtype=bool)
    has_covariates[rng.permutation(cells**2)[: cells**2 // 2]] = True
    coarse = _cell_means(truth, cell) + noise_std * rng.standard_normal(cells**2)
    return Hills(
        easting=easting,
        northing=northing,
        altitude=altitude,
        truth=truth,
        cell=cell,
        has_covariates=has_covariates,
        mediator=np.stack(
            [_cell_means(easting, cell), _cell_means(northing, cell), terrain], axis=1
        ),
        z=coarse[~has_covariates],
    )


def interpolated(data: Hills) -> dict[str, np.ndarray]:
    """What interpolation of the observed coarse cells gives: their nearest, and linear between.

    Examples
    --------
    >>> data = hills()
    >>> {name: field.shape for name, field in interpolated(data).items()}
    {'nearest cell': (60, 60), 'linear': (60, 60)}
    """
    from scipy.interpolate import griddata

    places = data.mediator[~data.has_covariates, :2]
    wanted = (data.easting, data.northing)
    nearest = griddata(places, data.z, wanted, method="nearest")
    linear = griddata(places, data.z, wanted, method="linear")
    # Linear interpolation ends at the outermost observed cells.
    return {"nearest cell": nearest, "linear": np.where(np.isnan(linear), nearest, linear)}


def run(
    out: str | os.PathLike[str], seed: int = 0, console: Console | None = None
) -> dict[str, Any]:
    """Downscale the hills, compare with the truth, write a figure and the arrays.

    Returns
    -------
    dict
        ``scores`` of the posterior, ``interpolation_rmse`` by name, and ``files``.
    """
    from rich.console import Console

    from deconditional import plots

    console = Console() if console is None else console
    folder = output_folder(out)
    try:
        plots.require_matplotlib()
    except ImportError as error:
        raise UsageError(str(error)) from None
    data = hills(seed=seed)
    _introduce(data, console)
    began = time.perf_counter()
    with console.status("fitting CMP(uncertainty=True) and predicting every fine cell"):
        posterior, notes = _downscale(data)
    seconds = time.perf_counter() - began
    simple = interpolated(data)
    found = dc.scores.score(posterior, data.truth.ravel())
    errors = {name: dc.scores.rmse(field, data.truth) for name, field in simple.items()}
    figure = plots.save(_figure(data, posterior, simple["linear"]), folder / "demo.png")
    arrays = _save_arrays(data, posterior, simple, folder / "demo.npz")
    _conclude(found, errors, seconds, notes, [figure, arrays], console)
    return {"scores": found, "interpolation_rmse": errors, "files": [figure, arrays]}


def _downscale(data: Hills) -> tuple[Any, list[str]]:
    """The posterior at every fine cell, and any warnings of the fit."""
    from deconditional.fit import FitWarning

    model = dc.CMP(uncertainty=True, n_restarts=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        model.fit(data.bags, data.z, mediator=data.mediator[~data.has_covariates])
        posterior = model.predict(data.x)
        _ = posterior.mean  # computed when first asked for: let it count as time of the model
    return posterior, [str(w.message) for w in caught if issubclass(w.category, FitWarning)]


def _figure(data: Hills, posterior: Any, linear: np.ndarray) -> Any:
    from deconditional import plots

    def on_grid(values: np.ndarray) -> np.ndarray:
        return values.reshape(data.truth.shape)

    mean = on_grid(posterior.mean)
    lower, upper = posterior.interval(0.95)
    error = mean - data.truth
    scale = {"vmin": float(data.truth.min()), "vmax": float(data.truth.max())}
    reach = float(max(np.abs(error).max(), np.abs(linear - data.truth).max()))
    around_zero = {"cmap": plots.DIVERGING, "vmin": -reach, "vmax": reach}
    panels = [
        {
            "values": _seen_altitude(data),
            "title": "given in half the cells: altitude",
            "label": "km",
        },
        {"values": _seen_coarse(data), "title": "given in the others: mean temperature"},
        {"values": linear, "title": "linear interpolation"},
        {"values": linear - data.truth, "title": "interpolation − truth", "style": around_zero},
        {"values": data.truth, "title": "truth"},
        {"values": mean, "title": "posterior mean"},
        {"values": on_grid(upper - lower), "title": "width of the 95% interval"},
        {"values": error, "title": "posterior mean − truth", "style": around_zero},
    ]
    panels[0]["style"] = panels[6]["style"] = {"cmap": plots.SPREAD}
    for place in (1, 2, 4, 5):
        panels[place]["style"] = scale
    for panel in panels[1:]:
        panel["label"] = "°C"
    return plots.map_panels(
        panels,
        "Temperature over hills from coarse cells whose fine covariates are elsewhere",
        columns=4,
        extent=(0.0, 10 * SIZE, 0.0, 10 * SIZE),
        axes=("easting (km)", "northing (km)"),
    )


def _seen_altitude(data: Hills) -> np.ndarray:
    return np.where(data.has_covariates[data.cell], data.altitude, np.nan)


def _seen_coarse(data: Hills) -> np.ndarray:
    """The observed cell means on the fine grid, NaN in cells without one."""
    coarse = np.full(len(data.has_covariates), np.nan)
    coarse[~data.has_covariates] = data.z
    return coarse[data.cell]


def _save_arrays(data: Hills, posterior: Any, simple: dict[str, np.ndarray], path: Path) -> Path:
    shape = data.truth.shape
    lower, upper = posterior.interval(0.95)
    np.savez_compressed(
        path,
        easting=data.easting,
        northing=data.northing,
        altitude=data.altitude,
        truth=data.truth,
        cell=data.cell,
        has_covariates=data.has_covariates,
        mediator=data.mediator,
        z=data.z,
        mean=posterior.mean.reshape(shape),
        std=posterior.std.reshape(shape),
        lower95=lower.reshape(shape),
        upper95=upper.reshape(shape),
        linear=simple["linear"],
        nearest=simple["nearest cell"],
    )
    return path


def _introduce(data: Hills, console: Console) -> None:
    n_bags, rows = data.bags.n_bags, data.truth.shape[0]
    console.print(
        f"Synthetic hills on {rows} x {rows} fine cells. {n_bags} coarse cells give position and "
        f"altitude of their fine cells, the other {len(data.z)} only their mean temperature. "
        "A coarse mediator links them.",
        highlight=False,
    )


def _conclude(
    found: dict[str, float],
    errors: dict[str, float],
    seconds: float,
    notes: list[str],
    files: list[Path],
    console: Console,
) -> None:
    from rich.table import Table

    table = Table(title="against the true fine temperature")
    for name in ("", "RMSE (°C)", "CRPS (°C)", "coverage of 95%"):
        table.add_column(name, justify="left" if not name else "right")
    for name, error in errors.items():
        table.add_row(f"interpolation, {name}", f"{error:.2f}", "–", "–")
    table.add_row(
        "CMP(uncertainty=True)",
        f"{found['rmse']:.2f}",
        f"{found['crps']:.2f}",
        f"{found['coverage95']:.2f}",
        style="bold",
    )
    console.print(table)
    console.print(
        f"Fitted and predicted in {seconds:.0f} s, compilation included.", highlight=False
    )
    for note in notes:
        console.print(f"Warning of the fit: {note}", highlight=False)
    console.print(
        "Written: " + ", ".join(str(path) for path in files), highlight=False, soft_wrap=True
    )


def _cell_means(field: np.ndarray, cell: np.ndarray) -> np.ndarray:
    return np.bincount(cell.ravel(), weights=field.ravel()) / np.bincount(cell.ravel())
