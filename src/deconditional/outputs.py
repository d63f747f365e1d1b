"""Folders and files that commands write: checked before any work, and never left half written."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from pathlib import Path

__all__ = [
    "UsageError",
    "can_draw",
    "check_folder",
    "check_name",
    "check_place",
    "output_folder",
    "shortened",
    "visible",
    "write_atomically",
]

HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Characters that steer terminals, browsers or the order of letters instead of being seen."""

LONG_WORD = re.compile(r"\S{301,}")
LONGEST_MESSAGE = 2000

ROOM = 40
"""Bytes that the hidden name of a file in the making has beyond its own, at most."""


def visible(text: str) -> str:
    r"""A text in which characters that cannot be seen are written as escapes.

    Line breaks and tabs stay.

    Examples
    --------
    >>> print(visible("red\x1b[31m, tuo\u202e"))
    red\x1b[31m, tuo\u202e
    """
    return HIDDEN.sub(_escape, text.replace("\r\n", "\n"))


def _escape(found: re.Match[str]) -> str:
    code = ord(found.group())
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

    Parameters
    ----------
    path
        The file.
    what
        What to call it in errors.

    Examples
    --------
    >>> check_place(Path("two\nlines.nc"), "output")
    Traceback (most recent call last):
    ...
    deconditional.outputs.UsageError: the output 'two\nlines.nc' has a character in its name that
    cannot be seen; name another.
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
    part.unlink(missing_ok=True)
    try:
        # A link that somebody else has put there in the meantime is not followed.
        with part.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
