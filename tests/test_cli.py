"""The command line: help, complaints, exit codes."""

import os
import subprocess
import sys

import pytest

from deconditional import __version__
from deconditional.cli import main as cli


def complaint(capsys, arguments):
    """The one line on stderr of a command that must end with code 2."""
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("deconditional: error: ")
    return captured.err


@pytest.mark.parametrize("command", [[], ["demo"], ["downscale"], ["report"]])
def test_help(capsys, command):
    assert cli.main([*command, "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: deconditional")


def seconds_of(code):
    """Processor time of a new interpreter, and what it printed.

    Other tests run at the same time, which makes the clock on the wall tell of them too.
    """
    before = sum(os.times()[2:4])
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return sum(os.times()[2:4]) - before, done.stdout


def test_importing_the_package_costs_less_than_half_of_jax_on_top():
    jax_seconds, package_seconds = (
        min(seconds_of(f"import {name}")[0] for _ in range(2)) for name in ("jax", "deconditional")
    )
    assert package_seconds < 1.5 * jax_seconds


def test_help_and_version_come_at_once_and_without_jax():
    code = (
        "import sys; from deconditional.cli.main import main; "
        "codes = [main(['--version'])] + [main([*c, '--help']) for c in ([], ['demo'], "
        "['downscale'], ['report'])]; assert not any(codes); "
        "print(*{'jax', 'xarray', 'pandas', 'scipy', 'matplotlib'} & set(sys.modules), 'imported')"
    )
    seconds, printed = min(seconds_of(code) for _ in range(2))
    assert printed.startswith(f"deconditional {__version__}\n")
    assert printed.splitlines()[-1] == "imported"
    assert seconds < 1.0


def test_what_downscaling_imports_is_without_what_it_does_not_need():
    slow = "{'sklearn', 'scipy.stats', 'matplotlib', 'dask', 'geopandas'}"
    code = f"import sys, deconditional; deconditional.downscale; print(*{slow} & set(sys.modules))"
    assert seconds_of(code)[1].strip() == ""


def test_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "deconditional", "predict"],
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
    ],
)
def test_wrong_arguments(capsys, arguments, message):
    assert message in complaint(capsys, arguments)


def test_output_that_is_a_file(capsys, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "is a file" in complaint(capsys, ["demo", "--out", str(tmp_path / "file")])
    assert "is a file" in complaint(capsys, ["demo", "--out", str(tmp_path / "file" / "below")])
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes anywhere")
def test_output_that_cannot_be_written(capsys, tmp_path):
    tmp_path.chmod(0o500)
    assert "cannot write" in complaint(capsys, ["demo", "--out", str(tmp_path)])


def test_missing_matplotlib_names_the_remedy(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = complaint(capsys, ["demo", "--out", str(tmp_path)])
    assert "needs matplotlib" in message and "deconditional[demo]" in message
