"""Compiled functions kept on disk, so that the second run of a command starts fast.

JAX can keep what it compiles in a folder. Commands ask for that here, just before they compute; a
program that imports the package is left alone. The folder is ``deconditional/compiled`` in the
user's cache folder (``$XDG_CACHE_HOME``, else ``~/.cache``), bounded in size, with one part for
every kind of processor: machines that share a home need not understand each other's code. A user
who sets ``JAX_COMPILATION_CACHE_DIR`` is obeyed, and ``DECONDITIONAL_CACHE=off`` keeps nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from deconditional.errors import UsageError

__all__ = ["cache_folder", "keep_compiled", "without_cache"]

SWITCH = "DECONDITIONAL_CACHE"
FOLDER = "JAX_COMPILATION_CACHE_DIR"
SIZE = "JAX_COMPILATION_CACHE_MAX_SIZE"
LEAST = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"

LARGEST = 128 * 2**20
"""Bytes; beyond, what has not been used for longest is dropped."""

SHORTEST = 0.05
"""Seconds of compilation worth keeping: commands compile many short functions."""


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Where compiled functions go.

    Examples
    --------
    >>> cache_folder({"XDG_CACHE_HOME": "/big/cache"}).parent.as_posix()
    '/big/cache/deconditional/compiled'
    """
    given = (os.environ if environment is None else environment).get("XDG_CACHE_HOME", "")
    # The specification says that a relative path is to be ignored.
    home = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    kind = hashlib.sha256(_instructions().encode()).hexdigest()[:10]
    return home / "deconditional" / "compiled" / kind


def _instructions() -> str:
    """What the processor understands, as far as the system says."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    return "\n".join([platform.machine(), *sorted(set(found) or {platform.processor()})])


def keep_compiled() -> Path | None:
    """Have JAX keep what it compiles from here on; the folder, or None where nothing is kept.

    Processes started later keep theirs in the same folder. Nothing is kept where the folder cannot
    be written, or where filelock, which JAX needs to bound its size, is missing.
    """
    wanted = os.environ.get(SWITCH, "on").strip().lower()
    if wanted not in ("on", "off", ""):
        raise UsageError(f"{SWITCH} must be on or off, not {wanted!r}.")
    if wanted == "off" or _chosen_by_user() or importlib.util.find_spec("filelock") is None:
        return None
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return None
    os.environ[FOLDER] = str(folder)
    os.environ.setdefault(SIZE, str(LARGEST))
    os.environ.setdefault(LEAST, str(SHORTEST))
    if "jax" in sys.modules:  # it read the environment when it was imported
        _tell_jax(folder)
    return folder


def without_cache(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a process neither reads nor writes compiled functions.

    Examples
    --------
    >>> without_cache({"JAX_COMPILATION_CACHE_DIR": "/tmp/compiled", "HOME": "/root"})
    {'HOME': '/root', 'DECONDITIONAL_CACHE': 'off'}
    """
    kept = {name: value for name, value in environment.items() if name != FOLDER}
    return kept | {SWITCH: "off"}


def _chosen_by_user() -> bool:
    if os.environ.get(FOLDER):
        return True
    jax = sys.modules.get("jax")
    return jax is not None and bool(jax.config.jax_compilation_cache_dir)


def _tell_jax(folder: Path) -> None:
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", int(os.environ[SIZE]))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", float(os.environ[LEAST]))
    compilation_cache.reset_cache()  # JAX decides once, at its first compilation, whether to keep
