"""
Two datasets to a map
=====================

A temperature is known on coarse cells, altitude and cloud on fine ones, and no coarse cell has
both. Water vapour, known on all coarse cells, is the mediator. :func:`~deconditional.downscale`
takes the two datasets as they are; the fields here are made up.
"""

import matplotlib.pyplot as plt
import numpy as np

import deconditional as dc

fields = dc.datasets.synthetic_fields(n_lat=24, n_lon=48, seed=0)
data = dc.datasets.split_cells(
    fields, "tas", ["altitude", "cloud"], ["water_vapour"], block=3, noise_std=0.2, seed=0
)
print(data.coarse)

# %%
# Bagg-GP on unmatched data learns from pseudo-targets. Without ``model`` it would be compared with
# U-CMP on held-out regions, which takes twice as long.

out = dc.downscale(
    data.fine,
    data.coarse,
    "tas",
    ["altitude", "cloud"],
    ["water_vapour"],
    on=data.everywhere,
    model="bagg-gp",
    n_restarts=1,
)
print(out["mean"].dims, out["coarse_residual"].dims)

# %%
# The result is a dataset on the fine grid, with residuals on the coarse one: an observed value less
# the mean of the map over its cell. Intervals of pseudo-targets are known to be too narrow
# (:doc:`/pitfalls`).

error = out["mean"] - data.truth
inside = float((abs(error) < 1.96 * out["std"]).mean())
print(f"RMSE {float(np.sqrt((error**2).mean())):.2f} K; truth within 95 % intervals: {inside:.0%}")

span = {"vmin": float(data.truth.min()), "vmax": float(data.truth.max()), "cmap": "viridis"}
even = {"vmin": -6, "vmax": 6, "cmap": "PuOr"}
panels = [
    ("truth (K)", data.truth, span),
    ("observed (K)", data.coarse["tas"], span),
    ("posterior mean (K)", out["mean"], span),
    ("posterior standard deviation (K)", out["std"], {"cmap": "cividis"}),
    ("mean - truth (K)", error, even),
    ("coarse residual (K)", out["coarse_residual"], even),
]
figure, rows = plt.subplots(2, 3, figsize=(11, 4.4), sharex=True, sharey=True)
for axes, (title, values, style) in zip(rows.flat, panels, strict=True):
    lon, lat = values.dims[::-1]
    image = axes.pcolormesh(values[lon], values[lat], values, shading="nearest", **style)
    axes.set(title=title, facecolor="0.75", xticks=[-120, 0, 120], yticks=[-60, 0, 60])
    figure.colorbar(image, ax=axes, shrink=0.85)
plt.show()
