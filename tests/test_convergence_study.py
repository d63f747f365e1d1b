"""The convergence study: its problem against brute force, its estimates against Gram matrices."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from studies import convergence as study
from studies import convergence_problem as circle
from studies.convergence import Convergence, Step
from studies.convergence_problem import Problem

SIZES = (16, 32, 64, 128, 256)
SMALL = Problem(frequencies=3, decay=2.0, mediator_decay=3.0, amplitude=2.5, noise=0.6)


def individuals(problem, size, seed):
    """Single draws of (x, y), as rows of the tables of features."""
    rng = np.random.default_rng(seed)
    cell = rng.choice(problem.joint.size, size=size, p=problem.joint.ravel())
    return np.unravel_index(cell, problem.joint.shape)


# --------------------------------------------------------------------------- the problem


@pytest.mark.parametrize("problem", [SMALL, *study.PROBLEMS.values()])
def test_the_law_is_one_and_the_operator_gives_conditional_means(problem):
    assert problem.joint.min() >= 0
    assert problem.joint.sum() == pytest.approx(1)
    of_y = problem.joint.sum(0)
    np.testing.assert_allclose(of_y, 1 / len(of_y), rtol=1e-12)
    means = (problem.joint / of_y).T @ problem.fine_features
    scale = np.abs(means).max()
    predicted = problem.mediator_features @ problem.operator.T
    np.testing.assert_allclose(means, predicted, atol=1e-12 * scale)


def test_kernels_are_the_sums_of_cosines_they_are_said_to_be():
    problem = SMALL
    j = np.arange(1.0, 4)
    angle = 2 * np.pi * np.subtract.outer(np.arange(7), np.arange(7)) / 7
    waves = 2 * np.cos(j * angle[..., None])
    ell = waves @ j**-3.0
    features = problem.mediator_features
    same, other = features @ features[:7].T, features[:7] @ features[7:].T
    np.testing.assert_allclose(same[:7], ell + 0.36, atol=1e-12)
    np.testing.assert_allclose(other, ell - 0.36, atol=1e-12)
    kappa = 2.5 * j**-2 * np.sqrt(1 + j)
    place = waves @ kappa
    fine = problem.fine_features
    np.testing.assert_allclose(fine[:7] @ fine[:7].T, 2 * place + kappa[0], atol=1e-12)
    np.testing.assert_allclose(fine[:7] @ fine[7:].T, np.full((7, 7), -kappa[0]), atol=1e-12)


def test_the_spectrum_is_that_of_the_covariance_of_conditional_means():
    problem = SMALL
    images = problem.mediator_features @ problem.operator.T
    spectrum = np.linalg.eigvalsh(images.T @ images / len(images))[::-1]
    expected = 2.5 * np.array([1, 1, 1 / 4, 1 / 4, 1 / 9, 1 / 9])
    np.testing.assert_allclose(spectrum[:6], expected, rtol=1e-12)
    np.testing.assert_allclose(spectrum[6:], 0, atol=1e-12)
    np.testing.assert_allclose(problem.spectrum, expected, rtol=1e-12)


def test_risk_is_the_mean_over_all_mediators_and_over_draws():
    problem = SMALL
    rng = np.random.default_rng(1)
    decondition = problem.minimiser + 0.3 * rng.normal(size=problem.minimiser.shape)
    ell = problem.mediator_features
    losses = np.sum((ell - ell @ problem.operator.T @ decondition.T) ** 2, axis=1)
    assert problem.risk(decondition) == pytest.approx(losses.mean(), rel=1e-12)
    _, y = individuals(problem, 40_000, seed=2)
    drawn = losses[y]
    error = drawn.std() / math.sqrt(len(drawn))
    assert abs(drawn.mean() - problem.risk(decondition)) < 4 * error


def test_the_minimiser_is_the_least_squares_solution_and_excess_is_a_difference_of_risks():
    problem = SMALL
    ell = problem.mediator_features
    images = ell @ problem.operator.T
    solved = np.linalg.lstsq(images, ell, rcond=None)[0].T
    np.testing.assert_allclose(problem.minimiser, solved, atol=1e-12)
    least = problem.risk(problem.minimiser)
    assert least == pytest.approx(0.36)
    rng = np.random.default_rng(3)
    for size in (1e-3, 1.0):
        change = problem.minimiser + size * rng.normal(size=solved.shape)
        assert problem.risk(change) > least
        difference = problem.risk(change) - least
        assert problem.excess(change) == pytest.approx(difference, rel=1e-8)


def test_the_minimiser_composed_with_the_operator_is_a_projection():
    composed = SMALL.minimiser @ SMALL.operator
    np.testing.assert_allclose(composed @ composed, composed, atol=1e-12)
    np.testing.assert_allclose(composed, SMALL.projection, atol=1e-12)
    assert np.trace(composed) == pytest.approx(6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"frequencies": 0}, "frequencies"),
        ({"amplitude": 0.0}, "amplitude"),
        ({"noise": -1.0}, "noise"),
    ],
)
def test_a_problem_that_cannot_be_is_refused(given, message):
    settings = {"frequencies": 2, "decay": 2.0, "mediator_decay": 2.0, **given}
    with pytest.raises(ValueError, match=message):
        Problem(**settings)


# --------------------------------------------------------------------------- estimates


class Fixed:
    """A generator that hands out given counts, one table after another."""

    def __init__(self, *counts):
        self.counts = list(counts)

    def multinomial(self, size, share):
        counts = self.counts.pop(0)
        np.testing.assert_array_equal(counts.sum(-1), size)
        assert np.shape(share) == counts.shape
        np.testing.assert_allclose(np.sum(share, axis=-1), 1)
        return counts


def test_estimates_from_counts_are_the_paper_s_gram_forms():
    problem, size, number = SMALL, 60, 25
    x, y = individuals(problem, size, seed=4)
    _, again = individuals(problem, number, seed=5)
    ridge, epsilon = 0.03, 0.02

    phi, psi = problem.fine_features[x].T, problem.mediator_features[y].T
    tilde = problem.mediator_features[again].T
    gram = psi.T @ psi + size * ridge * np.eye(size)
    dense = phi @ np.linalg.solve(gram, psi.T)
    mediation = np.linalg.solve(gram, psi.T @ tilde)
    inner = mediation.T @ (phi.T @ phi) @ mediation + number * epsilon * np.eye(number)
    dense_dmo = tilde @ np.linalg.solve(inner, mediation.T @ phi.T)

    cells = np.ravel_multi_index((x, y), problem.joint.shape)
    pairs = Fixed(np.bincount(cells, minlength=problem.joint.size))
    operator = circle.conditional_operator(*circle.draw_bags(problem, size, pairs), ridge)
    mediators = Fixed(np.bincount(again, minlength=len(problem.mediator_features)))
    covariance = circle.draw_mediators(problem, number, mediators)
    np.testing.assert_allclose(operator, dense, atol=1e-11)
    found = circle.deconditional_operator(covariance, operator, epsilon)
    np.testing.assert_allclose(found, dense_dmo, atol=1e-10)
    excess = problem.excess_of(covariance, operator, epsilon)
    difference = problem.risk(dense_dmo) - problem.risk(problem.minimiser)
    assert excess == pytest.approx(difference, rel=1e-9)


def test_bags_of_several_points_are_the_paper_s_replicated_form():
    problem, size, points, ridge = SMALL, 9, 4, 0.05
    rng = np.random.default_rng(9)
    y = rng.integers(len(problem.mediator_features), size=size)
    given = problem.joint / problem.joint.sum(0)
    x = np.array([rng.choice(len(given), size=points, p=given[:, one]) for one in y])
    phi = problem.fine_features[x.ravel()].T
    psi = problem.mediator_features[y.repeat(points)].T
    gram = psi.T @ psi + size * points * ridge * np.eye(size * points)
    dense = phi @ np.linalg.solve(gram, psi.T)

    number = np.bincount(y, minlength=len(problem.mediator_features))
    inside = np.zeros((len(number), len(given)), dtype=int)
    np.add.at(inside, (y.repeat(points), x.ravel()), 1)
    moments = circle.draw_bags(problem, size, Fixed(number, inside), points)
    np.testing.assert_allclose(circle.conditional_operator(*moments, ridge), dense, atol=1e-11)


def test_with_everything_known_the_excess_is_the_bias_of_each_direction():
    problem, epsilon = SMALL, 0.2
    exact = np.diag(problem.mediator_covariance)
    found = problem.excess_of(exact, problem.operator, epsilon)
    lost = epsilon / (problem.spectrum + epsilon)
    assert found == pytest.approx(np.sum(problem.mediator_covariance[:-1] * lost**2), rel=1e-12)


@pytest.mark.parametrize(("size", "points"), [(1000, 1), (circle.MOST_POINTS, 1), (500, 8)])
def test_draws_have_the_moments_of_the_law_even_for_the_most_points(size, points):
    problem, rng = Problem(1, 2.0, 2.0), np.random.default_rng(6)
    crosses = np.array([circle.draw_bags(problem, size, rng, points)[1] for _ in range(1500)])
    products = np.einsum("xi,yj->xyij", problem.fine_features, problem.mediator_features)
    mean = np.einsum("xy,xyij->ij", problem.joint, products)
    of_y = problem.joint.sum(0)
    bag_mean = np.einsum("xy,xyij->yij", problem.joint / of_y, products)
    between = np.einsum("y,yij->ij", of_y, (bag_mean - mean) ** 2)
    within = np.einsum("xy,xyij->ij", problem.joint, (products - bag_mean) ** 2)
    scores = (crosses - mean) / np.sqrt((between + within / points) / size)
    assert np.abs(scores.mean(0)).max() < 4.5 / math.sqrt(len(scores))
    assert np.abs(scores.std(0) - 1).max() < 4.5 / math.sqrt(2 * len(scores))


# --------------------------------------------------------------------------- the theorem


def test_the_plan_is_the_theorem_s():
    below = study.plan(100, a=1.0, b=2.0, c=1.5, c_prime=1.5)
    assert below.bags == 100**5
    assert below.ridge == pytest.approx(100**-2)
    assert below.epsilon == pytest.approx(100 ** (-1 / 2.5))
    assert below.rate == pytest.approx(1.5 / 2.5)
    above = study.plan(100, a=1.5, b=2.0, c=1.5)
    assert above.epsilon == pytest.approx(100 ** (-2 / 4))
    assert above.rate == pytest.approx(3 / 4)
    assert study.plan(64, 0.75, 2.0, 1.5, iota=0.5).bags == 64**4.5
    finite = study.plan(100, a=1.5, b=math.inf, c=2.0)
    assert (finite.rate, finite.epsilon) == (pytest.approx(1), pytest.approx(0.1))
    nearly = study.plan(100, a=1.5, b=1e9, c=2.0)
    assert nearly.rate == pytest.approx(finite.rate)


@pytest.mark.parametrize(
    ("name", "value"), [("size", 0), ("a", 0), ("b", 1), ("c", 2.5), ("c_prime", 1), ("iota", 0)]
)
def test_a_plan_outside_the_theorem_is_refused(name, value):
    given = {"size": 10, "a": 1.0, "b": 2.0, "c": 1.5, "c_prime": 2.0, "iota": 1.0, name: value}
    with pytest.raises(ValueError, match=f"^{name} must be"):
        study.plan(**given)


def test_slope_finds_a_known_one_and_its_intervals_cover_it():
    rng = np.random.default_rng(7)
    sizes = 2.0 ** np.arange(4, 10)
    inside = 0
    for _ in range(400):
        values = 3 * sizes**-0.7 * rng.gamma(4.0, 1 / 4, size=(100, len(sizes)))
        error = values.std(0, ddof=1) / 10
        rate, spread = study.slope(sizes, values.mean(0), error)
        inside += abs(rate - 0.7) < 1.96 * spread
    assert 0.95 - 4 * math.sqrt(0.95 * 0.05 / 400) < inside / 400 <= 0.99
    assert study.slope(sizes, 3 * sizes**-0.7, 0 * sizes) == (pytest.approx(0.7), 0)
    with pytest.raises(ValueError, match="at least two sizes"):
        study.slope([1], [1.0], [0.1])
    with pytest.raises(ValueError, match="positive"):
        study.slope([1, 2], [1.0, 0.0], [0.1, 0.1])


def test_bags_needed_interpolates_the_last_crossing():
    pairs = [10, 100, 1000, 10_000]
    power_law = [(3000 / n) ** 0.5 for n in pairs]
    assert study.bags_needed(pairs, power_law, within=1.25) == pytest.approx(3000 / 1.25**2)
    assert study.bags_needed(pairs, [1.0, 2.0, 1.0, 1.0], within=2**0.5) == pytest.approx(10**2.5)
    assert math.isnan(study.bags_needed(pairs, [1.0] * 4))
    assert math.isnan(study.bags_needed(pairs, [9.0, 1.0, 1.0, 2.0]))


@pytest.mark.parametrize(("pairs_power", "first"), [(4.5, 7), (1.5, 12)])
def test_the_finite_problem_converges_as_its_formulas_say(pairs_power, first):
    """The theorem's rate at its corner; N as M^(3/2) is enough for it, with the same λ."""
    problem, rng = study.PROBLEMS["finite"], np.random.default_rng(8)
    sizes, mean, error = 2 ** np.arange(first, first + 6), [], []
    for size in sizes.tolist():
        pairs = round(size**pairs_power)
        values = []
        for _ in range(150):
            moments = circle.draw_bags(problem, pairs, rng)
            operator = circle.conditional_operator(*moments, pairs ** (-1 / 3))
            covariance = circle.draw_mediators(problem, size, rng)
            values.append(problem.excess_of(covariance, operator, size**-0.5))
        mean.append(np.mean(values))
        error.append(np.std(values, ddof=1) / math.sqrt(len(values)))
    rate, spread = study.slope(sizes, mean, error)
    assert spread < 0.03
    assert abs(rate - 1) < 0.1


# --------------------------------------------------------------------------- the study


@pytest.fixture(scope="module")
def small_study():
    """The study with a small problem in place of the large one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(study.PROBLEMS, "polynomial", Problem(4, 2.0, 4.0))
        patch.setattr(study, "BAGS", tuple(4**power for power in range(2, 11)))
        yield Convergence(repetitions=4, sizes=SIZES)


@pytest.fixture(scope="module")
def done(small_study, tmp_path_factory):
    folder = tmp_path_factory.mktemp("convergence")
    return small_study.run(folder, command="the command", console=Console(quiet=True))


def test_a_run_leaves_numbers_tables_and_pictures(done):
    settings = json.loads((done.folder / "settings.json").read_text())
    assert (settings["repetitions"], settings["seed"]) == (4, 0)
    text = (done.folder / "table.md").read_text()
    assert text.count("(corner)") == 3
    rows = done.where(part="rates", case="finite rank, a = 1.5")
    rate, error = study.fitted(rows)
    shown = f"{rate:.3f} ({rate - 1.96 * error:.3f} to {rate + 1.96 * error:.3f})"
    cells = f"b = ∞, c = 2 | 1.5 (corner) | M^4.5 | 2^6 to 2^8 | 1.000 | {shown}"
    assert f"| finite rank | {cells} |" in text
    assert "`the command`" in text
    for name in ("convergence.png", "convergence-bags.png"):
        assert (done.folder / name).read_bytes()[:4] == b"\x89PNG"


def test_rows_hold_the_plan_and_the_parts(done):
    rows = done.where(part="rates", case="finite rank, a = 0.75")
    assert [row["size"] for row in rows] == list(SIZES)
    problem = study.PROBLEMS["finite"]
    exact = np.diag(problem.mediator_covariance)
    for row in rows:
        assert row["bags"] == round(row["size"] ** 2.25)
        assert row["epsilon"] == pytest.approx(row["size"] ** -0.25)
        bias = problem.excess_of(exact, problem.operator, row["epsilon"])
        assert row["bias"] == pytest.approx(bias)
    at_corner = done.where(part="rates", case="finite rank, a = 1.5")
    assert [row["corner"] for row in at_corner] == [row["total"] for row in at_corner]
    many = at_corner[-1]
    assert many["total"] == pytest.approx(many["known"], rel=0.02)
    assert many["every"] == pytest.approx(many["bias"], rel=0.05)


def test_more_pairs_bring_the_risk_to_that_of_the_known_operator(done):
    for name in study.PROBLEMS:
        rows = done.where(part="bags", case=name, rule="1/N")
        ratio = [row["total"] / row["known"] for row in rows]
        assert max(ratio[-4:]) < 1.1
        assert min(ratio[:4]) > 1.5


def test_draws_depend_on_the_seed_and_the_task_alone(done, small_study):
    task = Step("rates", "finite rank, a = 1", 64)
    (row,) = done.where(**task._asdict())
    ((again,),) = (outcome.records for outcome in small_study.fit(task))
    ((other,),) = (outcome.records for outcome in replace(small_study, seed=1).fit(task))
    assert again == {name: row[name] for name in again}
    assert other["total"] != again["total"] and other["bias"] == again["bias"]


def test_a_rate_is_measured_where_the_theorem_s_bags_can_be_drawn():
    sizes = {}
    for task in Convergence().tasks():
        sizes.setdefault(task.case, []).append(task.number)
    assert sizes["finite rank, a = 0.75"][-1] == 2**20
    assert sizes["finite rank, a = 1.75"][-1] == 2**11
