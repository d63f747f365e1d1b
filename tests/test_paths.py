"""Pathwise samples: frequencies by importance, right where the posterior is narrow."""

import equinox as eqx
import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpjax.parameters import val
from hypothesis import given, settings
from hypothesis import strategies as st

from deconditional import BaggGP, Bags, DeepKernel, VBagg
from deconditional.errors import SampleWarning
from deconditional.inference import paths
from deconditional.inference import posterior as posterior_module
from deconditional.inference.paths import inclusion, systematic
from deconditional.inference.posterior import Paths
from deconditional.kernels.radial import spectral_features
from helpers import condition, gram, ragged_bags, weight_matrix

# A smooth field on a square, seen through 60 bags of four points: of the prior variance less than
# one part in 1000 is left.
RNG = np.random.default_rng(0)
CENTRES = RNG.uniform(0, 5, size=(60, 1, 2))
SMOOTH_BAGS = Bags.from_list(list(CENTRES + 0.1 * RNG.normal(size=(60, 4, 2))))
LENGTH = 1.2
SMOOTH = gk.RBF(lengthscale=jnp.array([LENGTH, LENGTH]), variance=2.0)
NOISE = 0.003
ASKED = RNG.uniform(0.3, 4.7, size=(60, 2))


def n_features(waves):
    """Cosines and sines that count: padding has no amplitude."""
    return 2 * sum(int(np.sum(np.asarray(a) > 0)) for a in waves.amplitudes)


def held(model, kernel, bags, z, noise=NOISE, **options):
    """A model that learns nothing."""
    values = {"kernel.lengthscale": val(kernel.lengthscale), "noise_std": noise}
    values["kernel.variance"] = val(kernel.variance)
    return model(kernel, trend="none", fixed=values, n_restarts=1, **options).fit(bags, z)


@pytest.fixture(scope="module")
def smooth():
    z = np.sin(SMOOTH_BAGS.means()).sum(1)
    model = held(BaggGP, SMOOTH, SMOOTH_BAGS, z)
    p = weight_matrix(SMOOTH_BAGS)
    points = SMOOTH_BAGS.points
    observed = p.T @ gram(SMOOTH, points) @ p + NOISE**2 * np.eye(60)
    dense = condition(gram(SMOOTH, ASKED), gram(SMOOTH, ASKED, points) @ p, observed, z)
    return model, dense


def spread(samples):
    return ((samples - samples.mean(0)) ** 2).sum(0) / (len(samples) - 1)


# --------------------------------------------------------------------------- narrow posteriors


def test_the_case_is_a_narrow_one(smooth):
    _, (_, covariance) = smooth
    assert 1e-5 < np.mean(np.diag(covariance)) / 2.0 < 1e-3


@pytest.mark.parametrize("seed", range(2))
def test_paths_are_as_wide_as_the_posterior(seed, smooth):
    # Of 4000 paths a variance is known to 2 %; frequencies may put it off by 10 % (rms).
    model, (mean, covariance) = smooth
    paths_ = Paths([model.fitted_.fields[0]], 4000, seed)
    samples = paths_(ASKED)
    ratio = spread(samples) / np.diag(covariance)
    assert paths_.error < 0.1
    assert np.sqrt(np.mean((ratio - 1.0) ** 2)) < 0.13
    assert abs(ratio.mean() - 1.0) < 0.1
    off = (samples.mean(0) - mean) / np.sqrt(np.diag(covariance) / 4000)
    assert np.abs(off).max() < 5.0


def test_correlations_of_paths_are_those_of_the_posterior(smooth):
    model, (_, covariance) = smooth
    samples = Paths([model.fitted_.fields[0]], 4000, 7)(ASKED)
    std = np.sqrt(np.diag(covariance))
    error = np.cov(samples.T) / np.outer(std, std) - covariance / np.outer(std, std)
    assert np.sqrt(np.mean(error**2)) < 0.05


def test_features_from_the_spectral_measure_alone_would_fail(smooth):
    # What these tests are about: the same rule with plain random features misses the spread.
    model, (_, covariance) = smooth
    field = model.fitted_.fields[0]
    seen = field._references(jnp.asarray(ASKED))
    errors = []
    for seed in range(4):
        features = spectral_features(SMOOTH, 2000, jax.random.key(seed), 2)
        p = weight_matrix(SMOOTH_BAGS)
        at_bags = p.T @ np.asarray(features(jnp.asarray(SMOOTH_BAGS.points)))
        left = np.asarray(features(jnp.asarray(ASKED))) - np.asarray(seen.shares) @ at_bags
        difference = (left**2).sum(1) - np.asarray(seen.residual)
        errors.append(np.sqrt(np.mean((difference / np.diag(covariance)) ** 2)))
    assert min(errors) > 0.2


def test_the_error_that_is_told_is_the_error(smooth):
    # Given the frequencies, the variance of paths is a sum of squares: no draws are needed.
    model, (_, covariance) = smooth
    field = model.fitted_.fields[0]
    for wanted in (100, 2000):
        path = field.path(jax.random.key(3), 1, wanted)
        seen = field._references(jnp.asarray(ASKED))
        total = np.zeros(len(ASKED))
        for omegas, amplitudes in zip(path.waves.frequencies, path.waves.amplitudes, strict=True):
            omega = np.asarray(omegas[0]).reshape(-1, 2)
            weight = np.asarray(amplitudes).ravel() ** 2
            waves = np.exp(1j * (ASKED / LENGTH) @ omega.T)
            at_bags = weight_matrix(SMOOTH_BAGS).T @ np.exp(
                1j * SMOOTH_BAGS.points / LENGTH @ omega.T
            )
            total += np.abs(waves - np.asarray(seen.shares) @ at_bags) ** 2 @ weight
        off = (total - np.asarray(seen.residual)) / np.diag(covariance)
        measured = np.sqrt(np.mean(off**2))
        assert 0.5 < measured / float(path.error) < 2.0


def test_paths_far_away_are_draws_of_the_prior(smooth):
    model, _ = smooth
    x = np.array([[40.0, 40.0], [41.0, 40.0], [80.0, -20.0]])
    samples = Paths([model.fitted_.fields[0]], 4000, 1)(x)
    error = np.cov(samples.T) - gram(SMOOTH, x)
    assert np.abs(error).max() < 0.15 * 2.0


def test_inducing_points_leave_little_to_the_prior():
    # Few inducing points: what they leave out comes from chosen frequencies too.
    z = np.sin(SMOOTH_BAGS.means()).sum(1)
    model = held(VBagg, SMOOTH, SMOOTH_BAGS, z, n_inducing=40)
    post = model.predict(ASKED)
    samples = post.sample(4000, seed=1, method="pathwise")
    ratio = spread(samples) / post.variance
    assert np.sqrt(np.mean((ratio - 1.0) ** 2)) < 0.12


def test_a_goal_that_is_out_of_reach_is_told(smooth, monkeypatch):
    model, _ = smooth
    for module in (paths, posterior_module):
        monkeypatch.setattr(module, "TOLERANCE", 1e-6)
        monkeypatch.setattr(module, "MOST_FEATURES", 4000)
    with pytest.warns(SampleWarning, match="even with 4000 random features"):
        found = Paths([model.fitted_.fields[0]], 1, 0)
    assert n_features(found._parts[0][1].waves) == 4000


def test_more_features_are_taken_where_they_are_needed(smooth, monkeypatch):
    model, _ = smooth
    field = model.fitted_.fields[0]
    monkeypatch.setattr(paths, "FEATURES", 50)
    few = field.path(jax.random.key(0), 1, 50)
    monkeypatch.setattr(paths, "TOLERANCE", 0.5 * float(few.error))
    more = field.path(jax.random.key(0), 1, None)
    assert n_features(few.waves) == 50 and n_features(more.waves) > 100
    assert float(more.error) <= 0.5 * float(few.error)


def test_numbers_of_features_are_checked(smooth):
    model, _ = smooth
    with pytest.raises(ValueError, match="at least 2"):
        model.predict(ASKED).sample(1, method="pathwise", n_features=1)


# --------------------------------------------------------------------------- the prior


SUM = gk.RBF(lengthscale=0.7, variance=1.3) + gk.Matern32(
    active_dims=[1], lengthscale=2.0, variance=0.5
) * gk.RationalQuadratic(active_dims=[0], lengthscale=1.1, alpha=0.8)


NETWORK = eqx.nn.MLP(2, 2, width_size=4, depth=1, key=jax.random.key(0))


@pytest.mark.parametrize(
    "kernel",
    [
        gk.Matern12(lengthscale=jnp.array([0.5, 2.0]), variance=1.7),
        SUM + gk.Constant(constant=0.4),
        DeepKernel(gk.RBF(lengthscale=0.5), NETWORK),
    ],
    ids=["plain", "sum of products and a constant", "deep"],
)
def test_chosen_frequencies_have_the_kernel_as_their_mean(kernel):
    # Over keys, the mean of their covariance is the kernel, whatever they were chosen by; within
    # 4.5 standard errors, which the keys themselves give.
    bags = ragged_bags([3, 2, 4, 1], d=2, mediated=False)
    layout, x = bags.layout, np.array([[0.0, 0.0], [0.4, 0.3], [1.5, -1.0], [3.0, 3.0]])
    p = weight_matrix(bags)
    observed = p.T @ gram(kernel, bags.points) @ p + 0.01 * np.eye(4)

    def look(points):
        cross = gram(kernel, points, bags.points) @ p
        shares = np.linalg.solve(observed, cross.T).T
        variance = np.diag(gram(kernel, points)) - (shares * cross).sum(1)
        residual = variance - 0.01 * (shares**2).sum(1)
        return paths.References(layout, *map(jnp.asarray, (points, shares, variance, residual)))

    found = []
    for seed in range(24):
        waves, _ = paths.chosen_waves(kernel, 2, look, bags.points, 200, jax.random.key(seed))
        loadings = [jnp.asarray(block) for block in identity(waves)]
        values = np.asarray(waves.draws(loadings, jnp.asarray(x)))
        found.append(values @ values.T)
    found = np.stack(found)
    error = found.std(0, ddof=1) / np.sqrt(len(found)) + 1e-9
    assert (np.abs(found.mean(0) - gram(kernel, x)) < 4.5 * error).all()


def identity(waves):
    """Loadings that give every feature by itself, times its amplitude."""
    sizes = [2 * a.size for a in waves.amplitudes]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    loadings = []
    for a, start, size in zip(waves.amplitudes, starts, sizes, strict=False):
        scale = np.concatenate([np.asarray(a), np.asarray(a)], axis=1)
        rows = np.zeros((size, starts[-1]))
        rows[np.arange(size), start + np.arange(size)] = scale.ravel()
        loadings.append(rows.reshape(*scale.shape, -1))
    return loadings


# --------------------------------------------------------------------------- the choice


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30), st.integers(1, 30))
def test_chances_are_in_proportion_as_far_as_they_can_be(scores, number):
    scores = np.array(scores)
    chances = inclusion(scores, number)
    assert (chances <= 1.0).all() and (chances > 0).all()
    assert chances.sum() == pytest.approx(min(number, len(scores)))
    free = chances < 1.0
    if free.any():
        assert np.ptp(chances[free] / scores[free]) <= 1e-9 * (chances[free] / scores[free]).max()
        assert (scores[~free] >= scores[free].max() * (1 - 1e-12)).all()


@settings(max_examples=20)
@given(st.lists(st.floats(0.05, 5.0), min_size=2, max_size=12), st.integers(1, 11))
def test_systematic_draws_have_these_chances(scores, number):
    # Over a grid of offsets, each is drawn in proportion to its chance, to two grid points.
    chances = inclusion(np.array(scores), min(number, len(scores)))
    count = np.zeros(len(chances))
    for offset in (np.arange(200) + 0.5) / 200:
        drawn = systematic(chances, offset)
        assert len(drawn) == round(chances.sum())
        count[drawn] += 1
    assert (np.abs(count - 200 * chances) <= 2).all()
