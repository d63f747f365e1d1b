"""Functions, operators, leave-one-out and the two-stage regressor against dense NumPy algebra."""

import warnings

import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import null_space, sqrtm
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from deconditional import CMP, Bags, FitWarning
from deconditional.operators import (
    ConditionalMeanOperator,
    DeconditionalMeanOperator,
    DeconditionalRegressor,
    Evidence,
    Features,
    FiniteRankOperator,
    Function,
    LeaveOneOut,
    median_kernel,
    search_ridge,
)
from helpers import (
    assert_close,
    deconditional_covariance,
    deconditional_mean,
    dme_estimate,
    gram,
    ragged_bags,
    replicated_mediation,
    shrinkage_mediation,
    weight_matrix,
    weighted_replicated_mediation,
)

SIZES = [3, 1, 7, 4, 5, 2]
KERNEL = gk.RBF(lengthscale=jnp.array([0.8, 1.3]), variance=1.4)
MEDIATOR_KERNEL = gk.Matern32(lengthscale=0.9)
EQUAL = ragged_bags(SIZES, d=2)
WEIGHTED = ragged_bags(SIZES, d=2, weighted=True)
RNG = np.random.default_rng(1)
OBSERVED, Z, X = RNG.normal(size=(6, 1)), RNG.normal(size=6), RNG.normal(size=(6, 2))
RIDGE, EPSILON = 0.02, 0.015
START = RNG.bit_generator.state

CASES = [("standard", EQUAL), ("standard", WEIGHTED), ("shrinkage", EQUAL), ("shrinkage", WEIGHTED)]
EACH = pytest.mark.parametrize(
    ("cmo", "bags"), CASES, ids=["standard", "weighted", "shrinkage", "weighted shrinkage"]
)

# Gram matrices of everything the oracles need; both sets of bags have the same points.
K = gram(KERNEL, EQUAL.points)
K_X = gram(KERNEL, X, EQUAL.points)
L = gram(MEDIATOR_KERNEL, EQUAL.mediator)
L_OBSERVED = gram(MEDIATOR_KERNEL, EQUAL.mediator, OBSERVED)
L_BOTH = gram(MEDIATOR_KERNEL, OBSERVED)


def conditional(bags, cmo="standard", ridge=RIDGE, **options):
    return ConditionalMeanOperator(bags, KERNEL, MEDIATOR_KERNEL, cmo=cmo, ridge=ridge, **options)


def mediation(cmo, bags, ridge=RIDGE):
    """A of the paper, n x M."""
    if cmo == "shrinkage":
        return weight_matrix(bags) @ shrinkage_mediation(MEDIATOR_KERNEL, bags, ridge, OBSERVED)
    estimator = replicated_mediation if bags is EQUAL else weighted_replicated_mediation
    return estimator(MEDIATOR_KERNEL, bags, ridge, OBSERVED)


def shares(cmo, bags):
    """The weight of each bag in the loss, from the definitions."""
    if cmo == "shrinkage":
        return np.full(len(bags), 1.0 / len(bags))
    kish = np.array([1.0 / (bags.weights[bags.bag == j] ** 2).sum() for j in range(len(bags))])
    return kish / kish.sum()


@pytest.fixture(autouse=True)
def same_draws_in_any_order():
    """Every test draws the same numbers, whichever ran before."""
    RNG.bit_generator.state = START


# --------------------------------------------------------------------------- functions


def test_functions_of_bags_are_sums_over_points():
    c, d = RNG.normal(size=6), RNG.normal(size=(6, 2))
    f, family = Function(Features(KERNEL, WEIGHTED), c), Function(Features(KERNEL, WEIGHTED), d)
    p = weight_matrix(WEIGHTED)
    assert_close(f(X), K_X @ p @ c)
    assert_close(family(X), K_X @ p @ d)
    assert_close(f.inner(family), c @ p.T @ K @ p @ d)
    assert_close(f.norm, np.sqrt(c @ p.T @ K @ p @ c))
    assert_close(family.norm, np.sqrt(np.diag(d.T @ p.T @ K @ p @ d)))


def test_sums_of_functions_on_different_features():
    c, d = RNG.normal(size=6), RNG.normal(size=6)
    f, g = Function(Features(KERNEL, WEIGHTED), c), Function.from_points(KERNEL, X, d)
    p = weight_matrix(WEIGHTED)
    total = np.float64(2.0) * f - g / 4.0
    assert_close(total(X), 2 * K_X @ p @ c - gram(KERNEL, X) @ d / 4)
    cross = c @ p.T @ K_X.T @ d
    square = 4 * f.norm**2 + g.norm**2 / 16 - cross
    assert_close(total.norm**2, square)
    assert_close((f + f).coefficients, 2 * c)


def test_evaluation_is_an_inner_product_with_a_canonical_feature():
    f = Function.from_points(KERNEL, EQUAL.points[:6], RNG.normal(size=6))
    assert_close(Function.canonical(KERNEL, X).inner(f), f(X))


def test_large_evaluations_come_in_blocks(monkeypatch):
    f = Function(Features(KERNEL, EQUAL), np.arange(6.0))
    x = RNG.normal(size=(300, 2))
    whole = f(x)
    monkeypatch.setattr("deconditional.operators.functions.BLOCK_ENTRIES", 1)
    assert_close(f(x), whole)
    assert_close(f.features.at(x) @ f.coefficients, whole)


def test_a_median_kernel_falls_to_one_over_e_at_the_median_distance():
    one = np.array([[0.0], [1.0], [3.0]])  # distances 1, 2, 3
    assert_close(gram(median_kernel(one), one[:1], np.array([[2.0]])), [[np.exp(-1)]])
    rough = gram(median_kernel(one, gk.Matern12), one[:1], np.array([[2.0]]))
    assert_close(rough, [[np.exp(-np.sqrt(2))]])
    two = np.hstack([one, 10 * one])
    assert_close(gram(median_kernel(two), two[:1], np.array([[2.0, 20.0]])), [[np.exp(-1)]])


# --------------------------------------------------------------------------- operators


@pytest.fixture(scope="module")
def operators():
    return conditional(WEIGHTED), FiniteRankOperator(
        Features(KERNEL, EQUAL),
        np.random.default_rng(4).normal(size=(6, 6)),
        Features.of_points(MEDIATOR_KERNEL, OBSERVED),
    )


def test_adjoints_move_across_inner_products(operators):
    f = Function.from_points(KERNEL, X, RNG.normal(size=6))
    h = Function.from_points(MEDIATOR_KERNEL, OBSERVED, RNG.normal(size=6))
    for operator in (*operators, operators[0] + operators[1], 3.0 * operators[1]):
        assert_close(operator(h).inner(f), h.inner(operator.adjoint(f)))


def test_hilbert_schmidt_norms_are_those_of_singular_values(operators):
    # In orthonormal coordinates of the two spans, T is the matrix G^(1/2) B H^(1/2).
    for operator in operators:
        root = sqrtm(operator.into.gram).real
        matrix = root @ operator.matrix @ sqrtm(operator.out_of.gram).real
        assert_close(operator.norm, np.linalg.norm(matrix), tolerance=1e-6)
    a, b = operators
    assert_close((a - b).norm ** 2, a.norm**2 + b.norm**2 - 2 * a.inner(b))


def test_sums_and_products_act_as_they_should(operators):
    a, b = operators
    h = Function.from_points(MEDIATOR_KERNEL, OBSERVED, RNG.normal(size=6))
    assert_close((a - 2 * b)(h)(X), a(h)(X) - 2 * b(h)(X))
    assert_close((a + a)(h)(X), 2 * a(h)(X))
    assert_close((a.adjoint @ b)(h)(OBSERVED), a.adjoint(b(h))(OBSERVED))
    assert_close((a @ b.adjoint @ a)(h)(X), a(b.adjoint(a(h)))(X))


# --------------------------------------------------------------------------- conditional


@EACH
def test_embeddings_and_conditional_means_are_those_of_the_paper(cmo, bags):
    operator, a = conditional(bags, cmo), mediation(cmo, bags)
    embedding = operator.embedding(OBSERVED)
    assert_close(embedding(X), K_X @ a)
    assert_close(embedding.inner(embedding), a.T @ K @ a)
    assert_close(operator(Function.canonical(MEDIATOR_KERNEL, OBSERVED))(X), K_X @ a)
    f = Function.from_points(KERNEL, X, RNG.normal(size=6))
    values = f(bags.points)
    assert_close(operator.conditional_mean(f)(OBSERVED), a.T @ values)
    assert_close(operator.conditional_mean(values)(OBSERVED), a.T @ values)
    assert_close(operator.adjoint(f)(OBSERVED), a.T @ values)
    assert_close(
        operator.conditional_mean(np.stack([values, -values], 1))(OBSERVED)[:, 1], -a.T @ values
    )


def test_samples_are_bags_of_one_point():
    operator = ConditionalMeanOperator.from_samples(
        X, OBSERVED, KERNEL, MEDIATOR_KERNEL, ridge=RIDGE
    )
    weights = np.linalg.solve(L_BOTH + 6 * RIDGE * np.eye(6), L_BOTH)
    assert_close(operator.embedding(OBSERVED)(X), gram(KERNEL, X) @ weights)


def dense_conditional_risk(cmo, bags, coefficients, operator, ridge):
    """Eq. (11) of C = Φ B Ψᵀ, B of n x N, summed over points; over bag means for shrinkage."""
    p, pi = weight_matrix(bags), shares(cmo, bags)
    images = coefficients @ L  # C ℓ_y of every bag, on the points
    penalty = ridge * np.sum((K @ coefficients) * (coefficients @ L))
    assert_close(operator.norm**2 * ridge, penalty)
    if cmo == "shrinkage":
        difference = p - images
        return pi @ np.einsum("ij,ik,kj->j", difference, K, difference) + penalty
    total = 0.0
    for i in range(bags.n_points):
        difference = np.eye(bags.n_points)[i] - images[:, bags.bag[i]]
        total += pi[bags.bag[i]] * bags.weights[i] * difference @ K @ difference
    return total + penalty


@EACH
def test_conditional_risk_of_any_operator(cmo, bags):
    operator = conditional(bags, cmo)
    p = weight_matrix(bags)
    expected = dense_conditional_risk(cmo, bags, p @ operator.matrix, operator, RIDGE)
    assert_close(operator.risk(), expected)
    change = RNG.normal(size=(6, 6))
    other = operator + FiniteRankOperator(operator.into, change, operator.out_of)
    coefficients = p @ (operator.matrix + change)
    expected = dense_conditional_risk(cmo, bags, coefficients, other, 0.3)
    assert_close(operator.risk(other, ridge=0.3), expected)


def refitted_errors(cmo, bags, ridge):
    """Squared errors of every bag, from fits to the points of the other bags."""
    p, errors = weight_matrix(bags), []
    for j in range(len(bags)):
        kept, points = np.arange(len(bags)) != j, bags.bag != j
        if cmo == "shrinkage":
            system = L[np.ix_(kept, kept)] + kept.sum() * ridge * np.eye(kept.sum())
            a = p[:, kept] @ np.linalg.solve(system, L[kept, j])
        else:
            pi = shares(cmo, bags.select(kept))
            omega = np.repeat(pi, bags.sizes[kept]) * bags.weights[points]
            y = bags.bag[points]
            system = L[np.ix_(y, y)] + ridge * np.diag(1.0 / omega)
            a = np.zeros(bags.n_points)
            a[points] = np.linalg.solve(system, L[y, j])
        held_out = np.flatnonzero(~points)
        if cmo == "shrinkage":
            errors.append((p[:, j] - a) @ K @ (p[:, j] - a))
        else:
            each = [np.eye(bags.n_points)[i] - a for i in held_out]
            squares = np.array([e @ K @ e for e in each])
            errors.append(bags.weights[held_out] @ squares)
    return np.array(errors)


@EACH
def test_leave_one_bag_out_is_what_refits_give(cmo, bags):
    operator = conditional(bags, cmo)
    for ridge in (1e-4, 0.3):
        assert_close(operator.leave_one_out(ridge), refitted_errors(cmo, bags, ridge))


@EACH
def test_the_ridge_chosen_is_the_best_of_a_fine_grid(cmo, bags):
    operator = conditional(bags, cmo, ridge="leave-one-out", ridge_bounds=(1e-4, 10.0))
    grid = np.geomspace(1e-4, 10.0, 101)
    pi = shares(cmo, bags)
    scores = [pi @ refitted_errors(cmo, bags, ridge) for ridge in grid]
    best = int(np.argmin(scores))
    assert 0 < best < 100 and grid[best - 1] < operator.ridge < grid[best + 1]
    assert pi @ operator.leave_one_out() <= scores[best] * (1 + 1e-9)
    assert operator.search.at_edge == "" and (np.diff(operator.search.ridges) > 0).all()


# --------------------------------------------------------------------------- searches


def test_a_search_finds_the_lowest_of_two_valleys():
    def valleys(ridge):
        u = np.log10(ridge)
        return min((u + 5.13) ** 2 + 0.5, (u + 1.37) ** 2)

    found = search_ridge(valleys, (1e-8, 10.0))
    assert abs(np.log10(found.best) + 1.37) < 1e-3
    assert found.score == found.scores.min() < 1e-6


@pytest.mark.parametrize(("slope", "edge", "bound"), [(1, "lower", 1e-3), (-1, "upper", 0.1)])
def test_a_search_warns_at_an_edge(slope, edge, bound):
    with pytest.warns(FitWarning, match=f"epsilon = .* {edge} edge"):
        found = search_ridge(lambda r: slope * np.log(r), (1e-3, 0.1), "epsilon")
    assert found.at_edge == edge and abs(found.best / bound - 1) < 1e-9


def test_mediators_that_say_nothing_end_at_the_upper_edge():
    # Where no mediator resembles another, the best prediction of a held-out embedding is shrunk to
    # nothing: any other choice only adds the embeddings of strangers.
    y = 100.0 * np.arange(6)[:, None] + RNG.normal(size=(6, 1))
    kernel = gk.RBF(lengthscale=40.0)
    far = ragged_bags(SIZES, d=2).select(np.arange(6))
    x = [points + 1e3 * (j % 2) for j, points in enumerate(far)]
    with pytest.warns(FitWarning, match="upper edge"):
        ConditionalMeanOperator(Bags.from_list(x, mediator=y), KERNEL, kernel)


def test_evidence_is_that_of_contrasts():
    # Integrating out a constant with a flat prior leaves the law of z orthogonal to its drift.
    q = gram(KERNEL, X)
    drift = RNG.uniform(0.5, 1.5, 6)
    contrasts = null_space(drift[None])

    def log_density(basis, ridge):
        covariance = basis.T @ (q + 6 * ridge * np.eye(6)) @ basis
        values = basis.T @ Z
        scale = values @ np.linalg.solve(covariance, values) / len(values)
        law = multivariate_normal(np.zeros(len(values)), scale * covariance)
        return law.logpdf(values), len(values)

    for low, high in [(1e-3, 0.4), (0.02, 3.0)]:
        for basis, evidence in [
            (contrasts, Evidence(q, Z, drift)),
            (np.eye(6), Evidence(q, Z)),
        ]:
            (a, degrees), (b, _) = log_density(basis, low), log_density(basis, high)
            difference = -0.5 * degrees * (evidence.score(low) - evidence.score(high))
            assert_close(difference, a - b)
    a, degrees = log_density(np.eye(6), 0.1)
    assert_close(-0.5 * degrees * Evidence(q, Z).score(0.1), a)


def test_leave_one_out_with_a_constant_refits_the_constant():
    q = gram(KERNEL, X)
    drift = RNG.uniform(0.5, 1.5, 6)
    held_out = LeaveOneOut(q, np.outer(Z, Z), np.full(6, 1 / 6), drift)
    for ridge in (1e-3, 0.2):
        expected = []
        for j in range(6):
            kept = np.arange(6) != j
            system = np.zeros((6, 6))
            system[:5, :5] = q[np.ix_(kept, kept)] + 5 * ridge * np.eye(5)
            system[:5, 5] = system[5, :5] = drift[kept]
            solved = np.linalg.solve(system, np.append(Z[kept], 0.0))
            prediction = q[j, kept] @ solved[:5] + drift[j] * solved[5]
            expected.append((Z[j] - prediction) ** 2)
        assert_close(held_out.errors(ridge), expected)


# --------------------------------------------------------------------------- deconditional


@EACH
def test_deconditional_operator_is_that_of_the_paper(cmo, bags):
    operator = DeconditionalMeanOperator(conditional(bags, cmo), OBSERVED, epsilon=EPSILON)
    a = mediation(cmo, bags)
    system = a.T @ K @ a + 6 * EPSILON * np.eye(6)
    assert_close(operator.embedding(X).coefficients, np.linalg.solve(system, a.T @ K_X.T))
    assert_close(operator(Function.canonical(KERNEL, X))(OBSERVED), operator.embedding(X)(OBSERVED))
    recovered = operator.recover(Z)
    assert_close(recovered(X), dme_estimate(KERNEL, bags.points, a, EPSILON, Z, X))
    variance = 6 * EPSILON
    covariance = deconditional_covariance(KERNEL, bags.points, a, variance, X)
    assert_close(operator.covariance(X), covariance)
    assert_close(operator.covariance(X[:2], X[2:]), covariance[:2, 2:])
    prior = Function.from_points(KERNEL, X, RNG.normal(size=6))
    residual = Z - a.T @ prior(bags.points)
    expected = prior(X) + deconditional_mean(KERNEL, bags.points, a, variance, residual, X)
    assert_close(operator.recover(Z, mean=prior)(X), expected)


@EACH
def test_deconditional_risk_and_leave_one_out(cmo, bags):
    stage_one = conditional(bags, cmo)
    operator = DeconditionalMeanOperator(stage_one, OBSERVED, epsilon=EPSILON)
    a = mediation(cmo, bags)
    q = a.T @ K @ a
    b = np.linalg.solve(q + 6 * EPSILON * np.eye(6), a.T)  # D = Ψ̃ B Φᵀ
    residual = np.eye(6) - b @ K @ a
    loss = np.einsum("ij,ik,kj->j", residual, L_BOTH, residual).mean()
    penalty = EPSILON * np.sum((L_BOTH @ b) * (b @ K))
    assert_close(operator.risk(), loss + penalty)
    for epsilon in (1e-3, 0.5):
        errors, squares = [], []
        for j in range(6):
            kept = np.arange(6) != j
            system = q[np.ix_(kept, kept)] + 5 * epsilon * np.eye(5)
            weights = np.linalg.solve(system, q[kept, j])
            difference = np.eye(6)[j]
            difference[kept] -= weights
            errors.append(difference @ L_BOTH @ difference)
            squares.append((difference @ Z) ** 2)
        assert_close(operator.leave_one_out(epsilon), errors)
        assert_close(operator.leave_one_out(epsilon, z=Z), squares)


def test_epsilon_chosen_by_leaving_one_out():
    stage_one = conditional(EQUAL)
    bounds = (1e-6, 10.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        operator = DeconditionalMeanOperator(
            stage_one, OBSERVED, epsilon="leave-one-out", epsilon_bounds=bounds
        )
    grid = np.geomspace(*bounds, 141)
    scores = [operator.leave_one_out(epsilon).mean() for epsilon in grid]
    best = int(np.argmin(scores))
    assert grid[max(best - 1, 0)] <= operator.epsilon <= grid[min(best + 1, 140)]
    assert bool(caught) == (operator.search.at_edge != "")


@pytest.mark.parametrize(("cmo", "bags"), [CASES[0], CASES[3]], ids=["standard", "shrinkage"])
def test_recovered_field_is_the_posterior_mean_of_cmp(cmo, bags):
    fixed = {
        "kernel.lengthscale": [0.8, 1.3],
        "kernel.variance": 1.4,
        "mediator_kernel.lengthscale": 0.9,
        "ridge": RIDGE,
        "noise_std": np.sqrt(6 * EPSILON),
    }
    model = CMP(KERNEL, MEDIATOR_KERNEL, cmo=cmo, trend="none", fixed=fixed)
    post = model.fit(bags, Z, mediator=OBSERVED).predict(X)
    operator = DeconditionalMeanOperator(conditional(bags, cmo), OBSERVED, epsilon=EPSILON)
    assert_close(operator.recover(Z)(X), post.mean)
    assert_close(np.diag(operator.covariance(X)), post.variance)
    regressor = DeconditionalRegressor(
        KERNEL, MEDIATOR_KERNEL, cmo=cmo, ridge=RIDGE, epsilon=EPSILON, trend="none"
    )
    regressor.fit(bags, Z, mediator=OBSERVED)
    assert_close(regressor.predict(X), post.mean)


# --------------------------------------------------------------------------- the regressor


def test_a_constant_is_fitted_by_generalised_least_squares():
    model = DeconditionalRegressor(KERNEL, MEDIATOR_KERNEL, ridge=RIDGE, epsilon=EPSILON)
    shifted = model.fit(EQUAL, Z + 50.0, mediator=OBSERVED).predict(X)
    a = mediation("standard", EQUAL)
    covariance = a.T @ K @ a + 6 * EPSILON * np.eye(6)
    drift = a.T @ np.ones(EQUAL.n_points)
    weight = np.linalg.solve(covariance, drift)
    constant = weight @ (Z + 50.0) / (weight @ drift)
    assert_close(model.intercept_, constant)
    rest = np.linalg.solve(covariance, Z + 50.0 - constant * drift)
    assert_close(shifted, constant + K_X @ a @ rest)
    assert_close(model.predict_coarse(OBSERVED), constant * drift + a.T @ K @ a @ rest)


@pytest.mark.parametrize("way", ["evidence", "leave-one-out"])
def test_epsilon_chosen_by_the_observations(way):
    bounds = (1e-6, 100.0)
    a = mediation("standard", EQUAL)
    z = a.T @ np.sin(EQUAL.points).sum(1) + 0.05 * np.array([1, 1, -1, -1, 1, -1])
    model = DeconditionalRegressor(
        KERNEL, MEDIATOR_KERNEL, ridge=RIDGE, epsilon=way, epsilon_bounds=bounds
    ).fit(EQUAL, z, mediator=OBSERVED)
    q, drift = a.T @ K @ a, a.T @ np.ones(EQUAL.n_points)
    criterion = (
        Evidence(q, z, drift)
        if way == "evidence"
        else LeaveOneOut(q, np.outer(z, z), np.full(6, 1 / 6), drift)
    )
    grid = np.geomspace(*bounds, 141)
    best = int(np.argmin([criterion.score(epsilon) for epsilon in grid]))
    assert 0 < best < 140 and grid[best - 1] < model.epsilon_ < grid[best + 1]


def test_the_regressor_recovers_a_field():
    # x | y ~ N(y, 0.5²), f(x) = 3 + sin 2x, so g(y) = 3 + sin(2y) exp(-0.5): conditioning takes
    # 0.39 of the wave away, and the field has to have most of that back.
    rng = np.random.default_rng(0)
    y = np.linspace(-2.5, 2.5, 25)
    bags = Bags.from_list([v + 0.5 * rng.normal(size=30) for v in y], mediator=y)
    observed = np.linspace(-2.4, 2.4, 25)
    z = 3.0 + np.sin(2 * observed) * np.exp(-0.5) + 0.02 * rng.normal(size=25)
    model = DeconditionalRegressor().fit(bags, z, mediator=observed)
    new = np.linspace(-1.8, 1.8, 25)
    truth = 3.0 + np.sin(2 * new)
    error = np.sqrt(np.mean((model.predict(new) - truth) ** 2))
    taken_away = np.sqrt(np.mean(((1 - np.exp(-0.5)) * np.sin(2 * new)) ** 2))
    assert error < 0.5 * taken_away
    assert model.ridge_search_.at_edge == "" and model.epsilon_search_.at_edge == ""
    squares = np.sum((truth - model.predict(new)) ** 2) / np.sum((truth - truth.mean()) ** 2)
    assert_close(model.score(new, truth), 1 - squares)


def test_the_regressor_keeps_the_habits_of_scikit_learn():
    model = DeconditionalRegressor(KERNEL, MEDIATOR_KERNEL, ridge=RIDGE, epsilon=EPSILON)
    assert set(model.get_params()) == {
        *("kernel", "mediator_kernel", "cmo", "ridge", "epsilon", "trend"),
        *("ridge_bounds", "epsilon_bounds"),
    }
    with pytest.raises(NotFittedError, match="call fit first"):
        model.predict(X)
    assert model.fit(EQUAL, Z) is model
    matched = model.predict(X)
    copy = clone(model)
    assert not hasattr(copy, "function_") and copy.ridge == RIDGE
    assert_close(copy.fit(EQUAL, Z, mediator=EQUAL.mediator).predict(X), matched)
    changed = copy.set_params(epsilon=1.0).fit(EQUAL, Z).predict(X)
    assert np.abs(changed - matched).max() > 1e-3
    assert model.epsilon_search_ is None and model.n_features_in_ == 2


# --------------------------------------------------------------------------- what is refused


def _without_mediator():
    return ragged_bags(SIZES, d=2, mediated=False)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Function(Features(KERNEL, EQUAL), np.ones(5)), ValueError, "6 features came with"),
        (
            lambda: Function.canonical(KERNEL, X).inner(Function.canonical(MEDIATOR_KERNEL, X)),
            ValueError,
            "different spaces",
        ),
        (
            lambda: Function.canonical(KERNEL, X) + Function.from_points(KERNEL, X, np.ones(6)),
            ValueError,
            "same number of functions",
        ),
        (lambda: Function.canonical(KERNEL, X)(np.ones((3, 1))), ValueError, "have 2 variable"),
        (
            lambda: Function.canonical(KERNEL, X)([[np.nan, 1.0]]),
            ValueError,
            "point 0 has",
        ),
        (
            lambda: FiniteRankOperator(Features(KERNEL, EQUAL), np.eye(5), Features(KERNEL, EQUAL)),
            ValueError,
            "a row for each of the 6",
        ),
        (lambda: conditional(EQUAL)(X), TypeError, "maps a Function, not ndarray"),
        (lambda: conditional(_without_mediator()), ValueError, "no mediator"),
        (lambda: conditional(EQUAL, cmo="best"), ValueError, "cmo must be"),
        (lambda: conditional(EQUAL, ridge=0.0), ValueError, "ridge must be a positive number"),
        (lambda: conditional(EQUAL, ridge="best"), ValueError, "or 'leave-one-out', not 'best'"),
        (lambda: conditional(EQUAL, ridge_bounds=(1, 2)), ValueError, "ridge_bounds are for"),
        (
            lambda: conditional(EQUAL, ridge="leave-one-out", ridge_bounds=(2, 1)),
            ValueError,
            "increasing order",
        ),
        (
            lambda: conditional(EQUAL.select([0]), ridge="leave-one-out"),
            ValueError,
            "needs two bags",
        ),
        (lambda: conditional(EQUAL).conditional_mean(np.ones(3)), ValueError, "each of the 22"),
        (lambda: conditional(EQUAL).embedding(np.ones((2, 3))), ValueError, "a row of as many"),
        (
            lambda: DeconditionalMeanOperator(KERNEL, OBSERVED, epsilon=1.0),
            TypeError,
            "conditional must be",
        ),
        (
            lambda: DeconditionalMeanOperator(conditional(EQUAL), OBSERVED, epsilon=-1.0),
            ValueError,
            "epsilon must be a positive number",
        ),
        (
            lambda: DeconditionalMeanOperator(conditional(EQUAL), OBSERVED, epsilon=1.0).recover(
                [1]
            ),
            ValueError,
            "6 mediators came with 1",
        ),
        (lambda: DeconditionalRegressor().fit(X, Z), TypeError, r"a pair \(x, y\)"),
        (lambda: DeconditionalRegressor().fit(_without_mediator(), Z), ValueError, "no mediator"),
        (lambda: DeconditionalRegressor().fit(EQUAL, Z[:4]), ValueError, "4 observations came for"),
        (
            lambda: DeconditionalRegressor().fit(EQUAL, Z[:4], mediator=OBSERVED),
            ValueError,
            "4 observations came with 6",
        ),
        (lambda: DeconditionalRegressor(trend="linear").fit(EQUAL, Z), ValueError, "trend must be"),
        (
            lambda: DeconditionalRegressor(KERNEL, MEDIATOR_KERNEL, ridge=1.0, epsilon="cv").fit(
                EQUAL, Z
            ),
            ValueError,
            "'evidence' or 'leave-one-out', not 'cv'",
        ),
        (
            lambda: DeconditionalRegressor(KERNEL, MEDIATOR_KERNEL, ridge=1.0).fit(
                EQUAL, Z, mediator=OBSERVED + 1e6
            ),
            ValueError,
            "nothing in common",
        ),
    ],
)
def test_bad_input_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
