"""What a number was measured with: machine, versions, date, state of the code."""

from __future__ import annotations

import hashlib
import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

import deconditional
from deconditional import __version__

__all__ = ["code_digest", "machine", "provenance_lines"]

PACKAGES = ("jax", "jaxlib", "gpjax", "equinox", "numpy", "scipy")


def machine() -> dict[str, Any]:
    """Processor, cores, device, versions and date."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        "deconditional": __version__,
        **{name: metadata.version(name) for name in PACKAGES},
    }


def provenance_lines(command: str | None) -> list[str]:
    """The same, and the command, as Markdown lines."""
    facts = machine()
    versions = ", ".join(f"{name} {facts[name]}" for name in ("deconditional", *PACKAGES))
    lines = [
        f"- Versions: Python {facts['python']}, {versions}",
        f"- Date: {facts['date']}",
        f"- Machine: {facts['processor']}, {facts['cores']} cores, {facts['system']}; "
        f"computed on {facts['device']}",
    ]
    return lines if command is None else [*lines, f"- Command: `{command}`"]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine() or "unknown CPU"


RESULTS_DEPEND_ON = (
    *("bags", "datasets", "fields", "fitting", "inference", "kernels", "models", "observations"),
    *("operators", "scores"),
)
"""Parts of the installed package whose code decides what a study computes."""


def code_digest() -> str:
    """A name for the state of the code that results depend on: it changes with any edit.

    Examples
    --------
    >>> len(code_digest())
    10
    """
    root = Path(deconditional.__file__).parent
    digest = hashlib.sha256()
    for part in RESULTS_DEPEND_ON:
        for module in sorted((root / part).rglob("*.py")):
            digest.update(module.read_bytes())
    return digest.hexdigest()[:10]
