"""Files: written whole or not at all, objects in them, and how far long work is."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deconditional.saving.api import Savable as Savable
    from deconditional.saving.api import inspect as inspect
    from deconditional.saving.api import load as load
    from deconditional.saving.api import save as save

__all__ = ["Savable", "inspect", "load", "save"]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: commands check their files before JAX is there."""
    if name in __all__:
        return getattr(import_module("deconditional.saving.api"), name)
    raise AttributeError(f"module 'deconditional.saving' has no attribute {name!r}")
