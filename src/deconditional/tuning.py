"""Sizes of kernel tiles: what suits the device, measured at first use and kept.

A tile is what :mod:`deconditional.bag_kernels` works on at a time. Two cores want tiles that stay
in their caches and distances by matrix product; an accelerator wants tiles large enough to fill it,
and distances by differences, which it makes and reduces without writing them. The table of
:func:`defaults` says so for every platform and size.

Problems of more than 20 000 points are worth a measurement: :func:`tiles_for` then times a few
candidates once for each device, type and class of size, and keeps the fastest in
``deconditional/tiles-<version>.json`` of the user's cache folder (``$XDG_CACHE_HOME``, else
``~/.cache``). Tile sizes change the order of sums, so results change by rounding when a measurement
is new, and never afterwards. ``DECONDITIONAL_TUNE=off`` measures nothing and reads no file.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import deconditional._double  # noqa: F401
from deconditional import __version__
from deconditional.outputs import write_atomically

__all__ = [
    "Tiles",
    "cache_file",
    "candidates",
    "defaults",
    "is_accelerator",
    "tiles_for",
    "tune",
]

SWITCH = "DECONDITIONAL_TUNE"
FORMS = ("product", "differences")

WORTH_IT = 20_000
"""Points beyond which tiles are measured."""

SIZE_CLASSES = (65_536, 262_144)
"""Upper ends of the classes of size that are measured one by one; the last has no end."""

MARGIN = 0.9
"""What a candidate must take of the default's time to replace it: timings are noisy."""


@dataclass(frozen=True)
class Tiles:
    """Points per tile of rows and of columns, and the form that distances take.

    Attributes
    ----------
    rows, columns
        One divides the other, and both are powers of two.
    form
        ``"product"`` or ``"differences"``; see :mod:`deconditional.tiles`.
    """

    rows: int
    columns: int
    form: str

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            size = getattr(self, name)
            if type(size) is not int or not 64 <= size <= 2**20 or size & (size - 1):
                raise ValueError(f"{name} must be a power of two from 64 to 2²⁰, not {size!r}.")
        if self.form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, not {self.form!r}.")

    @property
    def block(self) -> int:
        """The larger of the two: what the whole is a multiple of."""
        return max(self.rows, self.columns)


# --------------------------------------------------------------------------- the device


def _device() -> Any:
    """The device that a computation goes to by default."""
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined]
    if chosen is None:
        return jax.local_devices()[0]
    return jax.local_devices(backend=chosen)[0] if isinstance(chosen, str) else chosen


def is_accelerator() -> bool:
    """Whether computations go to something other than the processor."""
    return _device().platform != "cpu"


# --------------------------------------------------------------------------- the table


def defaults(n: int, accelerator: bool | None = None) -> Tiles:
    """Tiles that suit so many points, without measuring.

    Examples
    --------
    >>> defaults(5_000, accelerator=False)
    Tiles(rows=256, columns=512, form='product')
    >>> defaults(100_000, accelerator=True).form
    'differences'
    """
    if is_accelerator() if accelerator is None else accelerator:
        return Tiles(8192, 8192, "differences")
    if n <= 256:
        return Tiles(128, 256, "product")
    return Tiles(256, 512, "product") if n <= 8192 else Tiles(512, 1024, "product")


def candidates(n: int, dtype: Any, accelerator: bool | None = None) -> tuple[Tiles, ...]:
    """The tiles that are measured; the default is the first."""
    first = defaults(n, accelerator)
    if first.form == "differences":
        sizes = [(4096, 4096), (16384, 4096)]
    elif jnp.dtype(dtype).itemsize > 4:
        sizes = [(256, 512), (512, 512)]
    else:
        sizes = [(256, 512), (512, 2048)]
    return (first, *(replace(first, rows=rows, columns=columns) for rows, columns in sizes))


_lock = threading.Lock()
_known: dict[Path, dict[str, Tiles]] = {}


def tiles_for(n: int, dtype: Any = jnp.float32) -> Tiles:
    """The tiles to use for so many points, measured now if they never were and it is worth it.

    Parameters
    ----------
    n
        Number of points.
    dtype
        Type of the kernel values.
    """
    if n <= WORTH_IT or not _switched_on():
        return defaults(n)
    path, key = cache_file(), _key(n, dtype)
    with _lock:
        if path not in _known:
            _known[path] = _read(path)
        if key not in _known[path]:
            with jax.ensure_compile_time_eval():
                best, seconds = tune(n, dtype)
            _known[path][key] = best
            _add(path, key, best, seconds)
        return _known[path][key]


def _switched_on() -> bool:
    wanted = os.environ.get(SWITCH, "on").strip().lower()
    if wanted not in ("on", "off", ""):
        raise ValueError(f"{SWITCH} must be on or off, not {wanted!r}.")
    return wanted != "off"


def _key(n: int, dtype: Any) -> str:
    device = _device()
    kind = device.device_kind
    if device.platform == "cpu":
        from deconditional.provenance import machine

        kind = f"{machine()['processor']}, {os.cpu_count()} cores"
    size = next((str(end) for end in SIZE_CLASSES if n <= end), "larger")
    return " | ".join([device.platform, kind, jnp.dtype(dtype).name, size])


# --------------------------------------------------------------------------- measuring


def tune(
    n: int,
    dtype: Any = jnp.float32,
    tried: Sequence[Tiles] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Tiles, dict[str, float]]:
    """Time candidates on a strip of a problem of so many points; keeps nothing.

    Parameters
    ----------
    n
        Number of points.
    dtype
        Type of the kernel values.
    tried
        The tiles to try, the default first; :func:`candidates` unless given.
    clock
        Seconds; replaced in tests.

    Returns
    -------
    tuple
        The fastest, which is the default unless another needs a tenth less; and the seconds of
        each.
    """
    tried = candidates(n, dtype) if tried is None else tried
    seconds = [_seconds(n, dtype, tiles, clock) for tiles in tried]
    fastest = int(np.argmin(seconds))
    best = tried[fastest] if seconds[fastest] < MARGIN * seconds[0] else tried[0]
    return best, {
        f"{t.rows} x {t.columns} {t.form}": s for t, s in zip(tried, seconds, strict=True)
    }


def _seconds(n: int, dtype: Any, tiles: Tiles, clock: Callable[[], float]) -> float:
    """The gradient of a strip of K̄, which costs most, the better of two."""
    from gpjax.kernels import RBF

    from deconditional.bag_kernels import between_bags
    from deconditional.layout import layout_bags

    n_rows, n_columns = (2**16, 2**16) if is_accelerator() else (2**11, 2**14)
    rng = np.random.default_rng(0)

    def laid_out(size: int) -> Any:
        points, bag = rng.standard_normal((size, 3)), np.arange(size) // 64
        return layout_bags(points, bag, np.full(size, 1 / 64), size // 64, 64, tiles=tiles)[0]

    rows, columns = laid_out(n_rows), laid_out(min(n_columns, n))

    def total(points: Any, rows: Any, columns: Any) -> Any:
        return jnp.sum(between_bags(RBF(), rows.with_points(points), columns, dtype=dtype))

    gradient = jax.jit(jax.grad(total))
    jax.block_until_ready(gradient(rows.points, rows, columns))
    times = []
    for _ in range(2):
        began = clock()
        jax.block_until_ready(gradient(rows.points, rows, columns))
        times.append(clock() - began)
    return min(times)


# --------------------------------------------------------------------------- the file


def cache_file() -> Path:
    """Where measurements are kept."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says that a relative path is to be ignored.
    home = Path(given) if os.path.isabs(given) else Path(os.path.expanduser("~")) / ".cache"
    return home / "deconditional" / f"tiles-{__version__}.json"


def _read(path: Path) -> dict[str, Tiles]:
    """What the file says; nothing where there is none, or it is not one of ours."""
    found = {}
    for key, entry in _entries(path).items():
        try:
            found[key] = Tiles(entry["rows"], entry["columns"], entry["form"])
        except (KeyError, TypeError, ValueError):
            continue
    return found


def _entries(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    entries = content.get("tiles") if isinstance(content, dict) else None
    return entries if isinstance(entries, dict) else {}


def _add(path: Path, key: str, tiles: Tiles, seconds: dict[str, float]) -> None:
    """Add a measurement to the file, or leave it where it cannot be written."""
    entries = _entries(path) | {key: asdict(tiles) | {"seconds": seconds}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"tiles": entries}, indent=2) + "\n")
    except OSError:
        return
