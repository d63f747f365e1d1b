"""Saved models: one file, open to any tool, from which nothing is executed.

>>> import tempfile, pathlib, numpy as np
>>> import deconditional as dc
>>> x = np.linspace(0, 6, 600)
>>> bags = dc.Bags.from_points(x, np.arange(600) // 10)
>>> model = dc.BaggGP(n_restarts=1).fit(bags, bags.means(np.sin(x)), noise_std=0.01)
>>> with tempfile.TemporaryDirectory() as here:
...     again = dc.load(model.save(pathlib.Path(here) / "field.npz"))
>>> bool((again.predict(x).mean == model.predict(x).mean).all())
True
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpjax.kernels.base import AbstractKernel

from deconditional.errors import SavedModelError, UsageError
from deconditional.saving.container import Archive, ArrayWriter, refuse, write
from deconditional.saving.identity import versions
from deconditional.saving.objects import ObjectReader, ObjectWriter
from deconditional.saving.outputs import check_target
from deconditional.saving.registry import name_of_class

KIND = "deconditional model"
PACKAGES = ("jax", "jaxlib", "gpjax", "equinox", "numpy", "scipy")
ABOUT = ("class", "schema", "created", "versions", "summary")


class Savable:
    """Estimators that can be written to a file.

    They say what they were fitted to in a method ``_summary``, which raises where they are not
    fitted.
    """

    fit_report_: Any

    def _summary(self) -> dict[str, Any]:
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the fitted estimator to an .npz file; see :func:`deconditional.saving.save`."""
        return save(self, path, overwrite=overwrite)


def save(model: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write a fitted model, or a fitted downscaler, to a file.

    Parameters
    ----------
    model
        Any fitted estimator of this package.
    path
        A file that ends in ``.npz``, which is added to a name without an ending.
    overwrite
        Replace an earlier saved model. Any other file is left as it is.

    Returns
    -------
    Path
        The file.

    See Also
    --------
    load : The way back.
    """
    place = _checked_output(path, overwrite)
    name = name_of_class(type(model))
    if name is None or not isinstance(model, Savable):
        raise SavedModelError(
            f"a {type(model).__name__} cannot be saved; only estimators of this package can."
        )
    facts = model._summary()
    arrays = ArrayWriter()
    converged = bool(model.fit_report_.converged)
    header = {
        "versions": {**versions(*PACKAGES), "python": platform.python_version()},
        "class": name,
        "summary": {**facts, "converged": converged},
        "content": ObjectWriter(arrays).write(model),
    }
    write(place, KIND, header, arrays)
    return place


def load(path: str | os.PathLike[str], *, own_kernels: Sequence[type[AbstractKernel]] = ()) -> Any:
    """A model from the file that ``save`` wrote.

    Nothing in the file is executed. A file that is damaged, was edited, comes from a newer version
    or is no saved model raises :class:`SavedModelError`.

    Parameters
    ----------
    path
        The file.
    own_kernels
        Classes of kernels of your own that the model was made with; a file has their fields alone.

    Returns
    -------
    Any
        The fitted estimator; predictions are those of the one that was saved.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> import deconditional as dc
    >>> bags = dc.Bags.from_points(np.arange(40.0), np.arange(40) // 4)
    >>> model = dc.CentroidGP(n_restarts=1).fit(bags, np.arange(10.0), noise_std=0.1)
    >>> with tempfile.TemporaryDirectory() as here:
    ...     path = model.save(f"{here}/line.npz")
    ...     dc.load(path).fit_report_ == model.fit_report_
    True
    """
    for kind in own_kernels:
        if not (isinstance(kind, type) and issubclass(kind, AbstractKernel)):
            raise TypeError(f"own_kernels must be classes of GPJax kernels, not {kind!r}.")
    with Archive.opened(path, KIND) as archive:
        header = archive.header
        if set(header) != {"format", "content", "digest", *ABOUT}:
            refuse("its parts are not those of a saved model")
        model = ObjectReader(archive, own_kernels).read(header["content"])
        if not isinstance(model, Savable) or name_of_class(type(model)) != header["class"]:
            refuse("it says two things about its class")
    return model


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a saved model says about itself, without building it.

    Returns
    -------
    dict
        ``class``, ``schema``, ``created``, ``versions`` and ``summary``.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> import deconditional as dc
    >>> from deconditional.saving import inspect
    >>> bags = dc.Bags.from_points(np.arange(40.0), np.arange(40) // 4)
    >>> model = dc.CentroidGP(n_restarts=1).fit(bags, np.arange(10.0), noise_std=0.1)
    >>> with tempfile.TemporaryDirectory() as here:
    ...     about = inspect(model.save(f"{here}/line.npz"))
    >>> about["class"], about["summary"]["observations"]
    ('CentroidGP', 10)
    """
    with Archive.opened(path, KIND) as archive:
        return {key: archive.header[key] for key in ABOUT}


def _checked_output(path: str | os.PathLike[str], overwrite: bool) -> Path:
    place = Path(path)
    if not place.suffix and not place.is_dir():
        place = place.with_name(f"{place.name}.npz")
    check_target(place, "file", (".npz",), overwrite)
    if place.exists():
        try:
            inspect(place)
        except SavedModelError:
            raise UsageError(
                f"{str(place)!r} is not a saved model, so it is not overwritten; name another file."
            ) from None
    return place
