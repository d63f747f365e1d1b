"""Gaussian-process downscaling of coarse observations that need not match the fine covariates.

The path from arrays to a posterior is five lines:

>>> import deconditional as dc
>>> data = dc.datasets.swiss_roll(n_points=500, n_bags=20, seed=0)
>>> bags = dc.Bags.from_points(data.x, data.bag_of, mediator=data.bags.mediator)
>>> model = dc.CMP(n_restarts=1).fit(bags, data.z)
>>> post = model.predict(data.x)
>>> post.mean.shape, post.std.shape
((500,), (500,))

Importing a part that computes turns on JAX's 64-bit mode: the small dense algebra needs it.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

__version__ = "0.1.0"


@contextmanager
def importing() -> Iterator[None]:
    """Leave out the search for garbage, a tenth of the time that large imports take."""
    searching = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searching:
            gc.enable()


@cache
def _homes() -> dict[str, tuple[str, str]]:
    """Module of every public name, and its name there, as ``__init__.pyi`` tells type checkers."""
    stub = __spec__.loader.get_data(f"{__file__}i").decode()
    words = [line.split() for line in stub.splitlines() if line.startswith("from deconditional")]
    homes = {public: (module, name) for _, module, _, name, _, public in words}
    return homes | {"sharding": homes.pop("_devices")}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package is quick."""
    if name not in _homes():
        raise AttributeError(f"module 'deconditional' has no attribute {name!r}")
    module, own = _homes()[name]
    with importing():
        home = vars(importlib.import_module(module))
        found = home[own] if own in home else importlib.import_module(f"{module}.{own}")
    return globals().setdefault(name, found)


def __dir__() -> list[str]:
    return sorted([*_homes(), "__version__"])
