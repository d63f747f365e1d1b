"""What is installed: wheel and sdist, what they say of themselves, and life without the extras."""

from __future__ import annotations

import ast
import base64
import csv
import datetime
import email
import hashlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import deconditional

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "deconditional"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def normal(name):
    """A distribution's name as indices write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(*extras):
    """What the core needs, and these extras with those they include, by name."""
    found = {}
    waiting = [*PROJECT["dependencies"]]
    for extra in extras:
        waiting += PROJECT["optional-dependencies"][extra]
    while waiting:
        each = Requirement(waiting.pop())
        if each.name == PROJECT["name"]:
            for extra in each.extras:
                waiting += PROJECT["optional-dependencies"][extra]
        else:
            found.setdefault(normal(each.name), []).append(each)
    return found


def pins(name):
    """The exact versions in a file of constraints."""
    found = {}
    for line in (ROOT / name).read_text().splitlines():
        pin = re.match(r"([A-Za-z0-9._-]+)==([^\s;#]+)", line)
        if pin:
            found[normal(pin[1])] = Version(pin[2])
    return found


# --------------------------------------------------------------------------- wheel and sdist


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An sdist of this tree, and a wheel of that sdist alone."""
    from hatchling import build

    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        sdist = folder / build.build_sdist(str(folder))
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        tree = folder / sdist.name.removesuffix(".tar.gz")
        patch.chdir(tree)
        wheel = folder / build.build_wheel(str(folder))
    return sdist, tree, wheel


@pytest.fixture(scope="module")
def wheel(built):
    """The members of the wheel."""
    with zipfile.ZipFile(built[2]) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def about(wheel):
    """A function that gives a file about the wheel."""
    folder = f"{PROJECT['name']}-{PROJECT['version']}.dist-info"
    return lambda name: wheel[f"{folder}/{name}"].decode()


def test_the_wheel_has_the_package_and_nothing_else(wheel):
    inside = {n: content for n, content in wheel.items() if ".dist-info/" not in n}
    there = {
        path.relative_to(PACKAGE.parent).as_posix(): path.read_bytes()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == there
    assert "deconditional/py.typed" in inside
    assert "deconditional/report/page.html.jinja" in inside
    assert sum(map(len, wheel.values())) < 3_000_000


def test_the_wheel_is_pure_and_lists_what_it_holds(wheel, about):
    tags = about("WHEEL")
    assert "Root-Is-Purelib: true" in tags and "Tag: py3-none-any" in tags
    assert about("licenses/LICENSE") == (ROOT / "LICENSE").read_text()
    record = {row[0]: row[1:] for row in csv.reader(io.StringIO(about("RECORD")))}
    assert set(record) == set(wheel)
    for name, (digest, size) in record.items():
        if name.endswith("/RECORD"):
            continue
        sha = base64.urlsafe_b64encode(hashlib.sha256(wheel[name]).digest()).rstrip(b"=")
        assert digest == f"sha256={sha.decode()}", name
        assert int(size) == len(wheel[name]), name


def test_the_metadata_is_that_of_the_project(about):
    from trove_classifiers import classifiers

    said = email.message_from_string(about("METADATA"))
    assert said["Name"] == "deconditional" and said["Version"] == PROJECT["version"]
    assert said["Requires-Python"] == PROJECT["requires-python"]
    assert said["License-Expression"] == "MIT" and said["License-File"] == "LICENSE"
    assert said["Description-Content-Type"] == "text/markdown"
    assert said.get_payload().strip() == (ROOT / "README.md").read_text().strip()
    assert said.get_all("Classifier") == PROJECT["classifiers"]
    assert set(PROJECT["classifiers"]) <= set(classifiers)
    assert set(said.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    wanted = [Requirement(line) for line in said.get_all("Requires-Dist")]
    core = {str(each) for each in wanted if each.marker is None}
    assert core == {str(Requirement(line)) for line in PROJECT["dependencies"]}
    for extra in PROJECT["optional-dependencies"]:
        found = {
            (normal(each.name), str(each.specifier))
            for each in wanted
            if each.marker and each.marker.evaluate({"extra": extra})
            if each.name != PROJECT["name"]
        }
        named = {
            (normal(each.name), str(each.specifier))
            for each in map(Requirement, PROJECT["optional-dependencies"][extra])
            if each.name != PROJECT["name"]
        }
        assert named <= found, extra


def test_the_command_is_where_the_metadata_says(about, capsys):
    place = re.fullmatch(
        r"\[console_scripts\]\ndeconditional = (\S+):(\S+)\n", about("entry_points.txt")
    )
    main = getattr(importlib.import_module(place[1]), place[2])
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"deconditional {PROJECT['version']}\n"


def test_the_sdist_can_be_built_tested_and_documented(built):
    _, tree, _ = built
    top = {path.name for path in tree.iterdir()}
    assert top == {
        *("src", "tests", "docs", "studies", "benchmarks", "tools", "conftest.py", "Makefile"),
        *("pyproject.toml", "constraints.txt", "constraints-lowest.txt", "PKG-INFO", ".gitignore"),
        *("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "CONTRIBUTING.md"),
    }
    for folder, pattern in (("tests", "*.py"), ("tests/fixtures", "**/*.npz"), ("docs", "*.md")):
        names = {p.relative_to(ROOT).as_posix() for p in (ROOT / folder).glob(pattern)}
        assert names and all((tree / name).is_file() for name in names)
    left = [p for p in tree.rglob("*") if p.name in ("__pycache__", "_build", ".pytest_cache")]
    assert not left and not (tree / "docs" / "examples").exists()
    assert (tree / "PKG-INFO").read_text().startswith("Metadata-Version: 2.")
    assert built[0].stat().st_size < 12_000_000


# --------------------------------------------------------------------------- one version, one list


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PROJECT["version"] == deconditional.__version__ == str(citation["version"])
    assert str(Version(PROJECT["version"])) == PROJECT["version"]


def test_the_citation_has_what_its_format_asks_for():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    paper = citation["preferred-citation"]
    assert citation["cff-version"] == "1.2.0" and citation["license"] == PROJECT["license"]
    assert citation["type"] == "software" and citation["message"]
    assert paper["type"] == "conference-paper" and paper["year"] == 2021
    for each in (citation, paper):
        assert each["title"] and each["authors"]
        for author in each["authors"]:
            assert "name" in author or {"family-names", "given-names"} <= set(author)
    if "date-released" in citation:
        datetime.date.fromisoformat(str(citation["date-released"]))


def test_the_pinned_set_is_allowed():
    pinned = pins("constraints.txt")
    for name, wanted in requirements("dev").items():
        for each in wanted:
            assert pinned[name] in each.specifier, str(each)


def test_the_lowest_set_has_every_lower_bound():
    """Otherwise something that is needed asks for more, and the bound is not true."""
    lowest = pins("constraints-lowest.txt")
    for name, wanted in requirements("test").items():
        bounds = [
            Version(s.version) for each in wanted for s in each.specifier if s.operator == ">="
        ]
        assert bounds, f"{name} has no lower bound"
        assert Version(lowest[name].base_version) == max(bounds), name


# --------------------------------------------------------------------------- what is imported

DISTRIBUTIONS = {"sklearn": "scikit-learn", "skimage": "scikit-image", "netCDF4": "netcdf4"}


def imported(tree):
    """Names of the modules that a file imports anywhere, and where."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0], node.lineno


def test_everything_that_is_imported_is_declared():
    declared = set(requirements("all", "bench"))
    own = {*sys.stdlib_module_names, "deconditional"}
    strangers, used = [], set()
    for path in PACKAGE.rglob("*.py"):
        for module, line in imported(ast.parse(path.read_text())):
            name = normal(DISTRIBUTIONS.get(module, module))
            used.add(name)
            if module not in own and name not in declared:
                strangers.append(f"{path.relative_to(ROOT)}:{line}: {module}")
    assert strangers == []
    # JAX bounds its folder of compiled code with it.
    assert set(requirements()) - used <= {"filelock"}


# --------------------------------------------------------------------------- without the extras

LIMITED = r"""
import contextlib, io, json, sys

absent = set(sys.argv[1].split(","))

class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            return None
        return self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]

import numpy as np
import deconditional as dc
from deconditional.cli.main import main

def command(*given):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(list(given))
    return [code, said.getvalue()]

def tried(act):
    try:
        return act()
    except Exception as error:
        return [type(error).__name__, str(error)]

found = {}
for name, act in json.loads(sys.argv[2]).items():
    found[name] = tried(lambda: eval(act))
found["loaded"] = sorted(absent & set(sys.modules))
print(json.dumps(found))
"""


def without(absent, actions, folder):
    """What each action gave in a process where some packages are not installed."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, ",".join(absent), json.dumps(actions)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


FIT = (
    "(lambda bags: dc.CentroidGP(fixed={'kernel.lengthscale': 2.0, 'kernel.variance': 1.0})"
    ".fit(bags, np.arange(5.0), noise_std=0.1).predict([[4.5]]).mean.tolist())"
    "(dc.Bags.from_points(np.arange(10.0), np.arange(10) // 2))"
)
FILES = "'--fine', 'fine.nc', '--coarse', 'coarse.nc', '--target', 'tas', '--covariates', 'z'"
IN_MEMORY = """(lambda d: float(
    dc.Downscaler(
        "tas", ["altitude"], [], model="gpr", kernel="smooth", position=False, n_restarts=1,
        model_options={"fixed": {"kernel.lengthscale": [1.0], "kernel.variance": 1.0}},
    ).fit(d.fine, d.coarse).predict(d.fine)["mean"].mean()
))(dc.datasets.split_cells(
    dc.datasets.synthetic_fields(8, 16), "tas", ["altitude"], [], 4, matched=1.0
))"""
CORE_ALONE = {
    "a fit": (FIT, None),
    "a swiss roll": ("dc.datasets.swiss_roll(60, 3).x.shape", None),
    "help": ("command('--help')", None),
    "downscale": ("dc.downscale", "fields"),
    "made-up fields": ("dc.datasets.synthetic_fields(4, 8)", "fields"),
    "real fields": ("dc.datasets.global_fields()", "fields"),
    "the command downscale": (
        f"command('downscale', {FILES}, '--out', 'out.nc')",
        "fields",
    ),
    "the command demo": ("command('demo', '--out', 'demo')", "demo"),
    "the command report": ("command('report', 'some.nc')", "report"),
}
FIELDS_ALONE = {
    "a figure": (
        "__import__('deconditional.report.plots').report.plots.require_matplotlib()",
        "plots",
    ),
    "a Zarr store": (f"command('downscale', {FILES}, '--out', 'out.zarr')", "zarr"),
    "chunks": (
        f"command('downscale', {FILES}, '--out', 'out.nc', '--chunked', 'yes')",
        "dask",
    ),
    "workers": (
        f"command('downscale', {FILES}, '--out', 'out.nc', '--workers', '2')",
        "dask",
    ),
    "a report": (
        f"command('downscale', {FILES}, '--out', 'out.nc', '--report', 'out.html')",
        "report",
    ),
    "fields in memory": (IN_MEMORY, None),
}
ABSENT = {
    "core": (
        *("xarray", "cf_xarray", "netCDF4", "cftime", "pandas", "zarr", "dask", "distributed"),
        *("matplotlib", "jinja2", "itur", "astropy", "gpytorch", "torch", "skimage", "hypothesis"),
        "pyproj",
    ),
    "fields": (
        *("pyproj", "zarr", "dask", "distributed", "matplotlib", "jinja2", "itur", "astropy"),
        "skimage",
    ),
}


@pytest.fixture(scope="module")
def core_alone(tmp_path_factory):
    actions = {name: act for name, (act, _) in CORE_ALONE.items()}
    return without(ABSENT["core"], actions, tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="module")
def fields_alone(tmp_path_factory):
    pytest.importorskip("xarray")
    actions = {name: act for name, (act, _) in FIELDS_ALONE.items()}
    return without(ABSENT["fields"], actions, tmp_path_factory.mktemp("fields"))


def assert_names(extra, found):
    """One line, or an ImportError, that says what to install."""
    what, said = found
    assert what in (2, "ImportError"), found
    assert f"pip install 'deconditional[{extra}]'" in said.replace('"', "'")
    assert said.strip().count("\n") == 0


@pytest.mark.parametrize("name", [name for name, (_, extra) in CORE_ALONE.items() if extra])
def test_the_core_alone_names_the_extra_that_is_missing(core_alone, name):
    assert_names(CORE_ALONE[name][1], core_alone[name])


def test_the_core_alone_answers_as_with_everything(core_alone):
    assert core_alone["a fit"] == pytest.approx(evaluated(FIT), rel=1e-9)
    assert core_alone["help"] == [0, ""] and core_alone["a swiss roll"] == [60, 3]
    assert core_alone["loaded"] == []


@pytest.mark.parametrize("name", [name for name, (_, extra) in FIELDS_ALONE.items() if extra])
def test_fields_alone_name_the_extra_that_is_missing(fields_alone, name):
    assert_names(FIELDS_ALONE[name][1], fields_alone[name])


def test_fields_alone_answer_as_with_everything(fields_alone):
    assert fields_alone["fields in memory"] == pytest.approx(evaluated(IN_MEMORY), rel=1e-9)
    assert fields_alone["loaded"] == []


def evaluated(action):
    """The same in this process, where nothing is missing."""
    return eval(action, {"dc": deconditional, "np": np})
