"""Prediction of a grid larger than memory: throughput by workers, memory of each, accuracy.

The covariates lie in a Zarr store that is made for the purpose. One and two worker processes, one
core each, predict the same part of it; then two predict all of it. The opponent of two workers is
one; that of the answer is the same prediction in memory.
"""

from __future__ import annotations

import math
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from rich.console import Console

import deconditional as dc
from benchmarks.frame import Benchmark, Result, Row, shown
from benchmarks.timing import peak_bytes
from studies.command import option, positive, require

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["OutOfCore"]

CHUNK = 1000
"""Rows and columns of a chunk, at most."""

PART = 0.04
"""Share of the cells that is predicted with one worker and with two."""


@dataclass(frozen=True)
class OutOfCore(Benchmark):
    """Mean and standard deviation from one Zarr store into another with Dask workers."""

    name: ClassVar[str] = "out-of-core"
    help: ClassVar[str] = "prediction of a grid larger than memory on one and on several workers"
    columns: ClassVar[Any] = {
        "workers": shown("workers"),
        "cells": shown("cells", "{:,}"),
        "seconds": shown("seconds", "{:.1f}"),
        "cells / s": shown("cells_per_second", "{:,.0f}"),
        "peak of a worker": shown("worker_peak_bytes", "{:.2f} GiB", 2**-30),
        "of the client": shown("client_peak_bytes", "{:.2f} GiB", 2**-30),
    }

    cells: int = option(100_000_000, "fine cells", quick=40_000)
    inducing: int = option(400, "inducing points", quick=40)
    features: int | None = option(None, "so many random features in place of them", type=positive)
    workers: int = option(2, "worker processes, one core each")

    def measure(self, where: Console) -> Result:
        """Fit, make the store, predict a part with one and with all workers, then everything."""
        require("dask", "distributed")
        with tempfile.TemporaryDirectory() as folder:
            return self._measured(where, Path(folder))

    def _measured(self, where: Console, folder: Path) -> Result:
        import xarray as xr

        from deconditional.fields.cluster import cluster

        rows = math.ceil(math.sqrt(self.cells / 2))
        n_chunks = max(math.ceil(rows / CHUNK), 4)
        chunk = math.ceil(rows / n_chunks)
        rows = n_chunks * chunk
        with where.status("a store of covariates"):
            store = _covariates(folder / "fine.zarr", rows, 2 * rows, chunk)
        fine = xr.open_zarr(store, consolidated=False)
        with where.status("the fit"):
            downscaler = _fitted(self.inducing)
        columns = max(round(PART * rows * 2 * rows / chunk**2 / self.workers), 1) * self.workers
        part = fine.isel(lat=slice(0, chunk), lon=slice(0, columns * chunk))
        asked = {"features": self.features}
        found: list[Row] = []
        for n in sorted({1, self.workers}):
            with cluster(n, None) as client:
                with where.status(f"{n} worker(s): first use"):
                    first = fine.isel(lat=slice(0, chunk), lon=slice(0, n * chunk))
                    downscaler.predict(first, **asked)[["mean", "std"]].compute()
                wanted = {f"part{n}.zarr": part}
                if n == self.workers:
                    wanted["whole.zarr"] = fine
                for name, data in wanted.items():
                    with where.status(f"{n} worker(s): {data.sizes['lat']} rows"):
                        found.append(_predicted(downscaler, client, data, folder / name, n, asked))
        rates = [row["cells_per_second"] for row in found]
        return {
            "chunk": [chunk, chunk],
            "rows": found,
            "speed_up": rates[-2] / rates[0],
            "difference": _difference(downscaler, fine, folder / "whole.zarr", chunk, asked),
        }

    def words(self, result: Result) -> tuple[str, str]:
        """What predicts, and the ratios."""
        basis = f"{self.features} random features"
        if self.features is None:
            basis = f"{self.inducing} inducing points"
        off = result["difference"]
        return (
            f"Mean and standard deviation from {basis}, chunks of {result['chunk'][0]} x "
            f"{result['chunk'][1]} cells, read from and written to Zarr",
            f"{self.workers} workers against one: {result['speed_up']:.2f}x. Largest difference "
            f"from memory: mean {off['mean']:.2g} K, std {off['std']:.2g} K.",
        )


def _covariates(path: Path, rows: int, columns: int, chunk: int) -> Path:
    """Two smooth covariates with some roughness, written chunk by chunk."""
    import dask.array as da
    import xarray as xr

    lat = -90 + (np.arange(rows) + 0.5) * 180 / rows
    lon = (np.arange(columns) + 0.5) * 360 / columns
    y = da.from_array(np.radians(lat)[:, None], chunks=(chunk, 1))
    x = da.from_array(np.radians(lon)[None], chunks=(1, chunk))
    altitude = 500 + 900 * da.sin(3 * y) * da.cos(2 * x) + 100 * da.sin(211 * x) * da.sin(173 * y)
    cloud = 0.5 + 0.3 * da.cos(4 * y) * da.sin(3 * x) + 0.05 * da.cos(401 * x + 97 * y)
    data = xr.Dataset(
        {
            "altitude": (("lat", "lon"), altitude.astype("float32")),
            "cloud": (("lat", "lon"), cloud.astype("float32")),
        },
        coords={"lat": lat, "lon": lon},
    )
    data["lat"].attrs = {"standard_name": "latitude", "units": "degrees_north"}
    data["lon"].attrs = {"standard_name": "longitude", "units": "degrees_east"}
    data.to_zarr(path, consolidated=False)
    return path


def _fitted(inducing: int) -> Any:
    fields = dc.datasets.synthetic_fields(72, 144)
    names = ("tas", ["altitude", "cloud"])
    data = dc.datasets.split_cells(fields, *names, ["water_vapour"], block=4, matched=1.0)
    options = {"n_inducing": inducing, "max_iter": 30}
    downscaler = dc.Downscaler(
        *names, model="vbagg", kernel="smooth", n_restarts=1, model_options=options
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.FitWarning)
        return downscaler.fit(data.fine, data.coarse)


def _predicted(
    downscaler: Any,
    client: Any,
    fine: xr.Dataset,
    path: Path,
    workers: int,
    asked: dict[str, Any],
) -> Row:
    cells = fine.sizes["lat"] * fine.sizes["lon"]
    began = time.perf_counter()
    downscaler.predict_to(path, fine, **asked)
    seconds = time.perf_counter() - began
    return {
        "workers": workers,
        "cells": cells,
        "seconds": seconds,
        "cells_per_second": cells / seconds,
        "worker_peak_bytes": max(client.run(peak_bytes).values()),
        "client_peak_bytes": peak_bytes(),
    }


def _difference(
    downscaler: Any, fine: xr.Dataset, path: Path, chunk: int, asked: dict[str, Any]
) -> dict[str, float]:
    """Largest difference from a prediction in memory, over a window across four chunks."""
    import xarray as xr

    half = chunk // 2
    window = {"lat": slice(half, half + chunk), "lon": slice(half, half + chunk)}
    expected = downscaler.predict(fine.isel(window).load(), **asked)
    with xr.open_zarr(path) as written:
        found = written.isel(window).load()
    return {
        name: float(np.abs(found[name].values - expected[name].values).max())
        for name in ("mean", "std")
    }
