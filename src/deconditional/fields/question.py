"""What is asked of two datasets: which variables play which part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Question"]


@dataclass(frozen=True)
class Question:
    """What is asked: which variables play which part.

    Attributes
    ----------
    position
        Whether position is a covariate and a mediator too.
    mask
        A fine variable between 0 and 1, the share of a fine cell that counts (land, say).
    min_cover
        Least share of a coarse cell that fine cells with covariates must cover to make it a bag.
    """

    target: str
    covariates: tuple[str, ...]
    mediators: tuple[str, ...]
    position: bool = True
    mask: str | None = None
    min_cover: float = 0.5
    dims: Mapping[str, str] | None = None
