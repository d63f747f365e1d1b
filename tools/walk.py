"""The functions of the package that a call passes through: ``python tools/walk.py [fields]``.

For docs/architecture.md. Functions are counted once, by module and name; those without a name count
as part of what they are written in. A star marks those that run only while JAX compiles.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import deconditional as dc

PACKAGE = str(Path(dc.__file__).parent)


def entered(call: Callable[[], Any]) -> list[str]:
    """Functions of the package that a call enters, in the order of their first entry."""
    found: dict[str, None] = {}

    def look(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE) or "<" in code.co_name:
            return
        module = Path(code.co_filename).relative_to(PACKAGE).with_suffix("")
        found[f"{'.'.join(module.parts)}.{code.co_qualname}".replace(".<locals>", "")] = None

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(found)


def model() -> Any:
    """A conditional mean process of 16 bags: fitted, and its mean predicted at 100 points."""
    data = dc.datasets.swiss_roll(n_points=400, n_bags=32, matching="indirect", seed=0)
    options = {"n_restarts": 1, "max_iter": 3}

    def walk() -> Any:
        fitted = dc.CMP(**options).fit(data.bags, data.z, mediator=data.mediator)
        return fitted.predict(data.x[:100]).mean

    return walk


def fields() -> Any:
    """A field downscaled from coarse cells."""
    maps = dc.datasets.synthetic_fields(n_lat=12, n_lon=24)
    names = "tas", ["altitude"], ["water_vapour"]
    cells = dc.datasets.split_cells(maps, *names, block=3, matched=1.0)
    options: dict[str, Any] = {"model": dc.BaggGP(n_restarts=1, max_iter=3)}
    return lambda: dc.downscale(cells.fine, cells.coarse, "tas", ["altitude"], [], **options)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    walk = fields() if sys.argv[1:] == ["fields"] else model()
    importlib.import_module("deconditional.models")
    first, second = entered(walk), entered(walk)
    print("\n".join(f"{'  ' if name in second else '* '}{name}" for name in first))
    print(f"{len(first)} functions of the package; {len(second)} where all is compiled (no *)")
