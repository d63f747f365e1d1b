"""The look of the gallery's figures; Sphinx-Gallery calls `reset` before each script."""

from typing import Any

import matplotlib as mpl

STYLE = {
    "axes.grid": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "font.size": 10,
    "image.cmap": "viridis",
    "legend.frameon": False,
}


def reset(gallery_conf: dict[str, Any], fname: str) -> None:
    """Matplotlib's defaults with the settings above."""
    mpl.rcdefaults()
    mpl.use("Agg")
    mpl.rcParams.update(STYLE)
