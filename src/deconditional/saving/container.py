"""The file itself: a zip archive of plain arrays and one JSON text, read without trusting it.

Nothing in here executes what a file says. Members are stored, not compressed, so that a file
cannot be larger in memory than on disk; arrays have a handful of plain number types; names of
members and their sizes are checked before anything is read, and their checksums, which zip
archives have, when they are.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from deconditional.errors import SavedModelError, UsageError
from deconditional.saving.identity import digest
from deconditional.saving.outputs import replacing

SCHEMA = 1
"""Number of the schema that is written and read."""

HEADER = "model.json"
MEMBER = re.compile(r"arrays/(a[0-9]{5,7})\.npy")
LARGEST_HEADER = 64 * 2**20
"""Bytes of JSON. Bags and their labels are the longest part: a million labels are 20 MB."""

DTYPES = (*("<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1"),)

EPOCH = (1980, 1, 1, 0, 0, 0)
"""Date of all members: a model saved twice gives the same bytes, apart from ``created``."""

DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, ArithmeticError, AssertionError),
    *(AttributeError, EOFError, LookupError, MemoryError, NotImplementedError, RecursionError),
    *(RuntimeError, SyntaxError, TypeError, ValueError, tokenize.TokenError),
)
"""What reading a damaged or invented file may raise on the way."""


class ArrayWriter:
    """Arrays on their way into a file; equal ones are kept once."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._names: dict[str, str] = {}  # by their digest

    def add(self, array: Any) -> str:
        """The name of an array in the file."""
        values = np.asarray(array)
        little = values.dtype.newbyteorder("<")
        if little.str not in DTYPES:
            raise SavedModelError(
                f"an array of {values.dtype} cannot be saved; convert it to float64 or int64 first."
            )
        values = np.ascontiguousarray(values, dtype=little).reshape(values.shape)
        name = self._names.setdefault(digest(values), f"a{len(self._names):05d}")
        self.arrays.setdefault(name, values)
        return name


def write(path: Path, kind: str, header: Mapping[str, Any], arrays: ArrayWriter) -> None:
    """Write so that the file is, at every moment, either what it was or the new one."""
    whole = {
        "format": kind,
        "schema": SCHEMA,
        "created": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        **header,
    }
    try:
        with replacing(path) as part, zipfile.ZipFile(part, "x", zipfile.ZIP_STORED) as archive:
            for name, values in arrays.arrays.items():
                info = zipfile.ZipInfo(f"arrays/{name}.npy", EPOCH)
                with archive.open(info, "w", force_zip64=values.nbytes > 2**31) as member:
                    np.lib.format.write_array(member, values, (1, 0), allow_pickle=False)
            whole["digest"] = fingerprint(whole, archive.infolist())
            text = json.dumps(whole, allow_nan=False, separators=(",", ":")).encode()
            if len(text) > LARGEST_HEADER:
                raise SavedModelError(
                    f"what is not an array takes {len(text) / 2**20:.0f} MB, more than a file may "
                    "have; use shorter labels, or whole numbers, for the bags."
                )
            archive.writestr(zipfile.ZipInfo(HEADER, EPOCH), text)
    except OSError as error:
        raise UsageError(
            f"could not write {str(path)!r} ({error.strerror or error}); what was there has not "
            "changed. Make room, or name another place."
        ) from None


def fingerprint(header: Mapping[str, Any], members: Iterable[zipfile.ZipInfo]) -> str:
    """A digest of what the JSON says and of the checksums of the arrays, whatever their order."""
    rest = {key: value for key, value in header.items() if key != "digest"}
    sums = sorted(f"{info.filename} {info.CRC}" for info in members if info.filename != HEADER)
    return digest(json.dumps([rest, sums], sort_keys=True, allow_nan=False))


def refuse(why: str) -> NoReturn:
    """Raise the error of this package for files."""
    raise SavedModelError(f"{why}.")


class Archive:
    """An open file, its JSON checked (``header``) and its arrays there to be asked for."""

    def __init__(self, archive: zipfile.ZipFile, kind: str, size: int):
        members = archive.infolist()
        self._archive = archive
        self._members = {info.filename: info for info in members}
        for info in members:
            _check_member(info)
        if len(self._members) != len(members):
            refuse("two of its parts have the same name")
        if sum(info.file_size for info in members) > size:
            refuse("its parts are larger than the file, so they overlap")
        if HEADER not in self._members:
            refuse(f"it has no {HEADER}, so it was not written by save")
        self.header = _checked_header(self._bytes(HEADER, LARGEST_HEADER), kind)
        if self.header.get("digest") != fingerprint(self.header, members):
            refuse("its parts do not match its fingerprint, so it is damaged or was edited")
        self._arrays: dict[str, np.ndarray] = {}

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: str | os.PathLike[str], kind: str) -> Iterator[Archive]:
        """The file at a path; whatever goes wrong while it is read is a SavedModelError.

        The JSON must say that it is a file of this kind.
        """
        place = Path(path)
        try:
            if not place.exists():
                refuse("it does not exist; check its name and folder")
            if not place.is_file():
                refuse("it is not a file; a saved model is one .npz file")
            with place.open("rb") as file, zipfile.ZipFile(file) as archive:
                yield cls(archive, kind, place.stat().st_size)
        except SavedModelError as error:
            raise SavedModelError(f"cannot load {str(place)!r}: {error}") from None
        except OSError as error:
            raise SavedModelError(
                f"cannot load {str(place)!r}: {error.strerror or error}."
            ) from None
        except DAMAGE as error:
            what = str(error).strip().splitlines()
            raise SavedModelError(
                f"cannot load {str(place)!r}: it is not a saved model, or it is damaged "
                f"({(what[0] if what else type(error).__name__)[:200]})."
            ) from error

    def _bytes(self, name: str, most: float = math.inf) -> bytes:
        info = self._members[name]
        if info.file_size > most:
            refuse(f"{name} is larger than {most / 2**20:.0f} MB")
        with self._archive.open(info) as member:
            content = member.read(info.file_size + 1)
        if len(content) != info.file_size:
            refuse(f"{name} is cut off")
        return content

    def array(self, name: Any) -> np.ndarray:
        """Array of a name; it cannot be written to."""
        member = f"arrays/{name}.npy"
        if not isinstance(name, str) or member not in self._members:
            refuse(f"it names an array {str(name)[:40]!r} that it does not have")
        if name not in self._arrays:
            values = _read_npy(self._bytes(member))
            if values is None:
                refuse(f"array {name} is not one of plain numbers, as large as its shape needs")
            self._arrays[name] = values
        return self._arrays[name]


def _check_member(info: zipfile.ZipInfo) -> None:
    name = info.filename
    if name != HEADER and not MEMBER.fullmatch(name):
        refuse(f"it has a part {name[:60]!r}, which no saved model has")
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        refuse(f"{name} is compressed; parts of saved models are not")
    if info.flag_bits & 0x1:
        refuse(f"{name} is encrypted; parts of saved models are not")


def _checked_header(content: bytes, kind: str) -> dict[str, Any]:
    """The JSON of a file of this kind."""
    try:
        header = json.loads(
            content.decode("utf-8"),
            parse_constant=lambda word: refuse(f"{HEADER} has {word} for a number"),
        )
    except RecursionError:
        refuse(f"{HEADER} is nested too deeply")
    if not isinstance(header, dict) or header.get("format") != kind:
        refuse(f"it is no {kind}")
    schema = header.get("schema")
    if type(schema) is not int or schema < 1:
        refuse("the number of its schema is missing")
    if schema > SCHEMA:
        versions = header.get("versions")
        made = versions.get("deconditional") if isinstance(versions, dict) else None
        by = f" by deconditional {made}" if isinstance(made, str) and len(made) < 40 else ""
        refuse(
            f"it was saved{by} with schema {schema}; this version reads up to {SCHEMA}. "
            "Update deconditional"
        )
    return header


def _read_npy(content: bytes) -> np.ndarray | None:
    """The array of an .npy file; None where it is not one of plain numbers, whole and in order."""
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        return None
    shape, transposed, dtype = np.lib.format.read_array_header_1_0(stream)
    start, size = stream.tell(), math.prod(shape) * dtype.itemsize
    if transposed or dtype.str not in DTYPES or len(content) != start + size:
        return None
    return np.frombuffer(content, dtype, offset=start).reshape(shape)
