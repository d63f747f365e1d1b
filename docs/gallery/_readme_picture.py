"""The picture of the README, from what the demonstration has written.

    make demo && .venv/bin/python docs/gallery/_readme_picture.py demo-output

Sphinx-Gallery leaves files with this kind of name alone: the demonstration takes minutes.
"""

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import xarray as xr
from _style import STYLE
from matplotlib.figure import Figure

from deconditional.datasets import global_fields

OUT = Path(__file__).parents[1] / "_static" / "readme.png"
MONTH = 1
"""That of the demonstration, unless it is told otherwise."""


def panels(result, truth):
    """Title, field, colours and limits of every map."""
    low, high = np.quantile(truth, [0.002, 0.998])
    spread = float(result["std"].quantile(0.995))
    known = int(result["coarse_observed"].notnull().sum())
    error = float(np.sqrt(((result["mean"] - truth) ** 2).mean()))
    within = float((abs(result["mean"] - truth) < 1.96 * result["std"]).mean())
    yield f"Given: {known} coarse values", result["coarse_observed"], "viridis", (low, high)
    yield f"Result: the fine field, off by {error:.1f} K", result["mean"], "viridis", (low, high)
    yield "Truth, which the model has not seen", truth, "viridis", (low, high)
    yield f"± 1 std: {within:.0%} of truth within 1.96", result["std"], "cividis", (0.0, spread)


def main(folder):
    """Draw the maps of a run of the demonstration."""
    mpl.rcParams.update(STYLE | {"font.size": 12})
    result, truth = xr.load_dataset(Path(folder) / "demo.nc"), global_fields(MONTH)["tas"]
    figure = Figure(figsize=(11, 6.1))
    places = figure.subplots(2, 2)
    for place, (title, field, colours, (low, high)) in zip(
        places.flat, panels(result, truth), strict=True
    ):
        y, x = field.dims
        image = place.pcolormesh(
            field[x], field[y], field, cmap=colours, vmin=low, vmax=high, rasterized=True
        )
        place.set_title(title, loc="left")
        place.set(aspect="equal", facecolor="0.85", xticks=[], yticks=[])
        figure.colorbar(image, ax=place, label="K", shrink=0.9, aspect=14, extend="both")
    figure.savefig(OUT, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main(sys.argv[1])
