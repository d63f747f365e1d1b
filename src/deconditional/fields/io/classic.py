"""Whether a netCDF file of the classic format is whole.

The format has no checksum, and the library reads zeros where a file has been cut off: data that
looks like data. The header says where every variable lies, so the length that the file must have
can be had from it. The header is that of the format's specification, versions 1, 2 and 5.
"""

from __future__ import annotations

import math
import os
from typing import BinaryIO, NamedTuple

SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 4, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8, 11: 8}
"""Bytes of a value, by the number of its type."""

DIMENSION, VARIABLE, ATTRIBUTE = 10, 11, 12


class Placed(NamedTuple):
    """Where a variable begins, bytes of one record or of all of it, whether it has records."""

    begin: int
    nbytes: int
    records: bool


def is_classic(path: str) -> bool:
    """Whether a file says of itself that it is of the classic format."""
    with open(path, "rb") as file:
        return file.read(4) in (b"CDF\x01", b"CDF\x02", b"CDF\x05")


def missing_bytes(path: str) -> int:
    r"""Bytes that a classic file lacks at its end, at least; 0 where it is whole.

    Raises ValueError where its header makes no sense.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"CDF\x01" + bytes(28)), file.flush()
    ...     missing_bytes(file.name)
    0
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        header = Header(file, size)
        variables = header.variables()
    inner = [v.nbytes for v in variables if v.records]
    # Records of several variables are interleaved, each part at a multiple of four bytes.
    record = sum(-(-n // 4) * 4 for n in inner) if len(inner) > 1 else sum(inner)
    ends = [
        v.begin + v.nbytes + (max(header.n_records - 1, 0) * record if v.records else 0)
        for v in variables
        if v.nbytes and not (v.records and header.n_records == 0)
    ]
    return max(max(ends, default=0) - size, 0)


class Header:
    """The header of a classic file, read item by item and never beyond the end of the file."""

    def __init__(self, file: BinaryIO, size: int):
        self.file, self.size = file, size
        self.version = self._bytes(4)[3]
        self.wide = 8 if self.version == 5 else 4
        given = self._count()
        streaming = given == 2 ** (8 * self.wide) - 1  # not known when the header was written
        self.n_records = 0 if streaming else given

    def variables(self) -> list[Placed]:
        """Where every variable lies."""
        lengths = []
        for _ in range(self._items(DIMENSION)):
            self._skip(self._count())
            lengths.append(self._count())
        self._attributes()
        found = []
        for _ in range(self._items(VARIABLE)):
            self._skip(self._count())
            axes = [self._count() for _ in range(self._limited(self._count()))]
            self._attributes()
            kind = self._number(4)
            self._number(self.wide)  # its size, which older writers cut to 32 bits
            begin = self._number(4 if self.version == 1 else 8)
            if kind not in SIZES or any(axis >= len(lengths) for axis in axes):
                raise ValueError("the header names a type or a dimension that does not exist")
            shape = [lengths[axis] for axis in axes]
            records = bool(shape) and shape[0] == 0
            nbytes = SIZES[kind] * math.prod(shape[1:] if records else shape)
            found.append(Placed(begin, nbytes, records))
        return found

    def _attributes(self) -> None:
        for _ in range(self._items(ATTRIBUTE)):
            self._skip(self._count())
            kind = self._number(4)
            if kind not in SIZES:
                raise ValueError("the header names a type that does not exist")
            self._skip(SIZES[kind] * self._count())

    def _items(self, tag: int) -> int:
        """Number of items of a list, which may be absent."""
        found, n = self._number(4), self._count()
        if found not in (tag, 0) or (found == 0 and n):
            raise ValueError("the header is not in order")
        return self._limited(n)

    def _limited(self, n: int) -> int:
        if n > self.size:
            raise ValueError("the header declares more items than the file has bytes")
        return n

    def _count(self) -> int:
        return self._number(self.wide)

    def _number(self, width: int) -> int:
        return int.from_bytes(self._bytes(width), "big")

    def _skip(self, n: int) -> None:
        """Step over bytes and what fills them up to a multiple of four."""
        n = -(-n // 4) * 4
        if self.file.tell() + n > self.size:
            raise ValueError("the header ends before its end")
        self.file.seek(n, os.SEEK_CUR)

    def _bytes(self, n: int) -> bytes:
        found = self.file.read(n)
        if len(found) < n:
            raise ValueError("the header ends before its end")
        return found
