"""The toy of the shrinkage study, its estimators against dense algebra, and the study itself."""

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from helpers import assert_close
from studies import shrinkage, shrinkage_estimators
from studies.data import shrinkage_toy
from studies.shrinkage import Shrinkage
from studies.shrinkage_estimators import dense_coefficients, embeddings, median_distance

SIZES = [4, 1, 9, 2, 6]
UNEQUAL = shrinkage_toy(5, SIZES, seed=2)
EQUAL = shrinkage_toy(5, 4, seed=2)


def gaussian(a, b, scale):
    return np.exp(-0.5 * ((np.asarray(a)[:, None] - np.asarray(b)) / scale) ** 2)


def replicated(problem, diagonal):
    """The paper's standard embedding: a mediator for every point, an n x n system, NumPy alone."""
    bags = problem.toy.bags
    y, x = bags.mediator[bags.bag, 0], bags.points[:, 0]
    system = gaussian(y, y, problem.l_scale) + diagonal * np.eye(len(y))
    a = np.linalg.solve(system, gaussian(y, problem.y, problem.l_scale))
    return gaussian(problem.x, x, problem.k_scale) @ a


def shrunk(problem, ridge):
    """The paper's shrinkage embedding from means over bags, NumPy alone."""
    bags = problem.toy.bags
    y = bags.mediator[:, 0]
    means = [gaussian(problem.x, points[:, 0], problem.k_scale).mean(1) for points in bags]
    system = gaussian(y, y, problem.l_scale) + ridge * np.eye(len(y))
    return np.stack(means, 1) @ np.linalg.solve(system, gaussian(y, problem.y, problem.l_scale))


def rms(values):
    return np.sqrt(np.mean(values**2))


# --------------------------------------------------------------------------- the toy


@pytest.mark.parametrize("std", [2**0.5, 2.0])
def test_the_toy_has_the_moments_it_is_said_to_have(std):
    # Within four standard errors: s/√n of a mean, s²√(2/n) of a variance.
    toy = shrinkage_toy(4000, 5, mediator_std=std, seed=1)
    y = toy.bags.mediator[:, 0]
    rest = toy.bags.points[:, 0] - (y * np.sin(y))[toy.bags.bag]
    for values, spread in ((y, std), (rest, 0.5)):
        n = len(values)
        assert abs(values.mean()) < 4 * spread / n**0.5
        assert abs(values.var() - spread**2) < 4 * spread**2 * (2 / n) ** 0.5
    # Points of a bag are independent: no variance of bag means beyond 0.5²/5.
    means = toy.bags.means(rest)
    assert abs(means.var() - 0.05) < 4 * 0.05 * (2 / 4000) ** 0.5


def test_two_is_a_variance_unless_said_otherwise():
    default, variance, other = (
        shrinkage_toy(6, 2, seed=3, **given).bags.mediator
        for given in ({}, {"mediator_std": 2**0.5}, {"mediator_std": 2.0})
    )
    np.testing.assert_array_equal(default, variance)
    assert_close(other, 2**0.5 * default, tolerance=1e-14)


def test_a_draw_depends_on_its_seed_alone_and_mediators_not_on_sizes():
    again = shrinkage_toy(5, SIZES, seed=2)
    np.testing.assert_array_equal(again.bags.points, UNEQUAL.bags.points)
    np.testing.assert_array_equal(EQUAL.bags.mediator, UNEQUAL.bags.mediator)
    assert UNEQUAL.bags.sizes.tolist() == SIZES
    other = shrinkage_toy(5, SIZES, seed=4)
    assert np.abs(other.bags.points - UNEQUAL.bags.points).min() > 0


@pytest.mark.parametrize("scale", [0.3, 1.4])
def test_the_true_embedding_is_a_mean_over_draws(scale):
    # Within five standard errors of 40 000 draws, up to two deviations from the centre: further
    # out a mean of rare large values has no honest standard error.
    rng = np.random.default_rng(0)
    y = np.array([-2.0, 0.4, 3.5])
    for one in y:
        centre = one * np.sin(one)
        x = centre + np.array([-1.0, -0.3, 0.0, 0.8])
        drawn = centre + 0.5 * rng.standard_normal(40_000)
        values = gaussian(x, drawn, scale)
        exact = UNEQUAL.embedding(x, y, scale)[:, y == one]
        assert (np.abs(values.mean(1) - exact[:, 0]) < 5 * values.std(1) / 200).all()
        tripled = UNEQUAL.embedding(x, [one], scale, variance=3.0)
        assert_close(tripled, 3 * exact, tolerance=1e-14)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ((1, 5), "n_bags must be at least 2"),
        ((4, [1, 2]), "bag_size must be a whole number or 4"),
        ((4, 2.5), "bag_size must be a whole number"),
        ((3, [1, 0, 2]), "bag_size must be at least 1 for every bag, not 0"),
    ],
)
def test_a_toy_that_cannot_be_drawn_says_why(given, complaint):
    with pytest.raises(ValueError, match=complaint):
        shrinkage_toy(*given)


def test_spreads_length_scales_and_grids_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="mediator_std must be positive"):
        shrinkage_toy(3, 2, mediator_std=0.0)
    with pytest.raises(ValueError, match="noise_std must be positive"):
        shrinkage_toy(3, 2, noise_std=float("nan"))
    with pytest.raises(ValueError, match="lengthscale must be positive"):
        EQUAL.embedding([0.0], [0.0], lengthscale=-1.0)
    with pytest.raises(ValueError, match="grid must be 'data' or 'fixed'"):
        embeddings(EQUAL, grid="other")


# --------------------------------------------------------------------------- estimators


@pytest.mark.parametrize("n", [2, 3, 10, 57])
def test_the_median_distance_is_that_of_all_pairs(n):
    values = np.random.default_rng(n).normal(size=n)
    values[n // 2 :] = values[n // 2 :].round(1)
    pairs = np.abs(np.subtract.outer(values, values))[np.triu_indices(n, 1)]
    expected = np.sort(pairs)[(len(pairs) + 1) // 2 - 1]
    assert median_distance(values) == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_repeated_mediators_have_a_shorter_median_distance():
    assert median_distance(np.repeat([0.0, 1.0, 3.0], 50)) == 1.0
    assert median_distance(np.repeat([0.0, 1.0], 50)) == 1.0
    assert median_distance(np.zeros(4)) == 0.0
    with pytest.raises(ValueError, match="at least two"):
        median_distance(np.array([1.0]))


def test_length_scales_and_grid_come_from_the_data():
    problem = embeddings(UNEQUAL, scale=0.5)
    x, y = UNEQUAL.bags.points[:, 0], UNEQUAL.bags.mediator[:, 0]
    assert problem.k_scale == 0.5 * median_distance(x)
    assert problem.l_scale == 0.5 * median_distance(y)
    assert (problem.x[0], problem.x[-1]) == (x.min(), x.max())
    assert (problem.y[0], problem.y[-1]) == (y.min(), y.max())
    fixed = embeddings(UNEQUAL, grid="fixed")
    assert (fixed.x[0], fixed.x[-1], fixed.y[0], fixed.y[-1]) == (-4.0, 3.0, -4.0, 4.0)


@pytest.mark.parametrize("diagonal", [0.02, 0.1, 2.2])
def test_the_dense_system_is_the_form_from_bags(diagonal):
    problem = embeddings(UNEQUAL)
    expected = replicated(problem, diagonal)
    assert_close(problem.dense(diagonal), expected, tolerance=1e-10)
    from_bags = problem.from_bags(problem.standard_ridge(diagonal))
    assert_close(from_bags, expected, tolerance=1e-10)


@pytest.mark.parametrize("block", [1, 4, 7, 8, 100])
def test_a_system_is_solved_in_blocks_of_any_size(block, monkeypatch):
    monkeypatch.setattr(shrinkage_estimators, "DENSE_BLOCK", block)
    rng = np.random.default_rng(block)
    y, at = rng.normal(size=8), rng.normal(size=3)
    expected = np.linalg.solve(gaussian(y, y, 0.7) + 0.3 * np.eye(8), gaussian(y, at, 0.7))
    assert_close(dense_coefficients(y, at, 0.7, 0.3), expected, tolerance=1e-12)


@pytest.mark.parametrize("diagonal", [0.02, 0.1, 2.0])
def test_with_equal_bags_a_matched_ridge_makes_both_one_estimator(diagonal):
    problem = embeddings(EQUAL)
    matched = problem.from_bags(problem.shrinkage_ridge(diagonal / 4))
    assert_close(matched, shrunk(problem, diagonal / 4), tolerance=1e-10)
    assert_close(matched, replicated(problem, diagonal), tolerance=1e-10)
    same_number = problem.from_bags(problem.shrinkage_ridge(diagonal))
    assert rms(same_number - replicated(problem, diagonal)) > 1e-3


def test_with_unequal_bags_they_differ_at_the_same_lambda():
    problem = embeddings(UNEQUAL)
    n = UNEQUAL.bags.n_points
    gap = replicated(problem, 0.1 * n) - shrunk(problem, 0.1 * 5)
    assert rms(gap) > 1e-3
    ours = problem.from_bags(problem.standard_ridge(0.1 * n)) - problem.from_bags(
        problem.shrinkage_ridge(0.5)
    )
    assert_close(ours, gap, tolerance=1e-9)


def test_the_ratio_of_ridges_gives_the_distance_asked_for():
    problem = embeddings(EQUAL)
    ratio = shrinkage._ridge_ratio(problem, 0.5, 0.02)
    assert ratio > 1.05
    assert rms(shrunk(problem, 0.5 * ratio) - shrunk(problem, 0.5)) == pytest.approx(0.02, abs=1e-6)


def test_sizes_grow_geometrically_and_keep_their_ends():
    sizes = shrinkage.unequal_sizes(7, 2, 128, seed=1)
    assert sorted(sizes.tolist()) == [2, 4, 8, 16, 32, 64, 128]
    assert shrinkage.unequal_sizes(3, 6, 6, seed=0).tolist() == [6, 6, 6]


# --------------------------------------------------------------------------- the study


@pytest.fixture(autouse=True, scope="module")
def small():
    """Two sizes of equal bags and one of unequal ones, on a coarse grid."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shrinkage, "SETTINGS", ((3, 6), (5, 3)))
        patch.setattr(shrinkage, "UNEQUAL", ((5, 1, 12),))
        patch.setattr(shrinkage, "PAPER_RMSE", {(5, 3): 0.01})
        patch.setattr(shrinkage_estimators, "GRID", 7)
        patch.setattr(shrinkage, "LAMBDAS", np.geomspace(1e-4, 1.0, 5))
        patch.setattr(shrinkage, "best_seconds", lambda call, budget=1.0: (call(), 0.25)[1])
        yield


@pytest.fixture(scope="module")
def study(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shrinkage")
    return Shrinkage(seeds=2).run(folder, command="it", console=Console(quiet=True))


def test_senses_are_those_of_dense_algebra(study):
    assert len(study.where(part="senses")) == 2 * 2 * 16
    problem = embeddings(shrinkage_toy(3, 6, seed=1))
    factor = {"1": 1, "N": 3, "nj": 6, "n": 18}
    mine = study.where(part="senses", case="3 bags of 6", seed=1)
    for row in mine:
        standard = replicated(problem, 0.1 * factor[row["standard"]])
        other = shrunk(problem, 0.1 * factor[row["shrinkage"]])
        assert row["rmse"] == pytest.approx(rms(standard - other), abs=1e-10)
        assert row["standard_error"] == pytest.approx(rms(standard - problem.truth), abs=1e-10)
        assert row["shrinkage_error"] == pytest.approx(rms(other - problem.truth), abs=1e-10)
        assert row["rmse_matched_dense"] < 1e-10
    apart = {(row["standard"], row["shrinkage"]): row["rmse"] for row in mine}
    assert apart["n", "N"] < 1e-12
    assert apart["1", "1"] > 1e-3


def test_choices_change_what_they_name(study):
    rows = study.where(part="choices", case="5 bags of 3", seed=0)
    problem = embeddings(shrinkage_toy(5, 3, mediator_std=2.0, seed=0), "fixed", 0.5**0.5)
    expected = rms(replicated(problem, 0.1) - shrunk(problem, 0.1))
    direct = {row["choice"]: row["rmse_direct"] for row in rows}
    assert direct["all three"] == pytest.approx(expected, abs=1e-10)
    assert len(set(direct.values())) == len(shrinkage.CHOICES)


def test_repeating_mediators_changes_their_median_most_where_bags_are_few(study):
    (row,) = study.where(part="choices", case="3 bags of 6", seed=0, choice="as in the first table")
    # Of 153 pairs 45 lie within bags: the middle one is at the smallest distance of two bags.
    problem = embeddings(shrinkage_toy(3, 6, seed=0))
    y = np.sort(problem.mediator)
    smallest = np.diff(y).min()
    assert row["median_ratio"] == pytest.approx(smallest / problem.l_scale, rel=1e-9)
    assert row["median_ratio"] < 0.99
    other = replace(problem, l_scale=smallest)
    expected = rms(replicated(other, 0.1 * 18) - shrunk(problem, 0.1 * 3))
    assert row["rmse_own_median"] == pytest.approx(expected, abs=1e-10)


def test_errors_over_lambda_are_those_of_both_operators(study):
    for row in study.where(part="ridge"):
        assert row["rmse_dense"] < 1e-10
        assert row["standard_best"] == min(row["standard_curve"])
        if row["case"] != "5 bags of 1 to 12":
            assert_close(row["standard_curve"], row["shrinkage_curve"], tolerance=1e-10)
            assert row["rmse"] < 1e-12
    (uneven,) = study.where(part="ridge", case="5 bags of 1 to 12", seed=1)
    sizes = shrinkage.unequal_sizes(5, 1, 12, seed=1)
    problem = embeddings(shrinkage_toy(5, sizes, seed=1))
    n = sizes.sum()
    for place, value in enumerate(shrinkage.LAMBDAS):
        standard = rms(replicated(problem, value * n) - problem.truth)
        other = rms(shrunk(problem, value * 5) - problem.truth)
        assert uneven["standard_curve"][place] == pytest.approx(standard, abs=1e-9)
        assert uneven["shrinkage_curve"][place] == pytest.approx(other, abs=1e-9)
    assert uneven["rmse"] > 1e-3


def test_times_come_with_how_far_the_estimates_agree(study):
    for row in study.where(part="times"):
        assert row["dense"] == "measured"
        assert row["shrinkage_seconds"] == 0.25
        assert max(row["rmse_dense_standard"], row["rmse_dense_shrinkage"]) < 1e-10


def test_tables_and_pictures_show_the_records(study):
    text = (study.folder / "table.md").read_text()
    rows = study.where(part="senses", case="3 bags of 6", standard="1", shrinkage="1")
    direct = [row["rmse"] for row in rows]
    cells = f"{np.mean(direct):.3f} ({min(direct):.3f} to {max(direct):.3f})"
    assert f"| 0.1 added to both diagonals | {cells} |" in text
    assert "| 250 ms |" in text and "| 5 bags of 1 to 12 |" in text
    for name in ("equal", "unequal", "ridge"):
        assert (study.folder / f"shrinkage-{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_what_cannot_be_solved_is_extrapolated_and_said_to_be(monkeypatch):
    monkeypatch.setattr(shrinkage, "FEW_POINTS", 9)
    rows = [shrinkage._times(*size, dense_points=9) for size in shrinkage.SETTINGS]
    assert [row["dense"] for row in rows] == ["extrapolated", "extrapolated"]
    # Every second point of 18 and of 15: 9 and 8 of them took a quarter of a second.
    seconds = [row["dense_seconds"] for row in rows]
    assert_close(seconds, [0.25 * 8, 0.25 * (15 / 8) ** 3], tolerance=1e-12)
    monkeypatch.setattr(shrinkage, "_fits_memory", lambda n: False)
    row = shrinkage._times(3, 6, dense_points=30_000)
    assert row["dense"] == "extrapolated" and row["rmse_dense_standard"] is None


def test_memory_is_asked_for_before_it_is_used():
    assert shrinkage._fits_memory(10)
    assert not shrinkage._fits_memory(10**8)
