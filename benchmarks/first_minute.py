"""What a first user waits for: imports, help, and the first, second and tenth fit of a small field.

Every case is a process of its own. The field is a matched one of 48 coarse cells; the opponent is
scikit-learn's Gaussian process on the centroids of the same cells. Processor seconds stand beside
those of the clock: on a machine that others use too, they are what can be compared.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.console import Console

from benchmarks.frame import Benchmark, Costs, Result, Row, shown
from benchmarks.timing import in_own_process
from studies.command import option

__all__ = ["FirstMinute", "field"]

OURS, THEIRS = "dc.downscale", "scikit-learn on centroids"
SLICES = "dc.downscale, map_over"


@dataclass(frozen=True)
class FirstMinute(Benchmark):
    """Imports, help, and the first fits of a small matched field."""

    name: ClassVar[str] = "first-minute"
    help: ClassVar[str] = "imports, help and the first fits of a small field"
    times_compilation: ClassVar[bool] = True
    columns: ClassVar[Any] = {
        "what": shown("what"),
        "seconds": shown("seconds", "{:.2f}"),
        "processor s": shown("processor_seconds", "{:.2f}"),
        "tenth fits of scikit-learn": shown("in_units", "{:.1f}"),
    }

    cells: int = option(48, "coarse cells, a multiple of 8")
    fine: int = option(6, "fine cells along a side of a coarse one")
    fits: int = option(10, "fits of one process", quick=2)
    slices: int = option(12, "times that are mapped over", quick=2)
    model: str = option("auto", "model of dc.downscale", type=str)

    def measure(self, where: Console) -> Result:
        """Run every case in a process of its own."""
        rows: list[Row] = []

        def case(what: str, *command: str, cache: Path | None = None) -> list[Row]:
            with where.status(what):
                before, began = os.times(), time.perf_counter()
                text = in_own_process(list(command), cache=cache)
                seconds, after = time.perf_counter() - began, os.times()
            spent = after.children_user - before.children_user
            spent += after.children_system - before.children_system
            rows.append({"what": what, "seconds": seconds, "processor_seconds": spent})
            return json.loads(text) if text.startswith("[") else []

        case("python alone", "-c", "pass")
        case("import deconditional", "-c", "import deconditional")
        case("deconditional --help", "-m", "deconditional", "--help")
        case("import what computes", "-c", "import deconditional; deconditional.downscale")
        shape = [str(n) for n in (self.cells // 8, 8, self.fine)]
        run = ["-m", "benchmarks.first_minute", *shape, self.model]
        with tempfile.TemporaryDirectory() as folder:
            case(f"{OURS}, a process, nothing cached", *run, OURS, "1", cache=Path(folder))
            case(f"{OURS}, a process, cached", *run, OURS, "1", cache=Path(folder))
            (whole,) = case(f"{OURS}, {self.slices} slices", *run, SLICES, str(self.slices))
            rows[-1] |= whole
            for who in (OURS, THEIRS):
                fits = case(f"{who}, {self.fits} fits", *run, who, str(self.fits))
                for n in sorted({1, 2, self.fits}):
                    rows.append({"what": f"{who}, fit {n}", **fits[n - 1]})
                if who == OURS:
                    once, again = (fits[k]["seconds"] for k in (0, 1))
                    aim = 1.5 * (once - again) + self.slices * again
                    rows.append({"what": f"aim for {self.slices} slices", "seconds": aim})
        unit = rows[-1]["processor_seconds"]
        for row in rows:
            if "processor_seconds" in row:
                row["in_units"] = row["processor_seconds"] / unit
        return {"rows": rows}

    def words(self, result: Result) -> tuple[str, None]:
        """Sizes."""
        cells, side = result["cells"], result["fine"]
        return f"{cells} coarse cells of {side} x {side} fine ones; {result['device']}", None

    def costs(self, result: Result) -> Costs:
        """Processor seconds of the last fit, and those of scikit-learn's."""
        last = [row for row in result["rows"] if row["what"].endswith(f"fit {self.fits}")]
        return {OURS: (last[0]["processor_seconds"], last[1]["processor_seconds"])}


def field(shape: tuple[int, int, int], seed: int) -> tuple[Any, Any]:
    """A temperature field on hills, known in coarse cells, and the hills."""
    import xarray as xr

    rows, columns, side = shape
    rng = np.random.default_rng(seed)
    lat, lon = np.linspace(40, 46, rows * side), np.linspace(5, 13, columns * side)
    y, x = np.meshgrid(lat, lon, indexing="ij")
    hills = 1000 * np.exp(-((y - 43) ** 2 + (x - 9) ** 2) / 4) + 100 * np.sin(3 * x)
    hills = hills + 60 * rng.standard_normal(x.shape)
    warm = 30 - 0.0065 * hills - 0.5 * (y - 40) + np.sin(x) + 0.1 * rng.standard_normal(x.shape)
    at = {"lat": lat, "lon": lon}
    fine = xr.Dataset({"elevation": (("lat", "lon"), hills), "t": (("lat", "lon"), warm)}, at)
    return fine[["elevation"]], fine.coarsen(lat=side, lon=side).mean()


def ours(model: str, map_over: str | None = None) -> Callable[[Any, Any], Any]:
    """Downscaling as a first user calls it."""
    import deconditional as dc

    def downscaled(fine: Any, coarse: Any) -> Any:
        options: dict[str, Any] = {"model": model, "map_over": map_over}
        return dc.downscale(fine, coarse[["t"]], target="t", covariates=["elevation"], **options)

    return downscaled


def in_time(shape: tuple[int, int, int], times: int) -> tuple[Any, Any]:
    """Fields of one after the other seed, side by side along an axis of months."""
    import xarray as xr

    when = xr.date_range("2001-01-01", periods=times, freq="MS").rename("time")
    fields = zip(*(field(shape, seed) for seed in range(times)), strict=True)
    fine, coarse = (xr.concat(every, when) for every in fields)
    return fine, coarse


def theirs() -> Callable[[Any, Any], Any]:
    """A Gaussian process on the centroids, asked for mean and standard deviation."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, WhiteKernel

    def points(data: Any) -> np.ndarray:
        table = data.to_dataframe().reset_index()[["lat", "lon", "elevation"]].to_numpy()
        return table / [2.0, 2.0, 300.0]

    def fit(fine: Any, coarse: Any) -> Any:
        kernel = RBF([1.0, 1.0, 1.0]) + WhiteKernel(0.1)
        model = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=1)
        model.fit(points(coarse), coarse["t"].to_numpy().ravel())
        return model.predict(points(fine), return_std=True)

    return fit


def main(rows: str, columns: str, side: str, model: str, who: str, fits: str) -> None:
    """Print seconds of every fit of this process, the first with what it imports, as JSON."""
    spent, shape = [], (int(rows), int(columns), int(side))
    mapped = who == SLICES
    for seed in range(1 if mapped else int(fits)):
        data = in_time(shape, int(fits)) if mapped else field(shape, seed)
        began, worked = time.perf_counter(), time.process_time()
        if seed == 0:
            run = theirs() if who == THEIRS else ours(model, "time" if mapped else None)
        run(*data)
        seconds, worked = time.perf_counter() - began, time.process_time() - worked
        spent.append({"seconds": seconds, "processor_seconds": worked})
    print(json.dumps(spent))


if __name__ == "__main__":
    main(*sys.argv[1:])
