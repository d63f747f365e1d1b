"""Files that users have, cut into problems whose truth is known.

A scenario takes fields from a file, coarsens one of them, and keeps the fine one as the truth.
Which coarse cells and times give covariates and which the target makes it matched or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr

import deconditional as dc

__all__ = ["SCENARIOS", "Files", "Given", "Scenario", "random_scenario"]

A1B, E1 = "climate/A1B_north_america.nc", "climate/E1_north_america.nc"
OSTIA = "climate/ostia_monthly.nc"
BRIGHTNESS = "climate/toa_brightness_stereographic.nc"
RAIN = "rain/stage4_hourly.nc"
OCEAN = "climate/nemo_1m_20150101-20150201_grid-T.nc"

WEST_EAST = (200.0, 319.9)
"""Longitudes of the sea: from the Pacific past South America to the Atlantic, 144 columns."""

HRAP_CELL = 4762.5
"""Sides of the cells of NOAA Stage IV, in metres of its polar stereographic projection."""


class Given(NamedTuple):
    """What a user would have, and the truth."""

    fine: xr.Dataset
    coarse: xr.Dataset
    truth: xr.DataArray
    everywhere: xr.Dataset
    covariates: tuple[str, ...]
    mediators: tuple[str, ...]

    @property
    def target(self) -> str:
        """The variable that is wanted."""
        return str(self.truth.name)


@dataclass(frozen=True)
class Cut:
    """How fields become a problem.

    Attributes
    ----------
    block
        Fine cells to a coarse one, along both axes.
    matched
        The share of coarse cells that give both; the rest give covariates or the target in turn.
    split
        Where it is a number: covariates at so many first times, the target at all others.
    cover
        The share of coarse cells whose target is kept.
    """

    covariates: tuple[str, ...] = ()
    mediators: tuple[str, ...] = ()
    block: tuple[int, int] = (6, 6)
    matched: float = 1.0
    split: int | None = None
    cover: float = 1.0
    seed: int = 0

    def __call__(self, fields: xr.Dataset, target: str) -> Given:
        """The problem."""
        y, x = fields[target].dims[-2:]
        whole = {
            d: slice(0, fields.sizes[d] // n * n) for d, n in zip((y, x), self.block, strict=True)
        }
        fields = fields.isel(whole)
        names = [f"coarse_{name}" for name in self.mediators]
        fields = fields.assign(
            {new: fields[old] for new, old in zip(names, self.mediators, strict=True)}
        )
        fields["everywhere_"] = xr.zeros_like(fields[target])
        cut = dc.datasets.split_cells(
            fields,
            target,
            self.covariates or ("everywhere_",),
            tuple(names),
            block=self.block,
            matched=self.matched if self.split is None else 1.0,
            seed=self.seed,
        )
        fine, coarse, truth, everywhere = cut
        if self.split is not None:
            early, late = slice(0, self.split), slice(self.split, None)
            fine, everywhere = fine.isel(time=early), everywhere.isel(time=early)
            truth = truth.isel(time=early)
            values = coarse[target].where(coarse.time.isin(coarse.time[late]))
            coarse = coarse.assign({target: values})
        if self.cover < 1.0:
            rng = np.random.default_rng(self.seed)
            kept = rng.random(coarse[target].shape[-2:]) < self.cover
            coarse[target] = coarse[target].where(xr.DataArray(kept, dims=(y, x)))
        return Given(fine, coarse, truth, everywhere, self.covariates, tuple(names))


# ---------------------------------------------------------------------- fields of the files


@dataclass(frozen=True)
class Files:
    """The folder of the files, each read once."""

    folder: Path
    kept: dict[str, xr.Dataset] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return (self.folder / name).exists()

    def read(self, name: str) -> xr.Dataset:
        """A file in memory."""
        if name not in self.kept:
            with xr.open_dataset(self.folder / name) as data:
                self.kept[name] = data.load()
        return self.kept[name]

    def air(self) -> xr.Dataset:
        """Yearly air temperature of two scenarios, and the altitude."""
        a1b, e1 = self.read(A1B).air_temperature, self.read(E1).air_temperature
        fields = xr.Dataset({"a1b": a1b, "e1": e1}).rename(latitude="lat", longitude="lon")
        fields = fields.reset_coords(drop=True).isel(lat=slice(36), lon=slice(48))
        ground = dc.datasets.global_fields(1).altitude
        turned = fields.assign_coords(lon=(fields.lon + 180.0) % 360.0 - 180.0)
        spots = ground.interp(lat=turned.lat, lon=turned.lon)
        fields["altitude_at_centre"] = spots.assign_coords(lon=fields.lon)
        fields["altitude"] = fields.altitude_at_centre.copy(data=_cell_means(ground, turned))
        rng = np.random.default_rng(0)
        fields["noise"] = fields.altitude.copy(data=rng.standard_normal(fields.altitude.shape))
        return fields

    def sea(self) -> xr.Dataset:
        """Monthly sea surface temperature around South America, and that of the year before."""
        sst = self.read(OSTIA).surface_temperature.reset_coords(drop=True)
        sst = sst.rename(latitude="lat", longitude="lon").sel(lon=slice(*WEST_EAST))
        return xr.Dataset({"sst": sst[12:], "before": sst[:-12].assign_coords(time=sst.time[12:])})

    def rain(self) -> xr.Dataset:
        """Hourly rain, and that of the hour before, on the plane of its projection."""
        data = self.read(RAIN)
        rain = data["Total_precipitation_surface_1_Hour_Accumulation"].reset_coords(drop=True)
        rain = rain.assign_coords(
            {
                name: (name, HRAP_CELL * np.arange(rain.sizes[name]), {"units": "m"})
                for name in ("y", "x")
            }
        )
        before = rain[:-1].assign_coords(time=rain.time[1:])
        return xr.Dataset({"rain": rain[1:], "before": before})

    def brightness(self) -> xr.Dataset:
        """Brightness temperature on a projected grid, with latitude and altitude."""
        data = self.read(BRIGHTNESS)
        fields = data.rename(data="brightness").reset_coords(["lat", "lon"])
        fields = fields.rename(lat="latitude_of_cell", lon="longitude_of_cell")
        fields = fields.isel(y=slice(40, 120), x=slice(100, 184)).reset_coords("time", drop=True)
        altitude = dc.datasets.global_fields(1).altitude
        at = {"lat": fields.latitude_of_cell, "lon": fields.longitude_of_cell}
        fields["altitude"] = altitude.interp(**at).reset_coords(drop=True)
        return fields

    def ocean(self) -> xr.Dataset:
        """Sea surface temperature of a curvilinear model, and the air's of a climatology."""
        data = self.read(OCEAN).isel(time_counter=0, y=slice(180, 260), x=slice(200, 290))
        fields = data[["tos", "bounds_lat", "bounds_lon"]].drop_vars(
            ["time_counter", "time_centered"], errors="ignore"
        )
        air = dc.datasets.global_fields(1).tas
        spots = air.interp(lat=fields.nav_lat, lon=(fields.nav_lon + 180.0) % 360.0 - 180.0)
        return fields.assign(air=spots.reset_coords(drop=True))

    def months(self) -> xr.Dataset:
        """Monthly temperature of Europe with altitude and rain on land alone."""
        months = [dc.datasets.global_fields(m) for m in range(1, 13)]
        times = np.array([f"2001-{m:02d}-15" for m in range(1, 13)], dtype="datetime64[ns]")
        region = {"lat": slice(35, 62), "lon": slice(-12, 24)}
        picked = [each[["tas", "altitude", "rain"]].sel(region) for each in months]
        fields = xr.concat(picked, "time", data_vars=["tas", "rain"]).assign_coords(time=times)
        fields = fields.assign(altitude=picked[0].altitude)
        land = fields.altitude > 0
        return fields.assign(altitude=fields.altitude.where(land), rain=fields.rain.where(land))

    def globe(self) -> xr.Dataset:
        """Made-up fields."""
        times = np.array([f"2001-{m:02d}-15" for m in range(1, 13)], dtype="datetime64[ns]")
        return dc.datasets.synthetic_fields(48, 72, times=list(times))


def _cell_means(field: xr.DataArray, like: xr.Dataset) -> np.ndarray:
    """Means of a finer field over cells whose borders lie half-way between their centres."""
    shares = []
    for name in ("lat", "lon"):
        fine, coarse = (_edges(each[name].values) for each in (field, like))
        low = np.maximum(coarse[:-1, None], fine[None, :-1])
        shared = np.maximum(np.minimum(coarse[1:, None], fine[None, 1:]) - low, 0.0)
        shares.append(shared / shared.sum(1, keepdims=True))
    return shares[0] @ field.values @ shares[1].T


def _edges(centres: np.ndarray) -> np.ndarray:
    middle = 0.5 * (centres[1:] + centres[:-1])
    return np.concatenate([[2 * centres[0] - middle[0]], middle, [2 * centres[-1] - middle[-1]]])


# ---------------------------------------------------------------------- scenarios


@dataclass(frozen=True)
class Scenario:
    """A problem with a name.

    Attributes
    ----------
    fields, target
        A method of :class:`Files`, and the variable that is wanted of what it returns.
    times
        One time, or the first and the last; nothing where there is none.
    """

    name: str
    fields: str
    target: str
    times: str
    cut: Cut

    @property
    def matched(self) -> Scenario:
        """The same where every coarse cell gives both, at all times."""
        return replace(self, cut=replace(self.cut, matched=1.0, split=None))

    @property
    def needs(self) -> tuple[str, ...]:
        """The files it is made of."""
        return NEEDS.get(self.fields, ())

    def make(self, files: Files) -> Given:
        """The problem itself."""
        fields = getattr(files, self.fields)()
        if self.times:
            first, _, last = self.times.partition("/")
            fields = fields.sel(time=slice(first, last or first))
            if fields.sizes["time"] == 1:
                fields = fields.isel(time=0).reset_coords("time", drop=True)
        return self.cut(fields, self.target)


NEEDS: dict[str, tuple[str, ...]] = {
    "air": (A1B, E1),
    "sea": (OSTIA,),
    "rain": (RAIN,),
    "brightness": (BRIGHTNESS,),
    "ocean": (OCEAN,),
    "months": (),
    "globe": (),
}

YEAR, YEARS, CENTURIES = "2080", "2068/2079", "1860/2099"
JUNE, MONTHS, ALL_MONTHS = "2007-06", "2007-04/2008-03", "2006/2012"
HOUR, HOURS = "2018-09-14T01", "2018-09-13T20/2018-09-14T07"
JULY, WHOLE_YEAR = "2001-07", "2001"
E, L, B, A = ("e1",), ("altitude",), ("before",), ("air",)
SPOTS = ("altitude_at_centre",)
LAND, SKY = ("altitude", "rain"), ("altitude", "cloud")


def _all() -> tuple[Scenario, ...]:
    """The scenarios, in the order of their tables."""
    found: list[tuple[str, str, str, str, Cut]] = [
        ("air, E1, 12", "air", "a1b", YEAR, Cut(E, (), (12, 12))),
        ("air, E1, 48", "air", "a1b", YEAR, Cut(E, (), (6, 6))),
        ("air, E1, 432", "air", "a1b", YEAR, Cut(E, (), (2, 2))),
        ("air, altitude, 48", "air", "a1b", YEAR, Cut(L, (), (6, 6))),
        ("air, altitude, 108", "air", "a1b", YEAR, Cut(L, (), (4, 4))),
        ("air, altitude, 432", "air", "a1b", YEAR, Cut(L, (), (2, 2))),
        ("air, altitude at centres, 432", "air", "a1b", YEAR, Cut(SPOTS, (), (2, 2))),
        ("air, position, 48", "air", "a1b", YEAR, Cut((), (), (6, 6))),
        ("air, noise, 48", "air", "a1b", YEAR, Cut(("noise",), (), (6, 6))),
        ("air, E1, 12 years of 48", "air", "a1b", YEARS, Cut(E, (), (6, 6))),
        ("air, E1, 12 years of 432", "air", "a1b", YEARS, Cut(E, (), (2, 2))),
        ("air, E1, 240 years of 48", "air", "a1b", CENTURIES, Cut(E, (), (6, 6))),
        ("air, altitude, 12 years of 48", "air", "a1b", YEARS, Cut(L, (), (6, 6))),
        ("air, half matched, 108", "air", "a1b", YEAR, Cut(E, E, (4, 4), 0.5)),
        ("air, unmatched, 108", "air", "a1b", YEAR, Cut(E, E, (4, 4), 0.0)),
        ("air, unmatched, altitude, 108", "air", "a1b", YEAR, Cut(L, E, (4, 4), 0.0)),
        ("air, unmatched in time, 48", "air", "a1b", "2074/2077", Cut(E, E, (6, 6), split=2)),
        ("sea, position, 48", "sea", "sst", JUNE, Cut((), (), (6, 9))),
        ("sea, year before, 12", "sea", "sst", JUNE, Cut(B, (), (9, 24))),
        ("sea, year before, 48", "sea", "sst", JUNE, Cut(B, (), (6, 9))),
        ("sea, year before, 432", "sea", "sst", JUNE, Cut(B, (), (3, 2))),
        ("sea, year before, 12 months of 48", "sea", "sst", MONTHS, Cut(B, (), (6, 9))),
        ("sea, year before, 42 months of 48", "sea", "sst", ALL_MONTHS, Cut(B, (), (6, 9))),
        ("rain, position, 12", "rain", "rain", HOUR, Cut((), (), (28, 28))),
        ("rain, position, 48", "rain", "rain", HOUR, Cut((), (), (14, 14))),
        ("rain, hour before, 48", "rain", "rain", HOUR, Cut(B, (), (14, 14))),
        ("rain, hour before, 609", "rain", "rain", HOUR, Cut(B, (), (4, 4))),
        ("rain, position, 12 hours of 48", "rain", "rain", HOURS, Cut((), (), (14, 14))),
        ("brightness, position, 48", "brightness", "brightness", "", Cut((), (), (10, 14))),
        ("brightness, altitude, 420", "brightness", "brightness", "", Cut(L, (), (4, 4))),
        (
            "brightness, latitude, 12",
            "brightness",
            "brightness",
            "",
            Cut(("latitude_of_cell",), (), (20, 28)),
        ),
        ("ocean, position, 80", "ocean", "tos", "", Cut((), (), (10, 9))),
        ("ocean, air, 20", "ocean", "tos", "", Cut(A, (), (20, 18))),
        ("ocean, air, 440", "ocean", "tos", "", Cut(A, (), (4, 4))),
        ("months, coast, 48", "months", "tas", JULY, Cut(LAND, (), (4, 8))),
        ("months, coast, 12 months of 48", "months", "tas", WHOLE_YEAR, Cut(LAND, (), (4, 8))),
        ("globe, 48", "globe", "tas", "2001-01", Cut(SKY, (), (6, 12))),
        ("globe, 12 months of 48", "globe", "tas", WHOLE_YEAR, Cut(SKY, (), (6, 12))),
        ("globe, unmatched, 96", "globe", "tas", "2001-01", Cut(L, ("water_vapour",), (6, 6), 0.0)),
    ]
    return tuple(Scenario(*each) for each in found)


SCENARIOS = _all()

CHOICES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], tuple[int, int]]] = {
    "air": ("a1b", (YEAR, YEARS), ("e1", "altitude", "noise"), (36, 48)),
    "sea": ("sst", (JUNE, MONTHS), ("before",), (18, 144)),
    "rain": ("rain", (HOUR, HOURS), ("before",), (118, 87)),
    "brightness": ("brightness", ("", ""), ("altitude", "latitude_of_cell"), (80, 84)),
    "ocean": ("tos", ("", ""), ("air",), (80, 90)),
    "months": ("tas", (JULY, WHOLE_YEAR), ("altitude", "rain"), (36, 48)),
}
"""For each of the fields: target, one time and many, covariates, rows and columns."""

FEWEST, MOST = 12, 450
"""Coarse cells of a random problem."""


def random_scenario(seed: int, among: Sequence[str]) -> Scenario:
    """A problem whose file, blocks, times, gaps and variables are drawn at random.

    Examples
    --------
    >>> random_scenario(3, ["sea"]).name == random_scenario(3, ["sea"]).name
    True
    """
    rng = np.random.default_rng(seed)
    name = str(rng.choice(list(among)))
    target, times, known, (rows, columns) = CHOICES[name]
    while True:
        block = (int(rng.integers(2, rows // 2 + 1)), int(rng.integers(2, columns // 2 + 1)))
        cells = (rows // block[0]) * (columns // block[1])
        if FEWEST <= cells <= MOST:
            break
    covariates = tuple(each for each in known if rng.random() < 0.6)
    when = times[int(rng.random() < 0.25 and cells <= 60)]
    cover = float(rng.uniform(0.6, 1.0))
    cut = Cut(covariates, (), block, cover=cover, seed=seed)
    said = ", ".join([name, *covariates, f"{cells} cells of {block[0]} x {block[1]}"])
    return Scenario(f"{seed}: {said}, {cover:.0%}, {when or 'one time'}", name, target, when, cut)
