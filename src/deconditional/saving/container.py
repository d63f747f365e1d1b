"""The file itself: a zip archive of plain arrays and one JSON text, read without trusting it.

Nothing in here executes what a file says. Members are stored, not compressed, so that a file
cannot be larger in memory than on disk; arrays have a handful of plain number types; names of
members, sizes, checksums and the structure of the JSON are checked before anything is built.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from deconditional.errors import SavedModelError, UsageError
from deconditional.saving.identity import digest
from deconditional.saving.outputs import replacing

__all__ = ["SCHEMA", "Archive", "ArrayWriter", "number", "refuse", "write"]

SCHEMA = 1
"""Number of the schema that is written and read."""

HEADER = "model.json"
MEMBER = re.compile(r"arrays/(a[0-9]{5,7})\.npy")
LARGEST_HEADER = 64 * 2**20
"""Bytes of JSON. Bags and their labels are the longest part: a million labels are 20 MB."""

DTYPES = (*("<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1"),)
INLINE = 32
"""Arrays of so many float64 numbers at most are written into the JSON, where people can read."""

NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
EPOCH = (1980, 1, 1, 0, 0, 0)
"""Date of all members: a model saved twice gives the same bytes, apart from ``created``."""

DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What reading a damaged or invented file may raise on the way."""


# --------------------------------------------------------------------------- writing


class ArrayWriter:
    """Arrays on their way into a file; equal ones are kept once."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.about: dict[str, dict[str, Any]] = {}
        self._names: dict[str, str] = {}

    def ref(self, array: Any) -> dict[str, Any]:
        """What the JSON says in place of an array; small ones are said in full.

        Scalars that JAX computed from Python numbers have a weak type, which decides the precision
        of what they meet, so it is kept.
        """
        weak = {"weak": True} if getattr(array, "weak_type", False) and np.ndim(array) == 0 else {}
        values = _plain(np.asarray(array))
        if values.size <= INLINE and values.dtype.str == "<f8":
            numbers = [number(v) for v in values.ravel().tolist()]
            return {"shape": list(values.shape), "values": numbers, **weak}
        key = digest(values)
        if key not in self._names:
            name = f"a{len(self._names):05d}"
            self._names[key] = name
            self.arrays[name] = values
            about = {"dtype": values.dtype.str, "shape": list(values.shape), "digest": key}
            self.about[name] = about
        return {"array": self._names[key], **weak}


def _plain(array: np.ndarray) -> np.ndarray:
    """In the order and byte order of the file."""
    if array.dtype.newbyteorder("<").str not in DTYPES:
        raise SavedModelError(
            f"an array of {array.dtype} cannot be saved; convert it to float64 or int64 first."
        )
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).reshape(array.shape)


def number(value: float) -> float | str:
    """A number as JSON has it; what is not finite is a word."""
    value = float(value)
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def write(path: Path, kind: str, header: Mapping[str, Any], arrays: ArrayWriter) -> None:
    """Write so that the file is, at every moment, either what it was or the new one."""
    whole = {
        "format": kind,
        "schema": SCHEMA,
        "created": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        **header,
        "arrays": arrays.about,
    }
    whole["digest"] = header_digest(whole)
    text = json.dumps(whole, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > LARGEST_HEADER:
        raise SavedModelError(
            f"what is not an array takes {len(text) / 2**20:.0f} MB, more than a file may have; "
            "use shorter labels, or whole numbers, for the bags."
        )
    try:
        with replacing(path) as part, zipfile.ZipFile(part, "x", zipfile.ZIP_STORED) as archive:
            archive.writestr(zipfile.ZipInfo(HEADER, EPOCH), text)
            for name, values in arrays.arrays.items():
                info = zipfile.ZipInfo(f"arrays/{name}.npy", EPOCH)
                with archive.open(info, "w", force_zip64=values.nbytes > 2**31) as member:
                    np.lib.format.write_array(member, values, (1, 0), allow_pickle=False)
    except OSError as error:
        raise UsageError(
            f"could not write {str(path)!r} ({error.strerror or error}); what was there has not "
            "changed. Make room, or name another place."
        ) from None


def header_digest(header: Mapping[str, Any]) -> str:
    """Checksum of everything the JSON says, whatever its layout."""
    rest = {key: value for key, value in header.items() if key != "digest"}
    return digest(json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False))


# --------------------------------------------------------------------------- reading


class Archive:
    """An open file, its JSON checked and its arrays there to be asked for.

    Attributes
    ----------
    header
        The JSON.
    """

    def __init__(self, archive: zipfile.ZipFile, kind: str, size: int):
        self._archive, self._kind = archive, kind
        members = archive.infolist()
        for info in members:
            _check_member(info)
        names = [info.filename for info in members]
        if len(set(names)) != len(names):
            refuse("two of its parts have the same name")
        if sum(info.file_size for info in members) > size:
            refuse("its parts are larger than the file, so they overlap")
        if HEADER not in names:
            refuse(f"it has no {HEADER}, so it was not written by save")
        self._members = {info.filename: info for info in members}
        self.header = self._read_header()
        self.about = self._read_about()
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

    def _bytes(self, name: str) -> bytes:
        info = self._members[name]
        with self._archive.open(info) as member:
            content = member.read(info.file_size + 1)
        if len(content) != info.file_size:
            refuse(f"{name} is cut off")
        return content

    def _read_header(self) -> dict[str, Any]:
        if self._members[HEADER].file_size > LARGEST_HEADER:
            refuse(f"{HEADER} is larger than {LARGEST_HEADER // 2**20} MB")
        try:
            header = json.loads(
                self._bytes(HEADER).decode("utf-8"),
                parse_constant=lambda word: refuse(f"{HEADER} has {word} for a number"),
            )
        except RecursionError:
            refuse(f"{HEADER} is nested too deeply")
        if not isinstance(header, dict) or header.get("format") != self._kind:
            refuse(f"it is no {self._kind}")
        schema = header.get("schema")
        if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
            refuse("the number of its schema is missing")
        if schema > SCHEMA:
            versions = header.get("versions")
            made = versions.get("deconditional") if isinstance(versions, dict) else None
            by = f" by deconditional {made}" if isinstance(made, str) and len(made) < 40 else ""
            refuse(
                f"it was saved{by} with schema {schema}; this version reads up to {SCHEMA}. "
                "Update deconditional"
            )
        if header.get("digest") != header_digest(header):
            refuse(f"{HEADER} does not match its fingerprint, so it is damaged or was edited")
        return header

    def _read_about(self) -> dict[str, dict[str, Any]]:
        about = self.header.get("arrays")
        if not isinstance(about, dict):
            refuse("the list of its arrays is missing")
        wanted = {f"arrays/{name}.npy" for name in about} | {HEADER}
        if wanted != set(self._members):
            refuse("the arrays in it are not those its list names")
        for name, each in about.items():
            if not isinstance(each, dict) or set(each) != {"dtype", "shape", "digest"}:
                refuse(f"the entry of array {name} is not understood")
            if each["dtype"] not in DTYPES:
                refuse(f"array {name} has values of a type that is not a number")
            shape = each["shape"]
            if not isinstance(shape, list) or len(shape) > 8:
                refuse(f"array {name} has no shape")
            if not all(type(n) is int and n >= 0 for n in shape):
                refuse(f"array {name} has an impossible shape")
            content = math.prod(shape) * np.dtype(each["dtype"]).itemsize
            declared = self._members[f"arrays/{name}.npy"].file_size
            if not content < declared <= content + 1024:
                refuse(f"array {name} does not have the size its shape needs")
        return about

    def array(self, name: Any) -> np.ndarray:
        """One of the arrays, its fingerprint checked; it cannot be written to."""
        if not isinstance(name, str) or name not in self.about:
            refuse(f"it names an array {str(name)[:40]!r} that it does not have")
        if name not in self._arrays:
            about = self.about[name]
            content = self._bytes(f"arrays/{name}.npy")
            found = _read_npy(content, np.dtype(about["dtype"]), tuple(about["shape"]))
            if found is None:
                refuse(f"array {name} is not of the type and shape its entry says")
            if digest(found) != about["digest"]:
                refuse(f"array {name} does not match its fingerprint, so it is damaged")
            self._arrays[name] = found
        return self._arrays[name]

    def check_all_used(self) -> None:
        """Raise where an array was never asked for: it has no place in a model."""
        unused = sorted(set(self.about) - set(self._arrays))
        if unused:
            refuse(f"array {unused[0]} belongs to nothing")


def refuse(why: str) -> NoReturn:
    """Raise the error of this package for files."""
    raise SavedModelError(f"{why}.")


def _read_npy(content: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray | None:
    """The array of an .npy file; None where it is not one of this type and shape."""
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        return None
    said = np.lib.format.read_array_header_1_0(stream)
    size = math.prod(shape) * dtype.itemsize
    if said != (shape, False, dtype) or len(content) != stream.tell() + size:
        return None
    return np.frombuffer(content, dtype, offset=stream.tell()).reshape(shape)


def _check_member(info: zipfile.ZipInfo) -> None:
    name = info.filename
    if name != HEADER and not MEMBER.fullmatch(name):
        refuse(f"it has a part {name[:60]!r}, which no saved model has")
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        refuse(f"{name} is compressed; parts of saved models are not")
    if info.flag_bits & 0x1:
        refuse(f"{name} is encrypted; parts of saved models are not")
