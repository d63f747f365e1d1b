"""The comparison of mediated models."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import norm

import deconditional as dc
from deconditional.experiments import mediation as study
from deconditional.outputs import UsageError

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
