"""The study of ridges at its smallest size."""

import numpy as np
import pytest
from rich.console import Console

import deconditional as dc
from deconditional.errors import UsageError
from studies import ridges
from studies.records import Results

QUIET = Console(quiet=True)


def test_errors_are_those_of_the_regressor(tmp_path, monkeypatch):
    monkeypatch.setattr(ridges, "SIZES", {120: 12})
    monkeypatch.setattr(ridges, "FAMILIES", {"Matérn-3/2": "Matern32"})
    results = ridges.run(1, out=tmp_path, points=[120, 120], console=QUIET)
    assert len(results.records) == 2 * 3 and not results.failures
    record = results.of("mediated", "Matérn-3/2, evidence")[0]
    data = dc.datasets.swiss_roll(120, 12, "indirect", 0.05, 0)
    model = dc.DeconditionalRegressor().fit(data.bags, data.z, data.mediator)
    assert record["epsilon"] == pytest.approx(model.epsilon_)
    assert record["rmse"] == pytest.approx(np.sqrt(np.mean((model.predict(data.x) - data.f) ** 2)))
    best = results.of("mediated", "Matérn-3/2, best")[0]
    again = dc.DeconditionalRegressor(ridge=best["ridge"], epsilon=best["epsilon"])
    again.fit(data.bags, data.z, data.mediator)
    assert best["rmse"] == pytest.approx(np.sqrt(np.mean((again.predict(data.x) - data.f) ** 2)))
    assert ridges.run(1, out=tmp_path, points=[120, 120], console=QUIET).records == results.records


def test_the_table_has_the_median_and_the_worst(tmp_path):
    results = Results.open(tmp_path, {})
    for seed, rmse in enumerate((0.5, 0.7, 3.0)):
        for choice in ridges.CHOICES:
            model = f"Gaussian, {choice}"
            results.add({"matching": "matched", "model": model, "seed": seed, "rmse": rmse})
    text = ridges.table(results, "the command")
    cells = "0.70 (3.00)"
    assert f"| Gaussian | matched | 3 | {cells} | {cells} | {cells} |" in text
    assert "mediated |" not in text and "the command" in text
    with pytest.raises(UsageError, match="1 to 100"):
        ridges.run(0, out=tmp_path / "new", console=QUIET)
    with pytest.raises(UsageError, match="rolls have 500, 1500, 5000 points, not 7"):
        ridges.run(1, out=tmp_path / "new", points=[7], console=QUIET)
