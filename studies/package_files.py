"""More files, of other packages, of which most were kept until the code was done.

Those of Debian's ``ferret-datasets`` and ``r-cran-stars`` could be looked at while the default was
changed; those of ``libncarg-data`` and of PyPI's ``eofs`` and ``aospy`` were scored once. Further
ones of both Debian packages came later, as strangers.
"""

from __future__ import annotations

from pathlib import Path

import xarray as xr

from deconditional.errors import UsageError
from studies.first_scenarios import Cut, Files, Scenario

__all__ = ["LOOKED_AT", "SCORED_ONCE", "STRANGERS", "PackageFiles"]

FERRET, STARS, NCARG = "ferret-vis/data", "stars/nc", "ncarg/data/nug"
NCARG_CDF = "ncarg/data/cdf"
EOFS, AOSPY = "eofs/examples/example_data", "aospy/test/data/netcdf"


class PackageFiles(Files):
    """A folder with unpacked packages."""

    def find(self, name: str) -> xr.Dataset:
        """The file whose path ends so, somewhere below the folder, its times as numbers."""
        if name not in self.kept:
            path = next(Path(self.folder).rglob(name), None)
            if path is None:
                raise UsageError(
                    f"there is no {name} below {self.folder}; unpack its package there."
                )
            with xr.open_dataset(path, decode_times=False) as data:
                self.kept[name] = data.load()
        return self.kept[name]

    def coads(self) -> xr.Dataset:
        """The Pacific in July: sea surface and air temperature and wind, land missing."""
        data = self.find(f"{FERRET}/coads_climatology.cdf")[["SST", "AIRT", "WSPD"]]
        data = data.isel(TIME=6, drop=True).rename(COADSX="lon", COADSY="lat")
        return data.sel(lat=slice(-60, 60), lon=slice(120, 300))

    def levitus(self) -> xr.Dataset:
        """The North Atlantic: temperature and salinity of its surface."""
        data = self.find(f"{FERRET}/levitus_climatology.cdf")[["TEMP", "SALT"]]
        data = data.isel(ZAXLEVITR=0, drop=True).rename(XAXLEVITR="lon", YAXLEVITR="lat")
        return data.sel(lat=slice(0, 60), lon=slice(280, 360))

    def heights(self) -> xr.Dataset:
        """Heights and depths about India."""
        data = self.find(f"{FERRET}/etopo60.cdf").rename(ETOPO60X="lon", ETOPO60Y="lat")
        return data.sel(lat=slice(0, 48), lon=slice(60, 108))

    def carolina(self) -> xr.Dataset:
        """Temperature and rain in July on an eighth of a degree."""
        return self.find(f"{STARS}/bcsd_obs_1999.nc")[["tas", "pr"]].isel(time=6, drop=True)

    def europe(self) -> xr.Dataset:
        """Temperature in January on a rotated grid, and height."""
        data = self.find(f"{NCARG}/tas_rotated_grid_EUR11.nc")
        tas = data[["tas", "rotated_pole"]].isel(time=0, height=0, drop=True)
        height = self.find(f"{NCARG}/HSURF_regional_model_0.11deg.nc").HSURF.isel(time=0, drop=True)
        spots = height.drop_vars(["lat", "lon"]).sel(rlat=tas.rlat, rlon=tas.rlon, method="nearest")
        spots = spots.assign_coords(rlat=tas.rlat, rlon=tas.rlon)
        return tas.assign(height=spots).isel(rlat=slice(120, 280), rlon=slice(120, 280))

    def bipolar(self) -> xr.Dataset:
        """Sea surface temperature on a curvilinear grid."""
        data = self.find(f"{NCARG}/tos_ocean_bipolar_grid.nc").isel(time=0, drop=True)
        data = data.isel(y=slice(90, 170), x=slice(90, 180))
        return data[["tos", "lat_bnds", "lon_bnds"]]

    def echam(self) -> xr.Dataset:
        """Temperature and wind of a climate model in July, and its height."""
        parts = {
            name: self.find(f"{NCARG}/{name}_rectilinear_grid_2D.nc")[name].isel(time=6, drop=True)
            for name in ("tas", "uas", "vas")
        }
        height = self.find(f"{NCARG}/orog_mod1_rectilinear_grid_2D.nc").orog
        height = height.reindex_like(parts["tas"], method="nearest")
        return xr.Dataset(parts | {"height": height}).isel(lat=slice(48, 96), lon=slice(0, 96))

    def humidity(self) -> xr.Dataset:
        """Relative humidity and temperature at 850 hPa."""
        data = self.find(f"{NCARG}/rectilinear_grid_3D.nc").isel(time=0, drop=True)
        data = data[["rhumidity", "t"]].sel(lev=85000.0, drop=True)
        return data.isel(lat=slice(0, 48), lon=slice(0, 96))

    def winds(self) -> xr.Dataset:
        """Winds at 300 hPa."""
        return self.find(f"{NCARG}/uv300.nc")[["U", "V"]].isel(time=0, drop=True)

    def pressure(self) -> xr.Dataset:
        """Height of the 500 hPa surface over the North Atlantic in a winter."""
        data = self.find(f"{EOFS}/hgt_djf.nc")[["z"]].isel(time=40, pressure=0, drop=True)
        return data.isel(latitude=slice(0, 28), longitude=slice(0, 48))

    def anomalies(self) -> xr.Dataset:
        """Anomalies of sea surface temperature in the Pacific in a winter."""
        return self.find(f"{EOFS}/sst_ndjfm_anom.nc")[["sst"]].isel(time=20, drop=True)

    def convection(self) -> xr.Dataset:
        """Two kinds of rain of an idealised model."""
        data = self.find(f"{AOSPY}/00060101.precip_monthly.nc").isel(time=6, drop=True)
        return data[["condensation_rain", "convection_rain"]] * 86400.0

    def navy(self) -> xr.Dataset:
        """Winds of a month at the surface of the sea, a navy's analysis."""
        return self.find(f"{FERRET}/monthly_navy_winds.cdf")[["UWND", "VWND"]].isel(TIME=5)

    def sea_ice(self) -> xr.Dataset:
        """The share of ice in a model's cells, mostly none or all."""
        return self.find(f"{NCARG_CDF}/fice.nc")[["fice"]].isel(time=2, drop=True)

    def storm(self) -> xr.Dataset:
        """Temperature in a storm over North America, and a step before; the axes have no units."""
        t = self.find(f"{NCARG_CDF}/Tstorm.cdf")[["t"]].rename(timestep="time")
        return t.assign(before=t.t.shift(time=1)).isel(time=slice(20, 32))

    def one_storm(self) -> xr.Dataset:
        """The first step of the storm."""
        return self.storm().isel(time=0, drop=True)

    def lowest_level(self) -> xr.Dataset:
        """Temperature near the ground of a climate model, and surface pressure."""
        return self.find(f"{NCARG_CDF}/vinth2p.nc")[["T", "PS"]].isel(time=0, lev=16, drop=True)

    def potential(self) -> xr.Dataset:
        """Potential temperature of the sea on a curvilinear grid."""
        data = self.find(f"{NCARG_CDF}/pop.nc")[["t", "lat2d", "lon2d"]]
        data = data.set_coords(["lat2d", "lon2d"])
        return data.isel(nlat=slice(200, 280), nlon=slice(100, 190))

    def trinidad(self) -> xr.Dataset:
        """Heights in Colorado on three seconds of arc."""
        data = self.find(f"{NCARG_CDF}/trinidad.nc")[["data"]]
        return data.isel(lat=slice(300, 540), lon=slice(900, 1200)).astype(float)

    def japan_sea(self) -> xr.Dataset:
        """A made-up field of the Sea of Japan, land missing."""
        return self.find(f"{NCARG_CDF}/panel2.nc")[["FSD"]].isel(time=0, drop=True)

    def ice_age(self) -> xr.Dataset:
        """Heights of North America 21,000 years ago, and where there was ice."""
        data = self.find(f"{NCARG_CDF}/ice5g_21k_1deg.nc")[["Topo", "Icemask"]].astype(float)
        return data.isel(Lat=slice(120, 168), Lon=slice(230, 302))

    def mecca(self) -> xr.Dataset:
        """Temperature of a climate model on twelve days."""
        return self.find(f"{NCARG_CDF}/meccatemp.cdf")[["t"]].isel(time=slice(12), lon=slice(48))

    def asia(self) -> xr.Dataset:
        """Temperature of a year of months in Asia, and its height."""
        tas = self.find(f"{NCARG}/tas_rectilinear_grid_2D.nc").tas
        tas = tas.isel(lat=slice(48, 84), lon=slice(24, 96))
        height = self.find(f"{NCARG}/orog_mod1_rectilinear_grid_2D.nc").orog
        return xr.Dataset({"tas": tas, "height": height.reindex_like(tas, method="nearest")})


def _each(*given: tuple[str, str, str, Cut]) -> tuple[Scenario, ...]:
    return tuple(Scenario(name, fields, target, "", cut) for name, fields, target, cut in given)


LOOKED_AT = _each(
    ("coads, air, 60", "coads", "SST", Cut(("AIRT",), (), (10, 9))),
    ("coads, air, 216", "coads", "SST", Cut(("AIRT",), (), (5, 5))),
    ("coads, wind, 60", "coads", "WSPD", Cut(("SST",), (), (10, 9))),
    ("levitus, salt, 48", "levitus", "TEMP", Cut(("SALT",), (), (10, 10))),
    ("heights, 64", "heights", "ROSE", Cut((), (), (6, 6))),
    ("carolina, rain, 80", "carolina", "tas", Cut(("pr",), (), (4, 8))),
    ("carolina, rain by temperature, 80", "carolina", "pr", Cut(("tas",), (), (4, 8))),
)

SCORED_ONCE = _each(
    ("europe, height, 16", "europe", "tas", Cut(("height",), (), (40, 40))),
    ("europe, height, 64", "europe", "tas", Cut(("height",), (), (20, 20))),
    ("europe, 64", "europe", "tas", Cut((), (), (20, 20))),
    ("bipolar, 80", "bipolar", "tos", Cut((), (), (10, 9))),
    ("echam, height, 64", "echam", "tas", Cut(("height",), (), (6, 12))),
    ("echam, winds, 64", "echam", "uas", Cut(("vas", "height"), (), (6, 12))),
    ("echam, temperature, 128", "echam", "uas", Cut(("tas",), (), (6, 6))),
    ("humidity, temperature, 64", "humidity", "rhumidity", Cut(("t",), (), (6, 12))),
    ("winds, 64", "winds", "U", Cut(("V",), (), (8, 16))),
    ("pressure, 56", "pressure", "z", Cut((), (), (4, 6))),
    ("anomalies, 36", "anomalies", "sst", Cut((), (), (3, 5))),
    ("convection, 64", "convection", "convection_rain", Cut(("condensation_rain",), (), (8, 16))),
)

STRANGERS = _each(
    ("navy winds, 72", "navy", "UWND", Cut(("VWND",), (), (9, 16))),
    ("sea ice, 80", "sea_ice", "fice", Cut((), (), (6, 10))),
    ("storm, step before, 48", "one_storm", "t", Cut(("before",), (), (4, 6))),
    ("storm, step before, 12 steps of 48", "storm", "t", Cut(("before",), (), (4, 6))),
    ("lowest level, pressure, 128", "lowest_level", "T", Cut(("PS",), (), (8, 8))),
    ("potential, 72", "potential", "t", Cut((), (), (10, 10))),
    ("trinidad, 80", "trinidad", "data", Cut((), (), (30, 30))),
    ("sea of japan, 90", "japan_sea", "FSD", Cut((), (), (31, 22))),
    ("ice age, ice, 36", "ice_age", "Topo", Cut(("Icemask",), (), (8, 12))),
    ("mecca, 12 days of 48", "mecca", "t", Cut((), (), (5, 8))),
    ("asia, height, 12 months of 48", "asia", "tas", Cut(("height",), (), (6, 9))),
)
