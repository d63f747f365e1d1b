r"""
Conditioning and deconditioning as operators
============================================

With :math:`X \mid Y = y \sim \mathcal N(y, 0.5^2)` and a Gaussian kernel, the embedding of the
conditional distribution is known: :math:`\mu_{X \mid Y=y}(x) = \sqrt{\ell^2 / (\ell^2 + s^2)}\,
\exp(-(x-y)^2 / 2(\ell^2 + s^2))`. The estimate from bags can be put beside it. :doc:`/operators`
has the algebra.
"""

import gpjax.kernels as gk
import matplotlib.pyplot as plt
import numpy as np

import deconditional as dc
from deconditional.operators import ConditionalMeanOperator, DeconditionalMeanOperator

# %%
# Conditioning
# ------------
# Twenty-five bags of thirty points each. The operator takes a mediator to the embedding of the
# points that go with it, also where no bag has that mediator.

length, spread = 0.8, 0.5
rng = np.random.default_rng(0)
y = np.linspace(-2.5, 2.5, 25)
bags = dc.Bags.from_list([v + spread * rng.normal(size=30) for v in y], mediator=y)
kernel = gk.RBF(lengthscale=length)
cmo = ConditionalMeanOperator(bags, kernel, gk.Matern32())
x = np.linspace(-4.0, 4.0, 161)


def embedding(y):
    """The exact embedding at a mediator, as a function of x."""
    total = length**2 + spread**2
    return np.sqrt(length**2 / total) * np.exp(-((x - y) ** 2) / (2 * total))


wanted = [-1.55, 0.05, 1.55]
estimates = {v: cmo.embedding([v])(x).ravel() for v in wanted}
for v, estimate in estimates.items():
    print(f"y = {v:5.2f}: largest error {np.abs(estimate - embedding(v)).max():.3f}")

# %%
# Deconditioning
# --------------
# Conditional means of :math:`\sin 2x` are :math:`e^{-1/2} \sin 2y`, a wave of 0.61 of the height.
# ``recover`` gives back most of what was lost, as far as there are bags (shaded). The deconditional
# embedding :math:`\hat\mu_{X=x \mid Y} = \hat D k_x` says how: its coefficients are the weights of
# the observations in the field at :math:`x`. They sharpen, and so are negative beside the middle.

y_tilde = np.linspace(-2.4, 2.4, 25)
z = np.sin(2 * y_tilde) * np.exp(-0.5) + 0.02 * rng.normal(size=25)
dmo = DeconditionalMeanOperator(cmo, y_tilde, epsilon=1e-4)
wave = dmo.recover(z)(x).ravel()
inside = np.abs(x) < 1.8
error = np.sqrt(np.mean((wave - np.sin(2 * x))[inside] ** 2))
print(f"RMSE for |x| < 1.8: {error:.3f}")

at = 0.5
shares = dmo.embedding([at]).coefficients.ravel()
print(f"field at {at}: {shares @ z:.3f}, from recover {dmo.recover(z)([at]).item():.3f}")

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.8))
for (v, estimate), colour in zip(
    estimates.items(), ("tab:blue", "tab:orange", "tab:purple"), strict=True
):
    left.plot(x, embedding(v), color="black", linestyle="--", linewidth=1)
    left.plot(x, estimate, color=colour, linewidth=2, label=f"$y = {v}$")
left.set(title=r"embedding $\hat\mu_{X|Y=y}$; exact dashed", xlabel="$x$", ylim=(None, 1.25))
left.legend(ncols=3, loc="upper center", handlelength=1, columnspacing=1)
middle.axvspan(-2.5, 2.5, color="0.94")
middle.plot(x, np.sin(2 * x), color="black", linestyle="--", linewidth=1, label="truth")
middle.plot(y_tilde, z, "o", color="tab:orange", markersize=4, label=r"$z$ at $\tilde y$")
middle.plot(x, wave, color="tab:blue", linewidth=2, label="recovered")
middle.set(title="recovered field", xlabel="$x$", ylim=(-1.5, 2.2))
middle.legend(ncols=3, loc="upper center", fontsize="small", handlelength=1, columnspacing=1)
right.axhline(0, color="0.6", linewidth=1)
right.vlines(y_tilde, 0, shares, color="tab:purple", linewidth=1.5)
right.plot(y_tilde, shares, "o", color="tab:purple", markersize=4)
right.axvline(at, color="black", linestyle="--", linewidth=1)
right.set(title=f"weights of $z$ in the field at $x = {at}$", xlabel=r"mediator $\tilde y$")
plt.show()
