"""
Districts, stations and a biased satellite
==========================================

Three sources see one field, each in its own way: means over large districts, a few stations with
known errors, and coarse cells of a satellite on a scale of its own. Together they say more than
each alone. All of it is made up, so the truth is known.
"""

import geopandas
import matplotlib.pyplot as plt
import numpy as np
import shapely
import xarray as xr

import deconditional as dc

rng = np.random.default_rng(0)
lat, lon = 40 + (np.arange(24) + 0.5) / 8, (np.arange(36) + 0.5) / 8
height = np.sin(1.5 * lat)[:, None] + np.cos(2.0 * lon)
truth = 10 + 2 * height + np.sin(lat[:, None] + lon)
coords = {"lat": ("lat", lat, {"units": "degrees_north"})}
coords["lon"] = ("lon", lon, {"units": "degrees_east"})
fine = xr.Dataset({"height": (("lat", "lon"), height)}, coords)

boxes = [shapely.box(x, y, x + 0.75, y + 0.75) for y in (40, 40.75, 41.5, 42.25) for x in (0, 0.75)]
districts = geopandas.GeoDataFrame(geometry=boxes, crs=4326)
districts["t"] = truth[:, :12].reshape(4, 6, 2, 6).mean((1, 3)).ravel()
down, across = rng.integers(24, size=12), rng.integers(36, size=12)
stations = geopandas.GeoDataFrame(
    geometry=geopandas.points_from_xy(lon[across], lat[down]), crs=4326
)
stations["t"] = truth[down, across] + 0.1 * rng.normal(size=12)
satellite = fine[["height"]].coarsen(lat=4, lon=4).mean().rename(height="seen")
satellite["seen"] = (("lat", "lon"), 1.5 * truth.reshape(6, 4, 9, 4).mean((1, 3)) - 3.0)

# %%
# A list of :class:`~deconditional.Source` takes the place of the coarse data. The satellite's
# factor and offset are learnt against the others.

sources = {
    "districts": dc.Source(districts, "t", kind="mean"),
    "stations": dc.Source(stations, "t", noise_std=0.1),
    "satellite": dc.Source(satellite, "seen", bias="affine"),
}
few = {"n_restarts": 1, "folds": 3, "model_options": {"n_inducing": 60}}
model = dc.Downscaler(covariates=["height"], **few).fit(fine, list(sources.values()))
for row in model.parameters_[-3:]:
    print(row["name"], row["value"], row["meaning"])

# %%
# What the districts know alone, and with the others: they cover a third of the map.

alone = dc.downscale(fine, districts, "t", ["height"], kind="mean", model="bagg-gp", n_restarts=1)
every = model.predict(fine)
figure, axes = plt.subplots(1, 3, figsize=(11, 3), sharex=True, sharey=True)
style = {"vmin": truth.min(), "vmax": truth.max(), "shading": "nearest"}
panels = {"truth": truth, "districts alone": alone["mean"], "all sources": every["mean"]}
for each, (title, values) in zip(axes, panels.items(), strict=True):
    image = each.pcolormesh(lon, lat, values, **style)
    error = float(np.sqrt(((np.asarray(values) - truth) ** 2).mean()))
    each.set(title=title if title == "truth" else f"{title}: RMSE {error:.2f}")
axes[2].plot(stations.geometry.x, stations.geometry.y, "k.", ms=4)
districts.boundary.plot(ax=axes[1], color="0.2", linewidth=0.6, aspect=None)
figure.colorbar(image, ax=axes, shrink=0.9)
plt.show()
