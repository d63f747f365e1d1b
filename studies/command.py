"""Command lines of the studies and the benchmarks: options, complaints, exit codes.

An option is a field of a dataclass, declared once with :func:`option`: the command line, the
settings of a quick try and the constructor follow from it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import field, fields
from typing import Any, NoReturn, TypeVar

from deconditional.cli.options import positive, require, whole
from deconditional.errors import UsageError

__all__ = [
    "Parser",
    "add_options",
    "answer",
    "known",
    "made",
    "option",
    "positive",
    "require",
    "whole",
]

Made = TypeVar("Made")


def option(default: Any, text: str, *, quick: Any = None, **settings: Any) -> Any:
    """A field of a dataclass that the command line offers.

    Parameters
    ----------
    default
        Its value; a tuple makes an option that takes several words.
    text
        What ``--help`` says of it.
    quick
        Its value with ``--quick``, where that differs.
    settings
        What else :meth:`argparse.ArgumentParser.add_argument` is to know.
    """
    return field(default=default, metadata={"help": text, "quick": quick, **settings})


def add_options(parser: argparse.ArgumentParser, kind: type[Any]) -> None:
    """Offer the fields of a dataclass as options; what is not given is left out."""
    for one in fields(kind):
        settings = {key: value for key, value in one.metadata.items() if key != "quick"}
        default = one.default
        if isinstance(default, bool):
            settings["action"] = "store_true"
        else:
            sample = default[0] if isinstance(default, tuple) and default else default
            if isinstance(default, tuple):
                settings.setdefault("nargs", "+")
            if isinstance(sample, int):
                settings.setdefault("type", positive)
            if default is not None and default != ():
                shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
                settings["help"] += f" (default: {shown})"
        name = f"--{one.name.replace('_', '-')}"
        parser.add_argument(name, default=argparse.SUPPRESS, **settings)


def made(kind: type[Made], args: argparse.Namespace, quick: bool = False) -> Made:
    """An object of a dataclass from what was given, the rest by default or as a quick try has it.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Study:
    ...     seeds: int = option(20, "rolls", quick=1)
    ...     points: int = option(5000, "points", quick=1000)
    >>> made(Study, argparse.Namespace(points=7), quick=True)
    Study(seeds=1, points=7)
    """
    values: dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]  # only called with dataclasses
        if one.name in vars(args):
            value = getattr(args, one.name)
            values[one.name] = tuple(value) if isinstance(value, list) else value
        elif quick and one.metadata["quick"] is not None:
            values[one.name] = one.metadata["quick"]
    return kind(**values)


def known(what: str, names: Sequence[Any], allowed: Sequence[Any]) -> list[Any]:
    """The names without repetition, or all that are allowed where none is given.

    Examples
    --------
    >>> known("model", ("b", "b"), ("a", "b")), known("model", (), ("a", "b"))
    (['b'], ['a', 'b'])
    """
    for name in names:
        if name not in allowed:
            choice = ", ".join(map(repr, allowed))
            raise UsageError(f"unknown {what} {name!r}; choose from {choice}.")
    return list(dict.fromkeys(names or allowed))


class Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving the program."""
        raise UsageError(f"{message} (see {self.prog} --help)")


def answer(parser: argparse.ArgumentParser, given: Sequence[str]) -> int:
    """Carry out a command line; the exit code.

    The parser's arguments have `carry_out`, which does the work and returns 0, or 1 where part of
    it failed, and `kept`, which says what an interrupt left. 2 means that the command cannot be
    carried out as given, 130 that it was interrupted.
    """
    args = argparse.Namespace()
    try:
        args = parser.parse_args(given)
        return args.carry_out(args)
    except UsageError as error:
        message = " ".join(str(error).splitlines())
        print(f"{parser.prog}: error: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{parser.prog}: interrupted. {args.kept(args)}", file=sys.stderr)
        return 130
    except SystemExit as done:  # argparse leaves this way after --help
        return int(done.code or 0)
