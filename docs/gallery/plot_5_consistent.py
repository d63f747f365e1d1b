"""
A positive field whose area means are kept
==========================================

Rain is positive and skewed. With ``transform="log"`` the process is that of its logarithm, and the
map stays positive. What was observed are means of the rain itself; ``consistency="exact"`` makes
the means of the map over the coarse cells equal to them.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm

import deconditional as dc

fields = dc.datasets.synthetic_fields(n_lat=16, n_lon=32, extent=(-40, 40, -80, 80), seed=3)
data = dc.datasets.split_cells(fields, "rain", ["cloud"], [], block=4, matched=1.0)

# %%
# One fit serves both maps: consistency is a matter of predicting.

downscaler = dc.Downscaler("rain", ["cloud"], model="bagg-gp", transform="log", n_restarts=1)
downscaler.fit(data.fine, data.coarse)
free = downscaler.predict(data.everywhere)
tied = downscaler.set_params(consistency="exact").predict(data.everywhere)
for name, out in (("free", free), ("exact", tied)):
    residual = float(abs(out["coarse_residual"]).max())
    rmse = float(np.sqrt(((out["mean"] - data.truth) ** 2).mean()))
    print(f"{name:6} largest residual {residual:8.1e} mm, RMSE {rmse:5.1f} mm, ", end="")
    print(f"least mean {float(out['mean'].min()):.1f} mm")

# %%
# At the bottom right, what the two maps say about the coarse cells.

colours = LogNorm(float(data.truth.min()), float(data.truth.max()))
figure, rows = plt.subplots(2, 2, figsize=(9.4, 5.4))
for axes, (title, values) in zip(
    rows.flat,
    [
        ("truth", data.truth),
        ("observed means", data.coarse["rain"]),
        ("posterior mean, exact", tied["mean"]),
    ],
    strict=False,
):
    image = axes.pcolormesh(values["lon"], values["lat"], values, shading="nearest", norm=colours)
    axes.set(title=title, xticks=[-60, 0, 60], yticks=[-30, 0, 30])
figure.colorbar(image, ax=rows[:, 0], label="rain (mm per month)", location="left")
axes = rows[1, 1]
observed = free["coarse_observed"].values.ravel()
axes.axline((30, 30), (40, 40), color="0.6", linewidth=1)
axes.loglog(observed, free["coarse_mean"].values.ravel(), "o", fillstyle="none", label="free")
axes.loglog(observed, tied["coarse_mean"].values.ravel(), ".", label="exact")
axes.set(xlabel="observed mean", ylabel="mean of the map", title="coarse cells")
axes.legend()
plt.show()
