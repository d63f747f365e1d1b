"""What the commands share: numbers as options, what runs, what an interrupt leaves."""

from __future__ import annotations

import argparse
from collections.abc import Callable

__all__ = ["nothing_kept", "positive", "runs", "whole"]


def runs(
    parser: argparse.ArgumentParser,
    command: Callable[[argparse.Namespace, str], int],
    kept: Callable[[argparse.Namespace], str],
) -> None:
    """Have a parser's arguments carried out by `command`; `kept` says what an interrupt leaves."""
    parser.set_defaults(command=command, kept=kept)


def nothing_kept(args: argparse.Namespace) -> str:
    """For commands that write at their end."""
    return "Nothing was kept; run the command again."


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number
