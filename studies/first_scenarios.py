"""Files that users have, cut into problems whose truth is known.

A scenario takes fields from a file, coarsens one of them, and keeps the fine one as the truth.
Which coarse cells and times give covariates and which the target makes it matched or not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

import deconditional as dc

__all__ = ["SCENARIOS", "Files", "Given", "Scenario"]

A1B, E1 = "climate/A1B_north_america.nc", "climate/E1_north_america.nc"
OSTIA = "climate/ostia_monthly.nc"
BRIGHTNESS = "climate/toa_brightness_stereographic.nc"
RAIN = "rain/stage4_hourly.nc"

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
        fields["everywhere_"] = xr.zeros_like(fields[target].isel({y: 0, x: 0}, drop=True)) + 0 * (
            fields[y] + fields[x]
        )
        cut = dc.datasets.split_cells(
            fields,
            target,
            self.covariates or ("everywhere_",),
            tuple(names),
            block=self.block,
            matched=self.matched if self.split is None else 1.0,
            seed=self.seed,
            lat=str(y),
            lon=str(x),
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
        altitude = dc.datasets.global_fields(1).altitude
        lon = (fields.lon + 180.0) % 360.0 - 180.0
        fields["altitude"] = altitude.interp(lat=fields.lat, lon=lon).drop_vars("lon")
        rng = np.random.default_rng(0)
        fields["noise"] = fields.altitude.copy(data=rng.standard_normal(fields.altitude.shape))
        return fields

    def sea(self) -> xr.Dataset:
        """Monthly sea surface temperature, and that of the year before."""
        sst = self.read(OSTIA).surface_temperature.reset_coords(drop=True)
        sst = sst.rename(latitude="lat", longitude="lon")
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


# ---------------------------------------------------------------------- scenarios


@dataclass(frozen=True)
class Scenario:
    """A problem with a name.

    Attributes
    ----------
    fields, target
        A method of :class:`Files`, and the variable that is wanted of what it returns.
    times
        The times that are used: one, or a slice.
    needs
        Files.
    """

    name: str
    fields: str
    target: str
    times: int | slice | None
    cut: Cut
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def needs(self) -> tuple[str, ...]:
        """The files it is made of."""
        return NEEDS[self.fields]

    def make(self, files: Files) -> Given:
        """The problem itself."""
        fields = getattr(files, self.fields)()
        if self.times is not None:
            fields = fields.isel(time=self.times)
            if isinstance(self.times, int):
                fields = fields.reset_coords("time", drop=True)
        return self.cut(fields, self.target)


NEEDS: dict[str, tuple[str, ...]] = {
    "air": (A1B, E1),
    "sea": (OSTIA,),
    "rain": (RAIN,),
    "brightness": (BRIGHTNESS,),
    "months": (),
    "globe": (),
}

YEAR = 220
"""The year 2080, in which the two scenarios differ."""

E, L = ("e1",), ("altitude",)
B = ("before",)

SCENARIOS = (
    Scenario("air, E1, 12", "air", "a1b", YEAR, Cut(E, (), (12, 12))),
    Scenario("air, E1, 48", "air", "a1b", YEAR, Cut(E, (), (6, 6))),
    Scenario("air, E1, 432", "air", "a1b", YEAR, Cut(E, (), (2, 2))),
    Scenario("air, altitude, 48", "air", "a1b", YEAR, Cut(L, (), (6, 6))),
    Scenario("air, altitude, 108", "air", "a1b", YEAR, Cut(L, (), (4, 4))),
    Scenario("air, altitude, 432", "air", "a1b", YEAR, Cut(L, (), (2, 2))),
    Scenario("air, position, 48", "air", "a1b", YEAR, Cut((), (), (6, 6))),
    Scenario("air, noise, 48", "air", "a1b", YEAR, Cut(("noise",), (), (6, 6))),
    Scenario("air, E1, 12 years of 48", "air", "a1b", slice(208, 220), Cut(E, (), (6, 6))),
    Scenario("air, altitude, 12 years of 48", "air", "a1b", slice(208, 220), Cut(L, (), (6, 6))),
    Scenario("air, half matched, 108", "air", "a1b", YEAR, Cut(E, E, (4, 4), 0.5)),
    Scenario("air, unmatched, 108", "air", "a1b", YEAR, Cut(E, E, (4, 4), 0.0)),
    Scenario("air, unmatched, altitude, 108", "air", "a1b", YEAR, Cut(L, E, (4, 4), 0.0)),
    Scenario(
        "air, unmatched in time, 48", "air", "a1b", slice(214, 218), Cut(E, E, (6, 6), split=2)
    ),
    Scenario("sea, position, 36", "sea", "sst", 2, Cut((), (), (6, 36))),
    Scenario("sea, year before, 12", "sea", "sst", 2, Cut(B, (), (9, 72))),
    Scenario("sea, year before, 36", "sea", "sst", 2, Cut(B, (), (6, 36))),
    Scenario("sea, year before, 432", "sea", "sst", 2, Cut(B, (), (3, 6))),
    Scenario("sea, year before, 12 months of 36", "sea", "sst", slice(12), Cut(B, (), (6, 36))),
    Scenario("rain, position, 12", "rain", "rain", 5, Cut((), (), (28, 28))),
    Scenario("rain, hour before, 48", "rain", "rain", 5, Cut(B, (), (14, 14))),
    Scenario("rain, hour before, 609", "rain", "rain", 5, Cut(B, (), (4, 4))),
    Scenario("rain, hour before, 12 hours of 48", "rain", "rain", slice(12), Cut(B, (), (14, 14))),
    Scenario("brightness, position, 48", "brightness", "brightness", None, Cut((), (), (10, 14))),
    Scenario("brightness, altitude, 420", "brightness", "brightness", None, Cut(L, (), (4, 4))),
    Scenario(
        "brightness, latitude, 12",
        "brightness",
        "brightness",
        None,
        Cut(("latitude_of_cell",), (), (20, 28)),
    ),
    Scenario("months, coast, 48", "months", "tas", 6, Cut(("altitude", "rain"), (), (4, 8))),
    Scenario(
        "months, coast, 12 months of 48",
        "months",
        "tas",
        slice(12),
        Cut(("altitude", "rain"), (), (4, 8)),
    ),
    Scenario("globe, 48", "globe", "tas", 0, Cut(("altitude", "cloud"), (), (6, 12))),
    Scenario("globe, unmatched, 96", "globe", "tas", 0, Cut(L, ("water_vapour",), (6, 6), 0.0)),
)
