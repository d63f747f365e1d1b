"""What is asked of two datasets: which variables play which part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deconditional.errors import UsageError

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

    def __post_init__(self) -> None:
        for part in ("covariates", "mediators"):
            for name in getattr(self, part):
                if not isinstance(name, str) or not name:
                    raise UsageError(
                        f"{part} must be names of variables, and one of them is {name!r}; write "
                        f"{part}=['a', 'b']."
                    )
        if self.mask is not None and not isinstance(self.mask, str):
            raise UsageError(
                f"mask must be the name of a fine variable, not {type(self.mask).__name__}."
            )
        if self.dims is not None and not isinstance(self.dims, Mapping):
            raise UsageError(
                f"dims must look like {{'y': 'lat', 'x': 'lon'}}, not {type(self.dims).__name__}."
            )
