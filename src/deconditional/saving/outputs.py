"""Folders and files to be written: checked before any work, and never left half written."""

from __future__ import annotations

import glob
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deconditional.errors import UsageError, visible

ROOM = 40
"""Bytes that the hidden name of a file in the making has beyond its own, at most."""


def output_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, made if need be, once it is known that files can be written there."""
    folder = Path(path)
    check_name(folder, "output folder")
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


def check_place(path: Path, what: str) -> None:
    r"""Raise unless a file or store of this name can be made here.

    `what` is what errors call it.
    """
    check_name(path, what)
    check_folder(path)
    folder = path.absolute().parent
    most = _longest_name(folder) - ROOM
    size = len(os.fsencode(path.name))
    if size > most:
        raise UsageError(
            f"the name of the {what} {path.name!r} has {size} bytes, and files beside it while it "
            f"is written have longer names; name another of at most {most}."
        )
    if os.path.lexists(path):
        mode = os.lstat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            raise UsageError(f"the {what} {str(path)!r} is a device or a pipe; name a file.")


def check_target(path: Path, what: str, endings: Sequence[str], overwrite: bool) -> None:
    """Raise unless a file of one of these endings can be made here, and may replace what is there.

    What a folder that ends in .zarr holds is for whoever writes a store to look at.
    """
    if path.suffix not in endings:
        *others, last = endings
        ends = f"{', '.join(others)} or {last}" if others else last
        raise UsageError(f"the {what} {str(path)!r} must end in {ends}; name another.")
    check_place(path, what)
    if path.is_dir() and path.suffix != ".zarr":
        raise UsageError(f"the {what} {str(path)!r} is a folder; name a file.")
    if os.path.lexists(path) and not overwrite:
        raise UsageError(
            f"the {what} {str(path)!r} exists; name another, or replace it (overwrite=True, "
            "--overwrite)."
        )


def check_name(path: Path, what: str) -> None:
    """Raise where a name has characters that would steer a terminal, or that no file can have."""
    name = str(path)
    if visible(name) != name or "\n" in name or "\t" in name:
        raise UsageError(
            f"the {what} {name!r} has a character in its name that cannot be seen; name another."
        )


def _longest_name(folder: Path) -> int:
    try:
        return os.pathconf(folder, "PC_NAME_MAX")
    except (AttributeError, OSError, ValueError):
        return 255


def check_folder(path: Path) -> None:
    """Raise unless a file can be written here."""
    folder = path.absolute().parent
    try:
        if not folder.is_dir():
            raise UsageError(f"the folder {str(folder)!r} does not exist; make it first.")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"the folder {str(folder)!r} cannot be written to ({error.strerror or error}); name "
            "another."
        ) from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A hidden name beside a file; what is written under it takes the file's place at the end.

    The file is, at every moment, either what it was or the new one. Where the block raises, what
    was written is removed.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file that is, at every moment, either the old one or the new one."""
    # A link that somebody else has put there in the meantime is not followed: hence the x.
    with replacing(path) as part, part.open("xb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def remove_leftovers(path: Path) -> None:
    """Delete what processes left that were killed while they wrote this file."""
    for each in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        each.unlink(missing_ok=True)
