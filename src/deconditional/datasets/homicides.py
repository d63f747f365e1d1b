"""Homicides in the counties of the United States, 1989 to 1991, known of states.

Counts, population and covariates of 3,085 counties are those of Baller, Anselin, Messner, Deane and
Hawkins (2001, *Criminology* 39, 561-590), from the sample data ``nat`` that PySAL 1.14.4 comes with
(BSD 3-clause); their sources are the mortality files of the National Center for Health Statistics
and the census. Borders are simplified to 0.02 degrees; the rest is as it was. The covariates are
the five that Land, McCall and Cohen (1990) found to matter in all decades.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.grids import find_grid
from deconditional.fields.overlap import overlap
from deconditional.fields.zones.layer import Layer

FILE = Path(__file__).with_name("us_counties.geojson.gz")
YEARS = 3
COVARIATES = {
    "deprivation": "poverty, inequality and race, a component",
    "structure": "size and density of the population, a component",
    "unemployment": "percent unemployed",
    "divorce": "percent of men divorced",
    "age": "median age",
}


class CountsExample(NamedTuple):
    """Covariates and exposure on a grid, and tables of regions and of smaller zones with counts."""

    fine: xr.Dataset
    zones: Any
    truth: Any
    covariates: list[str]


def us_homicides(step: float = 0.25, states: tuple[str, ...] = ()) -> CountsExample:
    """Homicides of 1989 to 1991 in 49 states, and in the counties that are to be hidden.

    The fine data has ``person_years`` in cells, those of each county spread evenly over it, and
    five covariates, means over the people of a cell.

    Parameters
    ----------
    step
        Side of a cell, in degrees.
    states
        Some of them only.

    Examples
    --------
    >>> data = us_homicides(step=0.5, states=("Utah", "Nevada", "Arizona"))
    >>> len(data.zones), len(data.truth), data.zones["homicides"].to_dict()
    (3, 60, {'Arizona': 950, 'Nevada': 408, 'Utah': 171})
    >>> bool(np.isclose(data.fine["person_years"].sum(), 3 * data.truth["people"].sum()))
    True
    """
    try:
        import geopandas
    except ImportError as error:
        raise UsageError(f"this needs {error.name}: pip install 'deconditional[geo]'.") from None
    counties = geopandas.read_file(f"/vsigzip/{FILE}").set_crs("EPSG:4267", allow_override=True)
    counties = counties.set_index("fips")
    if states:
        counties = counties[counties["state"].isin(states)]
    zones = counties[["state", "geometry", "homicides"]].dissolve("state", aggfunc="sum")
    return CountsExample(_cells(counties, step), zones, counties, list(COVARIATES))


def _cells(counties: Any, step: float) -> xr.Dataset:
    """Person-years and covariates in cells."""
    west, south, east, north = np.round(np.array(counties.total_bounds) / step) * step
    lat = np.arange(south - 0.5 * step, north + step, step)
    lon = np.arange(west - 0.5 * step, east + step, step)
    coords = {
        "lat": ("lat", lat, {"standard_name": "latitude", "units": "degrees_north"}),
        "lon": ("lon", lon, {"standard_name": "longitude", "units": "degrees_east"}),
    }
    empty = xr.Dataset({"cell": (("lat", "lon"), np.zeros((len(lat), len(lon))))}, coords)
    grid = find_grid(empty, ["cell"], "fine")
    shared = overlap(grid, Layer.of(counties, [], grid).grid)
    people = counties["people"].to_numpy() / shared.sum(0)
    each = {name: shared @ (people * counties[name].to_numpy()) for name in COVARIATES}
    every = shared @ people
    known = np.where(every > 0, every, np.nan)
    fields = {name: values / known for name, values in each.items()} | {
        "person_years": YEARS * known
    }
    about = {**COVARIATES, "person_years": "people times years"}
    return empty.drop_vars("cell").assign(
        {
            name: (("lat", "lon"), values.reshape(grid.shape), {"long_name": about[name]})
            for name, values in fields.items()
        }
    )
