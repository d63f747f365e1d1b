"""Simulation-based calibration: truths drawn from the prior, and their ranks in the posterior.

Parameters are held. A field is drawn from the prior and observations from the model's own equation,
both by dense NumPy; the package gives the posterior, and the rank of the truth among draws from it
is noted. If prior, likelihood and posterior belong together, ranks are uniform, at every point and
for every bag mean.

    python tests/test_calibration.py docs/results/figures/calibration.png

draws the figure of docs/reliability.md.
"""

import sys
from dataclasses import dataclass, replace

import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, chisquare

from deconditional import CMP, BaggGP, VarCMP, VBagg
from deconditional.fitting.map import Optimum
from deconditional.inference import learn
from deconditional.inference.field import square_root
from helpers import gram, ragged_bags, trend_features, weight_matrix
from reliability import record, tries

pytestmark = pytest.mark.usefixtures("nothing_to_learn")

DRAWS = tries(200, 4000)
"""Fields drawn from the prior, for every model."""

RANKS = 99
"""Draws from the posterior that a truth is ranked among."""

BINS = 10
LEVEL = 1e-3
"""Chance of a false alarm for one model, all of its quantities together (Bonferroni)."""

KERNEL = gk.RBF(lengthscale=jnp.array([0.8, 1.3]), variance=1.4)
MEDIATOR_KERNEL = gk.Matern32(lengthscale=0.9)
RIDGE, NOISE, FINE = 0.02, 0.3, 0.4
FIELD = {"kernel.lengthscale": [0.8, 1.3], "kernel.variance": 1.4, "noise_std": NOISE}
MEDIATION = {"mediator_kernel.lengthscale": 0.9, "ridge": RIDGE}
BAGS = ragged_bags([3, 1, 7, 4, 9, 2, 5, 6], d=2, weighted=True)
NEW_BAG = ragged_bags([4], d=2, weighted=True, seed=9)
RNG = np.random.default_rng(1)
Y_OBSERVED = RNG.normal(size=(10, 1))
# A point of a bag, points between and beyond them: six quantities with the mean of a new bag.
X = np.concatenate([BAGS.points[5:6], RNG.normal(size=(3, 2)), [[4.0, 4.0]]])
NAMES = [*(f"point {i}" for i in range(len(X))), "bag mean"]


@pytest.fixture(scope="module")
def nothing_to_learn():
    """No objective is compiled: every parameter is held."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learn, "maximise", at_once)
        yield


def at_once(problem, **_):
    assert problem.parameters.size == 0
    return Optimum(np.zeros(0), 0.0, True, 0, 0, (0.0,), 0.0)


# --------------------------------------------------------------------------- the truth


@dataclass
class World:
    """The prior of a model and its observations, dense.

    `cmo`, `uncertainty`, `trend` and `fine_noise` are those of the model; matched data has no cmo.
    """

    cmo: str | None = None
    uncertainty: bool = False
    trend: str = "none"
    fine_noise: bool = False

    def mediation(self):
        """W and V."""
        if self.cmo is None:
            return np.eye(BAGS.n_bags), None
        effective = BAGS.effective_sizes
        ridge = effective.sum() / effective if self.cmo == "standard" else np.full(8, 8.0)
        noisy = gram(MEDIATOR_KERNEL, BAGS.mediator) + RIDGE * np.diag(ridge)
        cross = gram(MEDIATOR_KERNEL, BAGS.mediator, Y_OBSERVED)
        weights = np.linalg.solve(noisy, cross)
        return weights, gram(MEDIATOR_KERNEL, Y_OBSERVED) - cross.T @ weights

    def draw(self, rng, number, trend_std):
        """Truths (number, quantities) and observations (number, M)."""
        points = np.concatenate([X, NEW_BAG.points, BAGS.points])
        h = trend_std * trend_features(self.trend, BAGS.points, points)
        smooth = np.linalg.cholesky(gram(KERNEL, points) + 1e-10 * np.eye(len(points)))
        f = rng.normal(size=(number, len(points))) @ smooth.T
        f += rng.normal(size=(number, h.shape[1])) @ h.T
        first, second = len(X), len(X) + NEW_BAG.n_points
        truth = np.concatenate([f[:, :first], f[:, first:second] @ weight_matrix(NEW_BAG)], axis=1)
        fine = f[:, second:]
        if self.fine_noise:
            fine = fine + FINE * rng.normal(size=fine.shape)
        p = weight_matrix(BAGS)
        weights, uncertain = self.mediation()
        z = fine @ p @ weights + NOISE * rng.normal(size=(number, weights.shape[1]))
        if self.uncertainty:
            scale = np.mean(np.diag(p.T @ gram(KERNEL, BAGS.points) @ p))
            root = np.linalg.cholesky(scale * uncertain + 1e-12 * np.eye(len(uncertain)))
            z += rng.normal(size=z.shape) @ root.T
        return truth, z


# --------------------------------------------------------------------------- the package


def fitted(model, world, **options):
    """A model that learns nothing, on observations that do not matter."""
    fixed = FIELD | (MEDIATION if world.cmo else {})
    given = {"trend": world.trend, "fine_noise": world.fine_noise, **options}
    if world.fine_noise:
        fixed = fixed | {"fine_noise_std": FINE}
    if world.cmo is None:
        return model(KERNEL, fixed=fixed, n_restarts=1, **given).fit(BAGS, np.arange(8.0))
    given |= {"cmo": world.cmo, "uncertainty": world.uncertainty}
    estimator = model(KERNEL, MEDIATOR_KERNEL, fixed=fixed, n_restarts=1, **given)
    return estimator.fit(BAGS, np.arange(10.0), mediator=Y_OBSERVED)


def posteriors(model, z):
    """Means (draws, quantities) and the covariance, which does not depend on z."""
    problem = model.fitted_.problem

    def moments(observed):
        _, field = replace(problem, z=observed).solve(jnp.zeros(0))
        return field.moments(jnp.asarray(X))[0]

    _, field = problem.solve(jnp.zeros(0))
    means = np.asarray(jax.jit(jax.vmap(moments))(jnp.asarray(z)))
    # The mean over a bag is affine in z: one solution for each observation, and one for none.
    at_zero, *at_unit = (
        replace(problem, z=jnp.asarray(unit)).solve(jnp.zeros(0))[1].bag_moments(NEW_BAG)[0]
        for unit in np.concatenate([np.zeros((1, z.shape[1])), np.eye(z.shape[1])])
    )
    of_bag = at_zero + z @ (np.stack(at_unit) - at_zero)
    covariance = np.asarray(field.covariance(jnp.asarray(X)))
    return (means, covariance), (of_bag, field.bag_moments(NEW_BAG)[1])


def ranks(truth, parts, rng):
    """Of every truth among joint draws from its posterior, (draws, quantities)."""
    found, start = [], 0
    for means, covariance in parts:
        root = np.asarray(square_root(jnp.asarray(covariance)))
        draws = rng.normal(size=(RANKS, *means.shape)) @ root.T + means
        found.append((draws < truth[:, start : start + means.shape[1]]).sum(0))
        start += means.shape[1]
    return np.concatenate(found, axis=1)


def p_values(found):
    """Of uniformity, one for each quantity; chi-square over ten bins of ten ranks each."""
    counts = (np.bincount(column * BINS // (RANKS + 1), minlength=BINS) for column in found.T)
    return np.array([chisquare(count).pvalue for count in counts])


def calibrated(model, world, seed, draws=DRAWS, truth_from=None, **options):
    """Ranks of truths; from another world than the model's where one is given."""
    rng = np.random.default_rng(seed)
    estimator = fitted(model, world, **options)
    trend_std = np.asarray(estimator.fitted_.problem.trend.prior_std)
    if truth_from is None:
        truth, z = world.draw(rng, draws, trend_std)
    else:
        truth, z = truth_from(estimator, rng, draws)
    return ranks(truth, posteriors(estimator, z), rng)


# --------------------------------------------------------------------------- calibration


def own_inducing_world(model, rng, number):
    """Truths and observations as few inducing points have them: z sees the basis alone."""
    places = np.asarray(model.inducing_)
    points = np.concatenate([X, NEW_BAG.points, BAGS.points])
    gram_inducing = gram(KERNEL, places) + 1e-12 * 1.4 * np.eye(len(places))
    basis = np.linalg.solve(np.linalg.cholesky(gram_inducing), gram(KERNEL, places, points))
    explained = rng.normal(size=(number, len(places))) @ basis
    first, second = len(X), len(X) + NEW_BAG.n_points
    rest = gram(KERNEL, points[:second]) - basis[:, :second].T @ basis[:, :second]
    values, vectors = np.linalg.eigh(rest)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    f = explained[:, :second] + rng.normal(size=(number, second)) @ root.T
    truth = np.concatenate([f[:, :first], f[:, first:] @ weight_matrix(NEW_BAG)], axis=1)
    weights, _ = World(cmo="standard").mediation()
    means = explained[:, second:] @ weight_matrix(BAGS) @ weights
    return truth, means + NOISE * rng.normal(size=means.shape)


FEW = {"n_inducing": 6}
CASES = {
    "CMP": (CMP, World(cmo="standard"), {}),
    "S-CMP, linear trend": (CMP, World(cmo="shrinkage", trend="linear"), {}),
    "U-CMP, constant trend": (CMP, World(cmo="standard", uncertainty=True, trend="constant"), {}),
    "Bagg-GP": (BaggGP, World(), {}),
    "Bagg-GP, fine noise, linear trend": (BaggGP, World(fine_noise=True, trend="linear"), {}),
    "VBagg, all points inducing": (VBagg, World(), {"inducing": BAGS.points}),
    "VarCMP, all points inducing": (VarCMP, World(cmo="standard"), {"inducing": BAGS.points}),
    "VarCMP, 6 inducing points, its own prior": (
        VarCMP,
        World(cmo="standard"),
        FEW | {"truth_from": own_inducing_world},
    ),
}


def inside(found, share=0.9):
    """How many truths lie in the central part of the draws: a joint count over quantities."""
    low = (RANKS + 1) * (1 - share) / 2
    return (found >= low) & (found < RANKS + 1 - low)


@pytest.mark.reliability
@pytest.mark.parametrize("name", list(CASES)[:: tries(2, 1)])
def test_ranks_of_truths_are_uniform(name):
    model, world, options = CASES[name]
    found = calibrated(model, world, seed=list(CASES).index(name), **options)
    p = p_values(found)
    assert p.min() > LEVEL / len(p), dict(zip(NAMES, p, strict=True))
    covered = inside(found)
    # Of every quantity, 90 % are inside; allowed is what chance allows at the same level.
    for count in covered.sum(0):
        tail = binom.cdf([count, len(found) - count], len(found), [0.9, 0.1]).min()
        assert tail > LEVEL / (2 * len(p))
    record(
        "Calibration",
        f"{name}: {len(found)} draws, {len(p)} quantities, smallest p value {p.min():.2g}",
        found.size,
        {
            "in the central 90 % of the posterior": int(covered.sum()),
            "outside": int((~covered).sum()),
        },
    )


@pytest.mark.parametrize("wrong", ["spread", "mean"])
def test_a_posterior_that_is_wrong_is_found_out(wrong):
    # The power of the test above: a spread that is 30 % too small, a mean half a spread off.
    rng = np.random.default_rng(0)
    estimator = fitted(BaggGP, World())
    truth, z = World().draw(rng, 400, np.zeros(0))
    (means, covariance), _ = posteriors(estimator, z)
    if wrong == "spread":
        covariance = 0.7**2 * covariance
    else:
        means = means + 0.5 * np.sqrt(np.diag(covariance))
    assert p_values(ranks(truth[:, : len(X)], [(means, covariance)], rng)).max() < LEVEL


def test_noise_that_is_not_the_models_is_found_out():
    world = World(cmo="standard", uncertainty=True)
    rng = np.random.default_rng(0)
    truth, z = world.draw(rng, 1000, np.zeros(0))
    found = ranks(truth, posteriors(fitted(CMP, World(cmo="standard")), z), rng)
    assert p_values(found).min() < LEVEL / len(NAMES)


def test_few_inducing_points_are_an_approximation_of_the_full_prior():
    # Six inducing points for 37 fine ones, truths from the full prior: no longer uniform. On the
    # whole the 90 % intervals hold 93 % of the truths, at single points 83 % to 98 %.
    found = calibrated(VarCMP, World(cmo="standard"), seed=20, draws=1000, **FEW)
    assert p_values(found).min() < LEVEL / len(NAMES)
    covered = inside(found).mean(0)
    assert 0.88 < covered.mean() < 0.97 and covered.min() > 0.75


# --------------------------------------------------------------------------- the figure


def figure(path, draws=4000):
    """Histograms of ranks, with the band that holds 99 % of uniform counts."""
    from deconditional.report.plots import new_figure, save

    cases = {
        **CASES,
        "VarCMP, 6 inducing points, full prior": (VarCMP, World(cmo="standard"), FEW),
    }
    shown = new_figure(11, 8.5, f"Ranks of {draws} truths in the posterior of each model")
    axes = shown.subplots(3, 3, sharex=True, sharey=True).ravel()
    low, high = (binom.ppf(q, draws, 1 / 20) / (draws / 20) for q in (0.005, 0.995))
    styles = [
        ("#0072b2", "-", "at a point of a bag"),
        ("#d55e00", "--", "beyond all bags"),
        ("#000000", ":", "mean of a new bag"),
    ]
    for place, (name, (model, world, options)) in zip(axes, cases.items(), strict=True):
        found = calibrated(model, world, 100, draws, **options)
        place.axhspan(low, high, color="0.88")
        for column, (colour, line, label) in zip((0, 4, 5), styles, strict=True):
            counts = np.bincount(found[:, column] // 5, minlength=20) / (draws / 20)
            place.stairs(counts, np.linspace(0, 1, 21), color=colour, ls=line, lw=1.6, label=label)
        place.set_title(name, fontsize=10)
    for place in axes[6:]:
        place.set_xlabel("rank of the truth")
    for place in axes[::3]:
        place.set_ylabel("count over expected")
    axes[0].legend(fontsize=8, loc="lower center")
    save(shown, path)


if __name__ == "__main__":
    learn.maximise = at_once
    figure(sys.argv[1])
