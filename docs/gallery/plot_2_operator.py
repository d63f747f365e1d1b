r"""
The estimated operator and its uncertainty
==========================================

What links observations to bags is estimated: a conditional mean operator writes the mean at a
mediator :math:`\tilde y` as a weighted sum of bag means, :math:`W^{\mathsf T} \bar f`. The
estimate is good near the mediators of bags and poor far from them. U-CMP adds that to the
covariance of the observations.
"""

import gpjax.kernels as gk
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import deconditional as dc
from deconditional.observations.kinds import CMO

# %%
# Weights
# -------
# With mediators of bags at 0, 1, ..., 9 but none at 5 and 6, an observation in the gap borrows
# from both sides.

kernel = gk.Matern32(lengthscale=1.5)
mediators = jnp.array([0.0, 1, 2, 3, 4, 7, 8, 9])[:, None]
queries = jnp.linspace(-2.0, 11.0, 261)[:, None]
operator = CMO(kernel, mediators, ridge=jnp.full(8, 0.05))
weights, covariance = operator.weights_and_covariance(queries)

figure, (above, below) = plt.subplots(2, 1, figsize=(8, 5.4), sharex=True, height_ratios=[1.3, 1])
shown = above.pcolormesh(
    queries[:, 0], np.arange(8), weights, cmap="PuOr", vmin=-1, vmax=1, shading="nearest"
)
above.set(yticks=np.arange(8), yticklabels=[f"{v:.0f}" for v in mediators[:, 0]])
above.set(ylabel="bag at mediator $y_j$", title="weights $W$ of the bag means")
figure.colorbar(shown, ax=above)
below.plot(queries[:, 0], np.sqrt(np.diag(covariance)), color="tab:blue", linewidth=2)
below.plot(mediators[:, 0], np.zeros(8), "o", color="black", label="mediators of bags")
below.set(xlabel=r"mediator $\tilde y$ of an observation", ylim=(-0.05, 1.05))
below.set_title(r"standard deviation $\sqrt{V}$ of what the weights leave open ($\tau = 1$)")
below.legend(loc="upper center")
plt.show()

# %%
# More bags
# ---------
# The same 24 observations, linked through 4, 8 and 32 bags (ticks at the bottom). All parameters
# are held, so what changes is what the bags say about the link, and nothing else.

rng = np.random.default_rng(1)
y_tilde = np.linspace(0.2, 5.8, 24)
z = np.sin(2 * y_tilde) * np.exp(-0.5) + 0.03 * rng.normal(size=24)  # x given y is N(y, 0.5²)
held = {
    "kernel.lengthscale": 0.7,
    "kernel.variance": 0.7,
    "mediator_kernel.lengthscale": 2.0,
    "noise_std": 0.03,
}
x = np.linspace(0.0, 6.0, 200)
truth = np.sin(2 * x)

figure, columns = plt.subplots(1, 3, figsize=(10, 3.4), sharex=True, sharey=True)
for axes, n_bags in zip(columns, (4, 8, 32), strict=True):
    y = np.linspace(0.0, 6.0, n_bags)
    bags = dc.Bags.from_list([v + 0.5 * rng.normal(size=40) for v in y], mediator=y)
    model = dc.CMP(
        gk.RBF(), gk.Matern32(), uncertainty=True, fixed={**held, "ridge": 0.02 / n_bags}
    )
    post = model.fit(bags, z, mediator=y_tilde).predict(x)
    axes.fill_between(x, *post.interval(0.95), color="tab:blue", alpha=0.25, label="95 % interval")
    axes.plot(x, post.mean, color="tab:blue", linewidth=2, label="mean")
    axes.plot(x, truth, color="black", linestyle="--", linewidth=1, label="truth")
    axes.plot(y, np.full(n_bags, -2.4), "|", color="0.3", markersize=8)
    axes.set(xlabel="$x$", title=f"{n_bags} bags: std {post.std.mean():.2f} on average")
columns[0].set(ylabel="field $f$", ylim=(-2.6, 2.6))
columns[0].legend(loc="upper right", fontsize="small", ncols=3, handlelength=1, columnspacing=0.8)
plt.show()
