"""What commands print, and how what goes wrong while they work becomes one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from deconditional.errors import UsageError, one_line, shortened, visible


def new_console(quiet: bool = False) -> Console:
    """A console that takes names as they are, and breaks no lines."""
    return Console(quiet=quiet, highlight=False, soft_wrap=True, emoji=False)


def say(console: Console, label: str, text: str) -> None:
    """Print one line of what was understood or done."""
    text = shortened(visible(text), 2000)
    console.print(Text.assemble((f"{label:>12}", "bold"), "  ", text))


@contextmanager
def complaints(failed: str, remedy: str, memory: str = "") -> Iterator[None]:
    """Turn what a block stumbles over into a complaint: what failed, why, and what to do.

    `memory` is what to do where the memory does not suffice; without it, that is left to others.
    """
    try:
        yield
    except UsageError:
        raise
    except MemoryError:
        if not memory:
            raise
        raise UsageError(f"the memory does not suffice; {memory}.") from None
    except (ArithmeticError, OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"{failed} ({one_line(error)}); {remedy}.") from error
