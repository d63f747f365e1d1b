"""Fused bag averages of a kernel against the dense matrices they never form."""

import equinox as eqx
import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpjax.parameters import PositiveReal
from helpers import (
    FINITE_DIFFERENCE_TOLERANCE,
    TanhKernel,
    assert_close,
    assert_positive_semidefinite,
    finite_difference,
    flat_kernel,
    gram,
    ragged_bags,
    weight_matrix,
)

from deconditional import Bags, DeepKernel, bag_cross, bag_gram
from deconditional.bag_kernels import CHUNK_SIZES, layout_bags

ARD = jnp.array([0.7, 1.3, 2.1])
NETWORK = eqx.nn.MLP(3, 2, width_size=4, depth=1, activation=jax.nn.tanh, key=jax.random.key(0))


def rational_quadratic(**options):
    return gk.RationalQuadratic(alpha=PositiveReal(0.7), **options)


RADIAL = {
    "gaussian": gk.RBF(lengthscale=1.4, variance=1.7),
    "gaussian ard": gk.RBF(lengthscale=ARD, variance=0.6),
    "matern12 ard": gk.Matern12(lengthscale=ARD, variance=1.2),
    "matern32 ard": gk.Matern32(lengthscale=ARD, variance=1.2),
    "matern52 ard": gk.Matern52(lengthscale=ARD, variance=1.2),
    "rational quadratic ard": rational_quadratic(lengthscale=ARD, variance=1.2),
    "active dims": gk.Matern32(active_dims=[2, 0], lengthscale=jnp.array([0.5, 1.5])),
    "sum": gk.Matern32(active_dims=[0, 1], lengthscale=0.8) + gk.RBF(active_dims=[2]),
    "product": gk.Matern12(active_dims=[0]) * rational_quadratic(active_dims=[1, 2]),
    "product of sums": (gk.Matern32(active_dims=[0], lengthscale=0.6) + gk.RBF(active_dims=[1]))
    * (gk.RBF(active_dims=[2], variance=0.8) + gk.Matern52(active_dims=[0])),
    "sum with a constant": gk.RBF(lengthscale=ARD) + gk.Constant(constant=jnp.array(0.4)),
    "product with a constant": gk.Constant(constant=jnp.array(0.4)) * gk.Matern52(),
    "deep": DeepKernel(gk.RBF(lengthscale=jnp.array([0.8, 1.1])), NETWORK),
    "deep sum": DeepKernel(gk.Matern32() + gk.RBF(active_dims=[1]), NETWORK),
}
GENERIC = {
    "periodic": gk.Periodic(lengthscale=0.9, period=2.5, variance=1.3),
    "linear": gk.Linear(variance=0.3),
    "custom": TanhKernel(0.8),
    "sum with linear": gk.Matern32(lengthscale=ARD) + gk.Linear(variance=0.2),
    "product with periodic": gk.RBF(active_dims=[0, 1]) * gk.Periodic(active_dims=[2], period=3.0),
    "deep linear": DeepKernel(gk.Linear(variance=0.7), NETWORK),
}
ALL = RADIAL | GENERIC
some_kernels = pytest.mark.parametrize("name", ["matern12 ard", "product", "custom"])
all_kernels = pytest.mark.parametrize("name", ALL)

RAGGED = ragged_bags([3, 1, 7, 4, 9, 2], weighted=True)
QUERY = np.random.default_rng(5).normal(size=(5, 3))


def dense_gram(kernel, bags):
    p = weight_matrix(bags)
    return p.T @ gram(kernel, bags.points) @ p


def dense_cross(kernel, x, bags):
    return gram(kernel, x, bags.points) @ weight_matrix(bags)


# --------------------------------------------------------------------------- values


@all_kernels
def test_gram_and_cross_equal_the_dense_matrices(name):
    kernel = ALL[name]
    assert_close(bag_gram(kernel, RAGGED), dense_gram(kernel, RAGGED))
    assert_close(bag_cross(kernel, QUERY, RAGGED), dense_cross(kernel, QUERY, RAGGED))


@all_kernels
def test_float32_tiles(name):
    kernel = ALL[name]
    tiles = {"dtype": jnp.float32}
    small = bag_gram(kernel, RAGGED, **tiles)
    assert small.dtype == jnp.float64
    assert_close(small, dense_gram(kernel, RAGGED), "float32")
    cross = bag_cross(kernel, QUERY, RAGGED, **tiles)
    assert cross.dtype == jnp.float64
    assert_close(cross, dense_cross(kernel, QUERY, RAGGED), "float32")


BAG_SIZES = {
    "one bag": [6],
    "one point": [1],
    "single points": [1] * 9,
    "two chunks each": [256, 200],
    "one large, many small": [300, 1, 2, 3, 1, 5],
    **{f"bags of {c}": [c] * 3 for c in CHUNK_SIZES},
    "uneven": [5, 130, 17, 64, 33],
}


@pytest.mark.parametrize("sizes", BAG_SIZES.values(), ids=BAG_SIZES)
def test_every_shape_of_bags(sizes):
    bags = ragged_bags(sizes, weighted=True, seed=len(sizes))
    kernel = RADIAL["matern32 ard"]
    assert_close(bag_gram(kernel, bags), dense_gram(kernel, bags))
    assert_close(bag_cross(kernel, QUERY, bags), dense_cross(kernel, QUERY, bags))


@pytest.mark.parametrize("chunk", CHUNK_SIZES)
def test_bags_of_equal_size_make_that_the_chunk(chunk):
    assert ragged_bags([chunk] * 3).layout.chunk == chunk


@pytest.mark.parametrize("kernel", [RADIAL["product"], GENERIC["custom"]], ids=["product", "custom"])
def test_several_row_and_column_tiles(kernel):
    rng = np.random.default_rng(0)
    bags = ragged_bags(rng.integers(20, 120, 40), weighted=True)
    assert bags.n_points > 2500
    assert bags.layout.points.shape[0] // bags.layout.tile > 1
    assert_close(bag_gram(kernel, bags), dense_gram(kernel, bags))
    x = rng.normal(size=(600, 3))
    assert_close(bag_cross(kernel, x, bags), dense_cross(kernel, x, bags))


def test_float32_tiles_of_many_points():
    bags = ragged_bags([130] * 20, weighted=True)
    kernel = RADIAL["gaussian ard"]
    small = bag_gram(kernel, bags, dtype=jnp.float32)
    assert_close(small, dense_gram(kernel, bags), "float32")


@pytest.mark.parametrize("family", [gk.RBF, gk.Matern12, gk.Matern32, gk.Matern52])
def test_duplicated_points(family):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 3))
    bags = Bags.from_list([x, x, np.repeat(x[:1], 5, axis=0)])
    kernel = family(lengthscale=ARD)
    for dtype in ("float64", "float32"):
        assert_close(bag_gram(kernel, bags, dtype=jnp.dtype(dtype)), dense_gram(kernel, bags), dtype)
        cross = bag_cross(kernel, x, bags, dtype=jnp.dtype(dtype))
        assert_close(cross, dense_cross(kernel, x, bags), dtype)
    assert_close(bag_gram(kernel, bags)[2, 2], 1.0)


@pytest.mark.parametrize("family", [gk.RBF, gk.Matern12, gk.Matern32, gk.Matern52])
def test_a_far_offset_costs_no_digits_in_float32_tiles(family):
    near = ragged_bags([3, 1, 7, 4], weighted=True)
    offset = np.array([1e4, -1e4, 1e4])
    far = Bags.from_points(near.points + offset, near.bag, weights=near.weights)
    kernel = family(lengthscale=ARD)
    assert_close(bag_gram(kernel, far, dtype=jnp.float32), dense_gram(kernel, near), "float32")
    cross = bag_cross(kernel, QUERY + offset, far, dtype=jnp.float32)
    assert_close(cross, dense_cross(kernel, QUERY, near), "float32")


def test_float32_points_give_float32_results():
    kernel = RADIAL["matern32 ard"]
    points = jnp.asarray(RAGGED.points, jnp.float32)
    result = bag_gram(kernel, RAGGED, points=points)
    assert_close(result, dense_gram(kernel, RAGGED), "float32")


def test_points_replace_those_of_the_bags_in_their_order():
    rng = np.random.default_rng(2)
    bag = np.array([2, 0, 1, 0, 2, 2])
    bags = Bags.from_points(rng.normal(size=(6, 3)), bag)
    moved = Bags.from_points(rng.normal(size=(6, 3)), bag)
    kernel = RADIAL["gaussian ard"]
    assert_close(bag_gram(kernel, bags, points=moved.points), dense_gram(kernel, moved))
    cross = bag_cross(kernel, QUERY, bags, points=moved.points)
    assert_close(cross, dense_cross(kernel, QUERY, moved))


def test_a_layout_does_for_bags():
    kernel = RADIAL["gaussian ard"]
    layout, _ = layout_bags(RAGGED.points, RAGGED.bag, RAGGED.weights, RAGGED.n_bags)
    np.testing.assert_array_equal(bag_gram(kernel, layout), bag_gram(kernel, RAGGED))


def test_shared_points():
    rng = np.random.default_rng(0)
    x, membership = rng.normal(size=(8, 3)), rng.uniform(size=(8, 3))
    bags = Bags.from_membership(x, membership)
    p = membership / membership.sum(0)
    kernel = RADIAL["matern52 ard"]
    assert_close(bag_gram(kernel, bags), p.T @ gram(kernel, x) @ p)
    assert_close(bag_cross(kernel, QUERY, bags), gram(kernel, QUERY, x) @ p)


# --------------------------------------------------------------------------- laws


@all_kernels
def test_gram_is_symmetric_and_positive_semidefinite(name):
    values = np.asarray(bag_gram(ALL[name], RAGGED))
    np.testing.assert_allclose(values, values.T, rtol=1e-14)
    assert_positive_semidefinite(values)


@some_kernels
def test_gram_is_the_bag_mean_of_cross(name):
    kernel = ALL[name]
    by_point = np.asarray(bag_cross(kernel, RAGGED.points, RAGGED))
    assert_close(RAGGED.means(by_point), bag_gram(kernel, RAGGED))


@some_kernels
def test_cross_between_two_sets_of_bags_is_its_own_adjoint(name):
    # <u, Pᵀ K(x, x') P' v> computed from either side.
    kernel = ALL[name]
    other = ragged_bags([2, 5, 1], weighted=True, seed=7)
    one_way = RAGGED.means(np.asarray(bag_cross(kernel, RAGGED.points, other)))
    back = other.means(np.asarray(bag_cross(kernel, other.points, RAGGED)))
    assert_close(one_way, back.T)


def test_gram_is_linear_in_the_variance_and_additive_in_terms():
    one, two = RADIAL["matern32 ard"], RADIAL["gaussian"]
    total = bag_gram(one, RAGGED) + bag_gram(two, RAGGED)
    assert_close(bag_gram(one + two, RAGGED), total)
    twice = gk.Matern32(lengthscale=ARD, variance=2.4)
    assert_close(bag_gram(twice, RAGGED), 2.0 * bag_gram(one, RAGGED))


# --------------------------------------------------------------------------- gradients


def gradient_functions(kernel, bags, x):
    """Scalars of (parameters, points, query), fused and dense, with a random cotangent."""
    rng = np.random.default_rng(11)
    by_gram = jnp.asarray(rng.normal(size=(bags.n_bags, bags.n_bags)))
    by_cross = jnp.asarray(rng.normal(size=(len(x), bags.n_bags)))
    p = jnp.asarray(weight_matrix(bags))
    theta, rebuild = flat_kernel(kernel)

    def fused(theta, points, query):
        k = rebuild(theta)
        of_gram = jnp.sum(by_gram * bag_gram(k, bags, points=points))
        return of_gram + jnp.sum(by_cross * bag_cross(k, query, bags, points=points))

    def dense(theta, points, query):
        k = rebuild(theta)
        of_gram = jnp.sum(by_gram * (p.T @ k.cross_covariance(points, points) @ p))
        return of_gram + jnp.sum(by_cross * (k.cross_covariance(query, points) @ p))

    return fused, dense, (theta, jnp.asarray(bags.points), jnp.asarray(x))


@all_kernels
def test_gradients_equal_those_of_the_dense_formula(name):
    fused, dense, at = gradient_functions(ALL[name], RAGGED, QUERY)
    actual = jax.jit(jax.grad(fused, argnums=(0, 1, 2)))(*at)
    desired = jax.jit(jax.grad(dense, argnums=(0, 1, 2)))(*at)
    for one, other in zip(actual, desired, strict=True):
        assert_close(one, other)


@all_kernels
def test_gradients_equal_finite_differences(name):
    fused, _, (theta, points, x) = gradient_functions(ALL[name], RAGGED, QUERY)
    fused = jax.jit(fused)
    by_theta, by_points, by_query = jax.jit(jax.grad(fused, argnums=(0, 1, 2)))(theta, points, x)
    assert_close(
        by_theta,
        finite_difference(lambda v: fused(v, points, x), theta),
        tolerance=FINITE_DIFFERENCE_TOLERANCE,
    )
    few = np.arange(0, points.size, 7)

    def move(array, entries):
        return array.ravel().at[few[: len(entries)]].set(entries).reshape(array.shape)

    assert_close(
        by_points.ravel()[few],
        finite_difference(lambda v: fused(theta, move(points, v), x), points.ravel()[few]),
        tolerance=FINITE_DIFFERENCE_TOLERANCE,
    )
    assert_close(
        by_query.ravel()[few[:2]],
        finite_difference(lambda v: fused(theta, points, move(x, v)), x.ravel()[few[:2]]),
        tolerance=FINITE_DIFFERENCE_TOLERANCE,
    )


@pytest.mark.parametrize("sizes", [[256, 200], [128] * 3, [1] * 9], ids=str)
def test_gradients_with_several_chunks_a_bag(sizes):
    bags = ragged_bags(sizes, weighted=True)
    fused, dense, at = gradient_functions(RADIAL["product"], bags, QUERY)
    actual = jax.grad(fused, argnums=(0, 1, 2))(*at)
    desired = jax.grad(dense, argnums=(0, 1, 2))(*at)
    for one, other in zip(actual, desired, strict=True):
        assert_close(one, other)


def test_gradients_over_several_tiles():
    rng = np.random.default_rng(0)
    bags = ragged_bags(rng.integers(20, 120, 40), weighted=True)
    x = rng.normal(size=(600, 3))
    fused, dense, at = gradient_functions(RADIAL["matern32 ard"], bags, x)
    actual = jax.jit(jax.grad(fused, argnums=(0, 1, 2)))(*at)
    desired = jax.jit(jax.grad(dense, argnums=(0, 1, 2)))(*at)
    for one, other in zip(actual, desired, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("name", ["gaussian ard", "matern12 ard", "matern52 ard", "product", "deep"])
def test_gradients_of_float32_tiles(name):
    _, dense, at = gradient_functions(RADIAL[name], RAGGED, QUERY)
    rng = np.random.default_rng(11)
    by_gram = jnp.asarray(rng.normal(size=(RAGGED.n_bags,) * 2))
    by_cross = jnp.asarray(rng.normal(size=(len(QUERY), RAGGED.n_bags)))
    _, rebuild = flat_kernel(RADIAL[name])

    def fused(theta, points, query):
        options = {"points": points, "dtype": jnp.float32}
        of_gram = jnp.sum(by_gram * bag_gram(rebuild(theta), RAGGED, **options))
        return of_gram + jnp.sum(by_cross * bag_cross(rebuild(theta), query, RAGGED, **options))

    actual = jax.jit(jax.grad(fused, argnums=(0, 1, 2)))(*at)
    desired = jax.jit(jax.grad(dense, argnums=(0, 1, 2)))(*at)
    for one, other in zip(actual, desired, strict=True):
        assert one.dtype == jnp.float64
        assert_close(one, other, "float32")


@pytest.mark.parametrize("family", [gk.RBF, gk.Matern12, gk.Matern32, gk.Matern52])
def test_gradients_at_duplicated_points_are_finite(family):
    x = np.random.default_rng(0).normal(size=(3, 3))
    bags = Bags.from_list([x, np.repeat(x[:1], 4, axis=0)])
    fused, dense, at = gradient_functions(family(lengthscale=ARD), bags, x)
    actual = jax.grad(fused, argnums=(0, 1, 2))(*at)
    desired = jax.grad(dense, argnums=(0, 1, 2))(*at)
    for one, other in zip(actual, desired, strict=True):
        assert_close(one, other)


# --------------------------------------------------------------------------- transformations


def test_jit_and_vmap_over_kernels():
    scales = jnp.array([0.5, 1.0, 2.0])

    def at(scale):
        return bag_gram(gk.Matern32(lengthscale=scale), RAGGED)

    expected = np.stack([dense_gram(gk.Matern32(lengthscale=float(s)), RAGGED) for s in scales])
    assert_close(jax.jit(jax.vmap(at))(scales), expected)


def test_vmap_of_a_gradient():
    scales = jnp.array([0.5, 1.0, 2.0])

    def total(scale):
        return jnp.sum(bag_cross(rational_quadratic(lengthscale=scale), QUERY, RAGGED) ** 2)

    one_by_one = jnp.stack([jax.grad(total)(s) for s in scales])
    assert_close(jax.vmap(jax.grad(total))(scales), one_by_one)


def test_vmap_over_query_points():
    kernel = RADIAL["matern32 ard"]
    by_row = jax.vmap(lambda x: bag_cross(kernel, x[None], RAGGED)[0])(jnp.asarray(QUERY))
    assert_close(by_row, dense_cross(kernel, QUERY, RAGGED))


# --------------------------------------------------------------------------- memory


N_LARGE = 8000


@pytest.fixture(scope="module")
def large_bags():
    return ragged_bags([100] * (N_LARGE // 100))


@pytest.mark.parametrize("name", ["matern32 ard", "product", "custom"])
@pytest.mark.parametrize("differentiate", [False, True], ids=["values", "gradients"])
def test_no_matrix_of_all_pairs_is_held(name, differentiate, large_bags):
    theta, rebuild = flat_kernel(ALL[name])

    def total(theta, points):
        kernel = rebuild(theta)
        layout = large_bags.layout.with_points(points)
        of_gram = jnp.sum(bag_gram(kernel, layout, dtype=jnp.float32) ** 2)
        return of_gram + jnp.sum(bag_cross(kernel, points, layout, dtype=jnp.float32) ** 2)

    function = jax.grad(total, argnums=(0, 1)) if differentiate else total
    compiled = jax.jit(function).lower(theta, large_bags.layout.points).compile()
    all_pairs = 4 * N_LARGE**2
    assert compiled.memory_analysis().temp_size_in_bytes < all_pairs / 4
