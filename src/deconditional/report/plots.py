"""How figures are made, look and are written; what they show stands in ``maps`` and ``curves``.

Figures are made without pyplot, so no window opens and no global state changes. Colour maps keep
their order in grey and for colour-blind readers. Texts are drawn as they are given: a dollar sign
starts no formula. Matplotlib is an optional dependency and is imported when a figure is drawn.
"""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deconditional.saving.outputs import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEQUENTIAL, SPREAD, DIVERGING = "viridis", "cividis", "PuOr"
"""Colour maps of values, of spreads from zero up, and of differences around zero."""

GAP = "0.75"
"""Grey of cells without a value."""

BLUE, ORANGE, GREEN, VERMILION = "#0072b2", "#e69f00", "#009e73", "#d55e00"


def require_matplotlib() -> None:
    """Raise ImportError, with the remedy, where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError(
            'figures need matplotlib: install it with pip install "deconditional[plots]".'
        ) from None


def new_figure(width: float, height: float, title: str = "") -> Figure:
    r"""An empty figure, in inches, whose panels make room for their labels."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    if title:
        figure.suptitle(plain_text(title, 110), fontsize=13)
    return figure


def png(figure: Figure, dpi: int = 150) -> bytes:
    """Bytes of a figure as PNG."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        # Names may be in any script; what the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        # Cut to what is drawn: maps of fixed aspect leave room on one side and lack it on another.
        figure.savefig(
            file,
            dpi=dpi,
            format="png",
            metadata={"Software": None},
            bbox_inches="tight",
            pad_inches=0.1,
        )
    return file.getvalue()


def save(figure: Figure, path: str | os.PathLike[str], dpi: int = 130) -> Path:
    """Write a figure as PNG."""
    write_atomically(Path(path), png(figure, dpi))
    return Path(path)


def plain_text(text: Any, width: int = 60) -> str:
    r"""Text for a figure, on one line, shortened, with no sign taken for the start of a formula.

    Examples
    --------
    >>> plain_text("price in $ or $")
    'price in \\$ or \\$'
    """
    line = " ".join(str(text).split())
    line = line if len(line) <= width else line[: width - 1] + "…"
    return line.replace("$", r"\$")
