"""The study of ridges at its smallest size."""

import gpjax.kernels as gk
import numpy as np
import pytest
from rich.console import Console

import deconditional as dc
from studies import ridges
from studies.frame import Task
from studies.records import Results
from studies.ridges import Ridges


def test_errors_are_those_of_the_regressor(tmp_path, monkeypatch):
    monkeypatch.setattr(ridges, "SIZES", {120: 12})
    monkeypatch.setattr(ridges, "FAMILIES", {"Matérn-3/2": gk.Matern32})
    study = Ridges(seeds=1, points=(120, 120))
    results = study.run(tmp_path, console=Console(quiet=True))
    assert len(results.records) == 2 * 3 and not results.failures
    (record,) = results.where(matching="mediated", model="Matérn-3/2, evidence")
    data = dc.datasets.swiss_roll(120, 12, "indirect", 0.05, 0)
    model = dc.DeconditionalRegressor().fit(data.bags, data.z, data.mediator)
    assert record["epsilon"] == pytest.approx(model.epsilon_)
    assert record["rmse"] == pytest.approx(np.sqrt(np.mean((model.predict(data.x) - data.f) ** 2)))
    (best,) = results.where(matching="mediated", model="Matérn-3/2, best")
    again = dc.DeconditionalRegressor(ridge=best["ridge"], epsilon=best["epsilon"])
    again.fit(data.bags, data.z, data.mediator)
    assert best["rmse"] == pytest.approx(np.sqrt(np.mean((again.predict(data.x) - data.f) ** 2)))
    again = study.run(tmp_path, console=Console(quiet=True))  # nothing is left to do
    assert again.records == results.records


def test_the_table_has_the_median_and_the_worst(tmp_path):
    results = Results(tmp_path, Task._fields)
    for seed, rmse in enumerate((0.5, 0.7, 3.0)):
        for choice in ridges.CHOICES:
            task = Task("matched", f"Gaussian, {choice}", seed)
            results.records.append({**task._asdict(), "rmse": rmse})
    text = "\n".join(Ridges().table(results))
    cells = "0.70 (3.00)"
    assert f"| Gaussian | matched | 3 | {cells} | {cells} | {cells} |" in text
    assert "mediated |" not in text
