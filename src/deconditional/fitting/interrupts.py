"""Ctrl-C while something long is learnt: keep what there is, or leave.

Inside :func:`stoppable` the first Ctrl-C asks for a stop, and whoever works looks whether it did;
the second is a KeyboardInterrupt, as it is everywhere else. Inside :func:`aborting` every one is: a
command, or one fit among many, has no use for parameters that are half learnt.

Signals reach the main thread alone. What runs in other threads is never asked to stop.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TWICE = 2.0
"""Seconds; a second Ctrl-C that follows within them means the program, not the next fit."""


class Stop:
    """Whether work was asked to stop, and whether anybody stopped because of it.

    Where it is not `graceful`, an interrupt must not end work early with what it has, but go on as
    the exception it is.

    Examples
    --------
    >>> stop = Stop()
    >>> stop.reached(), stop.taken(), stop.reached()
    (False, True, True)
    """

    def __init__(self, graceful: bool = True):
        self.graceful = graceful
        self.used = False
        self.asked = False

    def ask(self) -> None:
        """Ask for a stop."""
        self.asked = True

    def reached(self) -> bool:
        """Whether to stop now; who is told so stops."""
        self.used = self.used or self.asked
        return self.asked

    def taken(self) -> bool:
        """Whether a KeyboardInterrupt that was caught ends work here; if not, raise it again."""
        if not self.graceful or self.asked:
            return False
        self.ask()
        return self.reached()


_scopes: list[Stop] = []
"""Stops that work in the main thread looks at, the last one of all."""

_last = -TWICE


def current() -> Stop:
    """The stop that work has to look at."""
    return _scopes[-1] if _scopes and _in_main_thread() else Stop()


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Have Ctrl-C ask for a stop.

    Within another such block, or within :func:`aborting`, this is a part of that. A handler of
    signals that is not Python's own is left alone. Where nobody could stop any more, the interrupt
    is raised at the end of the block.
    """
    if _scopes or not _in_main_thread():
        yield current()
        return
    stop = Stop()
    own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if own:
        try:
            signal.signal(signal.SIGINT, _handler(stop))
        except ValueError:  # an interpreter within another has no signals
            own = False
    _scopes.append(stop)
    try:
        yield stop
    finally:
        _scopes.remove(stop)
        if own:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if stop.asked and not stop.used:
        raise KeyboardInterrupt


@contextmanager
def aborting() -> Iterator[None]:
    """Have every Ctrl-C raise KeyboardInterrupt, whatever runs inside."""
    if not _in_main_thread():
        yield
        return
    stop = Stop(graceful=False)
    _scopes.append(stop)
    try:
        yield
    finally:
        _scopes.remove(stop)


def _handler(stop: Stop) -> Any:
    def ask(number: int, frame: Any) -> None:
        global _last
        before, _last = _last, time.monotonic()
        if stop.asked or _last - before < TWICE:
            stop.ask()
            raise KeyboardInterrupt
        stop.ask()

    return ask


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
