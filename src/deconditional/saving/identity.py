"""What something was made from, in a few letters: digests, options as texts, and versions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import numpy as np

from deconditional.errors import VERSION

SHOWN_ONLY = ("progress", "progress_bar")
"""Options that change nothing but what is shown."""


def digest(*parts: Any) -> str:
    """SHA-256 of texts, bytes and arrays in turn, with types and shapes.

    Examples
    --------
    >>> digest("a", np.zeros(2)) == digest("a", np.zeros(2)), digest("a") == digest("b")
    (True, False)
    """
    total = hashlib.sha256()
    for part in parts:
        if part is None or isinstance(part, str | bytes):
            total.update(f"{part!r};".encode())
            continue
        values = np.asarray(part)
        total.update(f"{values.dtype.str}{values.shape};".encode())
        if values.dtype.hasobject:
            total.update(repr(values.tolist()).encode())
        else:
            total.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def plain(value: Any) -> str:
    """Options as a text that is the same in every process.

    Objects are there by the name of their class: what they stand for shows in the numbers.

    Examples
    --------
    >>> plain({"seed": 0, "progress": True, "fixed": {"noise_std": 0.1}})
    "{'fixed': {'noise_std': 0.1}, 'seed': 0}"
    """
    if isinstance(value, np.generic):
        return plain(value.item())
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    if isinstance(value, Mapping):
        shown = {str(name): each for name, each in value.items() if name not in SHOWN_ONLY}
        inside = ", ".join(f"{name!r}: {plain(shown[name])}" for name in sorted(shown))
        return f"{{{inside}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(plain(each) for each in value)}]"
    if isinstance(value, np.ndarray):
        return digest(value)
    return type(value).__qualname__


def versions(*packages: str) -> dict[str, str]:
    """Versions of this package and of others that it computes with."""
    return {"deconditional": VERSION, **{name: metadata.version(name) for name in packages}}
