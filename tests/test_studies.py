"""Studies at toy size: that they run, resume, and report what they measured."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from deconditional import Bags
from deconditional.cli import main as cli
from deconditional.datasets import synthetic_globe
from deconditional.errors import UsageError
from helpers import assert_close
from studies import deep_kernel, variational
from studies.records import Results, finished, table_head, table_line

pytestmark = pytest.mark.usefixtures("quick_compilation")
QUIET = Console(quiet=True)


# --------------------------------------------------------------------------- records

STATED = {"settings": {"seeds": 2, "sizes": [3, 4]}}


def left(folder, content):
    path = folder / "results.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_finished_studies_are_kept_and_nothing_else(tmp_path):
    wanted = {"one": list, "two": dict, "three": list}
    assert finished(tmp_path / "results.json", STATED, wanted) == {}
    path = left(tmp_path, {**STATED, "machine": {}, "two": {"a": 1}, "one": [5], "other": [6]})
    kept = finished(path, STATED, wanted)
    assert kept == {"one": [5], "two": {"a": 1}}
    assert list(kept) == ["one", "two"]


@pytest.mark.parametrize(
    "settings", [{"seeds": 3, "sizes": [3, 4]}, {"seeds": 2}, {**STATED["settings"], "new": 1}]
)
def test_results_of_other_settings_are_refused_with_a_remedy(tmp_path, settings):
    path = left(tmp_path, {"settings": settings, "one": [5]})
    with pytest.raises(UsageError, match=r"results\.json' holds.*other settings.*--overwrite"):
        finished(path, STATED, {"one": list})
    with pytest.raises(UsageError, match=r"other settings\. Go\.$"):
        finished(path, STATED, {"one": list}, remedy="Go.")


@pytest.mark.parametrize("content", [[1, 2], None, {"one": [5]}, {**STATED, "one": {"a": 1}}])
def test_files_of_others_are_refused(tmp_path, content):
    path = left(tmp_path, content)
    with pytest.raises(UsageError, match="not a file of this study"):
        finished(path, STATED, {"one": list})


@pytest.mark.parametrize("content", [b'{"settings": ', b"\xff\xfe"])
def test_files_that_are_not_json_are_refused(tmp_path, content):
    path = tmp_path / "results.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not a file of this study"):
        finished(path, STATED, {"one": list})


def test_a_failure_is_kept_and_shown_as_it_is(tmp_path):
    said = io.StringIO()
    results = Results.open(tmp_path, {})
    results.failed(("half", 3), ValueError("no [/luck] [red]today"), Console(file=said, width=200))
    assert results.failures == ["('half', 3): ValueError: no [/luck] [red]today"]
    assert said.getvalue() == f"failed {results.failures[0]}\n"
    assert ("half", "3", 3) not in results


def test_lines_of_a_table_have_a_cell_for_every_name():
    head, rule = table_head("a", "b", "c")
    assert (head, rule) == ("| a | b | c |", "|---|---|---|")
    assert table_line("x", "", "1.0") == "| x |  | 1.0 |"


# --------------------------------------------------------------------------- variational


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A run of all studies with as few settings as they can have."""
    folder = tmp_path_factory.mktemp("variational")
    with pytest.MonkeyPatch.context() as patch:
        kernels = variational._kernels()
        patch.setattr(variational, "_kernels", lambda: {"Gaussian": kernels["Gaussian"]})
        patch.setattr(variational, "INDUCING", (4, 16))
        patch.setattr(variational, "LEARNT_UP_TO", 4)
        patch.setattr(variational, "FEATURES", (20, 500))
        patch.setattr(variational, "TRACE_KEYS", 2)
        patch.setattr(variational, "TRACE_INDUCING", (16,))
        climbs = {"natural, all": {}, "adam, all": {"optimiser": "adam"}}
        patch.setattr(variational, "CLIMBS", climbs)
        settings = {"seeds": 1, "n_points": 150, "n_bags": 8, "steps": 20, "console": QUIET}
        results = variational.run(out=folder, command="the command", **settings)
        patch.setattr(variational, "STUDIES", dict.fromkeys(variational.STUDIES))
        again = variational.run(out=folder, **settings)
    return folder, results, again


def test_the_gap_of_the_bound_closes_with_inducing_points(study):
    rows = study[1]["inducing"]
    gap = {(row["choice"], row["inducing"]): row["gap"] for row in rows}
    assert set(gap) == {
        ("kmeans", 4),
        ("kmeans", 16),
        ("uniform", 4),
        ("uniform", 16),
        ("learnt", 4),
    }
    assert min(gap.values()) > -1e-6
    assert gap["kmeans", 16] < gap["kmeans", 4]
    assert gap["learnt", 4] < gap["kmeans", 4]
    worst = {row["inducing"]: row["mean"] for row in rows if row["choice"] == "kmeans"}
    assert worst[16] < worst[4]


def test_the_other_studies_report_what_they_compare(study):
    results = study[1]
    assert [row["trace"] for row in results["trace"]] == ["subsample", "features"]
    natural, adam = results["steps"]
    assert natural["bound"] == pytest.approx(natural["collapsed_bound_there"], abs=1e-6)
    assert adam["bound"] < adam["collapsed_bound_there"]
    few, many = results["features"]
    assert many["mean"] < few["mean"]


def test_a_finished_study_is_not_run_again_and_leaves_tables_and_pictures(study):
    folder, results, again = study
    assert again == json.loads(json.dumps(results))
    text = (folder / "table.md").read_text()
    assert "| Gaussian | kmeans | 16 |" in text
    for name in ("inducing.png", "steps.png", "features.png"):
        assert (folder / name).read_bytes()[:4] == b"\x89PNG"


def test_a_folder_of_other_settings_is_left_alone(study):
    before = (study[0] / "results.json").read_bytes()
    with pytest.raises(UsageError, match="other settings"):
        variational.run(seeds=2, out=study[0], n_points=150, n_bags=8, console=QUIET)
    assert (study[0] / "results.json").read_bytes() == before


def test_studies_too_small_to_mean_anything_are_refused(tmp_path):
    with pytest.raises(UsageError, match="at least"):
        variational.run(seeds=0, out=tmp_path, console=QUIET)
    with pytest.raises(UsageError, match="at least"):
        deep_kernel.run(n_bags=2, out=tmp_path, console=QUIET)


# --------------------------------------------------------------------------- deep kernels


def test_the_index_is_hidden_from_the_coarse_values():
    data = deep_kernel.band_index("indirect", n_bags=12, seed=3)
    again = deep_kernel.band_index("indirect", n_bags=12, seed=3)
    np.testing.assert_array_equal(data.z, again.z)
    assert_close([data.f.mean(), data.f.std()], [0.0, 1.0])
    every = np.arange(24).repeat(10)
    means = Bags.from_points(data.x, every).means(data.f)
    # Observed cells are those without points: their values are noisy means over cells.
    nearest = np.abs(data.z[:, None] - means[None]).min(1)
    assert nearest.max() < 5 * deep_kernel.NOISE_STD
    assert data.bags.mediator.shape == (12, 4)
    assert data.mediator.shape == (12, 4)


def test_deep_kernels_are_compared_and_resumed(tmp_path, monkeypatch):
    models = deep_kernel._models

    def short(matching, seed):
        quick = {"n_inducing": 10, "n_restarts": 1, "max_iter": 3}
        return {k: v.set_params(**quick) for k, v in models(matching, seed).items()}

    monkeypatch.setattr(deep_kernel, "_models", short)
    options = {"seeds": 1, "out": tmp_path, "n_bags": 6, "console": QUIET}
    first = deep_kernel.run(matching=("direct",), **options)
    assert [record["model"] for record in first] == ["length scale per band", "deep k"]
    assert (tmp_path / "feature.png").exists()
    monkeypatch.setattr(deep_kernel, "_fitted", None)
    again = deep_kernel.run(matching=("direct",), figures=False, **options)
    assert again == first
    assert "| direct | deep k | 1 |" in (tmp_path / "table.md").read_text()
    with pytest.raises(UsageError, match="another number of bags"):
        deep_kernel.run(seeds=1, out=tmp_path, n_bags=7, figures=False, console=QUIET)


# --------------------------------------------------------------------------- data and options


def test_the_globe_is_the_size_of_the_paper_and_its_truth_is_known():
    globe = synthetic_globe(rows=4, columns=6, block=3, noise_std=0.0, seed=1)
    assert (globe.bags.n_bags, globe.bags.n_points, len(globe.z)) == (12, 108, 12)
    assert_close(globe.x.mean(0), np.zeros(5), tolerance=1e-9)
    cell = (np.arange(12)[:, None] // 3 * 6 + np.arange(18) // 3).ravel()
    means = Bags.from_points(globe.x, cell).means(globe.f)
    assert np.isin(globe.z.round(12), means.round(12)).all()
    covered = Bags.from_points(globe.x, cell).means()[:, :2]
    both = np.concatenate([globe.bags.mediator[:, :2], globe.mediator[:, :2]])
    assert_close(np.sort(both, 0), np.sort(covered, 0))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["reproduce", "variational", "--seeds", "0", "--out", "x"], "at least 1"),
        (["reproduce", "deep-kernel"], "--out"),
    ],
)
def test_options_of_another_command_are_refused(given, complaint, capsys):
    assert cli.main(given) == 2
    assert complaint in capsys.readouterr().err
