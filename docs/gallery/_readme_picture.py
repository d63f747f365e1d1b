"""The picture of the README, from what the demonstration has written.

    make demo && .venv/bin/python docs/gallery/_readme_picture.py demo-output

Sphinx-Gallery leaves files with this kind of name alone: the demonstration takes minutes.
"""

import io
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import xarray as xr
from _style import STYLE
from matplotlib.figure import Figure
from PIL import Image

from deconditional.datasets import global_fields

OUT = Path(__file__).parents[1] / "_static" / "readme.png"
MONTH = 1
"""That of the demonstration, unless it is told otherwise."""


def panels(result, truth):
    """Title, field, colours and limits of every map."""
    low, high = np.quantile(truth, [0.002, 0.998])
    coarse, mean, std = (result[name] for name in ("coarse_observed", "mean", "std"))
    error = float(np.sqrt(((mean - truth) ** 2).mean()))
    given = f"Given: temperature in {int(coarse.notnull().sum())} coarse cells"
    yield given, coarse, "viridis", (low, high)
    fine = f"{mean.size:,}".replace(",", " ")
    yield f"Result: temperature in {fine} fine cells", mean, "viridis", (low, high)
    title = f"Truth, not used: the result is off by {error:.1f} K (rms)"
    yield title, truth, "viridis", (low, high)
    yield "Uncertainty: standard deviation", std, "cividis", (0.0, float(std.quantile(0.995)))


def main(folder):
    """Draw the maps of a run of the demonstration."""
    mpl.rcParams.update(STYLE | {"font.size": 12})
    result, truth = xr.load_dataset(Path(folder) / "demo.nc"), global_fields(MONTH)["tas"]
    figure = Figure(figsize=(11, 5.6))
    places = figure.subplots(2, 2)
    for place, (title, field, colours, (low, high)) in zip(
        places.flat, panels(result, truth), strict=True
    ):
        y, x = field.dims
        image = place.pcolormesh(field[x], field[y], field, cmap=colours, vmin=low, vmax=high)
        place.set_title(title, loc="left")
        place.set(aspect="equal", facecolor="0.85", xticks=[], yticks=[])
        place.spines[:].set_visible(False)
        bar = place.inset_axes((1.02, 0.0, 0.035, 1.0))
        figure.colorbar(image, cax=bar, label="K", extend="both" if low else "max")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120)
    # A palette of 256 colours halves the file, and nobody sees the difference.
    few = Image.open(drawn).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2)
    few.save(OUT, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1])
