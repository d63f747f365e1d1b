"""Bag means by the field and by a regression, and what lies between: all against dense algebra."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deconditional as dc
from deconditional.inference.exact import SpreadPrior
from deconditional.inference.measured import averaged_over_values
from deconditional.inference.tilted import MOST_TILT, Regression
from deconditional.kernels.sweeps import bag_gram
from deconditional.models.readings import MeasuredGP, TiltedGP, UnlinkedGP
from deconditional.models.regression import LEAST_EXPLAINED, Unmatched

FIXED = {"kernel.lengthscale": [0.9, 1.3], "kernel.variance": 1.4, "bag_noise_std": 0.2}


def drawn(seed=0, n_bags=12, n_observations=9):
    """Bags, mediators and observations of one smooth field."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(-2, 2, (n_bags + n_observations, 1, 2))
    x = centres + 0.3 * rng.standard_normal((n_bags + n_observations, 6, 2))
    means = (np.sin(1.3 * x[..., 0]) + np.cos(x[..., 1])).mean(1)
    y = means + 0.3 * rng.standard_normal(len(means))
    points = x[:n_bags].reshape(-1, 2)
    bags = dc.Bags.from_points(points, np.repeat(np.arange(n_bags), 6), mediator=y[:n_bags])
    return Unmatched.of(bags, means[n_bags:], y[n_bags:, None], None)


def regression(data, trend="constant"):
    points = dc.Bags.from_points(data.mediator, np.arange(len(data.z)))
    return dc.BaggGP(trend=trend, n_restarts=1).fit(points, data.z)


@pytest.fixture(scope="module")
def regressed():
    data = drawn()
    return data, regression(data)


@pytest.fixture(scope="module")
def fitted(regressed):
    model = TiltedGP(fixed=FIXED, trend="constant", precision="float64")
    return model.fit(*regressed)


def joint(regressor, y, own):
    """Covariance of (bag means, observations) by the regression, entry by entry."""
    p = regressor.parameters_
    seen = np.where(own[:, None] >= 0, y[own], regressor.bags_.points)
    every = np.concatenate([y, seen])
    n, m = len(y), len(seen)
    distance = np.abs(every - every.T) / p["kernel.lengthscale"]
    found = p["kernel.variance"] * np.exp(-0.5 * distance**2)
    found += float(regressor.fitted_.problem.trend.prior_std[0]) ** 2
    owner = np.concatenate([np.arange(n), np.where(own >= 0, own, n + np.arange(m))])
    return found + p["noise_std"] ** 2 * (owner[:, None] == owner)


@pytest.mark.parametrize("n_own", [0, 3])
def test_the_regression_is_a_joint_normal_distribution(regressed, n_own):
    (bags, *_), regressor = regressed
    m, n = len(regressor.fitted_.problem.z), bags.n_bags
    own = np.full(m, -1)
    own[:n_own] = [4, 0, 7][:n_own]
    found = Regression.of(regressor, bags.mediator, own if n_own else None)
    dense = joint(regressor, bags.mediator, own)
    t, cross, observed = dense[:n, :n], dense[:n, n:], dense[n:, n:]
    z = np.asarray(regressor.fitted_.problem.z)
    np.testing.assert_allclose(found.covariance, t, rtol=1e-9)
    np.testing.assert_allclose(found.weights, np.linalg.solve(t, cross), atol=1e-6)
    np.testing.assert_allclose(
        found.noise, observed - cross.T @ np.linalg.solve(t, cross), atol=1e-6
    )
    gain = np.linalg.solve(observed, cross.T).T
    np.testing.assert_allclose(found.mean, gain @ z, atol=1e-6)
    np.testing.assert_allclose(found.uncertainty, t - gain @ cross.T, atol=1e-6)
    if n_own:  # their bag is known, and they say nothing of others beyond it
        np.testing.assert_allclose(found.mean[own[:n_own]], z[:n_own], atol=1e-6)
        np.testing.assert_allclose(found.noise[:n_own], 0.0, atol=1e-6)
        np.testing.assert_allclose(found.weights[:, :n_own], np.eye(n)[:, own[:n_own]], atol=1e-6)


@pytest.mark.parametrize("trend", ["none", "constant", "linear"])
def test_without_a_link_bags_and_observations_share_their_mean_alone(trend):
    data = drawn()
    own = np.full(9, -1)
    own[[2, 5]] = [4, 7]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        regressor = regression(data, trend)
    found = Regression.without_link(regressor, 12, own)
    z = data.z
    level = 0.0 if trend == "none" else float(regressor.fitted_.problem.trend.prior_std[0]) ** 2
    effect = np.mean(z**2) if trend == "none" else np.var(z, ddof=1)
    joint = level + effect * np.eye(21)
    for observation, bag in ((12 + 2, 4), (12 + 5, 7)):
        joint[observation, bag] = joint[bag, observation] = level + effect
    t, cross, observed = joint[:12, :12], joint[:12, 12:], joint[12:, 12:]
    np.testing.assert_allclose(found.covariance, t, rtol=1e-9)
    np.testing.assert_allclose(found.weights, np.linalg.solve(t, cross), atol=1e-7)
    left = observed - cross.T @ np.linalg.solve(t, cross)
    np.testing.assert_allclose(found.noise, left, atol=1e-6 * level + 1e-9)
    np.testing.assert_allclose(found.weights[:, [2, 5]], np.eye(12)[:, [4, 7]], atol=1e-6)


def test_without_a_link_the_prior_is_left(regressed):
    data, regressor = regressed
    fixed = {name: value for name, value in FIXED.items() if name != "bag_noise_std"}
    model = UnlinkedGP(fixed=fixed, precision="float64").fit(data, regressor)
    seen = Regression.without_link(regressor, 12, None)
    problem, pieces = model.fitted_.problem, model.fitted_.pieces[0]
    level = float(problem.trend.prior_std[0]) ** 2
    prior = np.asarray(pieces.gram) + level
    w, s, z = np.asarray(seen.weights), np.asarray(seen.noise), data.z
    gain = prior @ w @ np.linalg.inv(w.T @ prior @ w + s)
    found = model.predict_bags(data.bags)
    np.testing.assert_allclose(found.mean, gain @ z, atol=1e-5)
    np.testing.assert_allclose(found.covariance(), prior - gain @ w.T @ prior, atol=1e-4)
    # But for the mean, which is that of the observations, nothing was learnt.
    contrasts = np.eye(12) - 1 / 12
    before = contrasts @ np.asarray(pieces.gram) @ contrasts
    np.testing.assert_allclose(
        contrasts @ found.covariance() @ contrasts, before, rtol=0.05, atol=0.05
    )
    assert found.mean.mean() == pytest.approx(z.mean(), abs=0.1 * z.std())


def parts_of(model):
    learning = model.fitted_.learning
    vector = jnp.zeros(0)
    values = learning.parameters.unpack(vector)
    gram = bag_gram(learning.kernel.with_values(values), learning.layout)
    covariance = learning.bag_covariance(values, gram)
    return learning, vector, values, np.asarray(covariance)


def posterior_of_bag_means(learning, covariance, tilt):
    """Dense: prior, tilt and observations as precisions."""
    r, contrasts = learning.regression, np.asarray(learning.contrasts)
    weights, noise = np.asarray(r.weights), np.asarray(r.noise)
    precision = np.linalg.inv(covariance) + tilt * contrasts.T @ contrasts
    precision += weights @ np.linalg.solve(noise, weights.T)
    cov = np.linalg.inv(precision)
    return cov @ weights @ np.linalg.solve(noise, np.asarray(learning.z)), cov


def test_bag_effects_have_the_size_that_the_regression_expects(fitted):
    learning, _, _, covariance = parts_of(fitted)
    tilt = float(learning.tilt(jnp.asarray(covariance)))
    assert 0 < tilt < MOST_TILT
    mean, cov = posterior_of_bag_means(learning, covariance, tilt)
    r = np.asarray(learning.contrasts)
    size = np.sum((r @ mean) ** 2) + np.trace(r @ cov @ r.T)
    assert size == pytest.approx(float(learning.size), rel=1e-4)
    # The same is said by the slope of Φ, which is convex.
    slopes = [float(jax.grad(learning.dual)(a, jnp.asarray(covariance))) for a in (0.0, tilt, 2.0)]
    assert slopes[0] < 0 < slopes[2] and abs(slopes[1]) < 1e-3


def test_the_dual_is_the_log_normaliser(fitted):
    learning, _, _, covariance = parts_of(fitted)
    r, contrasts = learning.regression, np.asarray(learning.contrasts)
    z, weights = np.asarray(learning.z), np.asarray(r.weights)
    for tilt in (0.0, 0.3, 1.7):
        inner = np.eye(len(contrasts)) + tilt * contrasts @ covariance @ contrasts.T
        tilted = np.linalg.inv(np.linalg.inv(covariance) + tilt * contrasts.T @ contrasts)
        seen = weights.T @ tilted @ weights + np.asarray(r.noise)
        density = -0.5 * (
            z @ np.linalg.solve(seen, z)
            + np.linalg.slogdet(seen)[1]
            + len(z) * np.log(2 * np.pi)
            + np.linalg.slogdet(inner)[1]
            - tilt * float(learning.size)
        )
        found = float(learning.dual(jnp.asarray(tilt), jnp.asarray(covariance)))
        assert found == pytest.approx(density, rel=1e-8)


def bag_means(problem, vector, model):
    """Posterior of bag means of the smooth field and its trend."""
    field = problem.solve(vector)[1]
    return field.bag_moments(model.bags_)


def smooth_part(model, values, covariance, mean, cov):
    """Bag means without noise of their own, given those with it."""
    noise = float(values["bag_noise_std"]) ** 2 * np.eye(len(covariance))
    gain = np.linalg.solve(covariance, covariance - noise).T
    return gain @ mean, (covariance - noise) - gain @ (covariance - noise) + gain @ cov @ gain.T


def test_the_tilted_posterior_is_the_dense_one(fitted):
    learning, vector, values, covariance = parts_of(fitted)
    tilt = float(learning.tilt(jnp.asarray(covariance)))
    for problem, a in ((learning.tilted(vector), tilt), (learning.conditional(vector), 0.0)):
        dense = posterior_of_bag_means(learning, covariance, a)
        mean, cov = smooth_part(fitted, values, covariance, *dense)
        found_mean, found_cov = bag_means(problem, vector, fitted)
        np.testing.assert_allclose(found_mean, mean, atol=1e-5)
        np.testing.assert_allclose(found_cov, cov, atol=1e-5)


def test_a_full_tilt_is_pseudo_targets_with_bag_effects_as_noise():
    """With no trend, α = 1 multiplies two priors: the regression's posterior is a likelihood."""
    data = drawn()
    regressor = regression(data, trend="none")
    model = TiltedGP(fixed=FIXED, trend="none", precision="float64").fit(data, regressor)
    learning, _, _, covariance = parts_of(model)
    mean, cov = posterior_of_bag_means(learning, covariance, 1.0)
    r = learning.regression
    noise = np.asarray(r.uncertainty)
    gain = np.linalg.solve(covariance + noise, covariance).T
    np.testing.assert_allclose(mean, gain @ np.asarray(r.mean), atol=1e-6)
    np.testing.assert_allclose(cov, covariance - gain @ covariance, atol=1e-6)


def test_the_gradient_needs_none_of_the_tilt(regressed):
    model = TiltedGP(trend="constant", precision="float64", n_restarts=1, max_iter=3)
    with pytest.warns(dc.FitWarning):
        model.fit(*regressed)
    learning = model.fitted_.learning
    at = np.asarray(model.fitted_.vectors[0]) + 0.2
    gradient = np.asarray(jax.grad(learning.log_posterior)(jnp.asarray(at)))
    for k, direction in enumerate(1e-4 * np.eye(len(at))):
        above, below = (
            float(learning.log_posterior(jnp.asarray(at + s * direction))) for s in (1, -1)
        )
        assert gradient[k] == pytest.approx((above - below) / 2e-4, rel=1e-3, abs=1e-3)


def test_bag_means_vary_as_much_as_observations():
    rng = np.random.default_rng(0)
    gram = np.diag([1.0, 2.0, 3.0, 6.0])
    z = rng.standard_normal(50) + 5.0
    prior = SpreadPrior.of(np.ones((4, 1)), z, np.ones((50, 1)))
    # About their common mean, independent values keep 3/4 of their variances.
    expected = np.log(0.75 * gram.trace() / 3 / z.var(ddof=1))
    found = float(prior.log_density(jnp.asarray(gram)))
    assert found == pytest.approx(-0.5 * expected**2 / (2 / 50 + 2 / 4 + 0.02))
    free = SpreadPrior.of(np.zeros((4, 0)), z, np.zeros((50, 0)))
    assert float(free.variance) == pytest.approx(np.mean(z**2))


# ---------------------------------------------------------------------- measurements


@pytest.mark.parametrize("trend", ["none", "constant", "linear"])
def test_a_measurement_and_the_usual_bag_mean_make_the_regression(trend):
    """Bayes' rule, backwards: N(values, noise) N(trend, v) is N(g, s²)."""
    data = drawn()
    regressor = regression(data, trend)
    y, z, at_bags = data.mediator, data.z, data.bags.mediator
    columns = {"none": [], "constant": [y**0], "linear": [y**0, y]}[trend]
    basis = np.concatenate([np.zeros((len(y), 0)), *columns], axis=1)
    beta = np.linalg.lstsq(basis, z, rcond=None)[0]
    v = np.sum((z - basis @ beta) ** 2) / (len(z) - basis.shape[1])
    usual = sum((b * at_bags[:, 0] ** k for k, b in enumerate(beta)), np.zeros(len(at_bags)))
    s2, predicted = regressor.parameters_["noise_std"] ** 2, regressor.predict(at_bags)
    assert s2 < v
    values, noise_std, uncertainty, own_share, open_share = data.measurements(regressor)
    precision = 1.0 / noise_std**2 + 1.0 / v
    np.testing.assert_allclose(1.0 / precision, s2, rtol=1e-8)
    np.testing.assert_allclose(
        (values / noise_std**2 + usual / v) / precision, predicted.mean, atol=1e-8
    )
    share = 1.0 - s2 / v
    np.testing.assert_allclose(uncertainty, predicted.covariance() / share**2, atol=1e-10)
    assert own_share == pytest.approx(s2 / (s2 + predicted.variance.mean()))
    assert open_share == pytest.approx(predicted.variance.mean() / z.var())


def test_own_observations_are_measurements_without_error(regressed):
    data, regressor = regressed
    own = np.full(len(data.z), -1)
    own[[0, 1, 2]] = [4, 7, 4]
    values, noise_std, uncertainty, *_ = data._replace(own_bag=own).measurements(regressor)
    others = data.measurements(regressor)
    assert values[4] == pytest.approx((data.z[0] + data.z[2]) / 2) and values[7] == data.z[1]
    assert (noise_std[[4, 7]] == 0).all() and not uncertainty[[4, 7]].any()
    rest = np.delete(np.arange(12), [4, 7])
    np.testing.assert_array_equal(values[rest], others.values[rest])
    np.testing.assert_array_equal(noise_std[rest], others.noise_std[rest])


def test_a_mediator_that_says_nothing_measures_with_great_error():
    data = drawn(n_observations=60)
    rng = np.random.default_rng(3)
    data = data._replace(z=rng.standard_normal(len(data.z)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        regressor = regression(data)
    noise = data.measurements(regressor).noise_std
    effect = regressor.parameters_["noise_std"]
    assert effect < noise.min() and noise.max() <= effect / np.sqrt(LEAST_EXPLAINED) * (1 + 1e-9)
    assert noise.min() > 2 * data.z.std()


def measured(data, regressor):
    fixed = {**FIXED, "noise_std": 0.5}
    del fixed["bag_noise_std"]
    return MeasuredGP(fixed=fixed, precision="float64").fit(data, regressor), fixed


@pytest.mark.parametrize(
    ("own_share", "told"), [(0.7, 0.0), (0.5, 0.0), (0.4, 0.1), (0.25, 0.25), (0.0, 0.25)]
)
def test_learning_is_told_of_little_that_the_regression_does_not_know(
    regressed, monkeypatch, own_share, told
):
    """The rest widens the posterior alone."""
    data, regressor = regressed
    seen = data.measurements(regressor)._replace(own_share=own_share)
    monkeypatch.setattr(Unmatched, "measurements", lambda *_: seen)
    model, fixed = measured(data, regressor)
    values, uncertainty = seen.values, (1.0 - told) * seen.uncertainty

    def plain(z):
        options = {"fixed": fixed, "learn_noise": True, "precision": "float64"}
        return dc.BaggGP(**options).fit(data.bags, z, noise_cov=told * seen.uncertainty)

    new = np.random.default_rng(1).uniform(-2, 2, (7, 2))
    found, before = model.predict(new), plain(values).predict(new)
    np.testing.assert_allclose(found.mean, before.mean, atol=1e-8)
    # Of every value once more: what it adds to the mean.
    more = [plain(values + e).predict(new).mean - before.mean for e in np.eye(len(values))]
    gain = np.stack(more, axis=1)
    wider = before.covariance() + gain @ uncertainty @ gain.T
    fitted = plain(values).fitted_
    problem, pieces = fitted.problem, fitted.pieces[0]
    seen = np.asarray(problem.observed_covariance(pieces))
    shares = np.linalg.eigvals(np.linalg.solve(seen, uncertainty)).real
    assert 0.05 < shares.max() < 0.99  # nothing is cut off
    assert np.abs(wider - before.covariance()).max() > 0.01
    np.testing.assert_allclose(found.covariance(), wider, atol=5e-5)


def test_the_posterior_is_never_wider_than_the_prior(regressed):
    data, regressor = regressed
    model, _ = measured(data, regressor)
    vector = jnp.zeros(0)
    start = replace(model.fitted_.problem, known_noise=jnp.full(12, 0.1))
    huge = averaged_over_values(start, vector, 1e6 * np.eye(12))
    _, cov = bag_means(huge, vector, model)
    prior = np.asarray(huge.observed_covariance(huge.solve(vector)[0]) - huge.known_noise)
    assert (np.diag(cov) < np.diag(prior)).all()
    assert np.diag(cov)[0] > 0.5 * np.diag(prior - prior.min())[0]


@pytest.mark.parametrize(("own_share", "power"), [(0.4, 0.0), (0.8, 0.6), (1.0, 1.0)])
def test_measurements_help_to_learn_the_kernel(regressed, monkeypatch, own_share, power):
    data, regressor = regressed
    seen = data.measurements(regressor)._replace(own_share=own_share)
    monkeypatch.setattr(Unmatched, "measurements", lambda *_: seen)
    model = TiltedGP(fixed=FIXED, trend="constant", precision="float64").fit(data, regressor)
    learning, vector, _, covariance = parts_of(model)
    noisy = covariance + np.diag(seen.noise_std**2)
    density = -0.5 * (
        seen.values @ np.linalg.solve(noisy, seen.values)
        + np.linalg.slogdet(noisy)[1]
        + len(noisy) * np.log(2 * np.pi)
    )
    trend = float(learning.trend.prior_std[0]) ** 2
    gram = covariance - trend - FIXED["bag_noise_std"] ** 2 * np.eye(len(covariance))
    others = learning.dual(learning.tilt(jnp.asarray(covariance)), jnp.asarray(covariance))
    others += learning.spread.log_density(jnp.asarray(gram))
    found = float(learning.log_posterior(vector) - others)
    assert found == pytest.approx(power * density, rel=1e-6, abs=1e-6)


# ---------------------------------------------------------------------- averages


@pytest.mark.parametrize("family", [MeasuredGP, TiltedGP, UnlinkedGP])
def test_every_draw_is_the_model_at_its_parameters(regressed, family, tmp_path):
    options = {"precision": "float64", "n_restarts": 1, "max_iter": 40}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        model = family(n_draws=3, **options).fit(*regressed)
    assert len(np.unique(model.fitted_.vectors, axis=0)) == 3
    new = np.random.default_rng(1).uniform(-2, 2, (5, 2))
    path = model.save(tmp_path / "model.npz")
    for found in (model, dc.load(path)):
        exact, features = found.predict(new), found.predict(new, features=64)
        assert len(exact.component_means) == 3
        for s, vector in enumerate(model.fitted_.vectors):
            fixed = model.fitted_.problem.parameters.unpack(jnp.asarray(vector))
            fixed = {name: np.asarray(value) for name, value in fixed.items()}
            alone = family(fixed=fixed, **options).fit(*regressed)
            for mixed, one in (
                (exact, alone.predict(new)),
                (features, alone.predict(new, features=64)),
            ):
                np.testing.assert_allclose(mixed.component_means[s], one.mean, atol=1e-7)
                np.testing.assert_allclose(mixed.component_variances[s], one.variance, atol=1e-7)


def test_short_length_scales_need_less_evidence_than_elsewhere(regressed):
    data, regressor = regressed
    options = {"n_restarts": 1, "max_iter": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        model = TiltedGP(n_draws=1, **options).fit(data, regressor)
        other = dc.BaggGP(**options).fit(data.bags, data.measurements(regressor).values)
    mine, usual = model.priors_["kernel.lengthscale"], other.priors_["kernel.lengthscale"]
    np.testing.assert_array_equal(mine.mode, usual.mode)
    assert mine.below > 2 * usual.below and mine.above < usual.above
