r"""
Mediated downscaling in one dimension
=====================================

A field :math:`f` is wanted as a function of :math:`x`. Thirty bags have points :math:`x` and a
mediator :math:`y`. Twenty-four coarse observations :math:`z` have a mediator too, but no points:
none of them belongs to a bag. What they see is the mean of the field over all :math:`x` that go
with their mediator, and some noise.
"""

import matplotlib.pyplot as plt
import numpy as np

import deconditional as dc

# %%
# Data
# ----
# The mediator says roughly where the points of a bag are. The field has detail that a mean over
# such points blurs.

rng = np.random.default_rng(4)


def field(x):
    """The field that is to be found."""
    return np.sin(2 * x) + 0.6 * np.cos(x)


def points_given(y, n):
    """Draw n points x for every mediator."""
    return 6 * np.log1p(y) / np.log(4) + 0.45 * rng.normal(size=(n, len(y)))


y = np.linspace(0.05, 2.95, 30)
bags = dc.Bags.from_list(list(points_given(y, 20).T), mediator=y)
y_tilde = np.linspace(0.1, 2.9, 24)
z = field(points_given(y_tilde, 20_000)).mean(0) + 0.05 * rng.normal(size=24)
print(bags)

# %%
# Posterior
# ---------
# U-CMP estimates from the bags how points go with mediators, and carries along how sure that is.

model = dc.CMP(uncertainty=True).fit(bags, z, mediator=y_tilde)
x = np.linspace(0.0, 6.0, 300)
post = model.predict(x)
lower, upper = post.interval(0.95)
print({name: round(value, 2) for name, value in dc.scores.score(post, field(x)).items()})

# %%
# The picture reads along its axes. A row of dots is a bag. To its right, at other heights, are the
# observations; below is the field that explains them, its wave higher than that of the blurred
# observations.

figure, ((left, right), (below, empty)) = plt.subplots(
    2, 2, figsize=(9, 6.4), sharex="col", sharey="row", width_ratios=[2, 1], height_ratios=[1, 1]
)
left.scatter(bags.points[:, 0], y[bags.bag], c=y[bags.bag], s=9, cmap="viridis", vmax=3.3)
left.set(ylabel="mediator $y$", title="1  bags: fine points $x$ and their mediators")
right.errorbar(z, y_tilde, xerr=0.1, fmt="o", color="tab:orange", markersize=4, linewidth=1)
right.set(title="2  coarse values elsewhere", xlabel="observation $z$")
right.tick_params(labelbottom=True)
below.fill_between(x, lower, upper, color="tab:blue", alpha=0.25, label="95 % interval")
below.plot(x, post.mean, color="tab:blue", linewidth=2, label="posterior mean")
below.plot(x, field(x), color="black", linestyle="--", linewidth=1.2, label="truth")
below.set(xlabel="$x$", ylabel="field $f$", xlim=(-0.4, 6.4), title="3  the field, recovered")
empty.axis("off")
empty.legend(*below.get_legend_handles_labels(), loc="center left", fontsize=11)
plt.show()
