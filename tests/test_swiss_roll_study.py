"""The swiss-roll study: one small real run, its scores, its table and its pictures."""

import re

import numpy as np
import pytest
from rich.console import Console

import deconditional as dc
from helpers import problem_of
from studies import swiss_roll
from studies.frame import Task
from studies.swiss_roll import SwissRoll

KEYS = [
    *("experiment", "matching", "model", "seed"),
    *("rmse", "mae", "crps", "coverage95", "nll"),
    *("fit_seconds", "predict_seconds"),
]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    study = SwissRoll(seeds=1, first_seed=3, points=200, bags=8, models=("gpr", "gpr-misordered"))
    return study.run(tmp_path_factory.mktemp("roll"), command="it", console=Console(quiet=True))


def test_records_are_scores_at_all_points(real):
    assert not real.failures
    assert [(r["matching"], r["model"], r["seed"]) for r in real.records] == [
        ("direct", "gpr", 3),
        ("indirect", "gpr", 3),
        ("indirect", "gpr-misordered", 3),
    ]
    assert all(list(record) == KEYS for record in real.records)
    assert all(record["fit_seconds"] > 0 for record in real.records)
    data = dc.datasets.swiss_roll(200, 8, "direct", 0.05, seed=3)
    post = dc.CentroidGP().fit(data.bags, data.z).predict(data.x)
    expected = dc.scores.score(post, data.f)
    for name in ("rmse", "mae", "crps", "coverage95", "nll"):
        assert real.records[0][name] == pytest.approx(expected[name], rel=1e-6)


def test_misordered_models_get_the_pseudo_targets_of_other_bags(real):
    data = dc.datasets.swiss_roll(200, 8, "indirect", 0.05, seed=3)
    wrong = swiss_roll._misordered(data.bags, seed=3)
    order = np.random.default_rng(3).permutation(4)
    assert not np.array_equal(order, np.arange(4))
    np.testing.assert_array_equal(wrong.mediator, data.bags.mediator[order])
    np.testing.assert_array_equal(wrong.points, data.bags.points)
    model = swiss_roll.MODELS["gpr-plugin"]("indirect").fit(wrong, data.z, data.mediator)
    assert real.records[2]["rmse"] == pytest.approx(
        dc.scores.rmse(model.predict(data.x).mean, data.f), rel=1e-6
    )


def test_the_table_names_ours_and_the_papers(real):
    text = (real.folder / "table.md").read_text()
    for line in (
        "## Direct matching",
        "## Indirect matching",
        "| varcmp | – | – | .87 ± .07 |",
        "| vbagg | – | – | .22 ± .04 |",
        "the test has no power",
        "| s-cmp | 6e-05 | 6e-05 | 0.00048 | 0.014 | 6e-05 |",
        "- Command: `it`",
    ):
        assert line in text
    rmse = f"{real.records[2]['rmse']:.3f}"
    assert re.search(rf"\| gpr-misordered \| 1 \| {rmse} \| 1\.04 ± \.05 \| {rmse} \(3\) \|", text)


def test_the_data_and_every_posterior_of_the_first_seed_are_drawn(real):
    pictures = {path.name for path in real.folder.glob("*.png")}
    assert pictures == {
        "data.png",
        "bags.png",
        "posterior-direct-gpr.png",
        "posterior-indirect-gpr.png",
        "posterior-indirect-gpr-misordered.png",
    }
    assert all((real.folder / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert SwissRoll(first_seed=3).picture(Task("direct", "gpr", 4)) is None


def test_all_models_by_default_and_matched_data_needs_no_pseudo_targets():
    tasks = SwissRoll(seeds=2).tasks()
    assert len(tasks) == 2 * 9 + 2 * 15
    assert {task.seed for task in tasks[:9]} == {0}  # an interrupted run has whole pairs
    assert not any(
        "-" in t.model[-10:] and t.matching == "direct"
        for t in tasks
        if t.model.endswith(("-plugin", "-misordered"))
    )


def test_mediated_baselines_have_the_mediator_kernel_of_u_cmp():
    data = dc.datasets.swiss_roll(200, 8, "indirect")
    u_cmp = swiss_roll.MODELS["u-cmp"]("indirect")
    problem = problem_of(u_cmp, data.bags, data.z, data.mediator)
    for name in ("bagg-gp", "gpr", "bagg-gp-plugin", "gpr-plugin"):
        baseline = swiss_roll.MODELS[name]("indirect")
        assert type(baseline.mediator_kernel) is type(problem.mediation.kernel.kernel)
        assert baseline.propagate is not name.endswith("-plugin")
