"""The uncollapsed bound, its minibatches and the climb."""

from dataclasses import replace
from functools import cache
from itertools import combinations

import equinox as eqx
import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.linalg import block_diag
from scipy.stats import multivariate_normal

from deconditional import FitWarning, VarCMP, VBagg
from deconditional.inference import stochastic
from deconditional.inference.basis_field import Coefficients
from deconditional.inference.bound import (
    Natural,
    elbo,
    endless,
    full_bound,
    likelihood,
    optimal,
)
from deconditional.inference.minibatches import Batches, restricted
from deconditional.inference.stochastic import ClimbOptions, maximise_elbo
from deconditional.inference.variational import SampledPairs
from helpers import assert_close, gram, ragged_bags, weight_matrix
from helpers import problem_of as posed

BAGS = ragged_bags([3, 1, 9, 2, 4], d=2, weighted=True)
RNG = np.random.default_rng(3)
Z, Y_OBSERVED = RNG.normal(size=5), RNG.normal(size=(5, 1))
PLACES = RNG.normal(size=(4, 2))
ROOT = RNG.normal(size=(5, 5))
COVARIANCE = 0.1 * ROOT @ ROOT.T
M, BATCH = 5, 2
KEY = jax.random.key(0)


COMMON = {"kernel": gk.RBF(lengthscale=jnp.ones(2)), "inducing": PLACES}
MODELS = {
    "matched": (VBagg(trend="none", fine_noise=True, **COMMON), {}),
    "mediated": (
        VarCMP(trend="none", fine_noise=True, uncertainty=True, **COMMON),
        {"mediator": Y_OBSERVED},
    ),
    "correlated": (
        VBagg(trend="constant", learn_noise=True, **COMMON),
        {"noise_cov": COVARIANCE},
    ),
}
every_path = pytest.mark.parametrize("name", MODELS)


@cache
def problem_of(name):
    model, data = MODELS[name]
    arguments = {"mediator": None, "noise_std": None, "noise_cov": None} | data
    return posed(model, BAGS, Z, **arguments)


@cache
def values_of(name):
    parameters = problem_of(name).parameters
    start = parameters.start()
    moved = start + 0.2 * np.random.default_rng(7).normal(size=len(start))
    return parameters.unpack(jnp.asarray(moved))


def vector_of(name):
    return problem_of(name).parameters.pack(values_of(name))


def some_q(size, seed=0):
    """A distribution of the coefficients that is not the best."""
    rng = np.random.default_rng(seed)
    root = np.tril(rng.normal(size=(size, size)), -1) + np.diag(rng.uniform(0.8, 2.0, size))
    return Coefficients(jnp.asarray(rng.normal(size=size)), None, jnp.asarray(root))


def covariance_of(q):
    return np.linalg.inv(np.asarray(q.precision_root @ q.precision_root.T))


@eqx.filter_jit
def _whole(problems, values, batches):
    found = {}
    for name, problem in problems.items():
        part = likelihood(problem, values[name], batches[name], KEY)
        pieces = problem.pieces(values[name])
        found[name] = part, problem.field(values[name], pieces).log_evidence
    return found


def whole(values):
    """By model: the likelihood of all observations in one batch, and the collapsed bound."""
    problems = {name: problem_of(name) for name in MODELS}
    batches = {name: Batches(problem, M).draw() for name, problem in problems.items()}
    return _whole(problems, {name: values_of(name) for name in MODELS} | values, batches)


@cache
def _whole_of_all():
    return whole({})


def whole_of(name):
    return _whole_of_all()[name]


@eqx.filter_jit
def bound_of(part, q):
    return elbo(part, q)


@eqx.filter_jit
def _values_and_gradients(problems, values, qs, batches):
    def bounds(values):
        found = {
            name: elbo(likelihood(problem, values[name], batches[name], KEY), qs[name])
            for name, problem in problems.items()
        }
        return sum(found.values()), found

    (_, found), gradients = jax.value_and_grad(bounds, has_aux=True)(values)
    return found, gradients


def values_and_gradients(batches):
    """By model: the bound estimated from a batch, and its gradient in the parameters."""
    problems = {name: problem_of(name) for name in MODELS}
    values = {name: values_of(name) for name in MODELS}
    qs = {name: some_q(size_of(name)) for name in MODELS}
    return _values_and_gradients(problems, values, qs, batches)


# --------------------------------------------------------------------------- the paper's bound


def paper_elbo(name, values, q):
    """E_q log N(z; Aᵀf, S) - KL(q(u) || p(u)), densely, with trend coefficients beside u.

    The paper's appendix: q(f) has mean BKμ and covariance K - B k(w, ·) + BΣBᵀ, B = k(·, w)K_ww⁻¹.
    """
    model, data = MODELS[name]
    kernel = gk.RBF(
        lengthscale=jnp.asarray(values["kernel.lengthscale"]), variance=values["kernel.variance"]
    )
    p, x = weight_matrix(BAGS), BAGS.points
    k, k_w, k_ww = gram(kernel, x), gram(kernel, x, PLACES), gram(kernel, PLACES)
    a, s = p, np.eye(M) * values["noise_std"] ** 2 + data.get("noise_cov", 0.0)
    if "mediator" in data:
        ell = gk.Matern12(lengthscale=float(values["mediator_kernel.lengthscale"]))
        ridge = values["ridge"] * BAGS.effective_sizes.sum() / BAGS.effective_sizes
        cross = gram(ell, BAGS.mediator, Y_OBSERVED)
        w = np.linalg.solve(gram(ell, BAGS.mediator) + np.diag(ridge), cross)
        tau2 = np.mean(np.diag(p.T @ k @ p))
        a, s = p @ w, s + tau2 * (gram(ell, Y_OBSERVED) - cross.T @ w)
    s = s + values.get("fine_noise_std", 0.0) ** 2 * a.T @ a
    loadings, prior = np.linalg.solve(k_ww, k_w.T).T, k_ww
    rest = k - loadings @ k_w.T
    if model.trend == "constant":
        loadings = np.column_stack([loadings, np.ones(len(x))])
        prior = block_diag(prior, 100.0 * np.mean(Z**2))
    root = np.linalg.cholesky(prior)
    mean, covariance = root @ np.asarray(q.mean), root @ covariance_of(q) @ root.T
    of_z = multivariate_normal(a.T @ loadings @ mean, s).logpdf(Z)
    spread = a.T @ (rest + loadings @ covariance @ loadings.T) @ a
    expected = of_z - 0.5 * np.trace(np.linalg.solve(s, spread))
    divergence = 0.5 * (
        np.trace(np.linalg.solve(prior, covariance))
        + mean @ np.linalg.solve(prior, mean)
        - len(mean)
        + np.linalg.slogdet(prior)[1]
        - np.linalg.slogdet(covariance)[1]
    )
    return expected - divergence


def numbers(values):
    return {name: np.asarray(value, dtype=float) for name, value in values.items()}


def size_of(name):
    return 5 if name == "correlated" else 4


@every_path
def test_the_bound_is_that_of_the_paper(name):
    q = some_q(size_of(name))
    part, _ = whole_of(name)
    assert_close(bound_of(part, q), paper_elbo(name, numbers(values_of(name)), q))


@pytest.mark.parametrize("name", ["matched", "mediated"])
def test_without_high_resolution_noise_too(name):
    values = values_of(name) | {"fine_noise_std": jnp.zeros(())}
    part, collapsed = whole({name: values})[name]
    q = some_q(4, seed=1)
    assert_close(bound_of(part, q), paper_elbo(name, numbers(values), q))
    assert_close(bound_of(part, best_of(part)), collapsed)


# --------------------------------------------------------------------------- the best q


def best_of(part):
    """Σ⁻¹ = I + Γ̃Γ̃ᵀ and Σ⁻¹m = Γ̃z̃."""
    white, z = np.asarray(part.white), np.asarray(part.white_z)
    precision = np.eye(len(white)) + white @ white.T
    mean = np.linalg.solve(precision, white @ z)
    return Coefficients(jnp.asarray(mean), None, jnp.asarray(np.linalg.cholesky(precision)))


@every_path
def test_the_best_bound_is_the_collapsed_one(name):
    part, collapsed = whole_of(name)
    best = best_of(part)
    assert_close(bound_of(part, best), collapsed)
    for seed in range(5):
        other = some_q(size_of(name), seed)
        assert bound_of(part, other) < collapsed - 0.01
        near = Coefficients(
            best.mean + 1e-3 * other.mean, None, best.precision_root + 1e-3 * other.precision_root
        )
        assert bound_of(part, near) < collapsed


def test_the_gradient_in_q_vanishes_at_the_optimum():
    part, _ = whole_of("matched")
    best = best_of(part)

    @jax.jit
    def gradient(q):
        return jax.grad(lambda m, r: elbo(part, Coefficients(m, None, jnp.tril(r))), (0, 1))(*q)

    flat, _ = ravel_pytree(gradient((best.mean, best.precision_root)))
    assert np.abs(flat).max() < 1e-9
    elsewhere, _ = ravel_pytree(gradient((best.mean, 2.0 * best.precision_root)))
    assert np.abs(elsewhere).max() > 0.1


def test_a_whole_natural_step_over_all_observations_is_the_optimum():
    part, _ = whole_of("matched")
    start = Natural(jnp.asarray(RNG.normal(size=4)), 3.0 * jnp.eye(4))
    stepped, best = start.step(part, jnp.asarray(1.0)), best_of(part)
    assert_close(stepped.coefficients().mean, best.mean)
    assert_close(stepped.coefficients().precision_root, best.precision_root)
    half = start.step(part, jnp.asarray(0.5))
    assert_close(half.precision, 0.5 * (start.precision + stepped.precision))
    assert_close(half.shift, 0.5 * (start.shift + stepped.shift))


@pytest.mark.parametrize("name", ["matched", "correlated"])
def test_statistics_gathered_by_batches_are_those_of_all(name):
    # Five observations in batches of two: the last batch is filled up, and the filling left out.
    problem, vector = problem_of(name), vector_of(name)
    part, collapsed = whole_of(name)
    batches = Batches(problem, BATCH, seed=1)
    found, expected = optimal(problem, vector, batches, KEY).coefficients(), best_of(part)
    assert_close(found.mean, expected.mean)
    assert_close(found.precision_root, expected.precision_root)
    q = some_q(size_of(name), seed=2)
    assert_close(full_bound(problem, vector, q, batches, KEY), bound_of(part, q))
    assert_close(full_bound(problem, vector, best_of(part), batches, KEY), collapsed)


# --------------------------------------------------------------------------- minibatches


@cache
def of_all_minibatches():
    batches = {name: Batches(problem_of(name), BATCH) for name in MODELS}
    return [
        values_and_gradients({n: b._batch(np.array(chosen)) for n, b in batches.items()})
        for chosen in combinations(range(M), BATCH)
    ]


@every_path
def test_minibatches_are_unbiased_over_all_of_them(name):
    q, at = some_q(size_of(name)), numbers(values_of(name))
    bounds = np.array([float(values[name]) for values, _ in of_all_minibatches()])
    assert bounds.std() > 0.1
    assert_close(bounds.mean(), paper_elbo(name, at, q))
    gradients = [gradient[name] for _, gradient in of_all_minibatches()]
    gradient = {each: np.mean([np.asarray(g[each]) for g in gradients], 0) for each in at}
    for each in at:
        for place in np.ndindex(at[each].shape):
            step = 1e-5 * abs(at[each][place])
            ahead, behind = (
                at | {each: at[each] + sign * step * _unit(at[each].shape, place)}
                for sign in (1, -1)
            )
            slope = (paper_elbo(name, ahead, q) - paper_elbo(name, behind, q)) / (2 * step)
            np.testing.assert_allclose(gradient[each][place], slope, rtol=1e-6, atol=1e-6)


def _unit(shape, place):
    unit = np.zeros(shape)
    unit[place] = 1.0
    return unit


def test_drawn_minibatches_are_uniform_and_unbiased():
    # The bound of a minibatch depends on which observations it has, and those of all are known.
    known = {
        frozenset(chosen): [float(values[name]) for name in MODELS]
        for chosen, (values, _) in zip(
            combinations(range(M), BATCH), of_all_minibatches(), strict=True
        )
    }
    batches, n, found, counts = Batches(problem_of("matched"), BATCH, seed=5), 500, [], np.zeros(M)
    for _ in range(n):
        chosen = frozenset(np.asarray(batches.draw().observations).tolist())
        assert len(chosen) == BATCH
        counts[list(chosen)] += 1
        found.append(known[chosen])
    error = np.std(found, 0, ddof=1) / np.sqrt(n)
    expected = [
        paper_elbo(name, numbers(values_of(name)), some_q(size_of(name))) for name in MODELS
    ]
    assert (np.abs(np.mean(found, 0) - expected) < 5 * error).all()
    share = BATCH / M
    assert (np.abs(counts / n - share) < 5 * np.sqrt(share * (1 - share) / n)).all()


def test_an_epoch_sees_every_observation_once_in_batches_of_one_shape():
    for size, shapes in ((2, [2, 2, 1]), (3, [3, 2]), (5, [5]), (64, [5])):
        epoch = list(Batches(problem_of("matched"), size, seed=2).epoch())
        counted = [np.asarray(batch.observations)[:count] for batch, count in epoch]
        assert [len(c) for c in counted] == shapes
        np.testing.assert_array_equal(np.sort(np.concatenate(counted)), np.arange(M))
        sizes = {batch.observations.shape for batch, _ in epoch}
        assert sizes == {(min(size, M),)}
        assert len({batch.chunks.rows.shape for batch, _ in epoch}) == 1
        for batch, _ in epoch:
            assert len(np.unique(batch.observations)) == len(batch.observations)


def test_only_independent_matched_observations_bring_their_own_bags():
    chunks = [Batches(problem_of(name), BATCH).draw().chunks for name in MODELS]
    assert [c is not None for c in chunks] == [True, False, False]
    layout = problem_of("matched").layout
    # The bag of nine points has several chunks, of which each has its place.
    used = np.asarray(layout.weights).reshape(-1, layout.chunk).any(1)
    assert np.bincount(np.asarray(layout.bag)[used])[2] > 1


def test_a_minibatch_samples_points_of_its_own_bags():
    model = VBagg(trend="none", trace="subsample", inference_options={"trace_points": 4}, **COMMON)
    problem = posed(model, BAGS, Z)
    batch = Batches(problem, BATCH)._batch(np.array([4, 2]))

    @eqx.filter_jit
    def draw(problem, batch):
        residual = restricted(problem, batch).residual
        assert isinstance(residual, SampledPairs)
        return residual.sampler.draw(KEY, residual.points_per_bag).points

    drawn = np.asarray(draw(problem, batch))[:8]
    for bag, points in zip((4, 2), (drawn[:4], drawn[4:]), strict=True):
        own = BAGS.points[BAGS.bag == bag]
        assert (points[:, None] == own).all(-1).any(1).all()


# --------------------------------------------------------------------------- options


def test_options_reach_the_climb(monkeypatch):
    class Reached(Exception):
        pass

    def climb(problem, options, **rest):
        raise Reached(options, rest)

    monkeypatch.setattr("deconditional.inference.learn.maximise_elbo", climb)
    given = {
        "batch_size": 3,
        "learning_rate": 0.01,
        "natural_step": 0.2,
        "max_steps": 77,
        "patience": 11,
        "tolerance": 0.3,
    }
    model = VBagg(inference="stochastic", inference_options=given, n_restarts=3, seed=8, **COMMON)
    with pytest.raises(Reached) as reached:
        model.fit(BAGS, Z)
    options, rest = reached.value.args
    assert options == ClimbOptions(**given)
    assert (rest["n_restarts"], rest["seed"]) == (3, 8)
    model.set_params(inference_options=None)
    with pytest.raises(Reached) as reached:
        model.fit(BAGS, Z)
    assert reached.value.args[0] == ClimbOptions()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch_size": 0}, "batch_size must be a positive whole number"),
        ({"max_steps": 2.5}, "max_steps must be a positive whole number"),
        ({"learning_rate": np.nan}, "learning_rate must be a positive number"),
        ({"tolerance": "small"}, "tolerance must be a positive number"),
        ({"natural_step": 1.5}, "natural_step lies between 0 and 1"),
    ],
    ids=str,
)
def test_bad_options(options, message):
    model = VBagg(inference="stochastic", inference_options=options)
    with pytest.raises(ValueError, match=message):
        model.fit(BAGS, Z)


# --------------------------------------------------------------------------- the climb


class Steps:
    """Stands in for a step: moves every parameter by a little and reports a bound."""

    def __init__(self, bound=lambda vector: 0.0, interrupt_after=None):
        self.bound, self.interrupt_after, self.taken = bound, interrupt_after, 0

    def __call__(self, problem, state, batch, key, low, high):
        if self.taken == self.interrupt_after:
            raise KeyboardInterrupt
        self.taken += 1
        moved = replace(state, vector=state.vector + 0.01)
        return moved, self.bound(np.asarray(state.vector))


def test_the_climb_ends_on_its_last_plateau_and_shrinks_its_steps_before(monkeypatch):
    rates = []

    class Recorded(Steps):
        def __call__(self, problem, state, *rest):
            rates.append(np.asarray(state.rates))
            return super().__call__(problem, state, *rest)

    monkeypatch.setattr(stochastic, "_step", Recorded())
    options = ClimbOptions(batch_size=BATCH, patience=4, learning_rate=0.1, natural_step=0.5)
    climb = maximise_elbo(problem_of("matched"), options)
    assert (climb.optimum.evaluations, climb.optimum.converged) == (17, True)
    first = np.array([0.1, 0.5])
    shares = np.repeat([1.0, 0.3, 0.09, 0.027], [5, 4, 4, 4])
    assert_close(rates, shares[:, None] * first)
    assert_close(climb.trace, [0.0])


def test_the_climb_ends_at_the_average_of_its_last_steps(monkeypatch):
    problem = problem_of("matched")
    start = problem.parameters.start()
    n = stochastic.SMOOTHING

    class Wandering(Steps):
        def __call__(self, problem, state, *rest):
            state, bound = super().__call__(problem, state, *rest)
            return replace(state, vector=jnp.asarray(start + 0.01 * (-1.0) ** self.taken)), bound

    monkeypatch.setattr(stochastic, "_step", Wandering())
    climb = maximise_elbo(problem, ClimbOptions(batch_size=BATCH, patience=n))
    assert climb.optimum.evaluations == 4 * n + 1
    assert_close(climb.optimum.vector, start)


def test_batches_of_all_observations_take_whole_natural_steps(monkeypatch):
    rates = []

    class Recorded(Steps):
        def __call__(self, problem, state, *rest):
            rates.append(np.asarray(state.rates))
            return super().__call__(problem, state, *rest)

    monkeypatch.setattr(stochastic, "_step", Recorded())
    maximise_elbo(problem_of("matched"), ClimbOptions(batch_size=M, patience=4))
    np.testing.assert_array_equal(np.array(rates)[:, 1], 1.0)
    assert_close(rates[-1][0], 0.05 * 0.027)


def test_too_few_steps_are_no_convergence(monkeypatch):
    monkeypatch.setattr(stochastic, "_step", Steps())
    climb = maximise_elbo(problem_of("matched"), ClimbOptions(batch_size=BATCH, max_steps=25))
    assert (climb.optimum.evaluations, climb.optimum.converged) == (25, False)


def test_the_best_restart_goes_on(monkeypatch):
    problem = problem_of("matched")
    start = problem.parameters.start()
    good = start + 1.0
    steps = Steps(bound=lambda v: -np.abs(v - good).sum())
    monkeypatch.setattr(stochastic, "_step", steps)
    monkeypatch.setattr(stochastic, "SCREENING_STEPS", 5)
    options = ClimbOptions(batch_size=BATCH, max_steps=60)
    climb = maximise_elbo(problem, options, n_restarts=3, starts=(good,))
    assert climb.optimum.evaluations == steps.taken == 60
    assert len(climb.optimum.restarts) == 3
    assert climb.optimum.restarts[0] == max(climb.optimum.restarts)
    # The two other starts took five steps each; 50 are left for the best.
    assert_close(climb.optimum.vector, good + 0.01 * 50)


def test_the_end_of_a_climb_is_the_best_q_and_the_true_bound(monkeypatch):
    monkeypatch.setattr(stochastic, "_step", Steps())
    problem = problem_of("matched")
    climb = maximise_elbo(problem, ClimbOptions(batch_size=BATCH, max_steps=3))
    vector = jnp.asarray(problem.parameters.start() + 0.03)
    assert_close(climb.optimum.vector, vector)
    values = problem.parameters.unpack(vector)
    part, _ = whole({"matched": values})["matched"]
    best = best_of(part)
    assert_close(climb.field.coefficients.mean, best.mean)
    assert_close(climb.field.coefficients.precision_root, best.precision_root)
    bound = paper_elbo("matched", numbers(values), best)
    assert_close(climb.field.log_evidence, bound)
    assert_close(climb.optimum.log_posterior, bound + float(problem.parameters.log_prior(vector)))
    assert_close(climb.field.fine_noise_variance, values["fine_noise_std"] ** 2)


# --------------------------------------------------------------------------- whole fits


def stochastic_model(**options):
    return VBagg(
        trend="none",
        fine_noise=True,
        inference="stochastic",
        n_restarts=1,
        inference_options={"batch_size": BATCH, **options},
        **COMMON,
    )


SHORT = {"patience": 20, "tolerance": 1e6}
"""Ends, as if converged, after 61 steps."""


@pytest.fixture(scope="module")
def natural():
    return stochastic_model(**SHORT).fit(BAGS, Z)


def collapsed_at(model):
    return model.fitted_.problem.solve(jnp.asarray(model.fitted_.vectors[0]))[1]


def test_a_fit_by_natural_gradients_ends_on_the_collapsed_bound(natural):
    collapsed = collapsed_at(natural)
    assert abs(natural.log_evidence_ - float(collapsed.log_evidence)) < 1e-6
    q = natural.fitted_.fields[0].coefficients
    assert_close(q.mean, collapsed.coefficients.mean)
    assert_close(covariance_of(q), collapsed.coefficients.covariance(jnp.eye(4)))
    at = {n: np.asarray(v) for n, v in natural.parameters_.items()}
    assert_close(natural.log_evidence_, paper_elbo("matched", at, q), tolerance=1e-6)


def test_a_fit_by_minibatches_improves_on_its_start(natural):
    problem = natural.fitted_.problem
    start = jnp.asarray(problem.parameters.start())
    before = float(problem.solve(start)[1].log_evidence + problem.parameters.log_prior(start))
    report = natural.fit_report_
    assert report.log_posterior > before + 0.1
    assert (report.converged, report.notes) == (True, ())
    assert report.details["inference"] == "stochastic"
    assert len(natural.bound_trace_) == report.iterations // 10
    assert np.isfinite(natural.bound_trace_).all()


def test_a_step_onto_nothing_finite_is_not_taken(natural):
    problem = natural.fitted_.problem
    parameters = problem.parameters
    batches = Batches(problem, BATCH)
    run = stochastic.Run(
        problem, ClimbOptions(batch_size=BATCH), parameters.start(), batches, endless(KEY)
    )
    broken = replace(problem, z=jnp.asarray(np.full(M, np.nan)))
    batches = run.batches.draw(), run.batches.draw()
    kept, bound = stochastic._step(broken, run.state, batches, KEY, *run.bounds)
    assert np.isnan(bound)
    for one, other in zip(jax.tree.leaves(kept), jax.tree.leaves(run.state), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_interrupted_fit_keeps_what_it_has_and_says_so(monkeypatch):
    monkeypatch.setattr(stochastic, "_step", Steps(interrupt_after=7))
    model = stochastic_model()
    with pytest.warns(FitWarning) as caught:
        model.fit(BAGS, Z)
    assert any("interrupted after 7 steps" in str(w.message) for w in caught)
    assert any("interrupted after 7 steps" in note for note in model.fit_report_.notes)
    assert not model.fit_report_.converged
    assert_close(model.fitted_.vectors[0], model.fitted_.problem.parameters.start() + 0.07)
    assert abs(model.log_evidence_ - float(collapsed_at(model).log_evidence)) < 1e-6


def test_a_climb_that_did_not_converge_is_told_the_option_that_helps(monkeypatch):
    monkeypatch.setattr(stochastic, "_step", Steps())
    with pytest.warns(FitWarning) as caught:
        stochastic_model(max_steps=5).fit(BAGS, Z)
    (message,) = (str(w.message) for w in caught)
    assert "did not converge" in message or "before it converged" in message
    assert "max_steps" in message
