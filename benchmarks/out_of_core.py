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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.timing import peak_bytes, write_json
from deconditional.errors import UsageError
from deconditional.fields.cluster import cluster
from studies.provenance import machine

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["run"]

CHUNK = 1000
"""Rows and columns of a chunk, at most."""

PART = 0.04
"""Share of the cells that is predicted with one worker and with two."""


def run(
    cells: int = 100_000_000,
    inducing: int = 400,
    features: int | None = None,
    workers: int = 2,
    quick: bool = False,
    out: str | Path | None = None,
) -> int:
    """Measure, print a table, write JSON; `quick` takes a small grid to try the command."""
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise UsageError("this needs distributed: pip install 'deconditional[dask]'.") from None
    console = Console()
    if quick:
        cells, inducing = 40_000, 40
    with tempfile.TemporaryDirectory() as folder:
        result = _measured(console, Path(folder), cells, inducing, features, workers)
    _show(console, result)
    write_json(result | {"machine": machine()}, out)
    return 0


def _measured(
    console: Console,
    folder: Path,
    cells: int,
    inducing: int,
    features: int | None,
    workers: int,
) -> dict[str, Any]:
    import xarray as xr

    rows = math.ceil(math.sqrt(cells / 2))
    n_chunks = max(math.ceil(rows / CHUNK), 4)
    chunk = math.ceil(rows / n_chunks)
    rows = n_chunks * chunk
    with console.status("a store of covariates"):
        store = _covariates(folder / "fine.zarr", rows, 2 * rows, chunk)
    fine = xr.open_zarr(store, consolidated=False)
    with console.status("the fit"):
        downscaler = _fitted(inducing)
    columns = max(round(PART * rows * 2 * rows / chunk**2 / workers), 1) * workers * chunk
    part = fine.isel(lat=slice(0, chunk), lon=slice(0, columns))
    asked = {"features": features}
    rows_of: list[dict[str, Any]] = []
    for n in sorted({1, workers}):
        with cluster(n, None) as client:
            with console.status(f"{n} worker(s): first use"):
                first = fine.isel(lat=slice(0, chunk), lon=slice(0, n * chunk))
                downscaler.predict(first, **asked)[["mean", "std"]].compute()
            with console.status(f"{n} worker(s): {part.sizes['lat'] * part.sizes['lon']:,} cells"):
                rows_of.append(
                    _predicted(downscaler, client, part, folder / f"part{n}.zarr", n, asked)
                )
            if n == workers:
                with console.status(f"{n} worker(s): all {rows * 2 * rows:,} cells"):
                    whole = _predicted(downscaler, client, fine, folder / "whole.zarr", n, asked)
    rows_of.append(whole)
    rates = [row["cells_per_second"] for row in rows_of]
    return {
        "benchmark": "out-of-core",
        "inducing": inducing,
        "features": features,
        "chunk": [chunk, chunk],
        "rows": rows_of,
        "speed_up": rates[-2] / rates[0],
        "difference": _difference(downscaler, fine, folder / "whole.zarr", chunk, asked),
    }


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
    import deconditional as dc

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
) -> dict[str, Any]:
    cells = fine.sizes["lat"] * fine.sizes["lon"]
    began = time.perf_counter()
    downscaler.predict_to(path, fine, **asked)
    seconds = time.perf_counter() - began
    return {
        "workers": workers,
        "cells": cells,
        "seconds": seconds,
        "cells_per_second": cells / seconds,
        "worker_peak_bytes": sorted(client.run(peak_bytes).values()),
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


def _show(console: Console, result: dict[str, Any]) -> None:
    basis = f"{result['features']} random features"
    if result["features"] is None:
        basis = f"{result['inducing']} inducing points"
    table = Table(
        title=f"Mean and standard deviation from {basis}, chunks of "
        f"{result['chunk'][0]} x {result['chunk'][1]} cells, read from and written to Zarr"
    )
    for name in ("workers", "cells", "seconds", "cells / s", "peak of a worker", "of the client"):
        table.add_column(name, justify="right")
    for row in result["rows"]:
        table.add_row(
            str(row["workers"]),
            f"{row['cells']:,}",
            f"{row['seconds']:.1f}",
            f"{row['cells_per_second']:,.0f}",
            f"{row['worker_peak_bytes'][-1] / 2**30:.2f} GiB",
            f"{row['client_peak_bytes'] / 2**30:.2f} GiB",
        )
    console.print(table)
    console.print(f"{result['rows'][1]['workers']} workers against one: {result['speed_up']:.2f}x")
    off = result["difference"]
    console.print(
        f"largest difference from memory: mean {off['mean']:.2g} K, std {off['std']:.2g} K"
    )
