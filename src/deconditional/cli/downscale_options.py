"""The options of ``deconditional downscale``, group by group."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from deconditional.cli.options import at_least, bounds, dimensions, levels, names, points

__all__ = ["EXAMPLES", "add_options"]

MODELS = (
    *("auto", "mediated", "cmp", "s-cmp", "u-cmp", "varcmp"),
    *("bagg-gp", "vbagg", "gpr", "vargpr"),
)

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

exit codes: 0 done, 2 the command cannot be carried out as given, 3 the program itself failed, 130
interrupted.
"""

OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "data": {
        "--fine": {
            "nargs": "+",
            "required": True,
            "metavar": "FILE",
            "help": "covariates on the fine grid, NaN where unknown: netCDF, Zarr, globs",
        },
        "--coarse": {
            "nargs": "+",
            "required": True,
            "metavar": "FILE",
            "help": "target and mediators on the coarse grid, NaN where unknown",
        },
        "--target": {"required": True, "help": "coarse variable to downscale"},
        "--covariates": {"type": names, "default": [], "metavar": "A,B", "help": "fine variables"},
        "--mediators": {
            "type": names,
            "default": [],
            "metavar": "P,Q",
            "help": "coarse variables that link target and covariates where cells or times differ",
        },
        "--on": {
            "nargs": "+",
            "metavar": "FILE",
            "help": "where to predict, if not where the fine covariates are known",
        },
        "--time": {"metavar": "T", "help": "use these times only: 2001-07, or 2001-06/2001-08"},
        "--mask": {"help": "fine variable, share of a cell that counts (0 to 1)"},
        "--min-cover": {
            "type": float,
            "default": 0.5,
            "metavar": "SHARE",
            "help": "least share of a coarse cell that fine cells must cover (default: 0.5)",
        },
        "--dims": {
            "type": dimensions,
            "metavar": "y=A,x=B,time=C",
            "help": "names of dimensions, where CF attributes do not tell",
        },
        "--map-over": {
            "metavar": "DIM",
            "help": (
                "one downscaling for every value of a dimension of the coarse data, time or "
                "member, say, each with a fit of its own; done ones are kept if the run stops"
            ),
        },
    },
    "size": {
        "--chunked": {
            "choices": ("auto", "yes", "no"),
            "default": "auto",
            "help": (
                "work through the fine files chunk by chunk, in little memory; a stopped run goes "
                "on when the command is given again (default: from 2 GB on)"
            ),
        },
        "--workers": {
            "type": at_least(1),
            "metavar": "N",
            "help": "processes of a Dask cluster on this machine, one core each",
        },
        "--scheduler": {
            "metavar": "ADDRESS",
            "help": "of a running Dask cluster, tcp://host:8786, say",
        },
        "--checkpoint": {
            "type": Path,
            "metavar": "FILE",
            "help": (
                "keep how far learning is; the same command goes on from there after a stop, and "
                "removes the file at its end"
            ),
        },
    },
    "model": {
        "--model": {
            "default": "auto",
            "choices": MODELS,
            "metavar": "NAME",
            "help": f"{', '.join(MODELS)} (default: auto, by blocked cross-validation)",
        },
        "--kernel": {
            "default": "rough",
            "choices": ("rough", "smooth"),
            "help": (
                "smooth: Matérn-3/2 of position plus Gaussian of the covariates; rough, the "
                "default: a Matérn-1/2 of position besides, for intervals wide enough on real "
                "fields"
            ),
        },
        "--transform": {"choices": ["log"], "help": "log for positive, skewed fields"},
        "--bounds": {
            "type": bounds,
            "metavar": "LOW,HIGH",
            "help": "physical limits, as in 0, or 0,1 or, below zero, --bounds=-40,40",
        },
        "--consistency": {
            "choices": ["exact"],
            "help": "make area means equal the observed values",
        },
        "--no-position": {
            "action": "store_false",
            "dest": "position",
            "help": "do not use position as covariate and mediator",
        },
        "--points-per-bag": {
            "type": points,
            "default": "auto",
            "metavar": "N",
            "help": (
                "fine cells that stand for a coarse one while learning, or all (default: by size)"
            ),
        },
        "--folds": {
            "type": at_least(2),
            "default": 5,
            "help": "of the cross-validation (default: 5)",
        },
        "--restarts": {
            "dest": "n_restarts",
            "metavar": "RESTARTS",
            "type": at_least(1, 1000),
            "default": 2,
            "help": "of every fit (default: 2)",
        },
        "--seed": {"type": at_least(0, 2**32 - 1), "default": 0, "help": "default: 0"},
    },
    "output": {
        "--out": {"required": True, "type": Path, "metavar": "OUT.nc", "help": ".nc or .zarr"},
        "--quantiles": {
            "type": levels,
            "default": [],
            "metavar": "Q,R",
            "help": "as in 0.05,0.5,0.95",
        },
        "--samples": {
            "type": at_least(0),
            "default": 0,
            "metavar": "K",
            "help": "joint samples to add",
        },
        "--report": {"type": Path, "metavar": "FILE.html", "help": "write a report too"},
        "--overwrite": {"action": "store_true", "help": "replace an existing output or report"},
        "--quiet": {"action": "store_true", "help": "print nothing but errors"},
    },
}
"""Groups of options, and of every option what argparse is told."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``deconditional downscale``."""
    for title, options in OPTIONS.items():
        group = parser.add_argument_group(title)
        for flag, settings in options.items():
            group.add_argument(flag, **settings)
