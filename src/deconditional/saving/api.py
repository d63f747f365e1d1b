"""Saved models: one file, open to any tool, from which nothing is executed.

>>> import tempfile, pathlib, numpy as np
>>> import deconditional as dc
>>> x = np.linspace(0, 6, 120)
>>> bags = dc.Bags.from_points(x, np.arange(120) // 6)
>>> model = dc.BaggGP(n_restarts=1).fit(bags, bags.means(np.sin(x)), noise_std=0.01)
>>> with tempfile.TemporaryDirectory() as here:
...     again = dc.load(model.save(pathlib.Path(here) / "field.npz"))
>>> bool((again.predict(x).mean == model.predict(x).mean).all())
True
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gpjax.kernels.base import AbstractKernel

from deconditional.errors import SavedModelError, UsageError
from deconditional.saving.container import Archive, ArrayWriter, refuse, write
from deconditional.saving.kernels import Supplied
from deconditional.saving.models import estimator_node, fingerprint, read_estimator
from deconditional.saving.nodes import Node

__all__ = ["SavedModelError", "fingerprint", "inspect", "load", "save"]

PACKAGES = ("jax", "jaxlib", "gpjax", "equinox", "numpy", "scipy")


def save(model: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write a fitted model, or a fitted downscaler, to a file.

    Parameters
    ----------
    model
        Any fitted estimator of this package.
    path
        A file that ends in ``.npz``.
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
    arrays = ArrayWriter()
    summary: dict[str, Any] = {}
    if _is_downscaler(model):
        from deconditional.saving.fields import downscaler_node, units

        content = downscaler_node(model, arrays)
        summary = {
            "target": model.target,
            "units": units(model),
            "model": model.model_name_,
            "understood": dict(model.pairing_.understood),
        }
    else:
        content = estimator_node(model, arrays)
        last = getattr(model, "model_", model)
        summary = {"bags": repr(last.bags_), "observations": int(last._problem_.z.shape[0])}
    report = model.fit_report_
    summary["converged"] = bool(report.converged)
    summary["data_sha256"] = fingerprint(model)
    header = {
        "versions": _versions(),
        "class": type(model).__name__,
        "summary": summary,
        "content": content,
    }
    write(place, header, arrays)
    return place


def load(
    path: str | os.PathLike[str],
    *,
    kernel: AbstractKernel | None = None,
    mediator_kernel: AbstractKernel | None = None,
) -> Any:
    """A model from the file that ``save`` wrote.

    Nothing in the file is executed. A file that is damaged, was edited, comes from a newer version
    or is no saved model raises :class:`SavedModelError`.

    Parameters
    ----------
    path
        The file.
    kernel, mediator_kernel
        Kernels of classes of your own, which a file cannot hold: a kernel of the same class and
        structure as the one the model was made with. Its parameters come from the file.

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
    supplied = Supplied({"kernel": kernel, "mediator_kernel": mediator_kernel})
    with Archive.opened(path) as archive:
        header = Node(archive.header, "model.json", archive, {})
        header.only(
            *("format", "schema", "created", "versions", "class", "summary", "content"),
            *("arrays", "digest"),
        )
        content = header.node("content")
        name = content.text("class")
        if name != header.text("class"):
            refuse("it says two things about its class")
        if name == "Downscaler":
            from deconditional.saving.fields import read_downscaler

            model: Any = read_downscaler(content, supplied)
        else:
            model = read_estimator(content, supplied)
        supplied.check_used()
        archive.check_all_used()
        if header.node("summary").text("data_sha256") != fingerprint(model):
            refuse("its summary belongs to other data")
    return model


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a saved model says about itself, without building it.

    Returns
    -------
    dict
        ``class``, ``schema``, ``created``, ``versions`` and ``summary``, which has the SHA-256 of
        the data fitted to as ``data_sha256``.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> import deconditional as dc
    >>> from deconditional.saving.api import inspect
    >>> bags = dc.Bags.from_points(np.arange(40.0), np.arange(40) // 4)
    >>> model = dc.CentroidGP(n_restarts=1).fit(bags, np.arange(10.0), noise_std=0.1)
    >>> with tempfile.TemporaryDirectory() as here:
    ...     about = inspect(model.save(f"{here}/line.npz"))
    >>> about["class"], about["summary"]["observations"]
    ('CentroidGP', 10)
    """
    with Archive.opened(path) as archive:
        keys = ("class", "schema", "created", "versions", "summary")
        return {key: archive.header[key] for key in keys}


def _is_downscaler(model: Any) -> bool:
    return any(each.__name__ == "Downscaler" for each in type(model).__mro__)


def _versions() -> dict[str, str]:
    import platform
    from importlib import metadata

    from deconditional import __version__

    found = {"deconditional": __version__, "python": platform.python_version()}
    return {**found, **{name: metadata.version(name) for name in PACKAGES}}


def _checked_output(path: str | os.PathLike[str], overwrite: bool) -> Path:
    place = Path(path)
    if place.suffix != ".npz":
        raise UsageError(f"the file {str(place)!r} must end in .npz; name another.")
    if place.is_dir():
        raise UsageError(f"{str(place)!r} is a folder; name a file.")
    if place.exists() and not overwrite:
        raise UsageError(f"{str(place)!r} exists; name another file, or use overwrite=True.")
    folder = place.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"the folder {str(folder)!r} does not exist; make it first.")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"the folder {str(folder)!r} cannot be written to; name another.")
    if place.exists():
        try:
            inspect(place)
        except SavedModelError:
            raise UsageError(
                f"{str(place)!r} is not a saved model, so it is not overwritten; name another file."
            ) from None
    return place
