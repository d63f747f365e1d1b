"""Folders and files that commands write: checked before any work, and never left half written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["UsageError", "can_draw", "output_folder", "write_atomically"]


class UsageError(ValueError):
    """Something the user asked for that cannot be done; the message says what to change."""


def can_draw() -> None:
    """Raise, with the remedies, where figures are asked for and matplotlib is missing."""
    from deconditional import plots

    try:
        plots.require_matplotlib()
    except ImportError as error:
        raise UsageError(f"{error} Or leave figures out with --no-figures.") from None


def output_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, made if need be, once it is known that files can be written there.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as here:
    ...     output_folder(Path(here) / "new").is_dir()
    True
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (FileExistsError, NotADirectoryError):
        raise UsageError(
            f"the output {str(folder)!r} is a file, or lies below one; name a folder."
        ) from None
    except OSError as error:
        raise UsageError(
            f"cannot write to the output folder {str(folder)!r} ({error.strerror or error}); "
            "name another."
        ) from None
    return folder


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file that is, at every moment, either the old one or the new one.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as here:
    ...     write_atomically(Path(here) / "a.txt", "whole")
    ...     [(file.name, file.read_text()) for file in Path(here).iterdir()]
    [('a.txt', 'whole')]
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
