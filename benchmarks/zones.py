"""Polygons: how long exact shares of cells take, and a map of cases from files to files.

Shares are of as many polygons as the United States have counties on as many cells as a map of them
at 1/24 degree. Files are of the size of the published malaria example of the R package
``disaggregation``: 28,896 pixels, 109 polygons, three covariates and people.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.console import Console

from benchmarks.frame import Benchmark, Costs, Result, Row, shown
from benchmarks.timing import in_own_process
from deconditional.cli.main import main as command
from deconditional.fields.axes import Axis, Lattice
from deconditional.fields.overlap import overlap
from deconditional.fields.zones.layer import Layer
from studies.command import option

__all__ = ["Zones"]

CELL = 5000.0
CRS = "EPSG:32738"


@dataclass(frozen=True)
class Zones(Benchmark):
    """Shares of cells, and cases from files to files."""

    name: ClassVar[str] = "zones"
    help: ClassVar[str] = "polygons: shares of cells, and a map of cases from files to files"
    times_compilation: ClassVar[bool] = True
    columns: ClassVar[Any] = {
        "what": shown("what"),
        "polygons": shown("polygons"),
        "cells": shown("cells"),
        "seconds": shown("seconds", "{:.2f}"),
    }

    counties: int = option(3109, "polygons of the first part", quick=200)
    districts: int = option(109, "polygons of the second part", quick=12)
    down: int = option(168, "rows of pixels of the second part", quick=14)
    across: int = option(172, "columns of them", quick=16)

    def measure(self, where: Console) -> Result:
        """Both parts, one after the other."""
        with where.status("shares of cells"):
            rows = [_shares(self.counties)]
        with where.status("from files to files"):
            rows += _from_files(self.districts, self.down, self.across)
        return {"rows": rows}

    def words(self, result: Result) -> tuple[str, None]:
        """The machine."""
        return str(result["device"]), None

    def costs(self, result: Result) -> Costs:
        """Seconds of both parts."""
        return {str(row["what"]): (float(row["seconds"]), 1.0) for row in result["rows"]}


def _axis(name: str, edges: np.ndarray) -> Axis:
    ends = np.stack([edges[:-1], edges[1:]], axis=1)
    return Axis(name, name, "plane", ends.mean(1), ends)


def _polygons(n: int, width: float, height: float, seed: int = 0) -> Any:
    """Neighbouring polygons with about fifty corners each."""
    import geopandas
    import shapely

    rng, box = np.random.default_rng(seed), shapely.box(0, 0, width, height)
    places = shapely.MultiPoint(rng.uniform([0, 0], [width, height], (n, 2)))
    shapes = shapely.get_parts(shapely.voronoi_polygons(places, extend_to=box))
    shapes = shapely.intersection(shapes, box)
    shapes = shapely.segmentize(shapes, np.sqrt(width * height / n) / 12)
    return geopandas.GeoDataFrame(geometry=shapes, crs=CRS)


def _shares(n: int) -> Row:
    """Shares of 883,584 cells."""
    y, x = np.linspace(0, 624, 625), np.linspace(0, 1416, 1417)
    grid = Lattice(_axis("y", y), _axis("x", x))
    zones = Layer.of(_polygons(n, 1416.0, 624.0).set_crs(None, allow_override=True), [], grid).grid
    began = time.perf_counter()
    shared = overlap(grid, zones)
    seconds = time.perf_counter() - began
    off = float(np.abs(np.asarray(shared.sum(1)).ravel() - 1.0).max())
    what = f"exact shares (sums to one within {off:.0e})"
    return {"what": what, "polygons": n, "cells": grid.n_cells, "seconds": seconds}


def _from_files(n: int, down: int, across: int) -> list[Row]:
    """``deconditional downscale`` in a process of its own, report and table included; then again.

    The second round in that process compiles nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        names = list(_write(Path(folder), n, down, across))
        arguments = ["--fine", *names[:3], "--coarse", "districts.gpkg", "--target", "cases"]
        arguments += ["--family", "poisson", "--exposure", names[3]]
        arguments += ["--covariates", "a,b,c", "--exceedance", "0.002", "--quantiles", "0.05,0.95"]
        arguments += ["--out", "rate.tif", "--report", "rate.html", "--aggregate", "districts.gpkg"]
        began = time.perf_counter()
        told = in_own_process(["-m", "benchmarks.zones", folder, *arguments])
        seconds = time.perf_counter() - began
    first, second = json.loads(told.splitlines()[-1])
    found = {"cases: files to GeoTIFF, report, table": seconds - second["all"]}
    for which, each in {"the first time": first, "again, nothing compiled": second}.items():
        learning = sum(v for k, v in each.items() if k.startswith("learning"))
        found |= {f"{which}: learning": learning, f"{which}: comparing": each["comparing"]}
        found |= {f"{which}: all but the start of Python": each["all"]}
    size = {"polygons": n, "cells": down * across}
    return [{"what": what, **size, "seconds": seconds} for what, seconds in found.items()]


def _write(folder: Path, n: int, down: int, across: int) -> Iterator[str]:
    """Rasters a, b, c and people, and cases in districts of a rate that depends on them."""
    import rioxarray  # noqa: F401
    import xarray as xr

    rng = np.random.default_rng(1)
    x = CELL * (np.arange(across) + 0.5)
    y = CELL * (np.arange(down) + 0.5)[::-1]
    east, north = np.meshgrid(x / x.max(), y / y.max())
    fields = {
        "a": np.sin(5 * east) + north,
        "b": np.cos(7 * north) * east,
        "c": rng.normal(size=east.shape),
        "people": rng.gamma(0.5, 400.0, east.shape),
    }
    for name, values in fields.items():
        data = xr.DataArray(values.astype("float32"), {"y": y, "x": x}, ("y", "x"))
        data.rio.write_crs(CRS).rio.to_raster(folder / f"{name}.tif")
        yield f"{name}.tif"
    zones = _polygons(n, across * CELL, down * CELL)
    ends = [np.arange(k + 1) * CELL for k in (down, across)]
    grid = Lattice(_axis("y", ends[0]), _axis("x", ends[1]))
    plain = Layer.of(zones.set_crs(None, allow_override=True), [], grid).grid
    rate = np.exp(-6.5 + 0.5 * fields["a"] + 0.3 * fields["b"]) * fields["people"]
    zones["cases"] = rng.poisson(rate[::-1].ravel() / CELL**2 @ overlap(grid, plain))
    zones.to_file(folder / "districts.gpkg")


def main(folder: str, *arguments: str) -> None:
    """Downscale in a folder, twice; prints the seconds of every stage, and of all."""
    os.chdir(folder)
    rounds = []
    for more in ([], ["--overwrite"]):
        began = time.perf_counter()
        code = command(["downscale", "--quiet", *arguments, *more])
        if code:
            sys.exit(code)
        facts = json.loads(_said(Path("rate.tif")))
        rounds.append(facts["timings"] | {"all": time.perf_counter() - began})
    print(json.dumps(rounds))


def _said(path: Path) -> str:
    """What a GeoTIFF says of how it was made."""
    import rasterio

    with rasterio.open(path) as file:
        return str(file.tags()["deconditional"])


if __name__ == "__main__":
    main(*sys.argv[1:])
