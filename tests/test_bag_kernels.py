"""Fused bag averages of a kernel against the dense matrices they never form."""

from functools import cache

import equinox as eqx
import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpjax.parameters import PositiveReal

from deconditional import Bags, DeepKernel, bag_cross, bag_gram
from deconditional.kernels.layout import PRODUCT_CHUNKS, Tiles, layout_bags
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

ARD = jnp.array([0.7, 1.3, 2.1])
NETWORK = eqx.nn.MLP(3, 2, width_size=4, depth=1, activation=jax.nn.tanh, key=jax.random.key(0))


def rational_quadratic(**options):
    return gk.RationalQuadratic(alpha=PositiveReal(0.7), **options)


RADIAL = {
    "gaussian": gk.RBF(lengthscale=ARD, variance=0.6),
    "matern12": gk.Matern12(lengthscale=ARD, variance=1.2),
    "matern32": gk.Matern32(lengthscale=ARD, variance=1.2),
    "matern52": gk.Matern52(lengthscale=1.4, variance=1.2),
    "rational quadratic": rational_quadratic(lengthscale=ARD, variance=1.2),
    "product of sums": (
        gk.Matern32(active_dims=[2, 0], lengthscale=ARD[:2]) + gk.Matern12(active_dims=[1])
    )
    * (rational_quadratic(active_dims=[1, 2]) + gk.Constant(constant=jnp.array(0.4))),
    "deep": DeepKernel(gk.RBF(lengthscale=jnp.array([0.8, 1.1])), NETWORK),
}
GENERIC = {
    "custom": TanhKernel(0.8),
    "sum with a product with linear": gk.RBF(lengthscale=ARD)
    + gk.Matern12(active_dims=[0, 1], lengthscale=ARD[:2]) * gk.Linear(active_dims=[2]),
}
ALL = RADIAL | GENERIC
all_kernels = pytest.mark.parametrize("name", ALL)

RAGGED = ragged_bags([3, 1, 7, 4, 9, 2], weighted=True)
QUERY = np.random.default_rng(5).normal(size=(5, 3))


def dense_gram(kernel, bags):
    p = weight_matrix(bags)
    return p.T @ gram(kernel, bags.points) @ p


def dense_cross(kernel, x, bags):
    return gram(kernel, x, bags.points) @ weight_matrix(bags)


@eqx.filter_jit
def compiled_gram(kernel, layout, dtype=None):
    return bag_gram(kernel, layout, dtype=dtype)


@eqx.filter_jit
def compiled_cross(kernel, x, layout, dtype=None):
    return bag_cross(kernel, x, layout, dtype=dtype)


class Case:
    """K̄, k̄ and the gradients of a random linear form of both, fused and compiled once."""

    def __init__(self, kernel, bags, x, dtype=None):
        rng = np.random.default_rng(11)
        self.by_gram = jnp.asarray(rng.normal(size=(bags.n_bags, bags.n_bags)))
        self.by_cross = jnp.asarray(rng.normal(size=(len(x), bags.n_bags)))
        theta, self.rebuild = flat_kernel(kernel)
        self.at = (theta, jnp.asarray(bags.points), jnp.asarray(x))
        self.p = jnp.asarray(weight_matrix(bags))
        bags.layout  # noqa: B018  laid out here, not inside the traced function

        def fused(theta, points, query):
            k = self.rebuild(theta)
            values = (
                bag_gram(k, bags, points=points, dtype=dtype),
                bag_cross(k, query, bags, points=points, dtype=dtype),
            )
            return self.linear_form(*values), values

        self.function = jax.jit(jax.value_and_grad(fused, argnums=(0, 1, 2), has_aux=True))
        (_, (self.gram, self.cross)), self.gradients = self.function(*self.at)

    def linear_form(self, of_gram, of_cross):
        return jnp.sum(self.by_gram * of_gram) + jnp.sum(self.by_cross * of_cross)

    def dense_gradients(self):
        """Automatic differentiation of the dense formula.

        No oracle for a Matérn-1/2: XLA may round x/ℓ - x/ℓ to something other than zero, where
        the slope of GPJax's distance is wrong.
        """

        def dense(theta, points, query):
            k = self.rebuild(theta)
            square = k.cross_covariance(points, points)
            return self.linear_form(
                self.p.T @ square @ self.p, k.cross_covariance(query, points) @ self.p
            )

        return jax.jit(jax.grad(dense, argnums=(0, 1, 2)))(*self.at)

    def assert_gradients_equal_differences(self, directions=1, step=1e-5):
        """<gradient, v> against central differences along random directions v of each argument."""
        rng = np.random.default_rng(3)
        actual, desired = [], []
        for argument, gradient in enumerate(self.gradients):
            for _ in range(directions):
                v = jnp.asarray(rng.normal(size=gradient.shape))
                moved = [list(self.at), list(self.at)]
                moved[0][argument] += step * v
                moved[1][argument] -= step * v
                ahead, behind = (float(self.function(*at)[0][0]) for at in moved)
                actual.append(float(jnp.sum(gradient * v)))
                desired.append((ahead - behind) / (2 * step))
        assert_close(actual, desired, tolerance=FINITE_DIFFERENCE_TOLERANCE)

    def assert_gradients_equal_differences_of_theta(self):
        """By the kernel's parameters alone: a cusp has no slope where points coincide."""
        theta, points, query = self.at
        by_theta = finite_difference(
            lambda v: self.function(jnp.asarray(v), points, query)[0][0], theta
        )
        assert all(np.isfinite(gradient).all() for gradient in self.gradients)
        assert_close(self.gradients[0], by_theta, tolerance=FINITE_DIFFERENCE_TOLERANCE)


@cache
def ragged_case(name):
    return Case(ALL[name], RAGGED, QUERY)


# --------------------------------------------------------------------------- every kernel


@all_kernels
def test_gram_and_cross_equal_the_dense_matrices(name):
    case = ragged_case(name)
    assert_close(case.gram, dense_gram(ALL[name], RAGGED))
    assert_close(case.cross, dense_cross(ALL[name], QUERY, RAGGED))


@all_kernels
def test_gram_is_symmetric_and_positive_semidefinite(name):
    values = np.asarray(ragged_case(name).gram)
    np.testing.assert_allclose(values, values.T, rtol=1e-13)
    assert_positive_semidefinite(values)


@pytest.mark.parametrize("name", ["gaussian", "rational quadratic", "deep", "custom"])
def test_gradients_equal_those_of_the_dense_formula(name):
    case = ragged_case(name)
    for actual, desired in zip(case.gradients, case.dense_gradients(), strict=True):
        assert_close(actual, desired)


@all_kernels
def test_gradients_equal_finite_differences(name):
    ragged_case(name).assert_gradients_equal_differences()


FLOAT32_GRADIENTS = {
    "gaussian": 2e-5,
    # A squared distance from a matrix product is good to eps |u|², and the slope of a Matérn-1/2
    # is that of a square root: pairs of close points lose digits in proportion to 1/s.
    "matern12": 2e-3,
}


@pytest.mark.parametrize("chunk", [2, 16])
def test_gradients_by_numbers_alone_come_with_the_values(chunk):
    """Where no input moves, one sweep makes both: by scales, shapes and variances of all terms.

    Derivatives by several scales are summed tile by tile, and over long chunks by moments.
    """
    theta, rebuild = flat_kernel(ALL["product of sums"])
    rng = np.random.default_rng(3)
    whole = RAGGED.points, RAGGED.bag, RAGGED.weights, RAGGED.n_bags
    layout, _ = layout_bags(*whole, chunk)
    by_gram, by_cross = rng.normal(size=(6, 6)), rng.normal(size=(5, 6))

    @jax.jit
    def form(theta):
        kernel = rebuild(theta)
        cross = by_cross * bag_cross(kernel, QUERY, layout)
        return jnp.sum(by_gram * bag_gram(kernel, layout)) + jnp.sum(cross)

    actual = jax.jit(jax.value_and_grad(form))(theta)
    assert_close(actual[0], form(theta), tolerance=1e-12)
    assert_close(
        actual[1],
        finite_difference(lambda v: form(jnp.asarray(v)), theta),
        tolerance=FINITE_DIFFERENCE_TOLERANCE,
    )


@pytest.mark.parametrize("name", FLOAT32_GRADIENTS)
def test_float32_tiles(name):
    case, exact = Case(ALL[name], RAGGED, QUERY, dtype=jnp.float32), ragged_case(name)
    assert case.gram.dtype == case.cross.dtype == jnp.float64
    assert_close(case.gram, exact.gram, "float32")
    assert_close(case.cross, exact.cross, "float32")
    for actual, desired in zip(case.gradients, exact.gradients, strict=True):
        assert actual.dtype == jnp.float64
        assert_close(actual, desired, tolerance=FLOAT32_GRADIENTS[name])


# --------------------------------------------------------------------------- every shape of bags


@pytest.mark.parametrize("chunk", PRODUCT_CHUNKS)
def test_every_chunk_size(chunk):
    bags = ragged_bags([chunk] * 3, weighted=True)
    assert bags.layout.chunk == chunk
    kernel = RADIAL["matern32"]
    assert_close(compiled_gram(kernel, bags.layout), dense_gram(kernel, bags))


def test_chunks_are_longer_with_more_inputs():
    sizes = np.random.default_rng(0).integers(70, 90, 40)
    one, five, many = (ragged_bags(sizes, d=d).layout.chunk for d in (1, 5, 20))
    assert 8 <= one < five <= many <= 96


@pytest.mark.parametrize("sizes", [[1], [6], [5, 130, 1, 64, 33]], ids=str)
def test_one_point_one_bag_and_uneven_bags(sizes):
    bags = ragged_bags(sizes, weighted=True)
    kernel = RADIAL["gaussian"]
    assert_close(compiled_gram(kernel, bags.layout), dense_gram(kernel, bags))


def test_several_chunks_a_bag():
    bags = ragged_bags([256, 200], weighted=True)
    assert not bags.layout.one_chunk_per_bag
    kernel = RADIAL["rational quadratic"]
    case = Case(kernel, bags, QUERY)
    assert_close(case.gram, dense_gram(kernel, bags))
    assert_close(case.cross, dense_cross(kernel, QUERY, bags))
    case.assert_gradients_equal_differences()


@pytest.fixture(scope="module")
def many_points():
    """More than one tile of rows and of columns."""
    bags = ragged_bags(np.random.default_rng(0).integers(20, 120, 40), weighted=True)
    assert bags.n_points > 2500
    assert bags.layout.points.shape[0] // bags.layout.tile > 1
    return bags


def test_several_row_and_column_tiles(many_points):
    kernel = RADIAL["rational quadratic"]
    x = np.random.default_rng(1).normal(size=(600, 3))
    case = Case(kernel, many_points, x)
    assert_close(case.gram, dense_gram(kernel, many_points))
    assert_close(case.cross, dense_cross(kernel, x, many_points))
    case.assert_gradients_equal_differences()


def test_several_tiles_of_a_kernel_without_radial_form(many_points):
    kernel = GENERIC["custom"]
    assert_close(compiled_gram(kernel, many_points.layout), dense_gram(kernel, many_points))
    x = np.random.default_rng(1).normal(size=(600, 3))
    assert_close(compiled_cross(kernel, x, many_points.layout), dense_cross(kernel, x, many_points))


@pytest.mark.parametrize(("family", "dtype"), [(gk.Matern12, "float64"), (gk.RBF, "float32")])
def test_duplicated_points(family, dtype):
    x = np.random.default_rng(0).normal(size=(4, 3))
    bags = Bags.from_list([x, x, np.repeat(x[:1], 5, axis=0)])
    kernel = family(lengthscale=ARD)
    case = Case(kernel, bags, x, dtype=jnp.dtype(dtype))
    assert_close(case.gram, dense_gram(kernel, bags), dtype)
    assert_close(case.cross, dense_cross(kernel, x, bags), dtype)
    assert_close(case.gram[2, 2], 1.0, dtype)
    for gradient in case.gradients:
        assert np.isfinite(gradient).all()
    # A pair of equal points does not feel the length scales: differences see it too.
    theta, points, query = case.at
    by_theta = finite_difference(
        lambda v: case.function(jnp.asarray(v), points, query)[0][0],
        theta,
        step=1e-5 if dtype == "float64" else 1e-2,
    )
    # Steps of float32 tiles are long, for their rounding not to show.
    tolerance = FINITE_DIFFERENCE_TOLERANCE if dtype == "float64" else 1e-3
    assert_close(case.gradients[0], by_theta, tolerance=tolerance)


def test_a_far_offset_costs_no_digits_in_float32_tiles():
    near = ragged_bags([3, 1, 7, 4], weighted=True)
    offset = np.array([1e4, -1e4, 1e4])
    far = Bags.from_points(near.points + offset, near.bag, weights=near.weights)
    kernel = gk.RBF(lengthscale=ARD) + gk.Matern12(lengthscale=ARD)
    assert_close(
        compiled_gram(kernel, far.layout, jnp.float32), dense_gram(kernel, near), "float32"
    )
    cross = compiled_cross(kernel, QUERY + offset, far.layout, jnp.float32)
    assert_close(cross, dense_cross(kernel, QUERY, near), "float32")


def test_float32_points_give_float32_results():
    result = bag_gram(RADIAL["matern32"], RAGGED, points=jnp.asarray(RAGGED.points, jnp.float32))
    assert result.dtype == jnp.float32
    assert_close(result, dense_gram(RADIAL["matern32"], RAGGED), "float32")


def test_points_replace_those_of_the_bags_in_their_order():
    rng = np.random.default_rng(2)
    bag = np.array([2, 0, 1, 0, 2, 2])
    bags = Bags.from_points(rng.normal(size=(6, 3)), bag)
    moved = Bags.from_points(rng.normal(size=(6, 3)), bag)
    kernel = RADIAL["gaussian"]
    assert_close(bag_gram(kernel, bags, points=moved.points), dense_gram(kernel, moved))
    cross = bag_cross(kernel, QUERY, bags, points=moved.points)
    assert_close(cross, dense_cross(kernel, QUERY, moved))


def test_a_layout_does_for_bags():
    kernel = RADIAL["gaussian"]
    layout, _ = layout_bags(RAGGED.points, RAGGED.bag, RAGGED.weights, RAGGED.n_bags)
    np.testing.assert_array_equal(bag_gram(kernel, layout), bag_gram(kernel, RAGGED))


def test_shared_points():
    rng = np.random.default_rng(0)
    x, membership = rng.normal(size=(8, 3)), rng.uniform(size=(8, 3))
    bags = Bags.from_membership(x, membership)
    p = membership / membership.sum(0)
    kernel = RADIAL["matern52"]
    assert_close(compiled_gram(kernel, bags.layout), p.T @ gram(kernel, x) @ p)
    assert_close(compiled_cross(kernel, QUERY, bags.layout), gram(kernel, QUERY, x) @ p)


# --------------------------------------------------------------------------- as on an accelerator


def by_differences(bags, rows=64, columns=64):
    """The same bags with tiles whose distances come from differences."""
    same = Bags.from_points(bags.points, bags.bag, weights=bags.weights)
    same.__dict__["_layout_and_source"] = layout_bags(
        same.points, same.bag, same.weights, same.n_bags, tiles=Tiles(rows, columns, "differences")
    )
    return same


@pytest.mark.parametrize("name", ["matern12", "deep"])
def test_differences_equal_products(name):
    case, products = Case(ALL[name], by_differences(RAGGED), QUERY), ragged_case(name)
    assert_close(case.gram, products.gram, tolerance=1e-12)
    assert_close(case.cross, products.cross, tolerance=1e-12)
    for actual, desired in zip(case.gradients, products.gradients, strict=True):
        assert_close(actual, desired, tolerance=1e-9)


def test_differences_keep_the_digits_of_close_points_in_float32():
    """A matrix product loses them: the tolerance of float32 gradients above is a hundredfold."""
    case = Case(ALL["matern12"], by_differences(RAGGED), QUERY, dtype=jnp.float32)
    for actual, desired in zip(case.gradients, ragged_case("matern12").gradients, strict=True):
        assert_close(actual, desired, "float32")


def test_duplicated_points_by_differences():
    x = np.random.default_rng(0).normal(size=(4, 3))
    bags = by_differences(Bags.from_list([x, x, np.repeat(x[:1], 5, axis=0)]))
    kernel = gk.Matern12(lengthscale=ARD)
    case = Case(kernel, bags, x)
    assert_close(case.gram, dense_gram(kernel, bags))
    case.assert_gradients_equal_differences_of_theta()


# --------------------------------------------------------------------------- laws


@pytest.mark.parametrize("name", ["product of sums", "custom"])
def test_averaging_rows_then_columns_or_columns_then_rows(name):
    # <u, Pᵀ K(x, x') P' v> from either side, and K̄ as the bag means of k̄.
    kernel = ALL[name]
    other = ragged_bags([2, 5, 1], weighted=True, seed=7)
    there = RAGGED.means(np.asarray(compiled_cross(kernel, RAGGED.points, other.layout)))
    back = other.means(np.asarray(compiled_cross(kernel, other.points, RAGGED.layout)))
    assert_close(there, back.T)
    own = RAGGED.means(np.asarray(compiled_cross(kernel, RAGGED.points, RAGGED.layout)))
    assert_close(own, ragged_case(name).gram)


def test_gram_is_additive_in_terms_and_linear_in_the_variance():
    one, two = ragged_case("matern32").gram, ragged_case("rational quadratic").gram
    both = RADIAL["matern32"] + RADIAL["rational quadratic"]
    assert_close(compiled_gram(both, RAGGED.layout), one + two)
    assert_close(
        compiled_gram(gk.Matern32(lengthscale=ARD, variance=2.4), RAGGED.layout), 2.0 * one
    )


# --------------------------------------------------------------------------- transformations


def test_jit_and_vmap_of_values_and_gradients():
    scales = jnp.array([0.5, 1.0, 2.0])

    def total(scale):
        values = bag_gram(rational_quadratic(lengthscale=scale), RAGGED)
        return jnp.sum(values**2), values

    gradients, values = jax.jit(jax.vmap(jax.grad(total, has_aux=True)))(scales)
    kernels = [rational_quadratic(lengthscale=float(s)) for s in scales]
    assert_close(values, np.stack([dense_gram(k, RAGGED) for k in kernels]))
    step = 1e-5
    ahead, behind = (
        [
            (dense_gram(rational_quadratic(lengthscale=float(s) + h), RAGGED) ** 2).sum()
            for s in scales
        ]
        for h in (step, -step)
    )
    differences = (np.array(ahead) - np.array(behind)) / (2 * step)
    assert_close(gradients, differences, tolerance=FINITE_DIFFERENCE_TOLERANCE)


def test_vmap_over_query_points():
    kernel = RADIAL["matern32"]
    RAGGED.layout  # noqa: B018  laid out here, not inside the traced function
    by_row = jax.jit(jax.vmap(lambda x: bag_cross(kernel, x[None], RAGGED)[0]))(QUERY)
    assert_close(by_row, dense_cross(kernel, QUERY, RAGGED))


def test_bags_first_used_inside_jit_can_be_used_again():
    bags = ragged_bags([2, 3])
    kernel = gk.RBF(lengthscale=ARD)
    inside = jax.jit(lambda points: bag_gram(kernel, bags, points=points))(bags.points)
    assert_close(inside, bag_gram(kernel, bags))


# --------------------------------------------------------------------------- memory


N_LARGE = 8000


@pytest.fixture(scope="module")
def large_layout():
    return ragged_bags([100] * (N_LARGE // 100)).layout


def temporary_bytes(function, *arguments):
    compiled = jax.jit(function).lower(*arguments).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("name", ["matern32", "custom"])
def test_gram_holds_no_matrix_of_all_pairs(name, large_layout):
    theta, rebuild = flat_kernel(ALL[name])

    def total(theta, points):
        layout = large_layout.with_points(points)
        return jnp.sum(bag_gram(rebuild(theta), layout, dtype=jnp.float32) ** 2)

    used = temporary_bytes(jax.grad(total, argnums=(0, 1)), theta, large_layout.points)
    assert used < 4 * N_LARGE**2 / 4


@pytest.mark.parametrize("name", ["matern32", "custom"])
def test_cross_holds_no_matrix_of_all_pairs(name, large_layout):
    theta, rebuild = flat_kernel(ALL[name])

    def cross(theta, points):
        return bag_cross(rebuild(theta), points, large_layout, dtype=jnp.float32)

    used = temporary_bytes(cross, theta, large_layout.points)
    assert used < 4 * N_LARGE**2 / 4
