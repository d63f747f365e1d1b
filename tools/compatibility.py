"""Tests against the lowest and the newest allowed versions, each in an environment of its own.

    python tools/compatibility.py                     # all that the interpreters here allow
    python tools/compatibility.py lowest newest-3.13  # some of them
    python tools/compatibility.py --table             # what the last runs found, as Markdown

``lowest`` has every direct dependency at its lower bound (constraints-lowest.txt), on the oldest
Python; ``newest-3.x`` whatever pip finds, without constraints. Each gets the wheel of this tree
with the extra ``test`` in ``build/compatibility/NAME``, ``pip check``, and the tests named below;
warnings are errors there too. The exit code is 1 if any of them failed. Needs the standard library
alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "compatibility"
PYTHONS = ("3.11", "3.12", "3.13")
SETS = ("lowest", *(f"newest-{version}" for version in PYTHONS))

TESTS = (
    *("test_exact_oracles", "test_models", "test_variational_models", "test_mediated", "test_fit"),
    *("test_importance", "test_readings"),
    *(
        "test_operators",
        "test_posterior",
        "test_bag_kernels",
        "test_sharding",
        "test_saving",
        "test_chunked",
    ),
    *("test_large_results", "test_downscaler", "test_downscale_command", "test_report"),
    *("test_field_datasets", "test_scores", "test_bags", "test_cli", "test_packaging"),
)
"""Files whose tests meet every dependency; the whole suite is for the pinned set."""

OTHERS = ("gpytorch",)
"""Packages of other extras than ``test``."""

SHOWN = ("jax", "numpy", "scipy", "equinox", "gpjax", "numpyro", "xarray", "dask", "zarr", "pandas")


def interpreter(version: str) -> str | None:
    """The path of a Python of this version, on the path or among those of pyenv."""
    found = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [found] if found else []
    candidates += [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"))]
    for candidate in candidates:
        asked = [candidate, "-c", "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False)
        if said.returncode == 0 and said.stdout.strip() == version:
            return candidate
    return None


def logged(command: Sequence[str | Path], log: Path) -> tuple[int, str]:
    """The exit code of a command, and what it printed, which is added to the log."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"},
        check=False,
    )
    with log.open("a") as file:
        file.write(f"$ {' '.join(map(str, command))}\n{done.stdout}\n")
    return done.returncode, done.stdout


def carried_out(name: str, python: str, tests: Sequence[str]) -> dict[str, Any]:
    """Make the environment, check it, run the tests; what became of it."""
    home, log = FOLDER / name, FOLDER / f"{name}.log"
    shutil.rmtree(home, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    logged([python, "-m", "venv", home], log)
    own = home / "bin" / "python"
    pip = [own, "-m", "pip", "--disable-pip-version-check"]
    given = ["--constraint", ROOT / "constraints-lowest.txt"] if name == "lowest" else []
    for step, command in (
        ("install", [*pip, "install", *given, f"{ROOT}[test]"]),
        ("pip check", [*pip, "check"]),
    ):
        code, said = logged(command, log)
        if code:
            return {"result": f"{step} failed: {said.strip().splitlines()[-1]}", "ok": False}
    _, listed = logged([*pip, "list", "--format", "json"], log)
    versions = {
        each["name"].lower().replace("_", "-"): each["version"] for each in json.loads(listed)
    }
    start = time.perf_counter()
    files = [ROOT / "tests" / f"{test}.py" for test in tests]
    code, said = logged([own, "-m", "pytest", "-q", *files], log)
    found = re.findall(r"^=* ?(\d+ .*) in [\d.]+s.*$", said, re.MULTILINE)
    # Tests that need an extra are skipped where it cannot be imported; here it must be.
    absent = {n for n in re.findall(r"could not import '([^']+)'", said) if n not in OTHERS}
    notes = [f"no {name}" for name in sorted(absent)]
    return {
        "python": subprocess.check_output([own, "-c", "import sys; print(sys.version.split()[0])"])
        .decode()
        .strip(),
        "versions": versions,
        "result": ", ".join([found[-1] if found else f"pytest ended with {code}", *notes]),
        "seconds": round(time.perf_counter() - start),
        "ok": code == 0 and not absent,
    }


def table() -> str:
    """What the last run of every set found, as Markdown."""
    head = ["set", "Python", *SHOWN, "tests"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in SETS:
        path = FOLDER / f"{name}.json"
        if path.exists():
            found = json.loads(path.read_text())
            versions = [found.get("versions", {}).get(package, "") for package in SHOWN]
            cells = [name, found.get("python", ""), *versions, found["result"]]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Carry out the sets that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"of {', '.join(SETS)} (all)")
    parser.add_argument("--table", action="store_true", help="only print the table")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="other files than the usual")
    args = parser.parse_args(given)
    unknown = [name for name in args.sets if name not in SETS]
    if unknown:
        parser.error(f"no set {unknown[0]!r}; choose from {', '.join(SETS)}")
    failed = False
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=")
    for name in () if args.table else args.sets or SETS:
        version = oldest if name == "lowest" else name.removeprefix("newest-")
        python = interpreter(version)
        if python is None:
            print(f"{name}: no Python {version} here", flush=True)
            failed = failed or bool(args.sets)
            continue
        print(f"{name}: ...", flush=True)
        found = carried_out(name, python, args.tests)
        (FOLDER / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(f"{name}: {found['result']}", flush=True)
        failed = failed or not found["ok"]
    print(table())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
