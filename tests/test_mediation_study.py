"""The comparison of mediated models."""

import importlib.util
import warnings
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import norm

import deconditional as dc
from studies import mediation as study
from studies.data import noisy_mediator
from studies.frame import Task
from studies.mediation import Mediation
from studies.mediation_checks import LENGTHS, VARIANCE, MediationCalibration, from_the_prior
from studies.records import Results


def small_field(seed):
    return noisy_mediator(0.9, n_cells=24, points_per_cell=5, seed=seed)


def test_records_are_scores_at_all_points(tmp_path, monkeypatch):
    small = replace(study.DATASETS["noisy-90"], make=small_field)
    monkeypatch.setitem(study.DATASETS, "noisy-90", small)
    asked = Mediation(("noisy-90",), ("plug-in", "oracle"), draws=1)
    results = asked.run(tmp_path, figures=False, console=Console(quiet=True))
    assert not results.failures
    plug_in, oracle = results.records
    data = small_field(0)
    model = study.MODELS["oracle"](small.setting())
    post = model.fit(data.observed_bags, data.z).predict(data.x)
    error = post.mean - data.f
    expected = {
        "rmse": np.sqrt(np.mean(error**2)),
        "coverage95": np.mean(np.abs(error) < norm.ppf(0.975) * post.std),
        "nll": -np.mean(norm.logpdf(data.f, post.mean, post.std)),
    }
    for name, value in expected.items():
        assert oracle[name] == pytest.approx(value, rel=1e-6)
    assert oracle["rmse"] < plug_in["rmse"]
    text = (tmp_path / "table.md").read_text()
    assert f"| oracle | 1 | {oracle['rmse']:.3f} | {oracle['rmse']:.3f} |" in text
    assert "## noisy-90" in text and "## roll" not in text


def test_draws_beyond_those_of_the_study():
    draws = [task.seed for task in Mediation(("s-curve",), ("oracle",), 3, first=200).tasks()]
    assert draws == [200, 201, 202]
    draws = [task.seed for task in Mediation(("s-curve",), ("oracle",), first=201).tasks()]
    assert draws == [*range(201, 211)]


def kept(tmp_path, scores):
    """Records of ten draws: scores are rmse, crps and coverage at draw 0; all rise with it."""
    records = [
        {
            **{"matching": "roll", "model": model, "seed": seed, "seconds": 1.0},
            **{"nll": 1.0, "coverage50": 0.5, "coverage95": cover - 0.01 * seed},
            **{"rmse": rmse + 0.1 * seed, "crps": crps * (1 + 0.1 * seed)},
        }
        for model, (rmse, crps, cover) in scores.items()
        for seed in range(10)
    ]
    return Results(tmp_path, Task._fields, records)


def test_the_default_is_compared_with_the_best_baseline_of_each_score(tmp_path):
    scores = {
        "plug-in": (1.0, 0.60, 0.7),
        "propagated": (1.2, 0.50, 0.8),
        "mediated": (0.8, 0.48, 0.964),
        "oracle": (0.35, 0.1, 0.95),
    }
    results = kept(tmp_path, scores)
    lines = Mediation().table(results)
    # Over the draws 0.45 comes on top of every RMSE, and CRPS is 1.45 times that of draw 0.
    expected = f"{1.25 / 1.45:.3f} | {0.48 / 0.50:.3f} | {1 / 2**10:.2g} | 0.919 | 0.87"
    assert f"| roll | 10 | {expected} | {1.25 / 0.8:.3f} |" in lines
    overview = next(line for line in lines if line.startswith("| mediated | **"))
    assert overview == f"| mediated | **1.250** / **{0.48 * 1.45:.3f}** / 0.92 |"
    assert not any("| fields" in line for line in lines)  # without a record


def test_the_figure_shows_means_over_the_best_baseline(tmp_path):
    pytest.importorskip("matplotlib")
    alone = kept(tmp_path, {"mediated": (0.8, 0.49, 0.96)})
    Mediation().figures(alone)
    assert not list(tmp_path.iterdir())
    both = kept(tmp_path, {"plug-in": (1.0, 0.6, 0.7), "mediated": (0.8, 0.49, 0.96)})
    Mediation().figures(both)
    assert (tmp_path / "mediation.png").stat().st_size > 10_000
    left, _, right = study._compared(both, ["roll"]).axes
    plug_in, mediated = (dict(enumerate(axes.get_lines())) for axes in (left, right))
    assert plug_in[1].get_xdata() == pytest.approx([1.25 / 1.45])  # mediated, over the baseline
    assert mediated[1].get_xdata() == pytest.approx([0.96 - 0.045])


def test_shifted_fields_have_no_cell_and_no_month_in_common():
    if importlib.util.find_spec("itur") is None:  # importing it would take astropy with it
        pytest.skip("needs itur")
    data = study._fields(4, 1)
    assert (data.fine.time.values != data.everywhere.time.values).all()
    observed = data.coarse["tas"].notnull()
    assert observed.any("time").sum() == observed.isel(time=1).sum() > 0
    covered = data.fine["rain"].notnull().squeeze().coarsen(lat=12, lon=12).max().values
    assert not (covered.astype(bool) & observed.isel(time=1).values).any()
    assert data.coarse["water_vapour"].notnull().mean() > 0.9


def test_truths_from_the_prior_have_its_scales():
    """Of thirty: the mean square of mediators is one, and fields have their variance."""
    drawn = [from_the_prior(seed, n_cells=8, points_per_cell=3) for seed in range(30)]
    again = from_the_prior(7, n_cells=8, points_per_cell=3)
    np.testing.assert_array_equal(again.f, drawn[7].f)
    assert drawn[0].bags.n_bags == len(drawn[0].z) == 4
    np.testing.assert_allclose(
        drawn[3].observed_bags.means(drawn[3].f[12:]), drawn[3].z, atol=0.5 * drawn[3].f.std()
    )
    y = np.concatenate([each.mediator.ravel() for each in drawn])
    assert np.mean(y**2) == pytest.approx(1.0, abs=0.4)
    logs = [np.log(np.mean(each.f**2)) for each in drawn]
    assert abs(np.mean(logs)) < 1.0  # the median of the prior of the variance is one


def test_calibration_notes_the_probability_below_the_truth(tmp_path):
    asked = MediationCalibration(draws=1, cells=12)
    results = asked.run(tmp_path, console=Console(quiet=True))
    assert not results.failures
    (record,) = results.records
    data = from_the_prior(0, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        priors = {"kernel.lengthscale": LENGTHS, "kernel.variance": VARIANCE}
        model = dc.MediatedGP(priors=priors)
        post = model.fit(data.bags, data.z, data.mediator).predict(data.x[:1])
    rng = np.random.default_rng(0)
    which = rng.integers(len(post.component_means), size=20_000)
    sd = np.sqrt(post.component_variances[which, 0])
    draws = rng.normal(post.component_means[which, 0], sd)
    assert record["in a bag"] == pytest.approx(np.mean(draws < data.f[0]), abs=0.02)
    inside = [record["within 50 %"], record["within 95 %"]]
    assert 0.0 <= inside[0] <= inside[1] <= 1.0
    assert "| in a bag | 1 |" in (tmp_path / "table.md").read_text()


def test_variations_vary_the_cells_that_the_oracle_sees():
    data = small_field(0)
    rng = np.random.default_rng(0)
    few = study.VARIATIONS["few observations"](data, rng)
    assert few.observed_bags.n_bags == len(few.z) < len(data.z)
    np.testing.assert_allclose(
        few.observed_bags.means(), data.observed_bags.means()[np.isin(data.z, few.z)]
    )
    flat = study.VARIATIONS["flat covariate"](data, rng)
    assert flat.x.shape[1] == flat.observed_bags.points.shape[1] == 3
    np.testing.assert_allclose(flat.observed_bags.means()[:, 2], 0.0, atol=1e-12)
