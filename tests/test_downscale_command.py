"""``deconditional downscale`` and ``report`` as users meet them: files in, a file or a line out."""

import contextlib
import errno
import io
import json
import os
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from deconditional import models
from deconditional.cli import main as cli
from deconditional.cli import options as command_options
from deconditional.datasets import split_cells, synthetic_fields
from deconditional.errors import FitWarning
from deconditional.fields import learn, recipes
from deconditional.fields.io import writing
from deconditional.fields.learn import Learner
from deconditional.inference.posterior import Gaussians
from made_up_grids import projected_fields, upside_down

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
pytest.importorskip("zarr")

VARIABLES = ["--target", "tas", "--covariates", "altitude,cloud", "--mediators", "water_vapour"]
FILES = ["--fine", "fine.nc", "--coarse", "coarse.nc"]
TIMES = ["2000-01-01", "2000-01-05"]


def run(*arguments):
    """Exit code, standard output and standard error of ``deconditional downscale``."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(["downscale", *map(str, arguments)])
    return code, out.getvalue(), err.getvalue()


def contents(folder):
    """The bytes of all files below a folder, hidden ones too."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


class Posterior(Gaussians):
    @property
    def latent(self):
        return self

    @property
    def extrapolation(self):
        return np.zeros(len(self.mean), dtype=np.int8)

    def sample(self, n, seed):
        draws = np.random.default_rng(seed).standard_normal((n, len(self.mean)))
        return self.mean + self.std * draws


class Regression:
    """A model that learns in no time: least squares, on mediators first where there are any."""

    kernel_ = None

    def __init__(self, data, z):
        goal = z
        if data.mediator is not None:
            goal = self.line(data.bags.mediator) @ self.solve(data.mediator, z)
        self.slopes = self.solve(data.bags.means(), goal)
        self.z = z
        self.parameters_ = {"noise_std": 0.1}
        self.fit_report_ = SimpleNamespace(
            converged=True, iterations=1, log_evidence=0.0, notes=(), details={}
        )

    def line(self, x):
        return np.column_stack([np.ones(len(x)), x])

    def solve(self, x, z):
        return np.linalg.lstsq(self.line(x), z)[0]

    def predict(self, x, fine_noise=False, features=None):
        mean = self.line(x) @ self.slopes
        return Posterior(mean[None], np.full((1, len(mean)), 0.01))

    def predict_held_out(self, folds):
        return Posterior(self.z[None], np.full((1, len(self.z)), 0.01))

    predict_from_means = predict_held_out


@pytest.fixture
def at_once(monkeypatch):
    """Everything but the fit itself as it is."""
    monkeypatch.setattr(Learner, "fit", lambda self, name, data, z: Regression(data, z))
    monkeypatch.setattr(learn, "mixed", list)  # of such models there is no mixture


class Data(NamedTuple):
    folder: Path
    fine: "xr.Dataset"
    coarse: "xr.Dataset"
    truth: "xr.DataArray"
    everywhere: "xr.Dataset"


def written(folder, fields, **options):
    """A split into files: covariates in some coarse cells, the target in others."""
    parts = split_cells(
        fields, "tas", ["altitude", "cloud"], ["water_vapour"], block=4, noise_std=0.1, **options
    )
    fine, coarse = parts.fine, parts.coarse
    if "time" in fields.dims:  # covariates at the first time, the target at the second
        fine = fine.isel(time=[0])
        coarse = coarse.assign(tas=coarse.tas.where(coarse.time > coarse.time[0]))
    coarse.attrs["history"] = "2001-01-01: made up"
    fine.to_netcdf(folder / "fine.nc")
    coarse.to_netcdf(folder / "coarse.nc")
    parts.everywhere.to_netcdf(folder / "everywhere.nc")
    parts.truth.to_netcdf(folder / "truth.nc")
    return Data(folder, fine, coarse, parts.truth, parts.everywhere)


@pytest.fixture(scope="module")
def in_time(tmp_path_factory):
    """Rows from north to south, half of the cells missing, covariates before the target."""
    fields = upside_down(synthetic_fields(24, 48, times=TIMES))
    return written(tmp_path_factory.mktemp("in_time"), fields)


@pytest.fixture(scope="module")
def still(tmp_path_factory):
    """Without time."""
    return written(tmp_path_factory.mktemp("still"), synthetic_fields(24, 48))


@pytest.fixture
def here(still, tmp_path, monkeypatch):
    """A working folder with fresh copies of the files without time."""
    for name in ("fine.nc", "coarse.nc"):
        shutil.copy(still.folder / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- a new user ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(in_time, tmp_path_factory):
    """A real run, with all that can be asked for."""
    folder = tmp_path_factory.mktemp("done")
    given = ["--fine", in_time.folder / "fine.nc", "--coarse", in_time.folder / "coarse.nc"]
    asked = ["--quantiles", "0.95,0.05", "--samples", "2", "--model", "gpr", "--restarts", "1"]
    asked += ["--out", folder / "tas.nc", "--report", folder / "tas.html"]
    code, out, err = run(*given, *VARIABLES, *asked)
    assert code == 0
    # The target is four days after the covariates: time, a mediator, is outside of what was seen.
    assert all(line.startswith("note: ") and " outside the " in line for line in err.splitlines())
    with xr.open_dataset(folder / "tas.nc") as data:
        return SimpleNamespace(folder=folder, out=out, data=data.load())


def test_says_what_it_understood_and_what_came_out(done):
    before, after = done.out.split("held-out", 1)
    for part in (
        "24 cells of lat from -90 to 90",
        "6 cells of lat",
        "1 fine and 2 coarse times, 1 in common",
        "altitude, cloud, known in 50.0% of 1152 fine cells",
        "36 of 144 coarse cells have tas",
        "36 are linked through the mediators",
    ):
        assert part in before
    for part in ("gpr", "posterior  576 fine cells", " K", "seconds", "tas.nc", "tas.html"):
        assert part in after


def test_output_has_what_was_asked_for(done, in_time):
    data = done.data
    assert data["mean"].dims == data["std"].dims == ("time", "lat", "lon")
    assert data["quantiles"].dims == ("quantile", "time", "lat", "lon")
    assert data["samples"].dims == ("sample", "time", "lat", "lon")
    np.testing.assert_array_equal(data["quantile"], [0.05, 0.95])
    known = in_time.fine.cloud.notnull()
    for name in ("mean", "std", "quantiles", "samples"):
        assert bool((data[name].notnull() == known).all())
    low, high = data["quantiles"].transpose("quantile", ...)
    inside = low.notnull()
    assert bool(((low < data["mean"]) & (data["mean"] < high)).where(inside, True).all())
    for name in ("time", "lat", "lon"):
        xr.testing.assert_identical(data[name], in_time.fine[name].drop_encoding())
    np.testing.assert_array_equal(data["lat_bnds"], in_time.fine["lat_bnds"])
    assert data["coarse_observed"].sizes == {"coarse_time": 2, "coarse_lat": 6, "coarse_lon": 12}


def test_output_follows_the_conventions(done):
    data = done.data
    assert data.attrs["Conventions"] == "CF-1.11"
    new, old = data.attrs["history"].split("\n")
    assert "deconditional downscale --fine " in new and "--quantiles 0.95,0.05" in new
    assert old == "2001-01-01: made up"
    for name in ("mean", "std", "quantiles", "samples", "coarse_residual"):
        assert data[name].attrs["units"] == "K"
        assert data[name].attrs["cell_methods"] == "area: mean"
    assert data["mean"].attrs["standard_name"] == "air_temperature"
    with xr.open_dataset(done.folder / "tas.nc", decode_cf=False) as raw:
        for name in ("time", "lat", "lon", "lat_bnds", "coarse_lat", "quantile"):
            assert "_FillValue" not in raw[name].attrs
    facts = json.loads(data.attrs["deconditional"])
    assert facts["target"] == "tas" and facts["covariates"] == ["altitude", "cloud"]
    assert facts["model"] == "gpr" and facts["options"]["n_restarts"] == 1
    about = {row["name"]: row for row in facts["parameters"]}
    for name in ("noise_std", "mediator.noise_std"):
        assert about[name]["unit"] == "K" and "noise of coarse" in about[name]["meaning"]


def test_numbers_are_close_to_the_truth(done, in_time):
    truth = in_time.truth.isel(time=[0])
    error = (done.data["mean"] - truth).values
    error = error[np.isfinite(error)]
    rmse = np.sqrt(np.mean(error**2))
    assert rmse < 0.5 * float(truth.where(done.data["mean"].notnull()).std())
    within = (truth > done.data["quantiles"][0]) & (truth < done.data["quantiles"][1])
    assert 0.7 < float(within.sum()) / error.size <= 1.0


def test_pages(done, in_time, capsys):
    assert "<h2>" in (done.folder / "tas.html").read_text(encoding="utf-8")
    page = done.folder / "held.html"
    truth = str(in_time.folder / "truth.nc")
    arguments = ["report", str(done.folder / "tas.nc"), "--truth", truth, "--out", str(page)]
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert "truth" in page.read_text(encoding="utf-8")


def test_a_projected_grid(tmp_path, monkeypatch, at_once):
    data = written(tmp_path, projected_fields(24, 48), matched=1.0)
    monkeypatch.chdir(tmp_path)
    code, said, err = run(*FILES, "--target", "tas", "--covariates", "altitude", "--out", "tas.nc")
    assert (code, err) == (0, "")
    assert "24 cells of y" in said and "written  tas.nc" in said
    with xr.open_dataset(tmp_path / "tas.nc", decode_coords="all") as out:
        assert out["mean"].encoding["grid_mapping"] == "crs"
        assert out["crs"].attrs == data.fine["crs"].attrs
        assert {"crs", "y_bnds", "x_bnds"} <= set(out.coords)
        for name in ("y", "x"):
            np.testing.assert_array_equal(out[name], data.fine[name])


# --- bad input ----------------------------------------------------------------------------------


def fine_as(change, name="fine.nc"):
    """Rewrite the fine file."""

    def prepare(folder):
        with xr.open_dataset(folder / "fine.nc") as opened:
            data = opened.load()
        change(data).to_netcdf(folder / name)

    return prepare


def coarse_as(change):
    """Rewrite the coarse file."""

    def prepare(folder):
        with xr.open_dataset(folder / "coarse.nc") as opened:
            data = opened.load()
        change(data).to_netcdf(folder / "coarse.nc")

    return prepare


def both(*changes):
    def prepare(folder):
        for change in changes:
            change(folder)

    return prepare


def without_bounds(data):
    return data.drop_vars(["lat_bnds", "lon_bnds"], errors="ignore")


def at_times(data):
    return data.expand_dims(time=np.array(TIMES, dtype="datetime64[ns]"))


def text_in(path, text):
    return lambda folder: (folder / path).write_text(text)


nothing = both()

BAD = {
    # variables and grids, the rest of whose complaints tests of pairing and of grids make
    "no such target": (nothing, "--target rain", "'rain'", "it has"),
    "levels": (
        fine_as(lambda f: f.assign(cloud=f.cloud.expand_dims(plev=[1000.0, 500.0]))),
        "",
        "'plev'",
        "select one value",
    ),
    "no coordinates": (
        fine_as(lambda f: without_bounds(f).drop_vars(["lat", "lon"])),
        "",
        "latitude",
        "--dims y=",
    ),
    # options
    "quantile in words": (nothing, "--quantiles median", "--quantiles", "numbers between commas"),
    "folds": (nothing, "--folds 1", "--folds", "at least 2, not 1"),
    "restarts": (nothing, "--restarts 0", "--restarts", "at least 1, not 0"),
    "model": (nothing, "--model spline", "'spline'", "choose from"),
    "dims of another file": (nothing, "--dims y=north", "'north'", "--dims"),
    "log of zero": (
        coarse_as(lambda c: c.assign(tas=c.tas - 300)),
        "--transform log",
        "log",
        "Leave it out",
    ),
    "bounds": (nothing, "--bounds 0,100", "36 observed values", "correct"),
    "bounds in disorder": (nothing, "--bounds 1,0", "(1.0, 0.0)", "the lesser one first"),
    # times
    "no such time": (
        both(fine_as(at_times), coarse_as(at_times)),
        "--time 1999-07",
        "'1999-07'",
        "its times are from 2000-01-01 to 2000-01-05",
    ),
    "no times": (nothing, "--time 2000-01", "--time 2000-01", "leave it out"),
    # files
    "no such file": (nothing, "--fine nowhere.nc", "'nowhere.nc'", "check its name"),
    "no match": (nothing, "--coarse gcm_*.nc", "'gcm_*.nc'", "check the pattern"),
    "files that contradict": (
        fine_as(lambda f: f + 1.0, "b.nc"),
        "--fine fine.nc b.nc",
        "2 fine files do not fit together",
        "one file",
    ),
    "nothing to predict on": (
        fine_as(lambda f: f[["cloud"]], "on.nc"),
        "--on on.nc",
        "--on: the fine data has no variable 'altitude'",
        "it has cloud",
    ),
    # outputs
    "over an input": (nothing, "--out fine.nc", "'fine.nc' is also an input", "name another"),
    "over an input, by force": (
        nothing,
        "--overwrite --out coarse.nc",
        "'coarse.nc' is also an input",
        "name another",
    ),
    "over an input, in a pattern": (
        nothing,
        "--overwrite --coarse c*.nc --out ./coarse.nc",
        "is also an input ('c*.nc')",
        "name another",
    ),
    "report in no folder": (nothing, "--report far/a.html", "far", "make it first"),
    "report there": (text_in("a.html", "mine"), "--report a.html", "'a.html'", "--overwrite"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_line(here, case):
    prepare, extra, thing, remedy = BAD[case]
    prepare(here)
    before = contents(here)
    code, _, err = run(*FILES, *VARIABLES, "--out", "out.nc", *extra.split())
    assert code == 2
    assert err.startswith("deconditional: error: ") and err.count("\n") == 1
    assert thing in err and remedy in err, err
    assert contents(here) == before


def test_existing_output_is_left_alone(here):
    (here / "out.nc").write_bytes(b"mine")
    code, _, err = run(*FILES, *VARIABLES, "--out", "out.nc")
    assert code == 2
    assert err == (
        "deconditional: error: the output 'out.nc' exists; name another, or replace it "
        "(overwrite=True, --overwrite).\n"
    )
    assert (here / "out.nc").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (ValueError("the bags are\nodd"), "the bags are"),
        (np.linalg.LinAlgError("not positive definite"), "not positive definite"),
        (FloatingPointError("overflow"), "overflow"),
        (RuntimeError("RESOURCE_EXHAUSTED: out of memory"), "RESOURCE_EXHAUSTED"),
        (MemoryError(), "--points-per-bag"),
    ],
)
@pytest.mark.parametrize("where", ["fit", "predict"])
def test_faults_of_the_computation_are_one_line(here, request, monkeypatch, where, fault, words):
    def fail(*_, **__):
        raise fault

    if where == "fit":
        monkeypatch.setattr(models.CMP, "fit", fail)
    else:
        request.getfixturevalue("at_once")
        monkeypatch.setattr(Regression, "predict", fail)
    code, _, err = run(*FILES, *VARIABLES, "--model", "cmp", "--out", "out.nc")
    assert code == 2
    assert err.startswith("deconditional: error: ") and err.count("\n") == 1
    assert words in err and ("cmp" in err or "memory" in err)
    assert not (here / "out.nc").exists()


def test_notes_of_the_fit_are_shown_after_the_result_is_safe(here, at_once, monkeypatch):
    def noting(self, name, data, z):
        warnings.warn("the noise is at its bound; [more data] helps.", FitWarning, stacklevel=2)
        return Regression(data, z)

    monkeypatch.setattr(Learner, "fit", noting)
    code, _, err = run(*FILES, *VARIABLES, "--out", "out.nc")
    assert (code, err) == (0, "note: the noise is at its bound; [more data] helps.\n")
    code, _, err = run(*FILES, *VARIABLES, "--out", "out.nc", "--overwrite", "--quiet")
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "thing", "remedy"),
    [
        (["nowhere.nc"], "'nowhere.nc' does not exist", "check its name"),
        (["fine.nc"], "'fine.nc' is no result", "name a file"),
        (["fine.nc", "--out", "fine.nc"], "'fine.nc' must end in .html", "name another"),
        (["fine.nc", "--out", "far/a.html"], "far", "make it first"),
    ],
)
def test_bad_reports(here, capsys, arguments, thing, remedy):
    before = contents(here)
    assert cli.main(["report", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("deconditional: error: ") and err.count("\n") == 1
    assert thing in err and remedy in err
    assert contents(here) == before


# --- all or nothing -----------------------------------------------------------------------------


def full_disk():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(params=["out.nc", "out.zarr"])
def old(request, here, at_once):
    """An output of an earlier run."""
    assert run(*FILES, *VARIABLES, "--out", request.param, "--quiet")[0] == 0
    return request.param


def breaking_off(method, error):
    """Write a part, then fail."""
    whole = getattr(xr.Dataset, method)

    def write(self, path, **options):
        whole(self[["mean"]], path, **options)
        raise error

    return write


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (full_disk(), 2, "No space left on device"),
        (RuntimeError("NetCDF: HDF error"), 2, "HDF error"),
        (KeyboardInterrupt(), 130, "what was there has not changed"),
    ],
)
def test_nothing_is_left_of_a_broken_write(here, old, monkeypatch, error, code, words):
    before = contents(here)
    method = "to_zarr" if old.endswith("zarr") else "to_netcdf"
    monkeypatch.setattr(xr.Dataset, method, breaking_off(method, error))
    for out in (old, f"new{Path(old).suffix}"):
        got, _, err = run(*FILES, *VARIABLES, "--out", out, "--overwrite")
        assert got == code
        assert words in err and "Traceback" not in err
        assert contents(here) == before
        assert not list(here.glob(".*"))


def test_nothing_is_left_of_an_interrupted_fit(here, old, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Learner, "learn", interrupted)
    before = contents(here)
    code, _, err = run(*FILES, *VARIABLES, "--out", old, "--overwrite")
    assert code == 130
    assert err == (
        "\ndeconditional: interrupted. No output was written; what was there has not changed.\n"
    )
    assert contents(here) == before


@pytest.mark.parametrize("call", [1, 2])
def test_an_interrupt_between_two_stores_keeps_the_old_one(here, at_once, monkeypatch, call):
    assert run(*FILES, *VARIABLES, "--out", "out.zarr", "--quiet")[0] == 0
    before = contents(here)
    replace, calls = os.replace, []

    def interrupted(source, target):
        if Path(source).parent == Path():  # Zarr has its own, below the store
            calls.append(source)
            if len(calls) == call:
                raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(writing.os, "replace", interrupted)
    assert run(*FILES, *VARIABLES, "--out", "out.zarr", "--overwrite")[0] == 130
    assert contents(here) == before


def test_overwrite_replaces(here, old):
    before = contents(here)
    assert run(*FILES, *VARIABLES, "--out", old)[0] == 2
    assert contents(here) == before
    more = ["--out", old, "--overwrite", "--quantiles", "0.5"]
    assert run(*FILES, *VARIABLES, *more)[0] == 0
    with xr.open_dataset(old) as data:
        assert "quantiles" in data
    assert not list(here.glob(".*"))


def test_a_report_that_fails_leaves_the_result(here, at_once, monkeypatch):
    from deconditional.cli import downscale
    from deconditional.report import write as report

    def fail(text, *_):
        raise full_disk()

    def interrupted(*_):
        raise KeyboardInterrupt

    arguments = [*FILES, *VARIABLES, "--out", "out.nc", "--overwrite", "--report", "a.html"]
    monkeypatch.setattr(report, "write_atomically", fail)
    code, out, err = run(*arguments)
    assert code == 2
    assert "written  out.nc" in out
    assert "'a.html'" in err and "No space left on device" in err and err.count("\n") == 1
    monkeypatch.setattr(downscale, "write_page", interrupted)
    code, _, err = run(*arguments)
    assert code == 130 and "out.nc is written" in err
    assert (here / "out.nc").exists() and not (here / "a.html").exists()


# --- forms of input and output ------------------------------------------------------------------


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    """The same data in one file, in a store, in files by time and in files by variable."""
    folder = tmp_path_factory.mktemp("forms")
    fields = upside_down(synthetic_fields(24, 48, times=TIMES))
    data = written(folder, fields, matched=0.5)
    fine = split_cells(fields, "tas", ["altitude", "cloud"], ["water_vapour"], 4, 0.5).fine
    coarse = data.coarse
    for name, whole in (("fine", fine), ("coarse", coarse)):
        whole.to_netcdf(folder / f"{name}.nc")
        with warnings.catch_warnings():  # of consolidated metadata, which Zarr 3 does not define
            warnings.simplefilter("ignore")
            whole.to_zarr(folder / f"{name}.zarr")
            whole.to_zarr(folder / f"{name}2.zarr", zarr_format=2)
        for k in range(len(TIMES)):
            whole.isel(time=[k]).to_netcdf(folder / f"{name}_time{k}.nc")
        bounds = ["lat_bnds", "lon_bnds"]
        for variable in {"altitude", "cloud", "tas", "water_vapour"} & set(whole.data_vars):
            whole[[variable, *bounds]].to_netcdf(folder / f"{name}_var_{variable}.nc")
    return folder


FORMS = {
    "stores to a store": ("--fine fine.zarr --coarse coarse.zarr", ".zarr"),
    "old stores": ("--fine fine2.zarr --coarse coarse2.zarr", ".nc"),
    "old stores to a store": ("--fine fine2.zarr --coarse coarse2.zarr", ".zarr"),
    "a file to a store": ("--fine fine.nc --coarse coarse.nc", ".zarr"),
    "by time": ("--fine fine_time*.nc --coarse coarse_time1.nc coarse_time0.nc", ".nc"),
    "by variable": ("--fine fine_var*.nc --coarse coarse_var_*.nc", ".nc"),
    "mixed": ("--fine fine.zarr --coarse coarse_var_tas.nc coarse_time?.nc", ".nc"),
}


def asked(given, out, *more):
    """A result, read back as anybody would."""
    code, _, err = run(*given, *VARIABLES, "--out", out, "--quantiles", "0.5", *more)
    assert (code, err) == (0, "")
    with xr.open_dataset(out) as data:
        return data.load()


@pytest.mark.parametrize(
    ("covariates", "tried"),
    [
        ("altitude,cloud", list(FORMS)),
        ("altitude", ["stores to a store", "by time", "by variable"]),
    ],
)
def test_the_form_of_the_files_does_not_matter(
    forms, tmp_path, monkeypatch, at_once, covariates, tried
):
    monkeypatch.chdir(forms)
    one = asked(FILES, tmp_path / "one.nc", "--covariates", covariates)
    for form in tried:
        given, suffix = FORMS[form]
        out = tmp_path / f"{form}{suffix}"
        other = asked(given.split(), out, "--covariates", covariates)
        assert one["mean"].dims == other["mean"].dims, form
        xr.testing.assert_allclose(one, other, rtol=1e-12)
        assert one["mean"].attrs == other["mean"].attrs, form
        assert one["lat"].attrs == other["lat"].attrs, form


def test_a_file_of_one_time_beside_files_of_several(forms, tmp_path, monkeypatch, at_once):
    monkeypatch.chdir(forms)
    with xr.open_dataset("coarse_var_tas.nc") as data:
        data.isel(time=1).to_netcdf(tmp_path / "tas.nc")
    one = asked(FILES, tmp_path / "one.nc")
    given = ["--fine", "fine.nc", "--coarse", tmp_path / "tas.nc", "coarse_var_water_vapour.nc"]
    xr.testing.assert_allclose(one, asked(given, tmp_path / "other.nc"), rtol=1e-12)


def test_predicts_on_another_grid(forms, tmp_path, monkeypatch, at_once):
    monkeypatch.chdir(forms)
    days = ["2000-01-03", "2000-01-04"]  # of a single time the mean over time is not known
    region = synthetic_fields(20, 30, times=days, extent=(30, 60, 0, 60))
    region[["altitude", "cloud", "lat_bnds", "lon_bnds"]].to_netcdf(tmp_path / "on.nc")
    out = asked(FILES, tmp_path / "out.nc", "--on", tmp_path / "on.nc")
    assert out["mean"].sizes == {"time": 2, "lat": 20, "lon": 30}
    assert bool(out["mean"].notnull().all())
    for name in ("time", "lat", "lon"):
        np.testing.assert_array_equal(out[name], region[name])


def test_selects_times(forms, tmp_path, monkeypatch, at_once):
    monkeypatch.chdir(forms)
    second = ["--fine", "fine_time1.nc", "--coarse", "coarse_time1.nc"]
    expected = asked(second, tmp_path / "second.nc")
    chosen = asked(FILES, tmp_path / "chosen.nc", "--time", "2000-01-05")
    xr.testing.assert_allclose(chosen, expected, rtol=1e-12)
    span = asked(FILES, tmp_path / "span.nc", "--time", "2000-01-02/2000-02")
    xr.testing.assert_identical(span["mean"], chosen["mean"])


@pytest.mark.parametrize("name", ["t", "valid_time"])
def test_selects_times_by_any_name_and_in_any_order(forms, tmp_path, monkeypatch, at_once, name):
    monkeypatch.chdir(forms)
    expected = asked(FILES, tmp_path / "expected.nc", "--time", "2000-01-05")
    monkeypatch.chdir(tmp_path)
    for file in ("fine.nc", "coarse.nc"):
        with xr.open_dataset(forms / file) as data:
            data.load().rename(time=name).isel({name: [1, 0]}).to_netcdf(file)
    chosen = asked(FILES, "out.nc", "--time", "2000-01-05")
    assert chosen["mean"].dims == (name, "lat", "lon")
    np.testing.assert_array_equal(chosen["mean"], expected["mean"])


def test_times_of_several_files_in_different_units(forms, tmp_path, monkeypatch, at_once):
    monkeypatch.chdir(tmp_path)
    for k, units in enumerate(("days since 2000-01-01", "hours since 1900-01-01")):
        with xr.open_dataset(forms / f"fine_time{k}.nc") as data:
            data = data.load().assign_coords(time=data.time + np.timedelta64(12 * k, "h"))
        data.time.encoding = {"units": units, "dtype": "int64"}
        data.to_netcdf(f"fine_{k}.nc")
    out = asked(["--fine", "fine_*.nc", "--coarse", forms / "coarse.nc"], "out.nc")
    expected = np.array(["2000-01-01", "2000-01-05T12"], dtype="datetime64[ns]")
    np.testing.assert_array_equal(out["time"], expected)


def test_model_calendars_and_bounds_of_times(forms, tmp_path, monkeypatch, at_once):
    monkeypatch.chdir(tmp_path)
    for name in ("fine.nc", "coarse.nc"):
        with xr.open_dataset(forms / name) as data:
            data = data.load().convert_calendar("360_day", align_on="date")
        data["time_bnds"] = (("time", "bnds"), np.stack([data.time.values] * 2, 1))
        data.time.attrs["bounds"] = "time_bnds"
        data.time.encoding = {"units": "days since 1850-01-01", "calendar": "360_day"}
        data.to_netcdf(name)
    out = asked(FILES, "out.nc", "--time", "2000-01-05")
    with xr.open_dataset("fine.nc") as fine:
        xr.testing.assert_equal(out["time"], fine["time"][[1]])
        xr.testing.assert_equal(out["time_bnds"], fine["time_bnds"][[1]])


def test_quiet(here, at_once):
    assert run(*FILES, *VARIABLES, "--out", "out.nc", "--quiet") == (0, "", "")


def test_names_with_brackets_are_taken_as_they_are(here, at_once):
    (here / "fine.nc").rename("fine[1].nc")
    given = ["--fine", "fine[1].nc", "--coarse", "coarse.nc"]
    code, out, _ = run(*given, *VARIABLES, "--out", "[red]out:smile:.nc")
    assert code == 0
    assert "written  [red]out:smile:.nc\n" in out


def test_files_that_name_variables_kept_elsewhere(here, at_once):
    coarse_as(lambda c: c.assign(tas=c.tas.assign_attrs(cell_measures="area: areacella")))(here)
    code, _, err = run(*FILES, *VARIABLES, "--out", "out.nc")
    assert (code, err) == (0, "")


def test_report_of_a_store(here, at_once, capsys):
    assert run(*FILES, *VARIABLES, "--out", "out.zarr")[0] == 0
    assert cli.main(["report", "out.zarr"]) == 0
    assert capsys.readouterr().out == "out.html\n"


def test_every_model_can_be_asked_for():
    assert set(command_options.MODELS) == {"auto", *recipes.MODELS}
