"""The demonstration at a small size: what it writes, and the scores it prints."""

import contextlib
import io
import json
import re

import gpjax.kernels as gk
import numpy as np
import pytest
from rich.console import Console
from scipy.special import ndtri

from deconditional import datasets
from deconditional.cli import demo
from deconditional.cli import main as cli

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from deconditional.fields import learn, recipes  # noqa: E402
from deconditional.models import PseudoTarget  # noqa: E402

FIXED = {"kernel.lengthscale": 1.0, "kernel.variance": 1.0, "noise_std": 0.1}
LINKED = FIXED | {"mediator_kernel.lengthscale": 1.0, "ridge": 0.003}


def tiny(month, synthetic):
    """16 x 32 cells instead of 60 x 120."""
    assert synthetic
    return datasets.synthetic_fields(16, 32, seed=month), 4, "tiny fields"


def held(estimator):
    """Estimators of simple kernels whose parameters are held."""

    def build(*given):
        model = estimator(*given).set_params(mediator_kernel=gk.RBF())
        if isinstance(model, PseudoTarget):
            return model.set_params(base__kernel=gk.RBF(), base__fixed=FIXED)
        return model.set_params(kernel=gk.RBF(), fixed=LINKED)

    return build


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Folder, and what was printed."""
    folder = tmp_path_factory.mktemp("demo") / "new [1]"
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(demo, "fields", tiny)
        patch.setattr(learn, "candidates", lambda *_: ("cmp", "u-cmp"))
        patch.setattr(recipes.Recipe, "estimator", held(recipes.Recipe.estimator))
        code = cli.main(["demo", "--synthetic", "--month", "3", "--out", str(folder)])
    assert code == 0
    return folder, said.getvalue()


@pytest.fixture(scope="module")
def example():
    fields = datasets.synthetic_fields(16, 32, seed=3)
    return datasets.split_cells(fields, demo.TARGET, demo.COVARIATES, demo.MEDIATORS, block=4)


def test_what_is_written(done, example):
    folder, said = done
    names = ["demo.nc", "maps.png", "report.html", "scores.json"]
    assert sorted(file.name for file in folder.iterdir()) == names
    assert all(str(folder / name) in said for name in names)
    for part in ("tiny fields: half of the coarse cells give altitude, rain, cloud", "held-out"):
        assert part in said
    assert (folder / "maps.png").read_bytes()[:4] == b"\x89PNG"
    assert "<h2>" in (folder / "report.html").read_text(encoding="utf-8")
    with xr.open_dataset(folder / "demo.nc") as result:
        assert result["mean"].dims == ("lat", "lon") and result["mean"].notnull().all()
        np.testing.assert_array_equal(result["coarse_observed"], example.coarse.tas)
        assert "deconditional demo --synthetic --month 3" in result.attrs["history"]


def test_scores_are_those_of_the_result(done, example):
    folder, _ = done
    scores = json.loads((folder / "scores.json").read_text())
    assert list(scores) == ["cmp", "u-cmp", "bagg-gp", "bilinear"]
    truth = example.truth.values
    with xr.open_dataset(folder / "demo.nc") as result:
        facts = json.loads(result.attrs["deconditional"])
        chosen = scores[facts["comparison"]["chosen"]]
        error = result["mean"].values - truth
        inside = np.abs(error) <= ndtri(0.975) * result["std"].values
    assert chosen["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert chosen["mae"] == pytest.approx(np.abs(error).mean())
    assert chosen["bias"] == pytest.approx(error.mean())
    assert chosen["coverage95"] == pytest.approx(inside.mean())
    assert min(row["rmse"] for row in scores.values()) < 0.6 * truth.std()


def test_the_table_marks_the_model_that_was_chosen():
    scores = {"bagg-gp": {"rmse": 1.0, "crps": 0.5}, "bilinear": {"rmse": 2.0}}
    file = io.StringIO()
    drawn = demo.table(scores, demo.SCORES, "against the truth (K)", "bagg-gp")
    Console(width=100, file=file).print(drawn)
    lines = file.getvalue().splitlines()
    assert lines[0].strip() == "against the truth (K)"
    rows = [re.sub(r"[^\w.*() -]", " ", line).split() for line in lines]
    assert ["bagg-gp", "(pseudo-targets)", "*", "1.000", "0.500"] in rows
    assert ["bilinear", "2.000"] in rows


def test_cells_without_truth_do_not_count(example):
    """Scores of a made-up posterior, on cells of any order of dimensions."""
    truth = example.truth.where(example.truth.lat > 0)
    mean, std = example.truth + 0.5, 0 * example.truth + 1.0
    result = xr.Dataset({"mean": mean, "std": std}).transpose("lon", "lat")
    found = demo.compare({"a": result}, example.coarse.tas, truth)["a"]
    assert found["rmse"] == found["mae"] == found["bias"] == pytest.approx(0.5)
    assert (found["coverage95"], found["coverage50"]) == (1.0, 1.0)


def test_fields_of_the_demo(monkeypatch):
    fields, block, name = demo.fields(2, synthetic=True)
    assert (dict(fields.tas.sizes), block) == ({"lat": 60, "lon": 120}, 6)
    assert name == "synthetic fields"
    other, _, _ = demo.fields(3, synthetic=True)
    assert not np.array_equal(fields.tas, other.tas)
    monkeypatch.setattr(datasets, "global_fields", lambda month: f"of month {month}")
    assert demo.fields(2, synthetic=False) == ("of month 2", 12, "global climatology, month 2")


class Enough(Exception):
    """Raised where the test has seen what it wants."""


def test_synthetic_fields_stand_in_for_missing_data(tmp_path, monkeypatch, capsys):
    asked = []

    def fields(month, synthetic):
        asked.append((month, synthetic))
        raise Enough

    monkeypatch.setattr(demo, "fields", fields)
    for found in (None, "there"):
        monkeypatch.setattr(demo, "find_spec", lambda name, found=found: found)
        with pytest.raises(Enough):
            demo.run(tmp_path, month=7)
    assert asked == [(7, True), (7, False)]
    assert capsys.readouterr().out.count("pip install 'deconditional[demo]'") == 1
