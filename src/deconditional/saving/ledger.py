"""Which pieces of a long piece of writing are done."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from deconditional.saving.outputs import write_atomically

__all__ = ["Ledger"]


class Ledger:
    """Which pieces of long work are written already, in a file beside the result.

    Parameters
    ----------
    path
        The file.
    identity
        What the work is made from; a file of other work counts for nothing.

    Attributes
    ----------
    found, done
        Whether the file was of this work, and the pieces that are written.
    """

    def __init__(self, path: Path, identity: str):
        self.path, self.identity = path, identity
        self.done: set[int] = set()
        self.found = False
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(path.read_text())
            if kept["identity"] == identity:
                self.done = {int(piece) for piece in kept["done"]}
                self.found = True

    def begin(self) -> None:
        """Note that no piece is written yet."""
        self.done = set()
        self._write()

    def add(self, piece: int) -> None:
        """Note that a piece is written."""
        self.done.add(piece)
        self._write()

    def _write(self) -> None:
        content = {"identity": self.identity, "done": sorted(self.done)}
        write_atomically(self.path, json.dumps(content))
