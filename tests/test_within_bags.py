"""Kernel means over pairs of points of the same bag, and points drawn from bags."""

from dataclasses import replace
from functools import cached_property, partial

import equinox as eqx
import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpjax.parameters import PositiveReal
from scipy.stats import chisquare

from deconditional import Bags, DeepKernel
from deconditional.kernels.layout import BagSampler, layout_bags
from deconditional.kernels.within_bags import own_pairs, sampled_pairs, within_bags
from helpers import (
    FINITE_DIFFERENCE_TOLERANCE,
    TanhKernel,
    assert_close,
    flat_kernel,
    gram,
    ragged_bags,
    weight_matrix,
)

ARD = jnp.array([0.7, 1.3, 2.1])
NETWORK = eqx.nn.MLP(3, 2, width_size=4, depth=1, activation=jax.nn.tanh, key=jax.random.key(0))

KERNELS = {
    "gaussian": gk.RBF(lengthscale=ARD, variance=0.6),
    "matern12": gk.Matern12(lengthscale=ARD, variance=1.2),
    "rational quadratic": gk.RationalQuadratic(
        alpha=PositiveReal(0.7), lengthscale=ARD, variance=1.2
    ),
    "sum": gk.Matern32(active_dims=[2, 0], lengthscale=ARD[:2])
    + gk.RBF(active_dims=[1])
    + gk.Constant(constant=jnp.array(0.4)),
    "product": gk.Matern12(active_dims=[0])
    * gk.RationalQuadratic(alpha=PositiveReal(0.7), active_dims=[1, 2]),
    "custom": TanhKernel(0.8),
    "deep": DeepKernel(gk.RBF(lengthscale=jnp.array([0.8, 1.1])), NETWORK),
}
every_kernel = pytest.mark.parametrize("name", KERNELS)


# Chunks of four: some bags have one chunk, one has two and one has three.
RAGGED = ragged_bags([3, 1, 7, 4, 9, 2], weighted=True)


def dense_diagonal(kernel, bags):
    p = weight_matrix(bags)
    return np.diag(p.T @ gram(kernel, bags.points) @ p)


class Together:
    """Diagonals of K̄ for several kernels, and gradients of a random linear form of each.

    One compilation serves them all.
    """

    def __init__(self, names, bags=RAGGED, dtype=None):
        pairs = own_pairs(bags)
        _, source = layout_bags(
            bags.points, bags.bag, bags.weights, bags.n_bags, chunk=pairs.rows.chunk
        )
        form = jnp.asarray(np.random.default_rng(11).normal(size=bags.n_bags))
        flat = {name: flat_kernel(KERNELS[name]) for name in names}
        self.at = {name: (theta, jnp.asarray(bags.points)) for name, (theta, _) in flat.items()}

        def fused(at):
            values = {}
            for name, (theta, points) in at.items():
                layout = pairs.rows.with_points(points[source])
                moved = replace(pairs, rows=layout, cols=layout)
                values[name] = within_bags(flat[name][1](theta), moved, dtype=dtype)
            forms = {name: form @ value for name, value in values.items()}
            return sum(forms.values()), (values, forms)

        self.function = jax.jit(jax.value_and_grad(fused, has_aux=True))
        (_, (self.values, _)), self.gradients = self.function(self.at)

    @cached_property
    def slopes(self):
        """By kernel: <gradient, v> and central differences, v random in each argument."""
        rng, step = np.random.default_rng(3), 1e-5
        found = {name: ([], []) for name in self.at}
        for argument in (0, 1):
            for _ in range(3):
                v = {
                    n: jnp.asarray(rng.normal(size=at[argument].shape)) for n, at in self.at.items()
                }
                ahead, behind = (self.forms(argument, v, sign * step) for sign in (1, -1))
                for name, (actual, desired) in found.items():
                    actual.append(float(jnp.sum(self.gradients[name][argument] * v[name])))
                    desired.append((ahead[name] - behind[name]) / (2 * step))
        return found

    def forms(self, argument, directions, step):
        moved = {}
        for name, at in self.at.items():
            moved[name] = tuple(
                part + step * directions[name] if i == argument else part
                for i, part in enumerate(at)
            )
        return {name: float(form) for name, form in self.function(moved)[0][1][1].items()}


@pytest.fixture(scope="module")
def together():
    return Together(KERNELS)


# --------------------------------------------------------------------------- all pairs of a bag


def test_the_bags_of_these_tests_are_cut_into_chunks():
    pairs = own_pairs(RAGGED)
    np.testing.assert_array_equal(np.bincount(pairs.bag), [1, 1, 3, 1, 6, 1])
    assert {1.0, 2.0} == set(np.asarray(pairs.count).tolist())


@every_kernel
def test_means_over_pairs_are_the_diagonal_of_the_dense_matrix(name, together):
    assert_close(together.values[name], dense_diagonal(KERNELS[name], RAGGED))


@every_kernel
def test_gradients_equal_finite_differences(name, together):
    assert_close(*together.slopes[name], tolerance=FINITE_DIFFERENCE_TOLERANCE)


def test_many_batches_of_pairs_are_one(monkeypatch, together):
    # Thirteen pairs of chunks, three in a batch, the last of them filled up.
    monkeypatch.setattr("deconditional.kernels.within_bags.VALUES_PER_BATCH", 3 * 16)
    batched = Together(["rational quadratic", "custom"])
    for name, values in batched.values.items():
        assert_close(values, together.values[name])
        for one, other in zip(batched.gradients[name], together.gradients[name], strict=True):
            assert_close(one, other)


FLOAT32_GRADIENTS = {
    "gaussian": 2e-5,
    # The slope of a Matérn-1/2 is that of a square root: close points lose digits like 1/s.
    "matern12": 2e-3,
}


def test_float32_tiles(together):
    single = Together(FLOAT32_GRADIENTS, dtype=jnp.float32)
    for name, tolerance in FLOAT32_GRADIENTS.items():
        assert single.values[name].dtype == jnp.float64
        assert not np.array_equal(single.values[name], together.values[name])
        assert_close(single.values[name], together.values[name], "float32")
        for one, other in zip(single.gradients[name], together.gradients[name], strict=True):
            assert_close(one, other, tolerance=tolerance)


def test_points_of_no_weight_do_not_count():
    points, weights = RAGGED.points.copy(), RAGGED.weights.copy()
    weights[[0, 4, 20]] = 0.0
    bags = Bags.from_points(points, RAGGED.bag, weights=weights)
    kernel = KERNELS["gaussian"]
    values = eqx.filter_jit(within_bags)(kernel, own_pairs(bags))
    assert_close(values, dense_diagonal(kernel, bags))


# --------------------------------------------------------------------------- points drawn from bags

# Rows in no order; points of no weight at the beginning, in the middle and at the end of bags.
OWNER = np.array([2, 0, 1, 0, 2, 1, 0, 1, 2, 1, 0, 3])
WEIGHTS = np.array([0.0, 0.5, 0.2, 0.0, 0.7, 0.3, 0.5, 0.0, 0.3, 0.5, 0.0, 1.0])
PLACES = np.column_stack([np.arange(12.0), np.arange(12.0) ** 2])
PER_BAG = 64


@pytest.fixture(scope="module")
def sampler():
    return BagSampler.of(PLACES, OWNER, WEIGHTS, 4)


@partial(jax.jit, static_argnums=2)
def draw(sampler, key, points_per_bag):
    return sampler.draw(key, points_per_bag)


@jax.jit
def draws_of(sampler, keys):
    """Which row every drawn point is, (keys, bags, points per bag)."""
    layouts = jax.vmap(lambda key: sampler.draw(key, PER_BAG))(keys)
    n_bags = sampler.bag.shape[0]
    return layouts.points[:, : n_bags * PER_BAG].reshape(len(keys), n_bags, PER_BAG, 2)


@pytest.fixture(scope="module")
def drawn(sampler):
    return np.asarray(draws_of(sampler, jax.random.split(jax.random.key(0), 200)))


def test_a_draw_is_a_layout_of_equal_weights(sampler):
    layout = draw(sampler, jax.random.key(1), 4)
    weights = np.asarray(layout.weights)
    assert_close(weights[:16], np.full(16, 0.25))
    assert (weights[16:] == 0).all()
    assert (layout.n_bags, layout.chunk, len(layout.points) % layout.tile) == (4, 4, 0)
    np.testing.assert_array_equal(layout.bag[:4], np.arange(4))


def test_draws_are_whole_points_of_their_own_bag(drawn):
    rows = drawn[..., 0].astype(int)
    np.testing.assert_array_equal(PLACES[rows], drawn)
    np.testing.assert_array_equal(OWNER[rows], np.broadcast_to(np.arange(4)[:, None], rows.shape))


def test_points_of_no_weight_are_never_drawn(drawn):
    assert (WEIGHTS[drawn[..., 0].astype(int)] > 0).all()


@pytest.mark.parametrize("bag", [0, 1, 2])
def test_points_are_drawn_in_proportion_to_their_weights(bag, drawn):
    counts = np.bincount(drawn[:, bag, :, 0].astype(int).ravel(), minlength=12)
    possible = np.flatnonzero((bag == OWNER) & (WEIGHTS > 0))
    expected = WEIGHTS[possible] / WEIGHTS[possible].sum() * counts.sum()
    assert counts[possible].sum() == counts.sum() == 200 * PER_BAG
    assert chisquare(counts[possible], expected).pvalue > 1e-4


def test_draws_differ_between_keys_and_between_bags(drawn):
    assert not np.array_equal(drawn[0], drawn[1])
    heads = drawn[:, 0, :, 0] == 1.0
    tails = drawn[:, 1, :, 0] == 9.0
    # Correlation of 12800 independent pairs, five standard errors.
    assert abs(np.corrcoef(heads.ravel(), tails.ravel())[0, 1]) < 5 / np.sqrt(heads.size)


def test_a_selection_draws_from_the_bags_selected_in_their_order(sampler):
    chosen = sampler.select(jnp.array([2, 0]))
    rows = np.asarray(draws_of(chosen, jax.random.split(jax.random.key(3), 50)))[..., 0].astype(int)
    np.testing.assert_array_equal(OWNER[rows[:, 0]], 2)
    np.testing.assert_array_equal(OWNER[rows[:, 1]], 0)
    counts = np.bincount(rows[:, 0].ravel(), minlength=12)
    assert chisquare(counts[[4, 8]], np.array([0.7, 0.3]) * counts.sum()).pvalue > 1e-4


def test_pairs_between_two_samples_are_means_over_those_points():
    sampler = BagSampler.of(RAGGED.points, RAGGED.bag, RAGGED.weights, RAGGED.n_bags)
    first, second = (draw(sampler, jax.random.key(s), 8) for s in (0, 1))
    for kernel in (KERNELS["sum"], KERNELS["custom"]):
        values = eqx.filter_jit(within_bags)(kernel, sampled_pairs(first, second))
        expected = [
            gram(kernel, first.points[8 * j : 8 * j + 8], second.points[8 * j : 8 * j + 8]).mean()
            for j in range(RAGGED.n_bags)
        ]
        assert_close(values, expected)
