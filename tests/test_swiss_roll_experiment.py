"""The swiss-roll experiment: a tiny real run, and its book-keeping with a stand-in model."""

import io
import json
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import wilcoxon

from deconditional import datasets
from deconditional.cli import main as cli
from deconditional.errors import FitWarning, UsageError
from deconditional.inference.posterior import Gaussians
from studies import swiss_roll
from studies.records import Results, wilcoxon_table

KEYS = [
    *("experiment", "matching", "model", "seed"),
    *("rmse", "mae", "crps", "coverage95", "nll"),
    *("fit_seconds", "predict_seconds"),
]
TINY = {"n_points": 200, "n_bags": 8}


def quiet_run(**options):
    return swiss_roll.run(**{"console": Console(quiet=True), **TINY, **options})


# ---------------------------------------------------------------------- a real run


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Two commands into one folder: the second adds to what the first left."""
    folder = tmp_path_factory.mktemp("roll") / "out"
    sizes = ["--points", "200", "--bags", "8", "--seeds", "1", "--first-seed", "3"]
    start = ["reproduce", "swiss-roll", *sizes, "--out", str(folder)]
    codes = [
        cli.main([*start, "--matching", "direct", "--models", "gpr"]),
        cli.main([*start, "--matching", "indirect", "--models", "u-cmp", "gpr-plugin"]),
    ]
    return codes, folder


def test_records_of_a_real_run(real):
    codes, folder = real
    records = json.loads((folder / "results.json").read_text())
    assert codes == [0, 0]
    assert [(r["matching"], r["model"], r["seed"]) for r in records] == [
        ("direct", "gpr", 3),
        ("indirect", "u-cmp", 3),
        ("indirect", "gpr-plugin", 3),
    ]
    for record in records:
        assert list(record) == KEYS
        assert record["experiment"] == "swiss-roll"
        assert 0 <= record["coverage95"] <= 1
        assert 0 < record["crps"] < record["mae"] <= record["rmse"]
        assert record["fit_seconds"] > 0 and record["predict_seconds"] > 0


def test_table_of_a_real_run(real):
    table = (real[1] / "table.md").read_text()
    for text in (
        "## Direct matching",
        "## Indirect matching",
        "| varcmp | – | – | .87 ± .07 |",
        "| vbagg | – | – | .22 ± .04 |",
        "the test has no power",
        "Fits with a warning",
        "numpy 2",
        "cores",
        "- Command: `deconditional reproduce swiss-roll --points 200",
    ):
        assert text in table
    assert re.search(r"\| gpr-plugin \| 1 \| \d\.\d{3} \| 1\.04 ± \.05 \|", table)


def test_pictures_of_a_real_run(real):
    found = {path.name for path in real[1].glob("*.png")}
    assert found == {
        "data.png",
        "bags.png",
        "posterior-direct-gpr.png",
        "posterior-indirect-u-cmp.png",
        "posterior-indirect-gpr-plugin.png",
    }
    assert all((real[1] / name).read_bytes().startswith(b"\x89PNG") for name in found)


def test_a_second_run_fits_nothing(real, monkeypatch):
    before = (real[1] / "results.json").read_bytes()
    monkeypatch.setattr(swiss_roll, "_fit", lambda *_: pytest.fail("fitted again"))
    results = quiet_run(
        matching=["indirect"], models=["u-cmp", "gpr-plugin"], seeds=1, first_seed=3, out=real[1]
    )
    assert len(results.records) == 3
    assert (real[1] / "results.json").read_bytes() == before


def test_mediated_baselines_have_the_mediator_kernel_of_u_cmp():
    data = datasets.swiss_roll(**TINY, matching="indirect")
    u_cmp = swiss_roll.MODELS["u-cmp"]("indirect")
    mediation, _ = u_cmp._mediation(data.bags, data.z, data.mediator)
    for name in ("bagg-gp", "gpr", "bagg-gp-plugin", "gpr-plugin"):
        baseline = swiss_roll.MODELS[name]("indirect")
        assert type(baseline.mediator_kernel) is type(mediation.kernel.kernel)
        assert baseline.propagate is not name.endswith("-plugin")


# ---------------------------------------------------------------------- book-keeping


class StandIn:
    """Predicts the mean of z with unit spread; warns, fails or is interrupted on request."""

    fit_report_ = SimpleNamespace(compile_seconds=0.0)

    def __init__(self, warn=None, fail=None):
        self.warn, self.fail = warn, fail

    def fit(self, bags, z, mediator=None):
        if self.fail:
            raise self.fail
        if self.warn:
            warnings.warn(self.warn, FitWarning, stacklevel=2)
        self.level = z.mean()
        return self

    def predict(self, x):
        return Gaussians(np.full((1, len(x)), self.level), np.ones((1, len(x))))


@pytest.fixture
def stand_ins(monkeypatch):
    """All models quick; the fixture's value replaces one of them."""

    def replace(name, **options):
        monkeypatch.setitem(swiss_roll.MODELS, name, lambda matching: StandIn(**options))

    for name in swiss_roll.MODELS:
        replace(name)
    return replace


def test_all_models_by_default(stand_ins, tmp_path):
    results = quiet_run(seeds=2, out=tmp_path, figures=False)
    assert len(results.records) == 2 * 9 + 2 * 15
    assert not list(tmp_path.glob("*.png")) and not list(tmp_path.glob(".*"))


def test_plugin_models_are_skipped_for_direct_matching_with_a_message(stand_ins, tmp_path):
    console = Console(record=True, file=io.StringIO())
    results = quiet_run(
        models=["gpr-plugin"], seeds=1, out=tmp_path, figures=False, console=console
    )
    assert [record["matching"] for record in results.records] == ["indirect"]
    assert "gpr-plugin: skipped for direct matching" in console.export_text()


def test_resume_adds_what_is_missing(stand_ins, tmp_path):
    quiet_run(models=["cmp"], seeds=2, out=tmp_path, figures=False)
    results = quiet_run(models=["cmp", "gpr"], seeds=3, out=tmp_path, figures=False)
    keys = [(r["matching"], r["model"], r["seed"]) for r in results.records]
    assert len(keys) == len(set(keys)) == 2 * 2 * 3


def test_other_settings_are_refused_and_named(stand_ins, tmp_path):
    quiet_run(models=["cmp"], seeds=1, out=tmp_path, figures=False)
    with pytest.raises(UsageError, match=r"n_bags 8 there and 7 now.*--overwrite"):
        quiet_run(models=["cmp"], seeds=1, out=tmp_path, figures=False, n_bags=7)
    results = quiet_run(
        models=["gpr"], seeds=1, out=tmp_path, figures=False, n_bags=7, overwrite=True
    )
    assert {record["model"] for record in results.records} == {"gpr"}
    assert json.loads((tmp_path / "settings.json").read_text())["n_bags"] == 7


@pytest.mark.parametrize("text", ["[{", "{}", '[{"model": "cmp"}]'])
def test_a_damaged_file_is_refused(stand_ins, tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(UsageError, match=r"results\.json.*--overwrite"):
        quiet_run(models=["cmp"], seeds=1, out=tmp_path, figures=False)
    assert (tmp_path / "results.json").read_text() == text


def test_a_failed_fit_costs_only_its_own_record(stand_ins, tmp_path, capsys):
    stand_ins("cmp", fail=RuntimeError("no root"))
    arguments = ["--points", "200", "--bags", "8", "--seeds", "2", "--no-figures"]
    code = cli.main(
        ["reproduce", "swiss-roll", "--models", "cmp", "gpr", *arguments, "--out", str(tmp_path)]
    )
    records = json.loads((tmp_path / "results.json").read_text())
    assert code == 1
    assert {record["model"] for record in records} == {"gpr"}
    assert "direct cmp seed 0: RuntimeError: no root" in capsys.readouterr().out
    assert "indirect cmp seed 1: RuntimeError" in (tmp_path / "table.md").read_text()


def test_an_interrupted_run_keeps_its_records(stand_ins, tmp_path):
    stand_ins("u-cmp", fail=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        quiet_run(models=["cmp", "s-cmp", "u-cmp"], seeds=1, out=tmp_path, figures=False)
    records = json.loads((tmp_path / "results.json").read_text())
    assert [record["model"] for record in records] == ["cmp", "s-cmp"]


def test_fit_warnings_are_counted_and_survive_a_resume(stand_ins, tmp_path):
    stand_ins("cmp", warn="weights sum to 0.123: weak.")
    quiet_run(matching=["direct"], models=["cmp", "gpr"], seeds=1, out=tmp_path, figures=False)
    stand_ins("cmp", warn="weights sum to 0.045: weak.")
    quiet_run(matching=["direct"], models=["cmp", "gpr"], seeds=2, out=tmp_path, figures=False)
    table = (tmp_path / "table.md").read_text()
    assert "Fits with a warning: cmp 2 of 2." in table
    assert "- 2 x weights sum to …: weak." in table


def test_records_of_different_code_are_told_apart(stand_ins, tmp_path, monkeypatch):
    quiet_run(models=["cmp"], seeds=1, out=tmp_path, figures=False)
    assert "- State of the code: " in (tmp_path / "table.md").read_text()
    monkeypatch.setattr(swiss_roll, "code_digest", lambda: "0123456789")
    quiet_run(models=["cmp"], seeds=2, out=tmp_path, figures=False)
    table = (tmp_path / "table.md").read_text()
    assert "different states of the code" in table and "0123456789 (2 fits)" in table


def test_a_missing_picture_is_drawn_without_a_second_record(stand_ins, tmp_path):
    options = {"matching": ["direct"], "models": ["gpr"], "seeds": 1, "out": tmp_path}
    quiet_run(**options, figures=False)
    results = quiet_run(**options)
    assert (tmp_path / "posterior-direct-gpr.png").exists()
    assert len(results.records) == 1


def test_infinite_scores_are_null_in_the_file(tmp_path):
    results = Results.open(tmp_path, {})
    results.add({"matching": "direct", "model": "cmp", "seed": 0, "nll": np.inf})
    assert json.loads((tmp_path / "results.json").read_text())[0]["nll"] is None


# ---------------------------------------------------------------------- tests between models


def results_with(scores):
    records = [
        {"matching": "direct", "model": model, "seed": seed, "rmse": value}
        for model, column in scores.items()
        for seed, value in enumerate(column)
    ]
    return Results(None, records, [])


def test_wilcoxon_table_against_scipy():
    rng = np.random.default_rng(0)
    scores = {name: rng.normal(size=8) for name in ("cmp", "u-cmp", "gpr")}
    lines = wilcoxon_table(results_with(scores), "direct", list(scores), "rmse")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    p = {
        pair: f"{wilcoxon(scores[pair[0]], scores[pair[1]], alternative='two-sided').pvalue:.2g}"
        for pair in (("u-cmp", "cmp"), ("gpr", "cmp"), ("gpr", "u-cmp"))
    }
    assert rows[0] == ["", "cmp", "u-cmp"]
    assert rows[2] == ["u-cmp", p["u-cmp", "cmp"], ""]
    assert rows[3] == ["gpr", p["gpr", "cmp"], p["gpr", "u-cmp"]]


def test_wilcoxon_table_of_equal_and_of_few():
    same = {"cmp": np.arange(6.0), "s-cmp": np.arange(6.0), "gpr": np.arange(3.0)}
    lines = wilcoxon_table(results_with(same), "direct", list(same), "rmse")
    assert lines[-2] == "| s-cmp | equal |  |"
    assert lines[-1] == "| gpr | 3 seeds | 3 seeds |"
    few = {"cmp": np.arange(5.0), "gpr": np.ones(5)}
    (line,) = wilcoxon_table(results_with(few), "direct", list(few), "rmse")
    assert "at most 5 seed(s)" in line and "no power" in line


def test_misordered_bags_get_the_pseudo_targets_of_others():
    data = datasets.swiss_roll(400, 20, "indirect", 0.05, seed=3)
    wrong = swiss_roll._misordered(data.bags, seed=3)
    order = np.random.default_rng(3).permutation(10)
    assert not np.array_equal(order, np.arange(10))
    np.testing.assert_array_equal(wrong.mediator, data.bags.mediator[order])
    np.testing.assert_array_equal(wrong.points, data.bags.points)
    settings = {"n_points": 400, "n_bags": 20, "noise_std": 0.05}
    fitted = swiss_roll._fit(swiss_roll.Task("indirect", "gpr-misordered", 3), settings)
    model = swiss_roll.MODELS["gpr-plugin"]("indirect").fit(wrong, data.z, data.mediator)
    np.testing.assert_allclose(fitted.posterior.mean, model.predict(data.x).mean)
