"""Bags: the constructors agree, their errors name the bag, and P means what it says."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from deconditional import Bags
from helpers import assert_close, ragged_bags, shared_weight_matrix, weight_matrix


def data(sizes=(3, 1, 4), d=2, seed=0):
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    return (
        rng.normal(size=(n, d)),
        np.repeat(np.arange(len(sizes)), sizes),
        rng.uniform(0.1, 2.0, n),
        rng.normal(size=(len(sizes), 2)),
    )


def assert_same_bags(one, other):
    np.testing.assert_array_equal(one.points, other.points)
    np.testing.assert_array_equal(one.bag, other.bag)
    np.testing.assert_allclose(one.weights, other.weights, rtol=1e-15)
    np.testing.assert_array_equal(one.mediator, other.mediator)


# --------------------------------------------------------------------------- constructors


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 100))
def test_all_constructors_agree(sizes, seed):
    x, bag, w, y = data(tuple(sizes), seed=seed)
    splits = np.cumsum(sizes)[:-1]
    names = [f"bag {j}" for j in range(len(sizes))]
    membership = np.zeros((len(x), len(sizes)))
    membership[np.arange(len(x)), bag] = w
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "w": w, "name": np.array(names)[bag]})
    frame[["p", "q"]] = y[bag]
    expected = Bags.from_points(x, bag, mediator=y, weights=w)
    for other in (
        Bags.from_list(np.split(x, splits), mediator=y, weights=np.split(w, splits)),
        Bags.from_frame(frame, "name", ["a", "b"], mediators=["p", "q"], weight="w"),
        Bags.from_membership(x, membership, mediator=y),
        Bags.from_membership(x, csr_array(membership), mediator=y),
        Bags.from_points(x, np.array(names)[bag], mediator=y, weights=w, ids=names),
        Bags.from_points(
            x, np.array(names)[bag], mediator=dict(zip(names, y, strict=True)), weights=w
        ),
    ):
        assert_same_bags(other, expected)


def test_points_need_not_be_sorted_by_bag():
    x, bag, w, y = data()
    order = np.random.default_rng(1).permutation(len(x))
    shuffled = Bags.from_points(x[order], bag[order], mediator=y, weights=w[order])
    expected = Bags.from_points(x, bag, mediator=y, weights=w)
    assert_close(shuffled.means(), expected.means())
    assert_close(shuffled.effective_sizes, expected.effective_sizes)


def test_weights_sum_to_one_in_every_bag():
    x, bag, w, _ = data()
    bags = Bags.from_points(x, bag, weights=1e6 * w)
    np.testing.assert_allclose(np.bincount(bags.bag, bags.weights), 1.0, rtol=1e-14)
    for j in range(3):
        np.testing.assert_allclose(bags.weights[bag == j], w[bag == j] / w[bag == j].sum())


def test_default_weights_are_equal():
    bags = Bags.from_list([np.zeros((4, 1)), np.zeros((2, 1))])
    np.testing.assert_array_equal(bags.weights, [0.25] * 4 + [0.5] * 2)


def test_one_dimensional_points_and_mediators_are_columns():
    bags = Bags.from_points([1.0, 2.0, 3.0], [0, 0, 1], mediator=[5.0, 6.0])
    assert bags.points.shape == (3, 1)
    np.testing.assert_array_equal(bags.mediator, [[5.0], [6.0]])


def test_labels_without_ids_are_sorted():
    bags = Bags.from_points([1.0, 2.0, 3.0], ["b", "a", "b"])
    assert bags.ids == ("a", "b")
    np.testing.assert_array_equal(bags.bag, [1, 0, 1])


def test_frame_orders_bags_as_they_first_appear():
    frame = pd.DataFrame({"county": ["z", "a", "z"], "x": [1.0, 2.0, 3.0]})
    bags = Bags.from_frame(frame, "county", ["x"])
    assert bags.ids == ("z", "a")
    np.testing.assert_array_equal(bags.means(), [[2.0], [2.0]])


def test_iteration_and_sizes():
    x, bag, _, _ = data()
    bags = Bags.from_points(x, bag)
    assert (len(bags), bags.n_bags, bags.n_points) == (3, 3, 8)
    np.testing.assert_array_equal(bags.sizes, [3, 1, 4])
    for j, points in enumerate(bags):
        np.testing.assert_array_equal(points, x[bag == j])


def test_repr_counts_what_it_holds():
    x, bag, _, y = data()
    text = repr(Bags.from_points(x, bag, mediator=y))
    assert text == (
        "Bags(3 bags, 8 points, 2 covariates, 1-4 points per bag, mediator of 2 variables)"
    )


# --------------------------------------------------------------------------- errors name the bag


def test_empty_bag_is_named():
    x = np.zeros((2, 1))
    with pytest.raises(ValueError, match="bag 1 is empty"):
        Bags.from_points(x, [0, 2])
    with pytest.raises(ValueError, match="bag 'b' is empty"):
        Bags.from_list([x, np.zeros((0, 1))], ids=["a", "b"])
    with pytest.raises(ValueError, match="bag 'c' is empty"):
        Bags.from_points(x, ["a", "a"], ids=["a", "c"])
    with pytest.raises(ValueError, match="bag 'b' is empty"):
        Bags.from_membership(x, [[1, 0], [1, 0]], ids=["a", "b"])
    with pytest.raises(ValueError, match="bag 2 is empty"):
        Bags.from_points(x, [0, 1], mediator=[1.0, 2.0, 3.0])


def test_duplicate_id_is_named():
    x = np.zeros((1, 1))
    with pytest.raises(ValueError, match="'a' is given twice"):
        Bags.from_list([x, x], ids=["a", "a"])
    with pytest.raises(ValueError, match="'a' is given twice"):
        Bags.from_points(x, ["a"], ids=["a", "b", "a"])
    with pytest.raises(ValueError, match="3 is given twice"):
        Bags.from_membership(x, [[1, 1]], ids=[3, 3])


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_bad_weight_names_the_bag(bad):
    x = np.zeros((4, 1))
    weights = [1.0, 1.0, bad, 1.0]
    labels = ["a", "a", "b", "b"]
    with pytest.raises(ValueError, match="bag 'b' has a point with weight"):
        Bags.from_points(x, labels, weights=weights)
    with pytest.raises(ValueError, match="bag 'b' has a point with weight"):
        Bags.from_list([x[:2], x[2:]], weights=[weights[:2], weights[2:]], ids=["a", "b"])
    with pytest.raises(ValueError, match="bag 'b' has a point with weight"):
        Bags.from_membership(x, [[1, 0], [1, 0], [0, bad], [0, 1]], ids=["a", "b"])
    frame = pd.DataFrame({"bag": labels, "x": x[:, 0], "w": weights})
    with pytest.raises(ValueError, match="bag 'b' has a point with weight"):
        Bags.from_frame(frame, "bag", ["x"], weight="w")


def test_weights_that_sum_to_zero_name_the_bag():
    with pytest.raises(ValueError, match="weights of bag 'b' sum to zero"):
        Bags.from_points(np.zeros((3, 1)), ["a", "b", "b"], weights=[1.0, 0.0, 0.0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_covariate_names_the_bag(bad):
    x = np.array([[0.0], [1.0], [bad]])
    with pytest.raises(ValueError, match="bag 'b' has a point with a missing or infinite"):
        Bags.from_points(x, ["a", "a", "b"])
    with pytest.raises(ValueError, match="bag 1 has a point with a missing or infinite"):
        Bags.from_list([x[:2], x[2:]])


def test_bad_mediator_names_the_bag():
    x = np.zeros((2, 1))
    with pytest.raises(ValueError, match="mediator of bag 1 is missing or infinite"):
        Bags.from_points(x, [0, 1], mediator=[0.0, np.nan])
    with pytest.raises(ValueError, match="bag 'b' has no mediator"):
        Bags.from_points(x, ["a", "b"], ids=["a", "b"], mediator={"a": 1.0})
    frame = pd.DataFrame({"bag": ["a", "b", "b"], "x": 0.0, "y": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match="bag 'b' has more than one value"):
        Bags.from_frame(frame, "bag", ["x"], mediators=["y"])
    frame["y"] = [1.0, np.nan, np.nan]
    with pytest.raises(ValueError, match="mediator of bag 'b' is missing"):
        Bags.from_frame(frame, "bag", ["x"], mediators=["y"])


def test_mismatched_lengths_say_what_came():
    x = np.zeros((3, 1))
    with pytest.raises(ValueError, match=r"3 points came with bag_of of shape \(2,\)"):
        Bags.from_points(x, [0, 1])
    with pytest.raises(ValueError, match=r"3 points came with weights of shape \(2,\)"):
        Bags.from_points(x, [0, 0, 1], weights=[1.0, 1.0])
    with pytest.raises(ValueError, match=r"2 bags came with mediators of shape \(1,\)"):
        Bags.from_points(x, [0, 0, 1], mediator=[1.0])
    with pytest.raises(ValueError, match="bag 'b' has 2 points but weights of shape"):
        Bags.from_list([x[:1], x[1:]], weights=[[1.0], [1.0]], ids=["a", "b"])
    with pytest.raises(ValueError, match="2 bags came with weights for 1 bags"):
        Bags.from_list([x[:1], x[1:]], weights=[[1.0]])
    with pytest.raises(ValueError, match="2 bags came with 1 ids"):
        Bags.from_list([x[:1], x[1:]], ids=["a"])
    with pytest.raises(ValueError, match="bag 'b' has 2 covariates, bag 'a' has 1"):
        Bags.from_list([np.zeros((2, 1)), np.zeros((2, 2))], ids=["a", "b"])
    with pytest.raises(ValueError, match="2 rows for 3 points"):
        Bags.from_membership(x, np.eye(2))
    with pytest.raises(ValueError, match="2 bags came with 1 ids"):
        Bags.from_membership(x, np.ones((3, 2)), ids=["a"])
    with pytest.raises(ValueError, match="3 points came with 2 values"):
        Bags.from_points(x, [0, 0, 1]).means([1.0, 2.0])


def test_unknown_or_unordered_labels_are_explained():
    x = np.zeros((2, 1))
    with pytest.raises(ValueError, match="bag 'b' is used in bag_of but is not one of"):
        Bags.from_points(x, ["a", "b"], ids=["a"])
    with pytest.raises(ValueError, match="say in which order the mediator comes"):
        Bags.from_points(x, ["a", "b"], mediator=[1.0, 2.0])
    with pytest.raises(ValueError, match="bag -1 is negative"):
        Bags.from_points(x, [0, -1])
    with pytest.raises(ValueError, match="fractions"):
        Bags.from_points(x, [0.0, 0.5])


def test_tables_say_which_column_is_wrong():
    frame = pd.DataFrame({"bag": ["a", None], "x": [0.0, 1.0]})
    with pytest.raises(ValueError, match="no column 'altitude'"):
        Bags.from_frame(frame, "bag", ["altitude"])
    with pytest.raises(ValueError, match="column 'bag' has missing values"):
        Bags.from_frame(frame, "bag", ["x"])
    with pytest.raises(ValueError, match="no rows"):
        Bags.from_frame(frame[:0], "bag", ["x"])


def test_nothing_at_all_is_an_error():
    with pytest.raises(ValueError, match="no bags were given"):
        Bags.from_list([])
    with pytest.raises(ValueError, match="at least one of each"):
        Bags.from_points(np.zeros((0, 2)), [])
    with pytest.raises(ValueError, match="must be numbers"):
        Bags.from_points([["a"]], [0])


# --------------------------------------------------------------------------- views


def test_effective_sizes_are_kish():
    x, bag, w, _ = data()
    np.testing.assert_allclose(Bags.from_points(x, bag).effective_sizes, [3, 1, 4])
    kish = [w[bag == j].sum() ** 2 / (w[bag == j] ** 2).sum() for j in range(3)]
    np.testing.assert_allclose(Bags.from_points(x, bag, weights=w).effective_sizes, kish)


def test_means_are_weighted():
    bags = ragged_bags([3, 1, 4], weighted=True)
    p = weight_matrix(bags)
    values = np.random.default_rng(1).normal(size=(8, 2, 3))
    assert_close(bags.means(), p.T @ bags.points)
    assert_close(bags.means(values[:, 0, 0]), p.T @ values[:, 0, 0])
    assert_close(bags.means(values), np.einsum("nj,nab->jab", p, values))


def test_overlap_without_shared_points_is_diagonal():
    bags = ragged_bags([3, 1, 4], weighted=True)
    p = weight_matrix(bags)
    assert_close(bags.overlap(), p.T @ p)
    assert_close(bags.overlap(), np.diag(1.0 / bags.effective_sizes))


def test_overlap_with_shared_points():
    rng = np.random.default_rng(0)
    membership = rng.uniform(size=(7, 4)) * (rng.uniform(size=(7, 4)) < 0.6)
    membership[0] = 1.0
    bags = Bags.from_membership(rng.normal(size=(7, 2)), membership)
    p = membership / membership.sum(0)
    assert_close(bags.overlap(), p.T @ p)
    assert_close(shared_weight_matrix(bags), p)


def test_a_shared_point_has_one_row_per_bag_and_one_identity():
    bags = Bags.from_membership([[0.0], [1.0], [2.0]], [[1, 0], [3, 1], [0, 1]])
    np.testing.assert_array_equal(np.sort(bags.point), [0, 1, 1, 2])
    np.testing.assert_array_equal(bags.sizes, [2, 2])
    np.testing.assert_allclose(bags.means(), [[0.75], [1.5]])


def test_rows_given_twice_are_two_points():
    bags = Bags.from_points([[0.0], [0.0]], [0, 1])
    np.testing.assert_array_equal(bags.overlap(), np.eye(2))


def test_layout_holds_every_point_once_with_its_weight():
    bags = ragged_bags([3, 1, 40, 7], weighted=True)
    layout, slots = bags.layout, bags.slot_points
    np.testing.assert_array_equal(layout.points, bags.points[slots])
    used = np.asarray(layout.weights) > 0
    np.testing.assert_array_equal(np.sort(slots[used]), np.arange(bags.n_points))
    np.testing.assert_array_equal(np.asarray(layout.weights)[used], bags.weights[slots[used]])
    bag_of_slot = np.repeat(np.asarray(layout.bag), layout.chunk)
    np.testing.assert_array_equal(bag_of_slot[used], bags.bag[slots[used]])


# --------------------------------------------------------------------------- derived bags


def test_centroids_are_the_means():
    bags = ragged_bags([3, 1, 4], weighted=True)
    centroids = bags.centroids()
    assert_close(centroids.points, weight_matrix(bags).T @ bags.points)
    np.testing.assert_array_equal(centroids.sizes, 1)
    np.testing.assert_array_equal(centroids.mediator, bags.mediator)
    assert centroids.ids == bags.ids


@pytest.mark.parametrize("which", [[2, 0], np.array([True, False, True])])
def test_select(which):
    bags = ragged_bags([3, 1, 4], weighted=True)
    chosen = np.arange(3)[np.asarray(which)]
    some = bags.select(which)
    assert some.ids == tuple(chosen.tolist())
    np.testing.assert_array_equal(some.mediator, bags.mediator[chosen])
    np.testing.assert_array_equal(some.sizes, bags.sizes[chosen])
    np.testing.assert_allclose(some.means(), bags.means()[chosen])


def test_selected_bags_still_share_points():
    rng = np.random.default_rng(0)
    membership = rng.uniform(size=(6, 3))
    bags = Bags.from_membership(rng.normal(size=(6, 1)), membership)
    assert_close(bags.select([2, 0]).overlap(), bags.overlap()[np.ix_([2, 0], [2, 0])])


def test_selecting_a_bag_twice_names_it():
    with pytest.raises(ValueError, match=r"bag 1 .*selected twice"):
        ragged_bags([1, 1, 1]).select([0, 1, 1])


@pytest.mark.parametrize("nothing", [[False, False, False], []])
def test_selecting_nothing_is_an_error(nothing):
    with pytest.raises(ValueError, match="no bag was selected"):
        ragged_bags([1, 1, 1]).select(nothing)


def test_subsample_is_seeded():
    bags = ragged_bags([30, 2, 50])
    one, again, other = (bags.subsample(5, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.points, again.points)
    assert not np.array_equal(one.points, other.points)


def test_subsample_draws_rows_of_the_same_bag_without_replacement():
    bags = ragged_bags([30, 5, 50])
    few = bags.subsample(5, seed=0)
    np.testing.assert_array_equal(few.sizes, [5, 5, 5])
    np.testing.assert_array_equal(bags.bag[few.point], few.bag)
    np.testing.assert_array_equal(bags.points[few.point], few.points)
    assert len(np.unique(few.point)) == 15
    np.testing.assert_allclose(few.weights, 0.2)
    assert few.ids == bags.ids
    np.testing.assert_array_equal(few.mediator, bags.mediator)


def test_subsample_keeps_small_bags_whole_with_their_weights():
    bags = ragged_bags([30, 4], weighted=True)
    few = bags.subsample(5, seed=0)
    np.testing.assert_array_equal(few.points[few.bag == 1], bags.points[bags.bag == 1])
    np.testing.assert_array_equal(few.weights[few.bag == 1], bags.weights[bags.bag == 1])


def test_subsample_keeps_the_mean_of_equal_weights_in_expectation():
    # 400 draws of 5 out of 30: standard error of their mean is that of one draw over sqrt(400).
    bags = Bags.from_list([np.random.default_rng(3).normal(size=(30, 1))])
    drawn = np.array([bags.subsample(5, seed=s).means()[0, 0] for s in range(400)])
    error = drawn.std(ddof=1) / np.sqrt(len(drawn))
    assert abs(drawn.mean() - bags.means()[0, 0]) < 4 * error


def test_subsample_prefers_heavy_points_and_never_takes_weightless_ones():
    weights = np.array([0.0] * 5 + [1.0] * 5 + [20.0] * 5)
    bags = Bags.from_points(np.arange(15.0), np.zeros(15, int), weights=weights)
    drawn = np.concatenate([bags.subsample(3, seed=s).point for s in range(200)])
    counts = np.bincount(drawn, minlength=15)
    assert counts[:5].sum() == 0
    assert counts[10:].sum() > 5 * counts[5:10].sum() > 0


def test_subsample_keeps_at_most_what_was_asked():
    bags = Bags.from_points(np.arange(6.0), np.zeros(6, int), weights=[1.0, 1.0, 0, 0, 0, 0])
    few = bags.subsample(3)
    assert few.sizes.max() <= 3
    np.testing.assert_allclose(few.means(), bags.means())


def test_subsample_needs_at_least_one_point():
    with pytest.raises(ValueError, match="points_per_bag must be at least 1"):
        ragged_bags([2]).subsample(0)
