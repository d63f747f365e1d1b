"""What commands print, and how what goes wrong while they compute becomes one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from deconditional.errors import UsageError, one_line, shortened, visible

__all__ = ["errors_of_computing", "errors_of_reading", "new_console", "say"]


def new_console(quiet: bool = False) -> Console:
    """A console that takes names as they are, and breaks no lines."""
    return Console(quiet=quiet, highlight=False, soft_wrap=True, emoji=False)


def say(console: Console, label: str, text: str) -> None:
    """Print one line of what was understood or done."""
    text = shortened(visible(text), 2000)
    console.print(Text.assemble((f"{label:>12}", "bold"), "  ", text))


@contextmanager
def errors_of_computing(model: str) -> Iterator[None]:
    """Turn what the numerical part stumbles over into a complaint with a remedy."""
    try:
        yield
    except UsageError:
        raise
    except MemoryError:
        raise UsageError(
            "the memory does not suffice; use --model varcmp or vbagg, fewer --points-per-bag, or "
            "a smaller region."
        ) from None
    except (ValueError, ArithmeticError, RuntimeError, OSError) as error:
        raise UsageError(
            f"the computation with the model {model!r} failed: {one_line(error)}; try another "
            "--model or --seed, or leave variables out."
        ) from error


@contextmanager
def errors_of_reading() -> Iterator[None]:
    """Turn what goes wrong while chunks of data are read into a complaint about the files."""
    try:
        yield
    except UsageError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"the data cannot be read ({type(error).__name__}: {one_line(error)}); check that the "
            "files are whole."
        ) from error
