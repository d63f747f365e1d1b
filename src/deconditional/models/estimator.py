"""scikit-learn's conventions for options, without its import, which takes as long as that of JAX.

Its ``clone`` and whatever else goes by these conventions takes such estimators for its own.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any, Self


class Estimator:
    """What has options, which its constructor stores under their names."""

    if TYPE_CHECKING:  # what is learnt is known after a fit

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Options by name, and if `deep` those of an estimator among them, as ``base__trend``."""
        found = {
            name: getattr(self, name) for name in sorted(inspect.signature(type(self)).parameters)
        }
        for name, value in [*found.items()] if deep else ():
            if _is_estimator(value):
                found |= {f"{name}__{own}": each for own, each in value.get_params().items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """Set options by the names of :meth:`get_params`."""
        names = self.get_params(deep=False)
        for key, value in params.items():
            name, _, inner = key.partition("__")
            if name not in names:
                said = f"{type(self).__name__} has no option {name!r}; its options are "
                raise ValueError(f"{said}{', '.join(names)}.")
            if inner:
                getattr(self, name).set_params(**{inner: value})
            else:
                setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        usual = inspect.signature(type(self)).parameters
        options = self.get_params(deep=False).items()
        given = [f"{k}={v!r}" for k, v in options if repr(v) != repr(usual[k].default)]
        return f"{type(self).__name__}({', '.join(given)})"


def clone(estimator: Any) -> Any:
    """An estimator with copies of the same options, which is not fitted."""
    options = estimator.get_params(deep=False).items()
    copies = {k: clone(v) if _is_estimator(v) else copy.deepcopy(v) for k, v in options}
    return type(estimator)(**copies)


def _is_estimator(value: Any) -> bool:
    return hasattr(value, "get_params") and not isinstance(value, type)
