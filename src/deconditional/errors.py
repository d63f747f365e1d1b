"""Errors and warnings that a user may want to catch, and how their words are made readable."""

from __future__ import annotations

import importlib
import re
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from sklearn.exceptions import NotFittedError as NotFittedError

VERSION = version("deconditional")
"""Of this package."""

HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Characters that steer terminals, browsers or the order of letters instead of being seen."""

LONG_WORD = re.compile(r"\S{301,}")
LONGEST_MESSAGE = 2000


def __getattr__(name: str) -> Any:
    """scikit-learn's error of what is not fitted, which is imported when there is one."""
    if name == "NotFittedError":
        return importlib.import_module("sklearn.exceptions").NotFittedError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def visible(text: str) -> str:
    r"""A text in which characters that cannot be seen are written as escapes.

    Line breaks and tabs stay.

    Examples
    --------
    >>> print(visible("red\x1b[31m, tuo\u202e"))
    red\x1b[31m, tuo\u202e
    """
    return HIDDEN.sub(_escape, text.replace("\r\n", "\n"))


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    width, letter = (2, "x") if code < 0x100 else (4, "u") if code < 0x10000 else (8, "U")
    return f"\\{letter}{code:0{width}x}"


def shortened(text: str, most: int) -> str:
    """The beginning of a long text, and how long it is.

    Examples
    --------
    >>> shortened("a" * 100, 5)
    'aaaaa… (100 characters)'
    """
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def one_line(error: BaseException) -> str:
    """The beginning of what an error says."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")[:200]


def _message(text: str) -> str:
    """What a person can read: nothing hidden, no endless names, the end kept."""
    text = LONG_WORD.sub(lambda word: f"{word.group()[:200]}…{word.group()[-60:]}", visible(text))
    if len(text) <= LONGEST_MESSAGE:
        return text
    return f"{text[: LONGEST_MESSAGE - 400]} … {text[-400:]}"


class UsageError(ValueError):
    """Something the user asked for that cannot be done; the message says what to change.

    Names in the message may come from files: what cannot be seen is written as an escape, and what
    has no end is cut.
    """

    def __init__(self, message: object = ""):
        super().__init__(_message(str(message)))


class SavedModelError(UsageError):
    """A file that is no saved model, is damaged, or cannot be read with what was given.

    Examples
    --------
    >>> issubclass(SavedModelError, ValueError)
    True
    """


class CheckpointError(UsageError):
    """A file that is no checkpoint, or one of another fit.

    Examples
    --------
    >>> issubclass(CheckpointError, ValueError)
    True
    """


class DeconditionalWarning(UserWarning):
    """The base of all warnings of this package.

    Examples
    --------
    >>> issubclass(UselessMediatorWarning, FitWarning), issubclass(FitWarning, DeconditionalWarning)
    (True, True)
    """


class FitWarning(DeconditionalWarning):
    """A fit that did not converge, or whose answer should not be trusted as it is."""


class DegenerateFitWarning(FitWarning):
    """Parameters on their bounds, a field that explains nothing, or one of isolated points."""


class JitterWarning(FitWarning):
    """A covariance that could be factorised only with noise added to it."""


class UselessMediatorWarning(FitWarning):
    """The mediator carries no information about the observations, or about the bags."""


class MediatorShiftWarning(FitWarning):
    """Many observations have mediators that no bag is near to."""


class NoSkillWarning(DeconditionalWarning):
    """A result that is no better than bilinear interpolation of the coarse field, as far as seen.

    Examples
    --------
    >>> issubclass(NoSkillWarning, DeconditionalWarning)
    True
    """


class ExtrapolationWarning(DeconditionalWarning):
    """Much of a prediction lies where the data say nothing."""


class LeakageWarning(DeconditionalWarning):
    """Held-out observations share fine cells with observations that were learnt from."""


class CheckpointWarning(DeconditionalWarning):
    """A checkpoint that could not be used, or could not be written; the fit goes on without."""


class SampleWarning(DeconditionalWarning):
    """Samples whose spread differs from that of the posterior they are drawn from."""


class SliceWarning(DeconditionalWarning):
    """Some of many downscalings failed."""


class Caution(NamedTuple):
    """A warning before it is given."""

    category: type[DeconditionalWarning]
    text: str


_kept = threading.local()


@contextmanager
def told_later() -> Iterator[list[Caution]]:
    """Keep what this thread has to tell for another, in which whoever is told can be found."""
    _kept.cautions = []
    try:
        yield _kept.cautions
    finally:
        del _kept.cautions


def tell_of(cautions: Sequence[Caution]) -> None:
    """Give warnings, at the line outside this package that led to them."""
    if hasattr(_kept, "cautions"):
        _kept.cautions.extend(cautions)
        return
    depth, frame = 1, sys._getframe(0)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        depth, frame = depth + 1, frame.f_back
    for caution in cautions:
        warnings.warn(caution.text, caution.category, stacklevel=depth)


def _is_ours(module: str) -> bool:
    return module == "deconditional" or module.startswith("deconditional.")
