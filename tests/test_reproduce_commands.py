"""``deconditional reproduce``: its parsers, and all experiments in one run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from deconditional.cli import main as cli
from studies import commands as reproduce_commands
from studies.commands import EXPERIMENTS, _kept


@pytest.fixture
def stand_ins(monkeypatch):
    """Every experiment notes what it is asked and ends with the exit code that `codes` has."""
    asked, codes = {}, {}
    monkeypatch.setattr(reproduce_commands.field_commands, "require", lambda *names: None)
    monkeypatch.setattr(reproduce_commands, "_carried_out", cli.main)
    for name, experiment in list(EXPERIMENTS.items()):

        def command(args, line, name=name):
            asked[name] = (args, line)
            if codes.get(name) == "interrupt":
                raise KeyboardInterrupt
            if name not in codes:
                Path(args.out).mkdir()
                (Path(args.out) / "table.md").touch()
            return codes.get(name, 0)

        monkeypatch.setitem(EXPERIMENTS, name, replace(experiment, command=command))
    return asked, codes


def test_all_runs_every_experiment_in_a_folder_of_its_own(stand_ins, tmp_path, capsys):
    asked, _ = stand_ins
    assert cli.main(["reproduce", "all", "--out", str(tmp_path)]) == 0
    assert list(asked) == list(EXPERIMENTS)
    for name, (args, line) in asked.items():
        assert args.out == str(tmp_path / name)
        assert line == f"deconditional reproduce {name} --out {tmp_path / name}"
    assert asked["swiss-roll"][0].seeds == 20 and asked["climate"][0].seeds == 10
    index = (tmp_path / "index.md").read_text()
    assert all(f"| [{name}]({name}/table.md) | 0 |" in index for name in EXPERIMENTS)
    assert "1 of 9: deconditional reproduce shrinkage" in capsys.readouterr().out


def test_quick_options_and_jobs_reach_the_experiments(stand_ins, tmp_path, monkeypatch):
    asked, _ = stand_ins
    given = ["reproduce", "all", "--quick", "--no-figures", "--jobs", "2", "--out", str(tmp_path)]
    assert cli.main(given) == 0
    args = {name: asked[name][0] for name in asked}
    assert args["shrinkage"].quick and args["convergence"].quick
    assert (args["swiss-roll"].seeds, args["swiss-roll"].points) == (1, 1000)
    assert (args["climate"].thin, args["climate"].exact_points) == (2, 8)
    assert args["global-fields"].models == ["bilinear", "gpr", "bagg-gp"]
    with_jobs = {name for name, each in args.items() if getattr(each, "jobs", 1) == 2}
    assert with_jobs == {"swiss-roll", "climate", "global-fields", "mediation"}
    assert all(each.no_figures for name, each in args.items() if EXPERIMENTS[name].draws)


def test_a_failed_experiment_costs_the_others_nothing(stand_ins, tmp_path, capsys):
    asked, codes = stand_ins
    codes |= {"convergence": 1, "climate": 2, "shrinkage": -9}
    assert cli.main(["reproduce", "all", "--out", str(tmp_path)]) == 1
    assert list(asked) == list(EXPERIMENTS)
    said = capsys.readouterr().out
    assert "Not complete: shrinkage, convergence. The same command tries again" in said
    assert "Not complete: climate. It could not be carried out" in said
    index = (tmp_path / "index.md").read_text()
    assert "| convergence | 1 |" in index and "| climate | 2 |" in index


def test_an_interrupt_ends_all_of_it(stand_ins, tmp_path, capsys):
    asked, codes = stand_ins
    codes["convergence"] = "interrupt"
    assert cli.main(["reproduce", "all", "--out", str(tmp_path)]) == 130
    assert list(asked) == ["shrinkage", "convergence"]
    assert f"kept in {tmp_path}; the same command resumes" in capsys.readouterr().err


def test_an_experiment_has_a_process_of_its_own(tmp_path, capfd):
    given = ["reproduce", "ridges", "--seeds", "0", "--out", str(tmp_path / "new")]
    assert reproduce_commands._carried_out(given) == 2
    assert "1 to 100, not 0" in capfd.readouterr().err


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_help_of_every_experiment(name, capsys):
    assert cli.main(["reproduce", name, "--help"]) == 0
    said = capsys.readouterr().out
    assert "--out DIR" in said and said.count("\n") > 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["climate", "--exact-points", "few"], "must be a whole number, not 'few'"),
        (["climate", "--exact-points", "0"], "must be at least 1, not 0"),
        (["climate", "--data", "nowhere.nc"], "nowhere.nc"),
        (["climate", "--data", "some.nc", "--month", "4"], "a file of fields has its own"),
        (["all", "--jobs", "4096"], "4096 jobs on"),
        (["ridges", "--seeds", "0"], "1 to 100, not 0"),
        (["ridges", "--no-figures"], "unrecognized arguments: --no-figures"),
        (["convergence", "--sizes", "3"], ""),
    ],
)
def test_what_cannot_be_carried_out(given, message, tmp_path, capsys):
    assert cli.main(["reproduce", *given, "--out", str(tmp_path / "new")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and message in said


def test_points_of_exact_models_may_be_all():
    args = cli._parser().parse_args(
        ["reproduce", "climate", "--exact-points", "all", "--out", "here"]
    )
    assert args.exact_points is None


def test_what_an_interrupt_leaves(tmp_path):
    args = cli._parser().parse_args(["reproduce", "ridges", "--out", str(tmp_path)])
    assert "Nothing was kept" in _kept(args)
    (tmp_path / "results.json").write_text(json.dumps([{}, {}]))
    assert "2 finished records are kept" in _kept(args)
    (tmp_path / "results.json").write_text(json.dumps({"study": 1}))
    assert "What was finished is kept" in _kept(args)
