"""The frame of the studies: tasks, resume, failures, interrupts, tables, the command line."""

import io
import json
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import wilcoxon

import deconditional as dc
from deconditional.errors import UsageError
from helpers import assert_close
from studies import __main__ as command
from studies import frame, provenance
from studies.command import option, require
from studies.data import synthetic_globe
from studies.frame import Outcome, Study, Task
from studies.records import Results
from studies.tables import highest, lowest, markdown, mean_and_sd, wilcoxon_table

QUIET = Console(quiet=True)
KEYS = Task._fields


# ---------------------------------------------------------------------- a study without models


@dataclass(frozen=True)
class Toy(Study):
    """Records of which everything is known; what `trouble` names goes wrong."""

    name: ClassVar[str] = "toy"
    help: ClassVar[str] = "nothing"
    title: ClassVar[str] = "A toy"
    trouble: ClassVar[dict] = {}

    seeds: int = option(2, "draws", quick=1)
    models: tuple[str, ...] = option(("a", "b"), "names", metavar="NAME")
    size: int = option(5, "of the data")

    def settings(self):
        return {"size": self.size}

    def tasks(self):
        if self.size < 3:
            raise UsageError(f"the size must be at least 3, not {self.size}.")
        return [Task("half", model, seed) for seed in range(self.seeds) for model in self.models]

    def fit(self, task):
        what = self.trouble.get(task.model)
        if isinstance(what, BaseException):
            raise what
        if what is not None:
            warnings.warn(what, dc.FitWarning, stacklevel=1)
        return [Outcome(task, [{"rmse": task.seed + 0.5, "nll": np.inf}], draw=Path.touch)]

    def picture(self, task):
        return f"{task.model}.png" if task.seed == 0 else None

    def table(self, results):
        rows = [[r["model"], r["seed"], r["rmse"]] for r in results.records]
        return markdown(["model", "seed", "RMSE"], rows)

    def figures(self, results):
        (results.folder / "all.png").touch()


@pytest.fixture(autouse=True)
def no_trouble(monkeypatch):
    monkeypatch.setattr(Toy, "trouble", {})


def run(folder, *, figures=False, overwrite=False, console=QUIET, **options):
    return Toy(**options).run(folder, figures=figures, overwrite=overwrite, console=console)


def keys(results):
    return [(r["model"], r["seed"]) for r in results.records]


def test_a_run_leaves_records_a_table_and_pictures(tmp_path):
    run(tmp_path, figures=True)
    records = json.loads((tmp_path / "results.json").read_text())
    first = {"experiment": "toy", "matching": "half", "model": "a", "seed": 0}
    assert records[0] == {**first, "rmse": 0.5, "nll": None}  # JSON has no infinity
    assert {p.name for p in tmp_path.glob("*.png")} == {"a.png", "b.png", "all.png"}
    assert not list(tmp_path.glob(".*"))
    text = (tmp_path / "table.md").read_text()
    for line in ("# A toy", "| b | 1 | 1.5 |", "Fits with a warning: none of 4.", "cores"):
        assert line in text
    assert f"- State of the code: {provenance.code_digest()}" in text


def test_what_is_there_is_kept_and_what_is_missing_is_added(tmp_path, monkeypatch):
    first = run(tmp_path, seeds=1)
    monkeypatch.setattr(Toy, "trouble", {"a": AssertionError("fitted again")})
    again = run(tmp_path, seeds=1)
    assert keys(again) == keys(first) and not again.failures
    monkeypatch.setattr(Toy, "trouble", {})
    more = run(tmp_path, models=("a", "c"))
    assert keys(more) == [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("c", 1)]


def test_a_missing_picture_is_drawn_without_a_second_record(tmp_path):
    run(tmp_path)
    assert not (tmp_path / "a.png").exists()
    assert len(run(tmp_path, figures=True).records) == 4
    assert (tmp_path / "a.png").exists()


def test_other_settings_are_refused_and_named(tmp_path):
    run(tmp_path, figures=True)
    with pytest.raises(UsageError, match=r"size 5 there and 6 now.*--overwrite"):
        run(tmp_path, size=6)
    results = run(tmp_path, size=6, models=("b",), overwrite=True)
    assert keys(results) == [("b", 0), ("b", 1)]
    assert not (tmp_path / "a.png").exists()  # of the run before
    assert json.loads((tmp_path / "settings.json").read_text())["size"] == 6


def test_what_cannot_be_used_is_refused_before_any_work(tmp_path):
    with pytest.raises(UsageError, match="at least 3, not 2"):
        run(tmp_path / "new", size=2)
    with pytest.raises(UsageError, match="4096 jobs on"):
        Toy().run(tmp_path / "new", jobs=4096, console=QUIET)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("text", ["[{", "{}", '[{"model": "cmp"}]', "\udcff"])
def test_a_damaged_file_is_refused_and_left_alone(tmp_path, text):
    path = tmp_path / "results.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"results\.json.*--overwrite"):
        run(tmp_path)
    assert path.read_bytes() == before
    assert len(run(tmp_path, overwrite=True).records) == 4


def test_a_failure_costs_only_its_own_records(tmp_path, monkeypatch):
    monkeypatch.setattr(Toy, "trouble", {"a": ValueError("no [/luck] [red]today")})
    said = io.StringIO()
    results = run(tmp_path, seeds=1, console=Console(file=said, width=200))
    assert keys(results) == [("b", 0)]
    assert results.failures == ["half, a, seed 0: ValueError: no [/luck] [red]today"]
    assert results.failures[0] in said.getvalue()
    assert results.failures[0] in (tmp_path / "table.md").read_text()
    monkeypatch.setattr(Toy, "trouble", {})
    assert keys(run(tmp_path, seeds=1)) == [("b", 0), ("a", 0)]


def test_warnings_are_counted_and_survive_a_resume(tmp_path, monkeypatch):
    monkeypatch.setattr(Toy, "trouble", {"a": "weights sum to 0.123: weak."})
    run(tmp_path, seeds=1)
    monkeypatch.setattr(Toy, "trouble", {"a": "weights sum to 0.045: weak."})
    run(tmp_path)
    text = (tmp_path / "table.md").read_text()
    assert "Fits with a warning: half a 2 of 2." in text
    assert "- 2 x FitWarning: weights sum to …: weak." in text


def test_records_of_different_code_are_told_apart(tmp_path, monkeypatch):
    run(tmp_path, seeds=1)
    monkeypatch.setattr(frame, "code_digest", lambda: "0123456789")
    run(tmp_path)
    text = (tmp_path / "table.md").read_text()
    assert "different states of the code" in text and "0123456789 (2 fits)" in text


def test_the_digest_is_of_the_code_that_results_depend_on(tmp_path, monkeypatch):
    package = tmp_path / "deconditional"
    for name in ("models/cmp.py", "scores/means.py", "cli/main.py", "report/plots.py", "errors.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(name)
    monkeypatch.setattr(provenance.deconditional, "__file__", str(package / "__init__.py"))
    before = provenance.code_digest()
    for name in ("cli/main.py", "report/plots.py", "errors.py"):
        (package / name).write_text("other")
    assert provenance.code_digest() == before
    for name in ("models/cmp.py", "scores/means.py"):
        (package / name).write_text("other")
        assert provenance.code_digest() != before
        before = provenance.code_digest()
    root = Path(dc.__path__[0])
    assert all((root / part).exists() for part in provenance.RESULTS_DEPEND_ON)


# ---------------------------------------------------------------------- cells and tests


def test_cells_leave_out_what_is_missing():
    records = [{"rmse": 1.0}, {"rmse": None}, {}, {"rmse": 3.0}]
    cells = [cell(records) for cell in (mean_and_sd("rmse"), highest("rmse"), lowest("rmse"))]
    assert cells == [f"2.000 ± {2**0.5:.3f}", "3.000", "1.000"]
    assert mean_and_sd("crps")(records) == "–"


def results_with(scores):
    records = [
        {"matching": "direct", "model": model, "seed": seed, "rmse": value}
        for model, column in scores.items()
        for seed, value in enumerate(column)
    ]
    return Results(Path("nowhere"), KEYS, records)


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


# ---------------------------------------------------------------------- the command


@pytest.fixture
def toy_command(monkeypatch):
    """`python -m studies` with the toy and a twin alone, in this process."""

    class Twin(Toy):
        name: ClassVar[str] = "twin"
        takes_jobs: ClassVar[bool] = False
        has_figures: ClassVar[bool] = False

    monkeypatch.setattr(command, "STUDIES", {"toy": Toy, "twin": Twin})
    monkeypatch.setattr(command, "_carried_out", command.main)
    return command.main


def complaint(capsys, given):
    """The one line on stderr of a command that must end with code 2."""
    assert command.main(given) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("studies: error: ")
    return said


def test_options_reach_the_study(toy_command, tmp_path, capsys):
    given = ["toy", "--models", "x", "--size", "7", "--quick", "--out", str(tmp_path)]
    assert toy_command([*given, "--no-figures"]) == 0
    (record,) = json.loads((tmp_path / "results.json").read_text())
    assert (record["model"], record["seed"]) == ("x", 0)
    assert json.loads((tmp_path / "settings.json").read_text())["size"] == 7
    assert "1 records and a table in" in capsys.readouterr().out
    text = (tmp_path / "table.md").read_text()
    assert "`python -m studies toy --models x --size 7 --quick --out" in text


def test_exit_codes_of_failures_and_interrupts(toy_command, tmp_path, monkeypatch, capsys):
    given = ["toy", "--no-figures", "--out", str(tmp_path)]
    monkeypatch.setattr(Toy, "trouble", {"b": RuntimeError("no root")})
    assert toy_command(given) == 1
    assert "2 fit(s) failed" in capsys.readouterr().out
    monkeypatch.setattr(Toy, "trouble", {"b": KeyboardInterrupt()})
    assert toy_command(given) == 130
    said = capsys.readouterr().err
    assert "2 finished records are kept in" in said and "same command resumes" in said
    assert toy_command(["toy", "--no-figures", "--out", str(tmp_path / "new"), "--models", "b"])
    assert "0 finished records" in capsys.readouterr().err


def test_all_runs_every_study_in_a_folder_of_its_own(toy_command, tmp_path, monkeypatch, capsys):
    given = ["all", "--quick", "--no-figures", "--out", str(tmp_path)]
    assert toy_command(given) == 0
    index = (tmp_path / "index.md").read_text()
    first, second = (f"--out {tmp_path / name} --quick" for name in ("toy", "twin"))
    assert (
        f"| [toy](toy/table.md) | 0 | 0 | `python -m studies toy {first} --no-figures` |" in index
    )
    assert f"`python -m studies twin {second}` |" in index  # it has no figures to leave out
    assert "1 of 2: python -m studies toy" in capsys.readouterr().out

    monkeypatch.setattr(Toy, "trouble", {"b": RuntimeError("no root")})
    assert toy_command(["all", "--no-figures", "--out", str(tmp_path)]) == 1
    assert "Not complete, see above: toy, twin. The same" in capsys.readouterr().out
    monkeypatch.setattr(Toy, "trouble", {"b": KeyboardInterrupt()})
    assert toy_command(["all", "--no-figures", "--out", str(tmp_path)]) == 130
    assert f"kept in {tmp_path}; the same command resumes" in capsys.readouterr().err


def test_a_study_of_all_has_a_process_of_its_own(tmp_path, capfd):
    given = ["ridges", "--seeds", "0", "--out", str(tmp_path / "new")]
    assert command._carried_out(given) == 2
    assert "1 to 100, not 0" in capfd.readouterr().err


@pytest.mark.parametrize("name", [*command.STUDIES, "all"])
def test_help_of_every_study(name, capsys):
    assert command.main([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert "--out DIR" in said and "--quick" in said


ROLL = ["swiss-roll", "--points", "200", "--bags", "8", "--seeds", "1"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["predict"], "invalid choice: 'predict'"),
        (["deep-kernel"], "--out"),
        ([*ROLL, "--models", "cmpp"], "unknown model 'cmpp'; choose from 'cmp'"),
        ([*ROLL, "--matching", "both"], "unknown matching 'both'"),
        ([*ROLL, "--matching", "direct", "--models", "gpr-plugin"], "indirect matching alone"),
        ([*ROLL, "--seeds", "0"], "at least 1, not 0"),
        ([*ROLL, "--seeds", "two"], "whole number, not 'two'"),
        ([*ROLL, "--first-seed", "-1"], "must not be negative"),
        ([*ROLL, "--points", "20", "--bags", "15"], "fewer bags or more points"),
        ([*ROLL, "--bags", "3"], "at least 4"),
        (["climate", "--exact-points", "few"], "must be a whole number, not 'few'"),
        (["climate", "--exact-points", "0"], "must be at least 1, not 0"),
        (["climate", "--data", "nowhere.nc"], "nowhere.nc"),
        (["climate", "--data", __file__], "check that it is one"),
        (["climate", "--data", "some.nc", "--month", "4"], "a file of fields has its own"),
        (["climate", "--month", "13"], "months run from 1 to 12, not 13"),
        (["climate", "--models", "varcpm"], "unknown model 'varcpm'; choose from 'vargpr'"),
        (["climate", "--seeds", "0"], "at least 1, not 0"),
        (["all", "--jobs", "4096"], "4096 jobs on"),
        (["ridges", "--seeds", "0"], "1 to 100, not 0"),
        (["ridges", "--points", "7"], "unknown number of points 7; choose from 500"),
        (["ridges", "--no-figures"], "unrecognized arguments: --no-figures"),
        (["shrinkage", "--jobs", "2"], "unrecognized arguments: --jobs"),
        (["convergence", "--sizes", "3"], "Take more sizes up to 2000"),
        (["convergence", "--sizes", "1", "4", "8", "16"], "sizes must be at least 2, not 1"),
        (["convergence", "--repetitions", "1"], "at least 2 repetitions"),
        (["convergence", "--seed", "-1"], "must not be negative"),
        (["global-fields", "--matching", "both"], "unknown matching 'both'; choose from 'matched'"),
        (["global-fields", "--models", "cpm"], "unknown model 'cpm'; choose from 'bilinear'"),
        (["global-fields", "--months", "0"], "months run from 1 to 12, not 0"),
        (["global-fields", "--draws", "101"], "1 to 100, not 101"),
        (["mediation", "--datasets", "rolls"], "unknown data set 'rolls'"),
        (["mediation", "--models", "best"], "unknown model 'best'"),
        (["mediation", "--draws", "0"], "at least 1, not 0"),
        (["mediation", "--first", "-1"], "numbered from 0; the first cannot be -1"),
        (["variational", "--seeds", "0"], "at least 1"),
        (["variational", "--steps", "2"], "at least 1 seed, 100 points"),
        (["deep-kernel", "--bags", "2"], "at least 1 seed and 5 bags"),
    ],
)
def test_what_cannot_be_carried_out(given, message, tmp_path, capsys):
    out = [] if given == ["deep-kernel"] else ["--out", str(tmp_path / "new")]
    assert message in complaint(capsys, [*given, *out])
    assert not (tmp_path / "new").exists()


def test_points_of_exact_models_may_be_all():
    parser = command.Parser()
    command.add_options(parser, command.Climate)
    args = parser.parse_args(["--exact-points", "all"])
    assert command.made(command.Climate, args, quick=True).exact_points is None
    assert command.made(command.Climate, parser.parse_args([]), quick=True).exact_points == 8


def test_what_is_missing_is_named_with_its_remedy(tmp_path, monkeypatch, capsys):
    with pytest.raises(UsageError, match=r"needs torchless: pip install 'deconditional\[bench\]'"):
        require("bench", "numpy", "torchless")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = complaint(capsys, [*ROLL, "--out", str(tmp_path)])
    assert "deconditional[plots]" in said and "--no-figures" in said


def test_output_that_is_a_file(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert "is a file" in complaint(capsys, [*ROLL, "--out", str(tmp_path / "file")])
    assert (tmp_path / "file").read_text() == "mine"


# ---------------------------------------------------------------------- data


def test_the_globe_is_the_size_of_the_paper_and_its_truth_is_known():
    globe = synthetic_globe(rows=4, columns=6, block=3, noise_std=0.0, seed=1)
    assert (globe.bags.n_bags, globe.bags.n_points, len(globe.z)) == (12, 108, 12)
    assert_close(globe.x.mean(0), np.zeros(5), tolerance=1e-9)
    cell = (np.arange(12)[:, None] // 3 * 6 + np.arange(18) // 3).ravel()
    means = dc.Bags.from_points(globe.x, cell).means(globe.f)
    assert np.isin(globe.z.round(12), means.round(12)).all()
    covered = dc.Bags.from_points(globe.x, cell).means()[:, :2]
    both = np.concatenate([globe.bags.mediator[:, :2], globe.mediator[:, :2]])
    assert_close(np.sort(both, 0), np.sort(covered, 0))
