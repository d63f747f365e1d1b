"""The comparison of mediated models."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import norm

import deconditional as dc
from deconditional.errors import UsageError
from studies import mediation as study
from studies.mediation_output import draw, table
from studies.records import Results

QUIET = Console(quiet=True)


@pytest.mark.filterwarnings("ignore::deconditional.FitWarning")
def test_records_are_scores_at_all_points(tmp_path):
    results = study.run(["noisy-90"], ["propagated", "oracle"], 1, out=tmp_path, console=QUIET)
    assert not results.failures
    found = {record["model"]: record for record in results.records}
    data = dc.datasets.noisy_mediator(0.9, seed=0)
    setting = study.DATASETS["noisy-90"].setting()
    post = study.MODELS["oracle"](setting).fit(data.observed_bags, data.z).predict(data.x)
    error = post.mean - data.f
    expected = {
        "rmse": np.sqrt(np.mean(error**2)),
        "coverage95": np.mean(np.abs(error) < norm.ppf(0.975) * post.std),
        "nll": -np.mean(norm.logpdf(data.f, post.mean, post.std)),
    }
    for name, value in expected.items():
        assert found["oracle"][name] == pytest.approx(value, rel=1e-6)
    assert found["oracle"]["rmse"] < 0.5 * found["propagated"]["rmse"]
    lines = (tmp_path / "table.md").read_text()
    assert "## noisy-90" in lines and "| oracle | 1 |" in lines


def test_draws_beyond_those_of_the_study(tmp_path, monkeypatch):
    seen = []

    def scored(task):
        seen.append(task.seed)
        return {**task._asdict(), **dict.fromkeys(study.SCORES, 1.0), "seconds": 1.0}, {
            "warnings": []
        }

    monkeypatch.setattr(study, "run_task", scored)
    options = {"out": tmp_path, "console": QUIET, "figures": False}
    study.run(["s-curve"], ["oracle"], 3, first=200, **options)
    study.run(["s-curve"], ["oracle"], first=201, **options)  # ten, of which two are there
    assert seen == [200, 201, 202, *range(203, 211)]
    with pytest.raises(UsageError, match="numbered from 0"):
        study.run(["s-curve"], ["oracle"], first=-1, **options)


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
    return Results(tmp_path, records, [])


def test_the_default_is_compared_with_the_best_baseline_of_each_score(tmp_path):
    scores = {
        "plug-in": (1.0, 0.60, 0.7),
        "propagated": (1.2, 0.50, 0.8),
        "mediated": (0.8, 0.48, 0.964),
        "oracle": (0.35, 0.1, 0.95),
    }
    results = kept(tmp_path, scores)
    lines = table(results, ["roll", "fields"], list(scores), "it").splitlines()
    # Over the draws 0.45 comes on top of every RMSE, and CRPS is 1.45 times that of draw 0.
    expected = f"{1.25 / 1.45:.3f} | {0.48 / 0.50:.3f} | {1 / 2**10:.2g} | 0.919 | 0.87"
    assert f"| roll | 10 | {expected} | {1.25 / 0.8:.3f} |" in lines
    overview = next(line for line in lines if line.startswith("| mediated | **"))
    assert overview == f"| mediated | **1.250** / **{0.48 * 1.45:.3f}** / 0.92 |"
    assert not any("| fields" in line for line in lines)  # without a record


def test_the_figure_shows_means_over_the_best_baseline(tmp_path):
    pytest.importorskip("matplotlib")
    alone = kept(tmp_path, {"mediated": (0.8, 0.49, 0.96)})
    assert draw(alone, ["roll"], ["mediated"], tmp_path) is None
    both = kept(tmp_path, {"plug-in": (1.0, 0.6, 0.7), "mediated": (0.8, 0.49, 0.96)})
    path = draw(both, ["roll"], ["plug-in", "mediated"], tmp_path)
    assert path == tmp_path / "mediation.png" and path.stat().st_size > 10_000


def test_shifted_fields_have_no_cell_and_no_month_in_common():
    pytest.importorskip("itur")
    data = study._fields(4, 1)
    assert (data.fine.time.values != data.everywhere.time.values).all()
    observed = data.coarse["tas"].notnull()
    assert observed.any("time").sum() == observed.isel(time=1).sum() > 0
    covered = data.fine["rain"].notnull().squeeze().coarsen(lat=12, lon=12).max().values
    assert not (covered.astype(bool) & observed.isel(time=1).values).any()
    assert data.coarse["water_vapour"].notnull().mean() > 0.9


@pytest.mark.parametrize("asked", [{"datasets": ["rolls"]}, {"models": ["best"]}, {"draws": 0}])
def test_unknown_names_are_refused(asked, tmp_path):
    with pytest.raises(UsageError, match=r"unknown|at least 1"):
        study.run(**asked, out=tmp_path, console=QUIET)
