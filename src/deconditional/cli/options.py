"""Options of commands: their types, those of ``deconditional downscale``, and what they need."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deconditional.errors import UsageError


def require(extra: str, *packages: str) -> None:
    """Raise unless the packages of an extra can be imported."""
    for package in packages:
        if find_spec(package) is None:
            raise UsageError(f"this needs {package}: pip install 'deconditional[{extra}]'.")


# ---------------------------------------------------------------------- types of options


def whole(text: str, least: int | None = None, most: int | None = None) -> int:
    """A whole number that is neither too small nor too large."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None
    if least is not None and value < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, not {value}")
    if most is not None and value > most:
        raise argparse.ArgumentTypeError(f"must be at most {most}, not {value}")
    return value


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """The type of a whole number between bounds."""
    return lambda text: whole(text, least, most)


positive = at_least(1)


def names(text: str) -> list[str]:
    """Type of an option that holds names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def levels(text: str) -> list[float]:
    """Type of an option that holds numbers between commas."""
    try:
        return [float(part) for part in names(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers between commas, not {text!r}") from None


def bounds(text: str) -> tuple[float | None, float | None]:
    """Two limits between a comma; either may be left out.

    Examples
    --------
    >>> bounds("0,"), bounds("0,1")
    ((0.0, None), (0.0, 1.0))
    """
    low, comma, high = text.partition(",")
    try:
        ends = tuple(float(end) if end.strip() else None for end in (low, high))
    except ValueError:
        comma = ""
        ends = (None, None)
    if not comma or any(end != end for end in ends):  # a bound that is no number
        raise argparse.ArgumentTypeError(f"must be LOW,HIGH (either may be empty), not {text!r}")
    return ends[0], ends[1]


def points(text: str) -> int | str | None:
    """A number of points; None for ``all``, and ``auto`` as it is."""
    if text in ("all", "auto"):
        return None if text == "all" else text
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive number, all or auto, not {text!r}")
    return int(text)


def dimensions(text: str) -> dict[str, str]:
    """Names of dimensions by their role: y, x or time."""
    pairs = [part.split("=", 1) for part in names(text) if "=" in part]
    roles = {role.strip(): name.strip() for role, name in pairs}
    if len(roles) != len(names(text)) or not set(roles) <= {"y", "x", "time"}:
        raise argparse.ArgumentTypeError(f"must look like y=lat,x=lon,time=t, not {text!r}")
    return roles


# ---------------------------------------------------------------------- downscale

MODELS = (
    *("auto", "mediated", "cmp", "s-cmp", "u-cmp", "varcmp"),
    *("bagg-gp", "vbagg", "gpr", "vargpr", "kriging", "regression-kriging"),
)

FAMILIES = ("poisson", "negative-binomial", "binomial", "beta-binomial", "tweedie")

EXAMPLES = """\
examples:
  fine covariates and coarse target in the same cells:
    deconditional downscale --fine fine.nc --coarse coarse.nc --target tas \\
        --covariates orog,clt --out tas_fine.nc

  in different cells or at different times, linked by precipitable water, which the coarse
  file has for all of them; three quantiles, ten samples and a report:
    deconditional downscale --fine fine.nc --coarse coarse.nc --target tas \\
        --covariates orog,clt --mediators prw --quantiles 0.05,0.5,0.95 --samples 10 \\
        --out tas_fine.nc --report tas_fine.html

  rain, positive and skewed, over land, one month, with the coarse means kept:
    deconditional downscale --fine "era_*.nc" --coarse gcm.zarr --target pr \\
        --covariates orog --mask land --transform log --consistency exact \\
        --time 2001-07 --out pr_fine.nc

  cases in districts, people in a raster: the rate as a raster, and cases in other districts:
    deconditional downscale --fine cov.tif --coarse districts.gpkg --target cases \\
        --family poisson --exposure pop.tif --covariates elevation,ndvi --out rate.tif \\
        --exceedance 0.01 --aggregate regions.gpkg --report rate.html

exit codes: 0 done, 2 the command cannot be carried out as given, 3 the program itself failed, 130
interrupted.
"""

Add = Callable[..., argparse.Action]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``deconditional downscale``.

    Options of the estimator are among the arguments where they were given, and only there: their
    defaults are its own. ``of_estimator`` has their names.
    """
    given: list[str] = []
    groups = {"data": _data, "size": _size, "model": _model, "output": _output}
    for title, options in groups.items():
        add = parser.add_argument_group(title).add_argument

        def of_estimator(flag: str, add: Add = add, **settings: Any) -> argparse.Action:
            action = add(flag, default=argparse.SUPPRESS, **settings)
            given.append(action.dest)
            return action

        options(add, of_estimator)
    parser.set_defaults(of_estimator=given)


def _data(add: Add, of_estimator: Add) -> None:
    files: dict[str, Any] = {"nargs": "+", "metavar": "FILE"}
    text = "covariates on the fine grid, NaN where unknown: netCDF, Zarr, GeoTIFF, globs"
    add("--fine", required=True, help=text, **files)
    text = (
        "target and mediators on the coarse grid, NaN where unknown; or polygons or points in a "
        "GeoPackage, GeoJSON, shapefile, or CSV with lon and lat; several of these are sources of "
        "one field"
    )
    add("--coarse", required=True, help=text, **files)
    of_estimator("--target", required=True, help="coarse variable to downscale")
    of_estimator("--covariates", type=names, metavar="A,B", help="fine variables")
    text = "coarse variables that link target and covariates where cells or times differ"
    of_estimator("--mediators", type=names, metavar="P,Q", help=text)
    text = "what the target of a cell or polygon is; of polygons it has to be said"
    of_estimator("--kind", choices=("mean", "sum"), help=text)
    text = (
        "how observations scatter: poisson or negative-binomial for cases, binomial or "
        "beta-binomial for positive tests, tweedie for amounts with zeros (default: normal)"
    )
    add("--family", choices=FAMILIES, metavar="NAME", help=text)
    text = (
        "amount in every fine cell, such as people: a file, or a variable of the fine data; of "
        "tests, a column of the polygons"
    )
    add("--exposure", metavar="FILE|NAME", help=text)
    text = "column of the polygons that names them (default: their number)"
    add("--id", metavar="COLUMN", help=text)
    add("--on", help="where to predict, if not where the fine covariates are known", **files)
    add("--time", metavar="T", help="use these times only: 2001-07, or 2001-06/2001-08")
    text = "coarse values are means over a day, a month or a year (default: as time bounds say)"
    of_estimator("--window", choices=("day", "month", "year", "none"), help=text)
    of_estimator("--mask", help="fine variable, share of a cell that counts (0 to 1)")
    text = "least share of a coarse cell that fine cells must cover (default: 0.5)"
    of_estimator("--min-cover", type=float, metavar="SHARE", help=text)
    text = "names of dimensions, where CF attributes do not tell"
    of_estimator("--dims", type=dimensions, metavar="y=A,x=B,time=C", help=text)
    text = (
        "one downscaling for every value of a dimension of the coarse data, time or member, say, "
        "each with a fit of its own; done ones are kept if the run stops"
    )
    add("--map-over", metavar="DIM", help=text)


def _size(add: Add, of_estimator: Add) -> None:
    text = (
        "work through the fine files chunk by chunk, in little memory; a stopped run goes on when "
        "the command is given again (default: from 2 GB on)"
    )
    add("--chunked", choices=("auto", "yes", "no"), default="auto", help=text)
    text = "processes of a Dask cluster on this machine, one core each"
    add("--workers", type=at_least(1), metavar="N", help=text)
    text = "of a running Dask cluster, tcp://host:8786, say"
    add("--scheduler", metavar="ADDRESS", help=text)
    text = (
        "keep how far learning is; the same command goes on from there after a stop, and removes "
        "the file at its end"
    )
    add("--checkpoint", type=Path, metavar="FILE", help=text)


def _model(add: Add, of_estimator: Add) -> None:
    text = f"{', '.join(MODELS)} (default: auto, by blocked cross-validation)"
    of_estimator("--model", choices=MODELS, metavar="NAME", help=text)
    text = (
        "smooth: Matérn-3/2 of position plus Gaussian of the covariates; rough, the default: a "
        "Matérn-1/2 of position besides, for intervals wide enough on real fields"
    )
    of_estimator("--kernel", choices=("rough", "smooth"), help=text)
    of_estimator("--transform", choices=["log"], help="log for positive, skewed fields")
    text = "physical limits, as in 0, or 0,1 or, below zero, --bounds=-40,40"
    of_estimator("--bounds", type=bounds, metavar="LOW,HIGH", help=text)
    text = "make area means equal the observed values"
    of_estimator("--consistency", choices=["exact"], help=text)
    text = "do not use position as covariate and mediator"
    of_estimator("--no-position", action="store_false", dest="position", help=text)
    text = "fine cells that stand for a coarse one while learning, or all (default: by size)"
    of_estimator("--points-per-bag", type=points, metavar="N", help=text)
    of_estimator("--folds", type=at_least(2), help="of the cross-validation (default: 5)")
    restarts = {"dest": "n_restarts", "metavar": "RESTARTS", "type": at_least(1, 1000)}
    of_estimator("--restarts", help="of every fit (default: 2)", **restarts)
    of_estimator("--seed", type=at_least(0, 2**32 - 1), help="default: 0")


def _output(add: Add, of_estimator: Add) -> None:
    add("--out", required=True, type=Path, metavar="OUT.nc", help=".nc, .zarr or .tif")
    text = "polygons or points over which the posterior is aggregated into a table"
    add("--aggregate", metavar="FILE", help=text)
    text = "where the table goes, .csv or .gpkg (default: beside the output)"
    add("--table", type=Path, metavar="FILE", help=text)
    add("--quantiles", type=levels, default=[], metavar="Q,R", help="as in 0.05,0.5,0.95")
    text = "levels, as in 0.01,0.02: adds the probability that each cell is above them"
    add("--exceedance", type=levels, default=[], metavar="A,B", help=text)
    add("--samples", type=at_least(0), default=0, metavar="K", help="joint samples to add")
    add("--report", type=Path, metavar="FILE.html", help="write a report too")
    add("--overwrite", action="store_true", help="replace an existing output or report")
    add("--quiet", action="store_true", help="print nothing but errors")
