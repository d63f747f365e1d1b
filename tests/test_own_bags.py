"""Partly matched data: observations that are the mean of a bag beside those that need a mediator.

Every parameter is held, so that a model is one conditioning, which the oracle does n x n.
"""

import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from deconditional import CMP, BaggGP, Bags, PseudoTarget, VarCMP
from deconditional.fitting.evaluation import loss_and_gradient
from helpers import (
    FINITE_DIFFERENCE_TOLERANCE,
    assert_close,
    bordered_system,
    condition,
    finite_difference,
    gram,
    problem_of,
    ragged_bags,
    shared_weight_matrix,
    trend_features,
    weight_matrix,
)

KERNEL = gk.Matern32(lengthscale=jnp.array([0.8, 1.3]), variance=1.4)
MEDIATOR_KERNEL = gk.Matern32(lengthscale=0.9)
RIDGE, NOISE, FINE = 0.02, 0.3, 0.4
FIELD = {"kernel.lengthscale": [0.8, 1.3], "kernel.variance": 1.4, "noise_std": NOISE}
MEDIATION = {"mediator_kernel.lengthscale": 0.9, "ridge": RIDGE}

BAGS = ragged_bags([3, 1, 6, 4, 5, 2, 3, 4], d=2, weighted=True)
RNG = np.random.default_rng(1)
OWN = np.array([-1, 2, 5, -1, 2, 0, -1])  # bag 2 was observed twice
Z, Y_OBSERVED = RNG.normal(size=7), RNG.normal(size=(7, 1))
Z_MATCHED = RNG.normal(size=8)
X, Y_NEW = RNG.normal(size=(5, 2)), RNG.normal(size=(3, 1))
PLACES = 1.2 * RNG.normal(size=(4, 2))


def overlapping():
    rng = np.random.default_rng(6)
    membership = rng.uniform(size=(12, 8)) * (rng.uniform(size=(12, 8)) < 0.5)
    membership[np.arange(8), np.arange(8)] = 1.0
    return Bags.from_membership(rng.normal(size=(12, 2)), membership, mediator=rng.normal(size=8))


def held(kind, **options):
    fixed = FIELD | ({} if kind is BaggGP else MEDIATION)
    if options.get("fine_noise"):
        fixed = fixed | {"fine_noise_std": FINE}
    if kind is not BaggGP:
        options = {"mediator_kernel": MEDIATOR_KERNEL} | options
    options = {"kernel": KERNEL, "trend": "none", "fixed": fixed} | options
    return kind(**options)


class Dense:
    """z = Aᵀf + e over distinct points, with the field's projection on inducing points if given."""

    def __init__(self, model, bags, z, mediator, own_bag):
        self.model, self.bags, self.z = model, bags, z
        self.observed_at, self.own = mediator, np.asarray(own_bag)
        self.p = shared_weight_matrix(bags)
        self.points = np.empty((len(self.p), bags.points.shape[1]))
        self.points[bags.point] = bags.points
        sizes = bags.effective_sizes
        shape = sizes.sum() / sizes if model.cmo == "standard" else np.full(len(sizes), len(sizes))
        self.ridge = RIDGE * shape
        self.tau2 = 0.0
        if model.uncertainty:
            self.tau2 = np.mean(np.diag(self.p.T @ gram(KERNEL, self.points) @ self.p))
        self.fine = FINE if model.fine_noise else 0.0
        w, v = self.operator(mediator), self.uncertainty(mediator, mediator)
        for m in np.flatnonzero(self.own >= 0):
            w[:, m] = np.arange(len(sizes)) == self.own[m]
            v[m], v[:, m] = 0.0, 0.0
        self.a = self.p @ w
        self.s = NOISE**2 * np.eye(len(z)) + self.fine**2 * self.a.T @ self.a + self.tau2 * v

    def _right(self, y):
        right = gram(MEDIATOR_KERNEL, self.bags.mediator, y)
        return np.vstack([right, np.ones((1, len(y)))]) if self.model.centred else right

    def _solved(self, y):
        system = bordered_system(MEDIATOR_KERNEL, self.bags.mediator, self.ridge)
        n = len(system) - (not self.model.centred)
        return np.linalg.solve(system[:n, :n], self._right(y))

    def operator(self, y):
        return self._solved(y)[: self.bags.n_bags]

    def uncertainty(self, y, other):
        return gram(MEDIATOR_KERNEL, y, other) - self._right(y).T @ self._solved(other)

    def trend(self, x, other):
        slopes = [3.0 * np.std(self.z)] * 2
        b = np.array([10.0 * np.sqrt(np.mean(self.z**2)), *slopes])
        h, g = (trend_features(self.model.trend, self.bags.points, v) for v in (x, other))
        return (h * b[: h.shape[1]] ** 2) @ g.T

    def prior(self, x, other):
        """What is learnt of the field: all of it, or its projection on the inducing points."""
        places = getattr(self.model, "inducing", None)
        if places is None:
            return gram(KERNEL, x, other) + self.trend(x, other)
        inner = np.linalg.solve(gram(KERNEL, places), gram(KERNEL, places, other))
        return gram(KERNEL, x, places) @ inner + self.trend(x, other)

    def rest(self, x, other):
        """What the projection leaves out keeps its prior."""
        return gram(KERNEL, x, other) + self.trend(x, other) - self.prior(x, other)

    def observed(self):
        return self.a.T @ self.prior(self.points, self.points) @ self.a + self.s

    def evidence(self):
        penalty = np.trace(
            np.linalg.solve(self.s, self.a.T @ self.rest(self.points, self.points) @ self.a)
        )
        fit = multivariate_normal(np.zeros(len(self.z)), self.observed()).logpdf(self.z)
        return fit - 0.5 * penalty

    def posterior(self, x):
        cross = self.prior(x, self.points) @ self.a
        mean, covariance = condition(self.prior(x, x), cross, self.observed(), self.z)
        return mean, covariance + self.rest(x, x)

    def coarse(self, y):
        """E over q(f) of p(g(y) | f, z); an observation of its own bag shares no V with g."""
        a = self.p @ self.operator(y)
        shared = self.uncertainty(y, self.observed_at) * (self.own < 0)
        shared = self.fine**2 * a.T @ self.a + self.tau2 * shared
        own = self.fine**2 * a.T @ a + self.tau2 * self.uncertainty(y, y)
        gain = np.linalg.solve(self.s, shared.T).T
        of_f = a.T - gain @ self.a.T
        mean, covariance = self.posterior(self.points)
        return of_f @ mean + gain @ self.z, of_f @ covariance @ of_f.T + own - gain @ shared.T


EVERYTHING = {"uncertainty": True, "fine_noise": True, "trend": "linear"}
CASES = {
    "plain": (CMP, {}, BAGS),
    "shrinkage": (CMP, {"cmo": "shrinkage", "uncertainty": True}, BAGS),
    "centred": (CMP, {"centred": True, "uncertainty": True, "trend": "constant"}, BAGS),
    "everything": (CMP, EVERYTHING, BAGS),
    "shared points": (CMP, {"cmo": "shrinkage", "fine_noise": True}, overlapping()),
    "few inducing points": (VarCMP, EVERYTHING | {"inducing": PLACES}, BAGS),
}


@pytest.fixture(scope="module", params=CASES)
def fitted(request):
    kind, options, bags = CASES[request.param]
    model = held(kind, **options).fit(bags, Z, mediator=Y_OBSERVED, own_bag=OWN)
    return model, Dense(model, bags, Z, Y_OBSERVED, OWN)


# --------------------------------------------------------------------------- against dense algebra


def test_weights_pick_the_own_bag_and_know_it_for_certain():
    problem = held(CMP, uncertainty=True).fit(BAGS, Z, Y_OBSERVED, own_bag=OWN).fitted_.problem
    values = problem.parameters.unpack(jnp.zeros(0))
    w, v = problem.mediation.weights(values)
    own = OWN >= 0
    np.testing.assert_array_equal(np.asarray(w)[:, own], np.eye(8)[:, OWN[own]])
    assert np.abs(np.asarray(v)[np.ix_(~own, ~own)]).min() > 1e-3
    assert not np.asarray(v)[own].any() and not np.asarray(v)[:, own].any()
    np.testing.assert_array_equal(problem.mediation.mediated, ~own)


def test_the_posterior_is_the_dense_one(fitted):
    model, dense = fitted
    mean, covariance = dense.posterior(X)
    post = model.predict(X)
    assert_close(post.mean, mean)
    assert_close(post.variance, np.diag(covariance))
    assert_close(post.covariance(), covariance)


def test_the_evidence_is_the_dense_one(fitted):
    model, dense = fitted
    assert_close(model.log_evidence_, dense.evidence())


def test_the_conditional_mean_process_is_the_dense_one(fitted):
    model, dense = fitted
    mean, covariance = dense.coarse(Y_NEW)
    coarse = model.predict_coarse(Y_NEW)
    assert_close(coarse.mean, mean)
    assert_close(coarse.covariance(), covariance)


def test_own_bags_matter(fitted):
    model, dense = fitted
    other = Dense(dense.model, dense.bags, Z, Y_OBSERVED, np.full(7, -1))
    assert np.abs(model.predict(X).mean - other.posterior(X)[0]).max() > 0.05
    assert np.abs(model.predict_coarse(Y_NEW).mean - other.coarse(Y_NEW)[0]).max() > 0.01


def test_gradients_equal_finite_differences():
    model = held(CMP, **EVERYTHING | {"fixed": None})
    problem = problem_of(model, BAGS, Z, Y_OBSERVED, own_bag=OWN)
    start = np.asarray(problem.parameters.start())
    vector = start + 0.1 * np.random.default_rng(2).normal(size=len(start))
    _, gradient = loss_and_gradient(problem, jnp.asarray(vector))
    expected = finite_difference(lambda v: loss_and_gradient(problem, jnp.asarray(v))[0], vector)
    assert (np.abs(np.asarray(gradient)) > 1e-6).all()
    assert_close(gradient, expected, tolerance=FINITE_DIFFERENCE_TOLERANCE)


# --------------------------------------------------------------------------- limits


def assert_same(one, other, tolerance=None):
    for first, second in zip(
        (one.predict(X), one.predict_bags(BAGS)),
        (other.predict(X), other.predict_bags(BAGS)),
        strict=True,
    ):
        assert_close(first.mean, second.mean, tolerance=tolerance)
        assert_close(first.covariance(), second.covariance(), tolerance=tolerance)
    assert_close(one.log_evidence_, other.log_evidence_, tolerance=tolerance)


def test_bags_that_were_all_observed_are_a_bagg_gp():
    options = {"trend": "linear", "fine_noise": True}
    bagg = held(BaggGP, **options).fit(BAGS, Z_MATCHED)
    model = held(CMP, uncertainty=True, centred=True, **options)
    assert_same(model.fit(BAGS, Z_MATCHED, own_bag=np.arange(8)), bagg)


def test_bags_observed_in_another_order_are_that_bagg_gp_too():
    order = np.array([5, 2, 7, 0, 1, 6, 3, 4])
    model = held(CMP).fit(BAGS, Z_MATCHED[order], mediator=Y_OBSERVED[[0] * 8], own_bag=order)
    assert_same(model, held(BaggGP).fit(BAGS, Z_MATCHED))


def test_no_own_bag_at_all_is_an_unmatched_cmp():
    model = held(CMP).fit(BAGS, Z, mediator=Y_OBSERVED, own_bag=[-1] * 7)
    plain = held(CMP).fit(BAGS, Z, mediator=Y_OBSERVED)
    np.testing.assert_array_equal(model.predict(X).mean, plain.predict(X).mean)
    np.testing.assert_array_equal(model.predict(X).std, plain.predict(X).std)


def test_a_fit_forgets_the_own_bags_of_the_one_before():
    model = held(CMP).fit(BAGS, Z, mediator=Y_OBSERVED, own_bag=OWN)
    plain = held(CMP).fit(BAGS, Z, mediator=Y_OBSERVED)
    again = model.fit(BAGS, Z, mediator=Y_OBSERVED)
    np.testing.assert_array_equal(again.predict(X).mean, plain.predict(X).mean)


def test_inducing_points_everywhere_are_exact():
    data = {"bags": BAGS, "z": Z, "mediator": Y_OBSERVED, "own_bag": OWN}
    exact = held(CMP, **EVERYTHING).fit(**data)
    model = held(VarCMP, **EVERYTHING, inducing=BAGS.points).fit(**data)
    # Jitter of 1e-12 on K_ww, over its smallest eigenvalue of about 1e-3.
    assert_same(model, exact, tolerance=1e-7)
    coarse, expected = model.predict_coarse(Y_NEW), exact.predict_coarse(Y_NEW)
    assert_close(coarse.mean, expected.mean, tolerance=1e-7)
    assert_close(coarse.covariance(), expected.covariance(), tolerance=1e-7)


# --------------------------------------------------------------------------- pseudo-targets


@pytest.fixture(scope="module", params=[True, False], ids=["propagated", "at face value"])
def pseudo(request):
    model = PseudoTarget(held(BaggGP), MEDIATOR_KERNEL, propagate=request.param, n_restarts=1)
    return model.fit(BAGS, Z, mediator=Y_OBSERVED, own_bag=OWN)


def first_stage(model):
    """GP regression of z on the mediator with a constant, at the parameters that were learnt."""
    values = model.regressor_.parameters_
    kernel = gk.Matern32(lengthscale=values["kernel.lengthscale"]) * gk.Constant(
        constant=jnp.asarray(values["kernel.variance"])
    )
    constant = 100.0 * np.mean(Z**2)
    y = BAGS.mediator
    return condition(
        gram(kernel, y) + constant,
        gram(kernel, y, Y_OBSERVED) + constant,
        gram(kernel, Y_OBSERVED) + constant + values["noise_std"] ** 2 * np.eye(7),
        Z,
    )


def test_pseudo_targets_give_way_to_observations(pseudo):
    mean, covariance = first_stage(pseudo)
    seen = np.array([0, 2, 5])
    mean[seen] = Z[5], (Z[1] + Z[4]) / 2, Z[2]
    covariance[seen], covariance[:, seen] = 0.0, 0.0
    assert_close(pseudo.pseudo_targets_, mean)
    assert_close(pseudo.pseudo_target_covariance_, covariance)


def test_the_base_model_is_given_just_that(pseudo):
    p = weight_matrix(BAGS)
    noise = NOISE**2 * np.eye(8)
    if pseudo.propagate:
        noise = noise + pseudo.pseudo_target_covariance_
    observed = p.T @ gram(KERNEL, BAGS.points) @ p + noise
    cross = gram(KERNEL, X, BAGS.points) @ p
    mean, covariance = condition(gram(KERNEL, X), cross, observed, pseudo.pseudo_targets_)
    assert_close(pseudo.predict(X).mean, mean)
    assert_close(pseudo.predict(X).variance, np.diag(covariance))


def test_the_first_stage_does_not_see_own_bags(pseudo):
    plain = PseudoTarget(held(BaggGP), MEDIATOR_KERNEL, n_restarts=1)
    plain.fit(BAGS, Z, mediator=Y_OBSERVED)
    np.testing.assert_array_equal(
        pseudo.predict_coarse(Y_NEW).mean, plain.predict_coarse(Y_NEW).mean
    )
    unseen = [1, 3, 4, 6, 7]
    np.testing.assert_array_equal(pseudo.pseudo_targets_[unseen], plain.pseudo_targets_[unseen])


# --------------------------------------------------------------------------- errors

WRONG = {
    "too few": (OWN[:6], "one whole number for each of the 7 observations"),
    "a table": (OWN[:, None], "one whole number for each of the 7 observations"),
    "fractions": (OWN + 0.5, "one whole number for each of the 7 observations"),
    "a mask": (OWN >= 0, "one whole number for each of the 7 observations"),
    "names": (["a"] * 7, "one whole number for each of the 7 observations"),
    "one beyond": ([8] + [-1] * 6, "a bag outside 0 to 7; -1 stands for no bag"),
    "negative": ([-2] * 7, "a bag outside 0 to 7; -1 stands for no bag"),
}


def not_to_be_called(*_, **__):
    raise AssertionError("wrong input reached the work")


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize(
    "model",
    [held(CMP), held(VarCMP), PseudoTarget(held(BaggGP))],
    ids=["cmp", "varcmp", "pseudo-target"],
)
def test_wrong_own_bags_are_refused_before_any_work(model, name, monkeypatch):
    own_bag, message = WRONG[name]
    monkeypatch.setattr(BaggGP, "fit", not_to_be_called)
    monkeypatch.setattr("deconditional.models.base.learn", not_to_be_called)
    with pytest.raises(ValueError, match=message):
        model.fit(BAGS, Z, mediator=Y_OBSERVED, own_bag=own_bag)
