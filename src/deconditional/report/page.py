"""The page: its blocks, how numbers are written on it, and its rendering to one HTML file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from deconditional.errors import UsageError, shortened, visible
from deconditional.report import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABSENT = "–"

LONGEST = 2_000
"""Characters of a text that a page shows; more than that nobody reads."""


@dataclass(frozen=True)
class Text:
    """Paragraph of the page."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Warnings:
    """Sentences that a reader must not overlook."""

    kind: ClassVar[str] = "warnings"
    texts: Sequence[str]


@dataclass(frozen=True)
class Table:
    """Rows of text; the first column names the row. `marked` is the row that was chosen."""

    kind: ClassVar[str] = "table"
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: int | None = None


@dataclass(frozen=True)
class Picture:
    """A figure with its alternative text and caption."""

    source: str
    alt: str
    caption: str
    width: int
    height: int

    @classmethod
    def of(cls, figure: Figure, alt: str, caption: str = "") -> Picture:
        """A figure as PNG within the page."""
        png = plots.png(figure)
        # Width and height of a PNG stand at fixed places in its header.
        width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))
        source = "data:image/png;base64," + base64.b64encode(png).decode("ascii")
        return cls(source, alt, caption, width, height)


@dataclass(frozen=True)
class Pictures:
    """Figures side by side where there is room."""

    kind: ClassVar[str] = "pictures"
    pictures: Sequence[Picture]


Block = Text | Warnings | Table | Pictures


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    anchor: str
    title: str
    blocks: Sequence[Block]


def render(heading: str, sections: Sequence[Section], note: str) -> str:
    """The page as HTML, its contents behind the first section.

    Every text is escaped, cut where it has no end, and all of it is visible.

    Examples
    --------
    >>> page = render("<b>", [Section("one", "One", [Text("a & b")])], "")
    >>> "<h1>&lt;b&gt;</h1>" in page, '<a href="#one">One</a>' in page
    (True, True)
    """
    try:
        import jinja2
    except ImportError:
        raise UsageError(
            'the report needs jinja2: install it with pip install "deconditional[report]".'
        ) from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("deconditional.report", ""),
        autoescape=True,
        finalize=_legible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = environment.get_template("page.html.jinja")
    return template.render(heading=heading, sections=sections, note=note)


def _legible(value: Any) -> Any:
    """A text without what steers a browser instead of being read; pictures stay as they are."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return shortened(visible(value), LONGEST)


def number(value: Any, digits: int = 4) -> str:
    """A number for reading: a few digits, thousands apart, a dash where there is none."""
    if isinstance(value, int) and abs(value) >= 2**63:
        return shortened(str(value), 30)
    if value is None or not np.isfinite(value):
        return ABSENT
    if isinstance(value, int | np.integer) or (abs(value) >= 1e4 and abs(value) < 1e7):
        return f"{value:,.0f}".replace(",", "\u202f")  # a narrow space that does not break
    return f"{value:.{digits}g}"


def share(value: float) -> str:
    """Write a share in per cent.

    Examples
    --------
    >>> share(0.948)
    '94.8%'
    """
    return f"{100 * value:.1f}%" if np.isfinite(value) else ABSENT


def shown(value: Any) -> str:
    """Any value that JSON knows, for reading.

    Examples
    --------
    >>> shown([1, 0.5]), shown(True), shown({"a": None})
    ('1, 0.5', 'yes', 'a: –')
    """
    if value is None or (isinstance(value, str) and not value):
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, dict):
        return "; ".join(f"{key}: {shown(part)}" for key, part in value.items()) or ABSENT
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or ABSENT
    return str(value)
