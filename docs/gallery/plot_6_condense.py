"""
A few points that stand for a bag
=================================

A coarse cell may hold hundreds of fine points, and exact models look at all pairs. What they need
of a bag are means of smooth functions over it. :meth:`~deconditional.Bags.condense` keeps a few
points, weighted so that these means hardly change.
"""

import matplotlib.pyplot as plt
import numpy as np

import deconditional as dc

rng = np.random.default_rng(0)
angle = rng.uniform(0.2, 1.4 * np.pi, size=(40, 400))
radius = 1 + 0.15 * rng.normal(size=(40, 400))
centre = rng.normal(size=(40, 1, 2))
rings = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1) + centre
bags = dc.Bags.from_list(list(rings))
print(bags)

# %%
# One of the bags
# ---------------
# Condensed points spread over the bag, and the size of a dot is its weight; random points cluster
# and leave holes.

first = bags.select([0])
few, drawn = first.condense(12), first.subsample(12, seed=3)
figure, columns = plt.subplots(1, 3, figsize=(10, 3.8), sharex=True, sharey=True)
for axes, chosen, colour, title in zip(
    columns,
    (None, few, drawn),
    (None, "tab:blue", "tab:orange"),
    ("all 400 points", "12 condensed", "12 at random"),
    strict=True,
):
    axes.scatter(*first.points.T, s=6, color="0.45" if chosen is None else "0.85")
    axes.plot(*first.means()[0], "+", color="black", markersize=12, markeredgewidth=2)
    if chosen is not None:
        axes.scatter(*chosen.points.T, s=900 * chosen.weights, color=colour, alpha=0.85)
        axes.plot(*chosen.means()[0], "x", color=colour, markersize=9, markeredgewidth=2)
    axes.set(title=title, aspect="equal", xticks=[], yticks=[])
figure.supxlabel("+ mean of the bag, × mean of the chosen points", fontsize="medium")
plt.show()

# %%
# All of them
# -----------
# The error of bag means of a smooth function, over 40 bags, as more points are kept.


def smooth(points):
    """Some smooth function."""
    return np.sin(2 * points[:, 0]) * np.cos(points[:, 1]) + 0.3 * points[:, 1] ** 2


def error(chosen):
    """Root mean square over the bags."""
    return np.sqrt(np.mean((chosen.means(smooth(chosen.points)) - truth) ** 2))


truth = bags.means(smooth(bags.points))
sizes = [4, 8, 16, 32, 64]
condensed = [error(bags.condense(n)) for n in sizes]
at_random = [error(bags.subsample(n, seed=1)) for n in sizes]
for n, one, other in zip(sizes, condensed, at_random, strict=True):
    print(f"{n:3} points: condensed {one:.4f}, random {other:.4f}")

figure, axes = plt.subplots(figsize=(6, 4))
axes.loglog(sizes, at_random, "o--", color="tab:orange", label="random")
axes.loglog(sizes, condensed, "s-", color="tab:blue", label="condensed")
axes.set(xlabel="points per bag", ylabel="error of bag means", xticks=sizes, xticklabels=sizes)
axes.minorticks_off()
axes.legend()
plt.show()
