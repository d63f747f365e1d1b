"""Warnings: each fires where it must, stays away where it must, and says what is the case."""

import warnings
from functools import cache

import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

import deconditional as dc
from deconditional.inference.held_out import held_out
from deconditional.inference.posterior import MARGIN, UNTOLD
from deconditional.kernels import linalg
from deconditional.models import cautions, mediator_checks
from helpers import (
    TanhKernel,
    assert_close,
    finite_difference,
    gram,
    ragged_bags,
    trend_features,
    weight_matrix,
)
from reliability import record, tries

USELESS, SHIFT, DEGENERATE = (
    dc.UselessMediatorWarning,
    dc.MediatorShiftWarning,
    dc.DegenerateFitWarning,
)


def explained_share(model):
    fitted = model.fitted_
    return cautions.share_explained(fitted.z, fitted.pieces[0], fitted.fields[0])


def caught(fit):
    """What a fit returns, and the warnings it gave."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = fit()
    return result, found


def kinds(found):
    return {each.category for each in found}


def wave(n=40, seed=0, noise=0.05):
    """Bags along a line, and noisy means of sin 2x over them."""
    rng = np.random.default_rng(seed)
    points = np.sort(rng.uniform(0, 6, 6 * n))
    bags = dc.Bags.from_points(points, np.arange(6 * n) // 6)
    return bags, bags.means(np.sin(2 * points)) + noise * rng.normal(size=n)


# --------------------------------------------------------------------------- classes


def test_all_warnings_share_a_base_and_those_of_fits_are_fit_warnings():
    of_fits = (USELESS, SHIFT, DEGENERATE, dc.JitterWarning)
    assert all(issubclass(each, dc.FitWarning) for each in of_fits)
    others = (dc.FitWarning, dc.ExtrapolationWarning, dc.LeakageWarning, dc.SliceWarning)
    assert all(issubclass(each, dc.DeconditionalWarning) for each in others)
    assert issubclass(dc.DeconditionalWarning, UserWarning)
    assert not issubclass(dc.ExtrapolationWarning, dc.FitWarning)


def test_a_good_fit_warns_of_nothing():
    bags, z = wave()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = dc.BaggGP(n_restarts=1).fit(bags, z)
    assert model.fit_report_.notes == ()
    assert model.fit_report_.details["jitter"] == "1e-12 of the variance"


# --------------------------------------------------------------------------- jitter


def indefinite(below, n=6):
    vectors = np.linalg.qr(np.random.default_rng(5).normal(size=(n, n)))[0]
    return vectors @ np.diag([*np.linspace(1.0, 2.0, n - 1), -below]) @ vectors.T


@pytest.mark.parametrize("below", [None, 3e-9, 3e-5])
def test_the_root_and_its_gradient_at_the_jitter_that_is_needed(below):
    a = indefinite(-0.3 if below is None else below)
    direction = indefinite(0.7)[::-1, ::-1] + np.eye(6)
    root, level = jax.jit(linalg.escalating_cholesky)(jnp.asarray(a))
    level = float(level)
    least = [
        t for t in 10.0 ** np.arange(-12, -2) if is_positive(a + t * np.trace(a) / 6 * np.eye(6))
    ]
    assert_close(level, least[0], tolerance=1e-12)
    assert_close(root, np.linalg.cholesky(a + level * np.trace(a) / 6 * np.eye(6)))

    def of(t):
        moved = jnp.asarray(a) + t[0] * direction
        return jnp.sum(jnp.sin(linalg.stable_cholesky(moved)))

    def dense(t):
        moved = a + t[0] * direction
        return np.sin(np.linalg.cholesky(moved + level * np.trace(moved) / 6 * np.eye(6))).sum()

    step = 1e-5 if below is None else 0.05 * level
    expected = finite_difference(dense, np.zeros(1), step)
    assert_close(jax.jit(jax.grad(of))(jnp.zeros(1)), expected, tolerance=2e-3)


def is_positive(a):
    try:
        return bool(np.isfinite(np.linalg.cholesky(a)).all())
    except np.linalg.LinAlgError:
        return False


def test_a_matrix_that_is_no_covariance_has_no_root():
    a = np.diag([1.0, 1.0, -0.5])
    assert not np.isfinite(np.asarray(linalg.stable_cholesky(jnp.asarray(a)))).all()
    with pytest.raises(ValueError, match="not positive definite"):
        linalg.lifted_cholesky(a)


SMOOTH = {"kernel.lengthscale": 3.0, "kernel.variance": 1.0, "noise_std": 0.0}


def test_jitter_that_changes_answers_is_reported_and_warned_of():
    # Float32 tiles of a smooth kernel without noise: rounding of 1e-7 against no eigenvalue at all.
    bags, z = wave(noise=0.0)
    model = dc.BaggGP(trend="none", fixed=SMOOTH, precision="float32")
    with pytest.warns(dc.JitterWarning, match=r"jitter of 1e-0\d of its variance.*noise_std"):
        model.fit(bags, z)
    pieces, field = model.fitted_.pieces[0], model.fitted_.fields[0]
    a = np.asarray(pieces.gram, dtype=float)
    scale = np.trace(a) / len(a)
    level = field.jitter(pieces)
    assert model.fit_report_.details["jitter"] == f"{level:.0e} of the variance"
    assert not is_positive(a + 0.05 * level * scale * np.eye(len(a)))
    expected = np.linalg.solve(a + level * scale * np.eye(len(a)), z)
    root = np.asarray(field.conditioned.root)
    assert_close(np.linalg.solve(root.T, field.conditioned.misfit), expected, tolerance=1e-6)
    held = model.predict_held_out(np.arange(len(z)) % 5)
    assert np.isfinite(held.mean).all() and (held.variance > 0).all()


def test_the_same_in_float64_needs_no_jitter_worth_a_word():
    bags, z = wave(noise=0.0)
    model = dc.BaggGP(trend="none", fixed=SMOOTH | {"noise_std": 0.01}, precision="float64")
    model.fit(bags, z)
    assert model.fit_report_.details["jitter"] == "1e-12 of the variance"
    assert model.fitted_.fields[0].jitter(model.fitted_.pieces[0]) == linalg.JITTER


def test_held_out_observations_of_a_singular_covariance():
    # Two observations of one value: each is what the other says.
    mean, variance = held_out(np.ones((2, 2)), np.array([3.0, 3.0]), [0, 1])
    assert_close(mean, np.array([3.0, 3.0]), tolerance=1e-6)
    assert (variance > 0).all() and (variance < 1e-6).all()


def test_a_fit_without_an_answer_is_an_error():
    bags, z = wave()
    fixed = {"kernel.lengthscale": 1.0, "kernel.variance": 1e308, "noise_std": 0.1}
    with pytest.raises(ValueError, match=r"no finite answer.*fixed"):
        dc.BaggGP(fixed=fixed).fit(bags, z)


# --------------------------------------------------------------------------- degenerate fits


def prior(**medians):
    return {f"kernel.{name}": dc.LogNormal(value, 0.01) for name, value in medians.items()}


@pytest.mark.parametrize(
    ("family", "medians", "words"),
    [
        (dc.BaggGP, {"variance": 1e-9}, "explains 0% of the variation"),
        (dc.BaggGP, {"lengthscale": 1e5, "variance": 0.5}, "so long that it is a constant"),
        (dc.VBagg, {"lengthscale": 1e-5, "variance": 0.5}, "every fine point stands alone"),
    ],
)
def test_degenerate_fields_are_named(family, medians, words):
    bags, z = wave()
    options = {"n_inducing": 40} if family is dc.VBagg else {}
    model, found = caught(
        lambda: family(n_restarts=1, max_iter=30, priors=prior(**medians), **options).fit(bags, z)
    )
    degenerate = [w for w in found if w.category is DEGENERATE]
    assert any(words in str(w.message) for w in degenerate)
    assert any(words in note for note in model.fit_report_.notes)
    assert all(w.filename == __file__ for w in found)


@pytest.mark.parametrize("trend", ["none", "linear"])
@pytest.mark.parametrize("family", [dc.BaggGP, dc.VBagg])
def test_the_share_explained_is_that_of_the_bag_means(family, trend):
    bags, z = wave(noise=0.4)
    fixed = {"kernel.lengthscale": 0.5, "kernel.variance": 0.4, "noise_std": 0.4}
    options = {"n_inducing": 30} if family is dc.VBagg else {}
    model = family(trend=trend, fixed=fixed, **options).fit(bags, z)
    left = z - model.predict_bags(bags).mean
    expected = 1 - (left**2).sum() / ((z - z.mean()) ** 2).sum()
    found = explained_share(model)
    assert_close(found, expected, tolerance=1e-6)
    assert 0.3 < found < 1


def test_the_share_explained_through_a_mediator():
    data = dc.datasets.swiss_roll(n_points=400, n_bags=24, matching="indirect", seed=1)
    for options in ({}, {"uncertainty": True}):
        model = dc.CMP(fixed=ROLL, **options)
        model, _ = caught(lambda m=model: m.fit(data.bags, data.z, mediator=data.mediator))
        weights = np.asarray(model.fitted_.pieces[0].weights)
        left = data.z - weights.T @ model.predict_bags(data.bags).mean
        expected = 1 - (left**2).sum() / ((data.z - data.z.mean()) ** 2).sum()
        found = explained_share(model)
        assert_close(found, expected, tolerance=1e-6)


def test_bags_that_are_far_apart_and_smooth_inside_do_not_stand_alone():
    rng = np.random.default_rng(0)
    points = 1000.0 * np.repeat(np.arange(15), 8) + rng.uniform(size=120)
    bags = dc.Bags.from_points(points, np.repeat(np.arange(15), 8))
    z = rng.normal(size=15)
    priors = prior(lengthscale=50.0)
    _, found = caught(lambda: dc.BaggGP(n_restarts=1, priors=priors).fit(bags, z))
    assert not any("stands alone" in str(w.message) for w in found)


# --------------------------------------------------------------------------- mediators

ROLL = {
    "kernel.lengthscale": [0.5, 1.0, 0.5],
    "kernel.variance": 1.0,
    "mediator_kernel.lengthscale": 0.3,
    "ridge": 1e-3,
    "noise_std": 0.1,
}
STAGE = {k: v for k, v in ROLL.items() if k.startswith(("kernel", "noise"))}


def s_curve(seed, n_points=2000, n_bags=50):
    """An S-curve cut into bags by height: points of half of the levels, values of the others."""
    rng = np.random.default_rng(seed)
    t = 3 * np.pi * (rng.uniform(size=n_points) - 0.5)
    x = np.stack([np.sin(t), 2 * rng.uniform(size=n_points), np.sign(t) * (np.cos(t) - 1)], 1)
    edges = np.linspace(x[:, 2].min(), x[:, 2].max(), n_bags + 1)
    level = np.clip(np.searchsorted(edges, x[:, 2], side="right") - 1, 0, n_bags - 1)
    whole = dc.Bags.from_points(x, level, mediator=0.5 * (edges[1:] + edges[:-1]))
    z = whole.means(t / t.std()) + 0.05 * rng.standard_normal(n_bags)
    order = rng.permutation(n_bags)
    half = n_bags // 2
    return whole.select(order[:half]), z[order[half:]], whole.mediator[order[half:]]


def roll(seed, matching="indirect", n_points=2000, n_bags=50):
    data = dc.datasets.swiss_roll(n_points, n_bags, matching, seed=seed)
    return data.bags, data.z, data.mediator


def world(seed, n=30):
    """The known world of docs/pitfalls.md: conditional means of a wave."""
    rng = np.random.default_rng(seed)
    y, y_tilde = rng.uniform(0, 6, n), rng.uniform(0, 6, n)
    bags = dc.Bags.from_list([v + 0.5 * rng.normal(size=12) for v in y], mediator=y)
    return bags, np.exp(-0.5) * np.sin(2 * y_tilde) + 0.03 * rng.normal(size=n), y_tilde[:, None]


def of_fields(seed):
    """Bags and observations of synthetic fields whose cells were dealt out at random."""
    from deconditional.fields.question import Question
    from pairs import pair

    fields = dc.datasets.synthetic_fields(24, 48, seed=seed)
    roles = ("tas", ["altitude"], ["water_vapour"])
    data = dc.datasets.split_cells(fields, *roles, block=4, seed=seed)
    found = pair(data.fine, data.coarse, Question("tas", ("altitude",), ("water_vapour",)))
    bags = dc.Bags.from_points(found.bags.points, found.bags.bag, mediator=found.bag_mediator)
    return bags, found.z, found.mediator


def direct(seed):
    return roll(seed, "direct")


PROBLEMS = {
    "swiss roll, indirect": roll,
    "swiss roll, direct": direct,
    "S-curve": s_curve,
    "wave": world,
    "synthetic fields": of_fields,
}


def random_mediators(bags, z, y, rng):
    new = rng.normal(size=(bags.n_bags, 1))
    return dc.Bags.from_list(list(bags), mediator=new), z, rng.normal(size=(len(z), 1))


def shuffled_bags(bags, z, y, rng):
    return dc.Bags.from_list(list(bags), mediator=rng.permutation(bags.mediator)), z, y


def shuffled_observations(bags, z, y, rng):
    return bags, rng.permutation(z), y


FAULTS = {
    "random mediators": random_mediators,
    "mediators of the bags shuffled": shuffled_bags,
    "mediators of the observations shuffled": shuffled_observations,
}


def test_predictability_is_that_of_regressions_without_each_row():
    rng = np.random.default_rng(2)
    y = rng.normal(size=(20, 2))
    values = np.stack([np.sin(y[:, 0]), y[:, 1] ** 2], 1) + 0.3 * rng.normal(size=(20, 2))
    y = (y - y.mean(0)) / y.std(0)
    values = (values - values.mean(0)) / values.std(0)
    distances = np.sqrt(((y[:, None] - y[None]) ** 2).sum(-1))
    typical = np.median(distances[np.triu_indices(20, 1)])
    shares = []
    for smoothness in mediator_checks.SMOOTHNESS:
        for ridge in mediator_checks.RIDGES:
            kernel = np.exp(-((distances / (smoothness * typical)) ** 2))
            error = by_mean = 0.0
            for i in range(20):
                others = np.delete(np.arange(20), i)
                # The kriging system, whose last equation leaves the mean free.
                system = np.ones((20, 20))
                system[:19, :19] = kernel[np.ix_(others, others)] + ridge * np.eye(19)
                system[19, 19] = 0.0
                weights = np.linalg.solve(system, [*kernel[others, i], 1.0])[:19]
                error += ((values[i] - weights @ values[others]) ** 2).sum()
                by_mean += ((values[i] - values[others].mean(0)) ** 2).sum()
            shares.append(1 - error / by_mean)
    found = mediator_checks.predictability(y, values)
    assert_close(found.share, max(shares), tolerance=2e-3)
    assert found.p_value == 0.01 and not found.is_none


def test_a_mediator_that_is_constant_tells_nothing_and_few_rows_tell_nothing_of_it():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(30, 1))
    assert mediator_checks.predictability(np.ones((30, 1)), z) == (0.0, 1.0)
    assert mediator_checks.predictability(z[:14], z[:14]) is None
    assert mediator_checks.predictability(z, np.ones((30, 1))) is None
    assert mediator_checks.predictability(1e8 + z, 1e-8 * z).share == pytest.approx(
        mediator_checks.predictability(z, z).share, abs=1e-6
    )


def test_the_level_of_the_test_holds():
    # Of unrelated rows one in fifty passes for related, besides those of a large share.
    rng = np.random.default_rng(0)
    n = tries(80, 1000)
    related = sum(
        not mediator_checks.predictability(
            rng.normal(size=(30, 1)), rng.normal(size=(30, 2))
        ).is_none
        for _ in range(n)
    )
    assert related <= binom.ppf(0.999, n, mediator_checks.LEVEL)


@pytest.mark.reliability
@pytest.mark.parametrize("name", PROBLEMS)
def test_mediators_that_carry_information_are_not_warned_of(name):
    n = tries(4, 100)
    if name == "synthetic fields":
        pytest.importorskip("cf_xarray")
        n = tries(2, 50)
    outcomes = {"no warning": 0, "warned of a useless mediator": 0, "warned of a shift": 0}
    for seed in range(n):
        bags, z, y = PROBLEMS[name](seed)
        useless = mediator_checks.useless_mediator(bags, y, z)
        shifted = mediator_checks.shifted(bags.mediator, y, "observations")
        outcomes["warned of a useless mediator"] += bool(useless)
        outcomes["warned of a shift"] += bool(shifted) and not useless
        outcomes["no warning"] += not useless and not shifted
    record("guard rails", f"useful mediator, {name}", n, outcomes)
    assert outcomes["warned of a useless mediator"] <= 0.02 * n
    assert outcomes["warned of a shift"] <= 0.05 * n


@pytest.mark.reliability
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["swiss roll, indirect", "S-curve", "wave"])
def test_mediators_without_information_are_warned_of(name, fault):
    n = tries(6, 100)
    words = {
        "mediators of the bags shuffled": "information about the bags",
        "mediators of the observations shuffled": "information about the observations",
    }.get(fault, "information about")
    outcomes = {"warned": 0, "not warned": 0}
    for seed in range(n):
        rng = np.random.default_rng([seed, 7])
        bags, z, y = FAULTS[fault](*PROBLEMS[name](seed), rng)
        found = [c.text for c in mediator_checks.useless_mediator(bags, y, z)]
        warned = any(words in text for text in found)
        outcomes["warned" if warned else "not warned"] += 1
    record("guard rails", f"{fault}, {name}", n, outcomes)
    # The test lets one in fifty pass.
    assert outcomes["not warned"] <= binom.ppf(0.999, n, mediator_checks.LEVEL)


MODELS = {
    "CMP": lambda: dc.CMP(fixed=ROLL),
    "S-CMP": lambda: dc.CMP(cmo="shrinkage", fixed=ROLL),
    "U-CMP": lambda: dc.CMP(uncertainty=True, centred=True, fixed=ROLL),
    "VarCMP": lambda: dc.VarCMP(uncertainty=True, n_inducing=60, fixed=ROLL),
    "PseudoTarget": lambda: dc.PseudoTarget(dc.BaggGP(fixed=STAGE), n_restarts=1),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_unmatched_model_warns_of_a_useless_mediator(name):
    good = roll(3, n_points=1500, n_bags=40)
    model, found = caught(lambda: MODELS[name]().fit(good[0], good[1], mediator=good[2]))
    assert not kinds(found) & {USELESS, SHIFT}
    assert not any("mediator" in note for note in model.fit_report_.notes)
    bad = random_mediators(*good, np.random.default_rng(0))
    model, found = caught(lambda: MODELS[name]().fit(bad[0], bad[1], mediator=bad[2]))
    useless = [str(w.message) for w in found if w.category is USELESS]
    assert [text.split(":")[0] for text in useless] == [
        "the mediator carries no information about the observations",
        "the mediator carries no information about the bags",
    ]
    assert set(useless) <= set(model.fit_report_.notes)
    assert all(w.filename == __file__ for w in found if w.category is USELESS)


def test_observations_of_bags_of_their_own_need_no_mediator():
    bags, z, _ = roll(3, "direct", n_points=500, n_bags=30)
    rng = np.random.default_rng(0)
    blind = dc.Bags.from_list(list(bags), mediator=rng.normal(size=30))
    numbers = {"mediator": rng.normal(size=30), "own_bag": np.arange(30)}
    _, found = caught(lambda: dc.CMP(fixed=ROLL).fit(blind, z, **numbers))
    assert not kinds(found) & {USELESS, SHIFT}
    base = dc.PseudoTarget(dc.BaggGP(fixed=STAGE), n_restarts=1)
    _, found = caught(lambda: base.fit(blind, z, **numbers))
    assert not kinds(found) & {USELESS, SHIFT}


# --------------------------------------------------------------------------- shift


def test_what_is_outside_by_distances_one_by_one():
    rng = np.random.default_rng(3)
    known, asked = rng.normal(size=(40, 2)) * [1.0, 50.0], rng.normal(size=(60, 2)) * [2.0, 100.0]
    scale = known.std(0)
    nearest = [
        min(np.linalg.norm((a - b) / scale) for j, b in enumerate(known) if j != i)
        for i, a in enumerate(known)
    ]
    reach = 1.5 * np.quantile(nearest, 0.95)
    far = np.array([min(np.linalg.norm((a - b) / scale) for b in known) > reach for a in asked])
    axes = np.linalg.eigh(np.cov((known / scale).T))[1]
    beyond = np.zeros(60, dtype=bool)
    for direction in (*np.eye(2), *axes.T):
        line = known / scale @ direction
        beyond |= (asked / scale @ direction < line.min()) | (
            asked / scale @ direction > line.max()
        )
    np.testing.assert_array_equal(mediator_checks.outside(known, asked), far & beyond)
    assert 5 < (far & beyond).sum() < beyond.sum()


def test_times_of_other_places_are_not_outside():
    # Cells dealt out at random, each at several times: neighbours in time are closer than places.
    rng = np.random.default_rng(0)
    places = rng.permutation(
        np.stack(np.meshgrid(np.arange(8.0), np.arange(8.0)), -1).reshape(-1, 2)
    )
    both = np.concatenate([np.repeat(places, 3, 0), rng.normal(size=(192, 1))], 1)
    assert mediator_checks.shifted(both[:96], both[96:], "observations") == []
    few = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        cells = rng.normal(size=(36, 3))
        both = np.concatenate([np.repeat(cells, 3, 0), rng.normal(size=(108, 1))], 1)
        few += bool(mediator_checks.shifted(both[:54], both[54:], "observations"))
    assert few <= binom.ppf(0.999, 20, 0.01)
    both = np.concatenate([np.repeat(places, 3, 0), rng.normal(size=(192, 1))], 1)
    east = both[:, 0] > 3
    assert mediator_checks.shifted(both[~east], both[east], "observations") != []


def test_half_of_the_observations_beyond_the_bags():
    y, rng = np.linspace(0, 3, 20), np.random.default_rng(0)
    near = dc.Bags.from_list([v + 0.5 * rng.normal(size=12) for v in y], mediator=y)
    y_tilde = np.linspace(0.1, 5.9, 20)
    fixed = {"kernel.lengthscale": 0.7, "kernel.variance": 1.0, "noise_std": 0.1, "ridge": 1e-3}
    fixed |= {"mediator_kernel.lengthscale": 0.5}
    words = (
        r"^9 of 20 observations \(45%\) lie outside the mediator range of the bags.*uncertainty="
    )
    with pytest.warns(SHIFT, match=words):
        dc.CMP(fixed=fixed).fit(near, np.sin(y_tilde), mediator=y_tilde)


def test_a_gap_between_the_bags_is_outside_too():
    known = np.concatenate([np.linspace(0, 1, 20), np.linspace(3, 4, 20)])[:, None]
    found = mediator_checks.shifted(known, np.linspace(0, 4, 41)[:, None], "observations")
    inner = np.linspace(0, 4, 41)
    reach = 1.5 / 19
    count = int(((inner > 1 + reach) & (inner < 3 - reach)).sum())
    assert found[0].text.startswith(f"{count} of 41 observations ({count / 41:.0%})")
    assert f"({count} of them in a gap between these)" in found[0].text


def test_pseudo_targets_are_extrapolated_at_bags_beyond_the_observations():
    bags, z, y = roll(2, n_points=600, n_bags=60)
    low = y[:, 0] < np.quantile(y, 0.6)
    expected = mediator_checks.outside(y[low], bags.mediator)
    base = dc.PseudoTarget(dc.BaggGP(fixed=STAGE), n_restarts=1)
    _, found = caught(lambda: base.fit(bags, z[low], mediator=y[low]))
    texts = [str(w.message) for w in found if w.category is SHIFT]
    assert len(texts) == 1
    assert texts[0].startswith(f"{expected.sum()} of 30 bags ({expected.mean():.0%}) lie outside")


def test_a_shift_of_few_observations_is_not_worth_a_word():
    known = np.linspace(0, 1, 30)[:, None]
    asked = np.concatenate([np.linspace(0, 1, 28), [5.0, 6.0]])[:, None]
    assert mediator_checks.outside(known, asked).sum() == 2
    assert mediator_checks.shifted(known, asked, "observations") == []
    more = np.concatenate([np.linspace(0, 1, 14), np.linspace(2, 6, 6)])[:, None]
    assert mediator_checks.shifted(known, more, "observations")[0].text.startswith(
        "6 of 20 observations"
    )


def test_the_rate_of_false_shifts_is_that_of_the_test():
    rng = np.random.default_rng(1)
    n = tries(100, 500)
    found = 0
    for _ in range(n):
        sizes = rng.integers(15, 60, 2)
        known, asked = (rng.normal(size=(size, 1)) for size in sizes)
        found += bool(mediator_checks.shifted(known, asked, "observations"))
    assert found <= binom.ppf(0.999, n, 0.01)


# --------------------------------------------------------------------------- extrapolation

KERNEL = gk.RBF(lengthscale=jnp.array([0.8, 1.3]), variance=1.4)
FIELD = {"kernel.lengthscale": [0.8, 1.3], "kernel.variance": 1.4, "noise_std": 0.3}


def dense_variance(kernel, bags, trend, model, x):
    """Posterior variance of f with its trend, all matrices formed."""
    p = weight_matrix(bags)
    scale = np.asarray(model.fitted_.problem.trend.prior_std)

    def covariance(a, b):
        h, other = (scale * trend_features(trend, bags.points, v) for v in (a, b))
        return gram(kernel, a, b) + h @ other.T

    of_bags = p.T @ covariance(bags.points, bags.points) @ p
    cross = covariance(x, bags.points) @ p
    a = of_bags + 0.3**2 * np.eye(bags.n_bags)
    return np.diag(covariance(x, x) - cross @ np.linalg.solve(a, cross.T))


@pytest.mark.parametrize(
    ("family", "trend", "fine_noise"),
    [(dc.BaggGP, "constant", True), (dc.VBagg, "constant", False)],
)
def test_flags_are_those_of_dense_algebra(family, trend, fine_noise):
    bags = ragged_bags([3, 5, 2, 6, 4, 5, 3, 4], d=2, seed=4)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2)) * 4.0
    options = {"inducing": bags.points} if family is dc.VBagg else {}
    fixed = FIELD | ({"fine_noise_std": 0.0} if fine_noise else {})
    model = family(KERNEL, trend=trend, fixed=fixed, fine_noise=fine_noise, **options)
    post = model.fit(bags, rng.normal(size=8)).predict(x, fine_noise=fine_noise)
    variance = dense_variance(KERNEL, bags, trend, model, x)
    low, high = bags.points.min(0), bags.points.max(0)
    margin = MARGIN * (high - low)
    beyond = ((x < low - margin) | (x > high + margin)).any(1)
    clear = np.abs(variance - UNTOLD * 1.4) > 1e-6
    expected = beyond + 2 * (variance >= UNTOLD * 1.4)
    np.testing.assert_array_equal(post.extrapolation[clear], expected[clear])
    np.testing.assert_array_equal(post.extrapolating, post.extrapolation > 0)
    assert post.extrapolation.dtype == np.int8
    assert {0, 1, 3} <= set(post.extrapolation)


def test_flags_do_not_count_the_noise_of_single_values():
    bags = ragged_bags([3, 5, 2, 6, 4, 5, 3, 4], d=2, seed=4)
    z, x = np.random.default_rng(0).normal(size=8), np.random.default_rng(1).normal(size=(50, 2))
    model = dc.BaggGP(KERNEL, fixed=FIELD | {"fine_noise_std": 1.5}, fine_noise=True).fit(bags, z)
    quiet, noisy = model.predict(x), model.predict(x, fine_noise=True)
    assert (noisy.variance > UNTOLD * 1.4).all()
    np.testing.assert_array_equal(quiet.extrapolation, noisy.extrapolation)
    assert (quiet.extrapolation == 0).any()


def test_flags_of_a_kernel_whose_variance_is_not_the_same_everywhere():
    bags = ragged_bags([3, 5, 2, 6, 4, 5, 3, 4], d=2, seed=4)
    kernel = TanhKernel(0.7)
    z, x = (
        np.random.default_rng(0).normal(size=8),
        3 * np.random.default_rng(1).normal(size=(60, 2)),
    )
    model = dc.BaggGP(kernel, trend="none", fixed={"kernel.variance": 0.7, "noise_std": 0.3})
    post = model.fit(bags, z).predict(x)
    variance = dense_variance(kernel, bags, "none", model, x)
    prior_only = variance >= UNTOLD * np.diag(gram(kernel, x))
    np.testing.assert_array_equal(post.extrapolation >= 2, prior_only)


def test_flags_of_a_mixture_compare_mean_variances():
    bags, z = wave(12)
    x = np.linspace(-4, 10, 50)
    parts = []
    for scale, variance in ((0.5, 0.7), (1.5, 0.2)):
        fixed = {"kernel.lengthscale": scale, "kernel.variance": variance, "noise_std": 0.1}
        parts.append(dc.BaggGP(fixed=fixed).fit(bags, z).predict(x))
    post = dc.Posterior([part.fields[0] for part in parts], x[:, None])
    variance = 0.5 * (parts[0].variance + parts[1].variance)
    np.testing.assert_array_equal(post.extrapolation, 2 * (variance >= UNTOLD * 0.45))
    assert 0 < post.extrapolating.sum() < 50


def test_flags_survive_a_file(tmp_path):
    bags, z = wave(12)
    fixed = {"kernel.lengthscale": 0.5, "kernel.variance": 0.7, "noise_std": 0.1}
    model = dc.BaggGP(fixed=fixed).fit(bags, z)
    x = np.linspace(-4, 10, 50)
    again = dc.load(model.save(tmp_path / "model.npz"))
    np.testing.assert_array_equal(again.predict(x).extrapolation, model.predict(x).extrapolation)


def test_flags_of_features_and_of_no_known_range():
    bags, z = wave(12)
    fixed = {"kernel.lengthscale": 0.5, "kernel.variance": 0.7, "noise_std": 0.1}
    model = dc.BaggGP(fixed=fixed).fit(bags, z)
    near, far = model.predict([3.0], features=500), model.predict([40.0], features=500)
    assert near.extrapolation.tolist() == [0]
    assert far.extrapolation.tolist()[0] in (1, 3)
    assert dc.Posterior(near.fields, np.array([[40.0]])).extrapolation.tolist() == [2]


# --------------------------------------------------------------------------- fields

LINK = gk.RBF(lengthscale=jnp.ones(4))
GRIDDED = {"kernel.lengthscale": [0.5, 0.5, 0.5, 1.0], "kernel.variance": 1.0, "noise_std": 0.1}
MEDIATED = GRIDDED | {"mediator_kernel.lengthscale": [0.7, 0.7, 0.7, 1.0], "ridge": 1e-3}
ROLES = ("tas", ["cloud"], ["water_vapour"])


def fields(matched, **options):
    pytest.importorskip("cf_xarray")
    whole = dc.datasets.synthetic_fields(16, 32, **options)
    return dc.datasets.split_cells(whole, *ROLES, block=4, matched=matched)


def downscaler(fixed=GRIDDED, model="bagg-gp", **options):
    kernel = gk.RBF(lengthscale=jnp.ones(4))
    return dc.Downscaler(
        *ROLES,
        model=model,
        kernel=kernel,
        mediator_kernel=LINK,
        trend="constant",
        model_options={"fixed": fixed},
        **options,
    )


@pytest.fixture(scope="module")
def gridded():
    data = fields(1.0)
    north = data.fine.where(data.fine.lat > 45)  # nothing was learnt of the south
    coarse = data.coarse.assign(tas=data.coarse.tas.where(data.coarse.lat > 45))
    return downscaler().fit(north, coarse), data.everywhere


def hot(everywhere):
    """A cell with a covariate far beyond all others, and one without a value."""
    cloud = everywhere.cloud.values.copy()
    cloud[-1, 0], cloud[-1, 1] = cloud.max() + 3 * np.ptp(cloud), np.nan
    return everywhere.assign(cloud=(everywhere.cloud.dims, cloud, everywhere.cloud.attrs))


def test_flags_of_a_map(gridded):
    model, everywhere = gridded
    on = hot(everywhere)
    with pytest.warns(dc.ExtrapolationWarning, match=r"^\d\d% of 511 predicted cells") as warned:
        out = model.predict(on)
    flags = out.extrapolation
    assert flags.dtype == np.int8 and flags.dims == out["mean"].dims
    points = np.isfinite(on.cloud.values).ravel()
    rows = model.model_.predict(inputs(model, on)[points])
    rows.support = model.learner_.problem.support
    assert (flags.values.ravel()[points] == rows.extrapolation).all()
    assert flags.values[-1, 1] == -1 and flags.values[-1, 0] in (1, 3)
    assert np.isnan(out["mean"].values[-1, 1])
    south = flags.where(out.lat < -40, drop=True)
    assert (south > 0).all()
    assert (flags.where(out.lat > 45, drop=True).values[:, 2:] == 0).mean() > 0.95
    assert flags.attrs["flag_values"].tolist() == [-1, 0, 1, 2, 3]
    assert len(flags.attrs["flag_meanings"].split()) == 5
    share = float((flags.values > 0).sum() / 511)
    assert f"{share:.0%}" in str(warned[0].message)
    assert f'"extrapolation": {{"n": 511, "share": {share}' in out.attrs["deconditional"]
    assert warned[0].filename == __file__


def inputs(model, on):
    """Standardised inputs of every cell, row by row."""
    lat, lon = np.meshgrid(np.radians(on.lat), np.radians(on.lon), indexing="ij")
    unit = [np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)]
    return model.input_scaling_(np.stack([*(u.ravel() for u in unit), on.cloud.values.ravel()], 1))


def test_a_map_of_where_was_learnt_from_is_not_warned_of(gridded):
    model, everywhere = gridded
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = model.predict(everywhere.where(everywhere.lat > 45))
    predicted = out.extrapolation.values >= 0
    assert predicted.sum() == 128
    assert (out.extrapolation.values[predicted] == 0).mean() > 0.9


@pytest.mark.parametrize("suffix", ["nc", "zarr"])
def test_flags_of_chunks_are_those_of_the_whole(gridded, tmp_path, suffix):
    pytest.importorskip("dask")
    xr = pytest.importorskip("xarray")
    model, everywhere = gridded
    on = hot(everywhere)
    whole, _ = caught(lambda: model.predict(on))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lazy = model.predict(on.chunk({"lat": 5, "lon": 12}))
    assert lazy.extrapolation.chunks is not None and lazy.extrapolation.dtype == np.int8
    np.testing.assert_array_equal(lazy.extrapolation.values, whole.extrapolation.values)
    assert lazy.extrapolation.attrs.keys() == whole.extrapolation.attrs.keys()
    path = tmp_path / f"out.{suffix}"
    with pytest.warns(dc.ExtrapolationWarning, match="of 511 predicted cells"):
        model.predict_to(path, on.chunk({"lat": 5, "lon": 12}))
    with xr.open_dataset(path, engine={"nc": "netcdf4", "zarr": "zarr"}[suffix]) as written:
        np.testing.assert_array_equal(written.extrapolation.values, whole.extrapolation.values)
        assert written.extrapolation.dtype == np.int8
        expected = whole.attrs["deconditional"].split('"extrapolation": ')[1].split("}")[0]
        assert f'"extrapolation": {expected}' in written.attrs["deconditional"]


def test_a_model_from_a_file_flags_the_same_cells(gridded, tmp_path):
    model, everywhere = gridded
    again = dc.load(model.save(tmp_path / "model.npz"))
    (first, _), (second, _) = (caught(lambda m=m: m.predict(everywhere)) for m in (model, again))
    np.testing.assert_array_equal(first.extrapolation.values, second.extrapolation.values)


# --------------------------------------------------------------------------- leakage


def strips(width, n=24):
    """A row of fine cells of width one, coarse cells of another, and a target in all of these."""
    xr = pytest.importorskip("xarray")
    pytest.importorskip("cf_xarray")
    rows = np.arange(3.0)
    x = np.arange(n) + 0.5
    edges = np.arange(0, n + 1e-9, width)
    centre = 0.5 * (edges[1:] + edges[:-1])
    height = np.sin(0.6 * x)[None] + 0.2 * rows[:, None]
    fine = xr.Dataset({"height": (("y", "x"), height)}, {"y": rows, "x": x})
    tas = np.cos(0.6 * centre)[None] + 0.1 * rows[:, None]
    coarse = xr.Dataset({"tas": (("y", "x"), tas)}, {"y": rows, "x": centre})
    for data in (fine, coarse):
        for axis in ("x", "y"):
            data[axis].attrs["units"] = "km"
    return fine, coarse, edges


@pytest.mark.parametrize("width", [2.0, 1.5])
def test_cells_that_share_fine_ones_are_found(width):
    from deconditional.fields.question import Question
    from deconditional.fields.validation import folds_of, sharing
    from pairs import pair

    fine, coarse, edges = strips(width)
    pairing = pair(fine, coarse, Question("tas", ("height",), ()))
    parts = folds_of(pairing, "space", 4, 0)
    row, column = np.divmod(pairing.observed_unit, len(edges) - 1)
    expected = np.zeros((len(row), len(row)), dtype=bool)
    for i in range(len(row)):
        for j in range(len(row)):
            # A fine cell reaches into both if the edge between them is inside it.
            between = edges[max(column[i], column[j])]
            touch = row[i] == row[j] and abs(column[i] - column[j]) == 1 and between % 1 != 0
            expected[i, j] = touch and parts.fold[i] != parts.fold[j]
    np.testing.assert_array_equal(
        sharing(pairing, pairing.fine_bags, parts.fold).toarray() > 0, expected
    )
    assert expected.any() == (width == 1.5)


@cache
def crossed(width, refit):
    fine, coarse, _ = strips(width)
    fixed = {"kernel.lengthscale": [2.0, 2.0, 1.0], "kernel.variance": 1.0, "noise_std": 0.05}
    kernel = gk.RBF(lengthscale=jnp.ones(3))
    return caught(
        lambda: dc.cross_validate(
            fine,
            coarse,
            "tas",
            ["height"],
            models=["bagg-gp"],
            folds=2,
            refit=refit,
            kernel=kernel,
            trend="constant",
            model_options={"fixed": fixed},
        )
    )


def test_leakage_is_removed_where_models_are_fitted_anew_and_warned_of_where_not():
    _, found = crossed(2.0, refit=False)
    assert dc.LeakageWarning not in kinds(found)
    held, found = crossed(1.5, refit=False)
    texts = [str(w.message) for w in found if w.category is dc.LeakageWarning]
    assert len(texts) == 1 and "share fine cells" in texts[0] and "refit=True" in texts[0]
    anew, found = crossed(1.5, refit=True)
    assert dc.LeakageWarning not in kinds(found)
    assert anew.how.endswith("without the fold and the cells that share fine ones with it")
    # With the parameters fixed, nothing but the neighbours differs.
    assert abs(anew.rows[0]["rmse"] - held.rows[0]["rmse"]) > 1e-3 * held.rows[0]["rmse"]


def test_the_scores_without_leakage_are_those_of_dense_algebra():
    from deconditional.fields.question import Question
    from deconditional.fields.sides import two_sides
    from deconditional.fields.validation import folds_of, sharing
    from pairs import pair

    fine, coarse, _ = strips(1.5)
    table, _ = crossed(1.5, refit=True)
    one = dc.Downscaler("tas", ["height"], model="bagg-gp", kernel=gk.RBF(lengthscale=jnp.ones(3)))
    learner = one.prepare(*two_sides(fine, coarse, one.question()))
    data = learner.data("bagg-gp")
    pairing = pair(fine, coarse, Question("tas", ("height",), ()))
    fold = folds_of(pairing, "space", 2, 0).fold
    shared = sharing(pairing, pairing.fine_bags, fold).toarray() > 0
    kernel = gk.RBF(lengthscale=jnp.array([2.0, 2.0, 1.0]))
    p = weight_matrix(data.bags)
    offset = 10.0
    errors = []
    for k in range(2):
        out = fold == k
        seen = ~out & ~shared[out].any(0)
        z = data.z[seen]
        b2 = (offset * np.sqrt(np.mean(z**2))) ** 2
        c = p.T @ gram(kernel, data.bags.points) @ p + b2
        a = c[np.ix_(seen, seen)] + 0.05**2 * np.eye(seen.sum())
        errors.append(data.z[out] - c[np.ix_(out, seen)] @ np.linalg.solve(a, z))
    rmse = np.sqrt(np.mean(np.concatenate(errors) ** 2)) * learner.problem.target.scale
    assert_close(table.rows[0]["rmse"], rmse, tolerance=1e-5)
