"""
Counts of states, a map of the rate, and counties
=================================================

Homicides are known of whole states, people and covariates in cells. The map is of the rate; its
sums over counties, which nobody has shown the model, can be compared with what they were.
"""

import matplotlib.pyplot as plt
import numpy as np

import deconditional as dc

data = dc.datasets.us_homicides(step=0.5)
print(data.zones["homicides"].sort_values().tail(3))

# %%
# Five covariates that were chosen from the literature. Every state has an effect of its own
# (``overdispersion``), which is no part of the map.

family = dc.Poisson(exposure="person_years", overdispersion=True)
model = dc.Downscaler(
    "homicides", data.covariates, family=family, n_restarts=1, model_options={"n_inducing": 40}
)
model.fit(data.fine, data.zones)
print(model.comparison_)

# %%
# Counties were hidden. Those with few people scatter widely, and the intervals know it.

out = model.predict(data.fine, exceedance=[1e-4])
found = dc.aggregate(model, data.truth, kind="count", min_cover=0.1, samples=400).table
inside = found["homicides"].between(found["count_q05"], found["count_q95"])
print(f"{inside.mean():.0%} of {len(found)} counties lie within their 90 % intervals")

# %%
# The crude rate of states, the map, and where the rate is likely above one in ten thousand.

years = 3 * data.truth.groupby("state")["people"].sum()
crude = data.zones.assign(rate=1e5 * data.zones["homicides"] / years)
style = {"vmin": 0, "vmax": 30, "cmap": "viridis"}
figure, axes = plt.subplots(1, 3, figsize=(11, 2.6), sharex=True, sharey=True)
crude.plot("rate", ax=axes[0], edgecolor="0.4", linewidth=0.3, aspect=None, **style)
fine = out["rate"]
image = axes[1].pcolormesh(fine["lon"], fine["lat"], 1e5 * fine, shading="nearest", **style)
figure.colorbar(image, ax=axes[:2], shrink=0.9, label="per 100,000 years")
likely = out["exceedance"].isel(above=0)
image = axes[2].pcolormesh(fine["lon"], fine["lat"], likely, shading="nearest", cmap="magma")
figure.colorbar(image, ax=axes[2], shrink=0.9)
for each, title in zip(
    axes, ("crude rate", "posterior mean", "probability of over 10"), strict=True
):
    each.set(title=title, xticks=[], yticks=[], facecolor="0.85")
print(f"people in cells: {float(np.nansum(data.fine['person_years'])):.4g} person-years")
plt.show()
