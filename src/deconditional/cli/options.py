"""What the commands share: types of their options, and the packages they need."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.util import find_spec

from deconditional.errors import UsageError


def require(extra: str, *packages: str) -> None:
    """Raise unless the packages of an extra can be imported."""
    for package in packages:
        if find_spec(package) is None:
            raise UsageError(f"this needs {package}: pip install 'deconditional[{extra}]'.")


# ---------------------------------------------------------------------- types of options


def whole(text: str, least: int | None = None, most: int | None = None) -> int:
    """A whole number that is neither too small nor too large."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None
    if least is not None and value < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, not {value}")
    if most is not None and value > most:
        raise argparse.ArgumentTypeError(f"must be at most {most}, not {value}")
    return value


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """The type of a whole number between bounds."""
    return lambda text: whole(text, least, most)


positive = at_least(1)


def names(text: str) -> list[str]:
    """Type of an option that holds names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def levels(text: str) -> list[float]:
    """Type of an option that holds numbers between commas."""
    try:
        return [float(part) for part in names(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers between commas, not {text!r}") from None


def bounds(text: str) -> tuple[float | None, float | None]:
    """Two limits between a comma; either may be left out.

    Examples
    --------
    >>> bounds("0,"), bounds("0,1")
    ((0.0, None), (0.0, 1.0))
    """
    low, comma, high = text.partition(",")
    try:
        ends = tuple(float(end) if end.strip() else None for end in (low, high))
    except ValueError:
        comma = ""
        ends = (None, None)
    if not comma or any(end != end for end in ends):  # a bound that is no number
        raise argparse.ArgumentTypeError(f"must be LOW,HIGH (either may be empty), not {text!r}")
    return ends[0], ends[1]


def points(text: str) -> int | str | None:
    """A number of points; None for ``all``, and ``auto`` as it is."""
    if text in ("all", "auto"):
        return None if text == "all" else text
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive number, all or auto, not {text!r}")
    return int(text)


def dimensions(text: str) -> dict[str, str]:
    """Names of dimensions by their role: y, x or time."""
    pairs = [part.split("=", 1) for part in names(text) if "=" in part]
    roles = {role.strip(): name.strip() for role, name in pairs}
    if len(roles) != len(names(text)) or not set(roles) <= {"y", "x", "time"}:
        raise argparse.ArgumentTypeError(f"must look like y=lat,x=lon,time=t, not {text!r}")
    return roles
