"""The command line: help, complaints, exit codes."""

import json
import os
import subprocess
import sys

import pytest

from deconditional import __version__
from deconditional.cli import main as cli
from studies import swiss_roll

TINY = ["reproduce", "swiss-roll", "--points", "200", "--bags", "8", "--seeds", "1"]


def complaint(capsys, arguments):
    """The one line on stderr of a command that must end with code 2."""
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("deconditional: error: ")
    return captured.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["demo", "--help"],
        ["reproduce", "--help"],
        ["reproduce", "swiss-roll", "--help"],
        ["benchmark", "--help"],
    ],
)
def test_help(capsys, arguments):
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out.startswith("usage: deconditional")


def test_help_names_every_model(capsys):
    cli.main(["reproduce", "swiss-roll", "--help"])
    shown = "".join(capsys.readouterr().out.split())  # names may be wrapped at their hyphens
    assert all(name in shown for name in swiss_roll.MODELS)


def test_version_needs_no_jax():
    code = (
        "import sys; from deconditional.cli.main import main; "
        "code = main(['--version']) or main(['--help']); "
        "sys.exit(code or int('jax' in sys.modules or 'matplotlib' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"deconditional {__version__}\n")


def test_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "deconditional", "demo", "--out", os.devnull],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("deconditional: error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["predict"], "invalid choice: 'predict'"),
        (["demo"], "--out"),
        (["reproduce", "swiss-roll"], "--out"),
        ([*TINY, "--models", "cmpp", "--out", "OUT"], "unknown model 'cmpp'; choose from cmp"),
        ([*TINY, "--matching", "both", "--out", "OUT"], "unknown matching 'both'"),
        ([*TINY, "--seeds", "0", "--out", "OUT"], "at least 1, not 0"),
        ([*TINY, "--seeds", "two", "--out", "OUT"], "whole number, not 'two'"),
        ([*TINY, "--first-seed", "-1", "--out", "OUT"], "must not be negative"),
        ([*TINY, "--points", "20", "--bags", "15", "--out", "OUT"], "fewer bags or more points"),
        ([*TINY, "--bags", "3", "--out", "OUT"], "at least 4"),
        (["benchmark", "speed"], "invalid choice: 'speed'"),
        (["benchmark", "kernels", "--points", "0"], "at least 1"),
    ],
)
def test_wrong_arguments(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in complaint(capsys, arguments)
    assert not (tmp_path / "OUT").exists()


@pytest.mark.parametrize("command", [["demo"], TINY])
def test_output_that_is_a_file(capsys, tmp_path, command):
    (tmp_path / "file").write_text("mine")
    assert "is a file" in complaint(capsys, [*command, "--out", str(tmp_path / "file")])
    assert "is a file" in complaint(capsys, [*command, "--out", str(tmp_path / "file" / "below")])
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes anywhere")
def test_output_that_cannot_be_written(capsys, tmp_path):
    tmp_path.chmod(0o500)
    assert "cannot write" in complaint(capsys, ["demo", "--out", str(tmp_path)])


def test_missing_matplotlib_names_the_remedy(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = complaint(capsys, ["demo", "--out", str(tmp_path)])
    assert "needs matplotlib" in message and "deconditional[demo]" in message
    message = complaint(capsys, [*TINY, "--out", str(tmp_path)])
    assert "deconditional[plots]" in message and "--no-figures" in message


def test_interrupt_says_what_is_kept(capsys, tmp_path, monkeypatch):
    def interrupted(**_):
        (tmp_path / "results.json").write_text(json.dumps([{}, {}]))
        raise KeyboardInterrupt

    monkeypatch.setattr(swiss_roll, "run", interrupted)
    assert cli.main([*TINY, "--out", str(tmp_path)]) == 130
    message = capsys.readouterr().err
    assert "2 finished records are kept in" in message and "resumes" in message
