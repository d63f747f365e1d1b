"""Bad inputs of every kind: one line that says what to change, and nothing written.

Every row of the tables is a name, what to do to a folder with good files, the command, and words
that the complaint must have. Whatever is asked, the complaint must come before a fit begins.
"""

import contextlib
import gzip
import io
import json
import os
import resource
import shutil
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import deconditional as dc
from deconditional.cli import main as cli
from deconditional.datasets import split_cells, synthetic_fields
from deconditional.errors import UsageError, shortened, visible
from deconditional.fields import io as files
from deconditional.fields import learn, overlap
from deconditional.fields.downscaler import Downscaler
from deconditional.fields.grids import find_grid
from deconditional.fields.io import checks
from deconditional.fields.io.checks import check_whole
from deconditional.fields.learn import Learner
from deconditional.saving.outputs import check_place, write_atomically
from reliability import record, tries
from test_downscale_command import Regression

xr = pytest.importorskip("xarray")
netCDF4 = pytest.importorskip("netCDF4")
zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.reliability

GROUP = "bad inputs"
GIVEN = "--fine fine.nc --coarse coarse.nc --target tas --covariates altitude,cloud"
MILLION = "a" * 10**6
ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


class LongWorkError(BaseException):
    """A fit was begun."""


# ---------------------------------------------------------------------- a folder of good files


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Files that downscale understands."""
    folder = tmp_path_factory.mktemp("good")
    roles = ("tas", ["altitude", "cloud"], ["water_vapour"])
    data = split_cells(synthetic_fields(12, 24), *roles, block=3, matched=0.5)
    data.fine.to_netcdf(folder / "fine.nc")
    data.coarse.to_netcdf(folder / "coarse.nc")
    with warnings.catch_warnings():  # of consolidated metadata, which Zarr 3 does not define
        warnings.simplefilter("ignore")
        data.fine.to_zarr(folder / "fine.zarr", consolidated=False)
        data.fine.to_zarr(folder / "fine2.zarr", zarr_format=2, consolidated=False)
        data.coarse.to_zarr(folder / "coarse.zarr", consolidated=False)
    return folder


@pytest.fixture
def place(good, tmp_path, monkeypatch):
    """Makes fresh copies of the files, in a folder within one that is watched, and goes there."""
    monkeypatch.setattr(Learner, "fit", _begun)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))
    made = []

    def fresh(stores=True):
        here = tmp_path / f"case{len(made)}" / "here"
        made.append(here)
        shutil.copytree(good, here, ignore=None if stores else shutil.ignore_patterns("*.zarr"))
        (tmp_path / "home").mkdir(exist_ok=True)
        monkeypatch.chdir(here)
        return here

    return fresh


def _begun(*_, **__):
    raise LongWorkError


def seen(folder):
    """Everything below a folder: kind, target of links, content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = path.lstat().st_mode
        content = path.read_bytes() if stat.S_ISREG(kind) else b""
        link = os.readlink(path) if stat.S_ISLNK(kind) else ""
        found[str(path.relative_to(folder))] = (stat.S_IFMT(kind), link, content)
    return found


def run(*arguments):
    """Exit code, standard output and standard error of the command line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def check(rows, fresh, command, what):
    """Try every row; every complaint must be a line in the user's words and change nothing."""
    wrong = {}
    for name, (prepare, arguments, *words) in rows.items():
        here = fresh(stores=rows is FILES or rows is OUTPUTS)
        prepare(here)
        given = arguments.split() if isinstance(arguments, str) else arguments
        before, home = seen(here.parent), seen(here.parent.parent / "home")
        try:
            code, _, err = run(*command, *given)
        except BaseException as error:
            wrong[name] = repr(error)
            continue
        missing = [word for word in words if word not in err]
        if code != 2 or not err.startswith("deconditional: error: ") or err.count("\n") != 1:
            wrong[name] = f"code {code}: {err}"
        elif missing or len(err) > 3000 or visible(err) != err:
            wrong[name] = f"lacks {missing}: {err}"
        else:
            after = seen(here.parent) | seen(here.parent.parent / "home")
            changed = {p for p in before | after if (before | home).get(p) != after.get(p)}
            if changed:
                wrong[name] = f"written: {changed}"
    assert not wrong, "\n".join(f"{name}: {text[:600]}" for name, text in wrong.items())
    record(GROUP, what, len(rows), {"one-line error, nothing written": len(rows)})


def nothing(folder):
    pass


# ---------------------------------------------------------------------- ways to spoil files


def fine_as(change, name="fine.nc", **options):
    """Rewrite the fine file."""
    return _as("fine.nc", change, name, options)


def coarse_as(change, name="coarse.nc", **options):
    return _as("coarse.nc", change, name, options)


def _as(source, change, name, options):
    def prepare(folder):
        with xr.open_dataset(folder / source) as opened:
            data = opened.load().drop_encoding()
        change(data).to_netcdf(folder / name, **options)

    return prepare


def both(*changes):
    def prepare(folder):
        for change in changes:
            change(folder)

    return prepare


def plain(data):
    """Without bounds."""
    return data.drop_vars(["lat_bnds", "lon_bnds"], errors="ignore")


def axis(name, change, **attrs):
    """Other values of a coordinate, without bounds."""
    units = {"lat": "degrees_north", "lon": "degrees_east"}[name]
    return lambda data: plain(data).assign_coords(
        {name: (name, change(data[name].values), {"units": units, **attrs})}
    )


def at(index, value):
    """The values with one of them replaced."""
    return lambda values: np.where(np.arange(len(values)) == index, value, values)


def stretched(values):
    return values * 1e12


def raw(path, change):
    """Edit a netCDF file in place, whatever xarray thinks of it."""

    def prepare(folder):
        with netCDF4.Dataset(folder / path, "a") as file:
            change(file)

    return prepare


def new_file(path, change, **options):
    """A netCDF file from nothing."""

    def prepare(folder):
        with netCDF4.Dataset(folder / path, "w", **options) as file:
            change(file)

    return prepare


def content(path, text):
    def prepare(folder):
        (folder / path).parent.mkdir(exist_ok=True, parents=True)
        (folder / path).write_bytes(text if isinstance(text, bytes) else text.encode())

    return prepare


def cut(path, size):
    return lambda folder: os.truncate(folder / path, size)


def halved(path):
    return lambda folder: os.truncate(folder / path, (folder / path).stat().st_size // 2)


def metadata(path, change):
    """Edit a JSON file of a store."""

    def prepare(folder):
        about = json.loads((folder / path).read_text())
        change(about)
        (folder / path).write_text(json.dumps(about))

    return prepare


def chunks(variable, content):
    """Replace the chunks of a variable of a store."""

    def prepare(folder):
        found = [f for f in (folder / "fine.zarr" / variable / "c").rglob("*") if f.is_file()]
        assert found
        for file in found:
            file.write_bytes(content)

    return prepare


def zipped(folder):
    (folder / "fine.nc").write_bytes(gzip.compress((folder / "fine.nc").read_bytes()))


def classic(name, size):
    """The fine file in the classic format, cut."""
    return both(fine_as(lambda f: f, "old.nc", format="NETCDF3_CLASSIC"), cut("old.nc", size))


def boundless(name, cells):
    """Data on 'lat' and 'lon' that is declared and never written."""

    def prepare(folder):
        with netCDF4.Dataset(folder / name, "w") as file:
            for axis_name, size, units in (
                ("lat", cells, "degrees_north"),
                ("lon", cells, "degrees_east"),
            ):
                file.createDimension(axis_name, size)
                line = file.createVariable(
                    axis_name, "f8", (axis_name,), chunksizes=(1000,), zlib=True
                )
                line.units = units
            for variable in ("altitude", "cloud", "tas"):
                file.createVariable(variable, "f8", ("lat", "lon"), chunksizes=(500, 500))
        assert (folder / name).stat().st_size < 100_000

    return prepare


def boundless_line(folder):
    with netCDF4.Dataset(folder / "line.nc", "w") as file:
        file.createDimension("lat", 10**12)
        file.createDimension("lon", 3)
        file.createVariable("lat", "f8", ("lat",), chunksizes=(1000,)).units = "degrees_north"
        file.createVariable("altitude", "f8", ("lon",))


def boundless_store(folder):
    def grow(about):
        about["shape"] = [10**6, 10**6]

    for name in ("altitude", "cloud"):
        metadata(f"fine.zarr/{name}/zarr.json", grow)(folder)


def long_axes(folder):
    """Two long axes, and a covariate on one of them: few numbers, very many cells."""
    n = 200_000
    lat, lon = np.linspace(-89.0, 89.0, n), np.linspace(0.0, 359.0, n)
    data = xr.Dataset(
        {"altitude": ("lat", lat), "cloud": ("lat", lat**2)},
        {"lat": ("lat", lat, {"units": "degrees_north"}), "lon": ("lon", lon)},
    )
    data.to_netcdf(folder / "fine.nc")


def grouped(file):
    group = file.createGroup("data")
    group.createDimension("lat", 3)
    group.createVariable("altitude", "f8", ("lat",))


def compound(folder):
    with netCDF4.Dataset(folder / "fine.nc", "a") as file:
        kind = file.createCompoundType(np.dtype([("a", "f4"), ("b", "f4")]), "pair")
        file.createVariable("odd", kind, ("lat", "lon"))


def sloping(file):
    """A variable with the same dimension twice."""
    file.createDimension("lat", 4)
    file.createVariable("lat", "f8", ("lat",))[:] = np.arange(4)
    file["lat"].units = "degrees_north"
    file.createVariable("altitude", "f8", ("lat", "lat"))[:] = np.eye(4)


def pipe(name):
    return lambda folder: os.mkfifo(folder / name)


def link(name, target):
    return lambda folder: (folder / name).symlink_to(target)


def folder_named(name):
    return lambda folder: (folder / name).mkdir()


def pickled(**codecs):
    """A store whose chunks are to be unpickled, and would write a file."""

    def prepare(folder):
        store = folder / "fine2.zarr" / "cloud"
        about = json.loads((store / ".zarray").read_text())
        about.update({"filters": None, "compressor": None}, **codecs)
        (store / ".zarray").write_text(json.dumps(about))
        for chunk in store.glob("[0-9]*"):
            chunk.write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")

    return prepare


FILES = {
    "a table": (content("fine.csv", "lat,lon\n1,2\n"), "--fine fine.csv", "Bags.from_frame"),
    "an empty file": (content("fine.nc", b""), "", "'fine.nc'", "check that it is one"),
    "zeros": (content("fine.nc", bytes(5000)), "", "'fine.nc'", "check that it is one"),
    "a web page": (content("fine.nc", "<html>404</html>"), "", "'fine.nc'", "check that it is"),
    "compressed": (zipped, "", "'fine.nc'", "check that it is one"),
    "the beginning of HDF5": (cut("fine.nc", 8), "", "'fine.nc'", "whole"),
    "half of HDF5": (halved("fine.nc"), "", "'fine.nc'", "whole"),
    "a classic header alone": (classic("old.nc", 40), "--fine old.nc", "'old.nc'", "whole"),
    "half of a classic file": (
        both(fine_as(lambda f: f, "old.nc", format="NETCDF3_CLASSIC"), halved("old.nc")),
        "--fine old.nc",
        "'old.nc'",
        "whole",
    ),
    "a classic header of rubbish": (
        content("old.nc", b"CDF\x01" + bytes(range(256)) * 4),
        "--fine old.nc",
        "'old.nc'",
        "check that it is one",
    ),
    "data in a group": (
        new_file("group.nc", grouped),
        "--fine group.nc",
        "no variable 'altitude'",
        "no variables at all",
    ),
    "structures as values": (compound, "--covariates odd", "'odd'", "not numbers"),
    "one dimension twice": (
        new_file("twice.nc", sloping),
        "--fine twice.nc --covariates altitude",
        "'altitude' has a dimension twice",
    ),
    "no variables": (new_file("none.nc", lambda f: None), "--fine none.nc", "no variables at all"),
    "a pipe": (pipe("pipe.nc"), "--fine pipe.nc", "'pipe.nc' is a device or a pipe"),
    "a device": (nothing, "--coarse /dev/null", "'/dev/null' is a device or a pipe", "name a file"),
    "a name with NUL": (nothing, ["--fine", "a\0b.nc"], "null byte", "correct it"),
    "a pattern with NUL": (nothing, ["--fine", "a\0*.nc"], "null byte", "correct it"),
    "a name of a million letters": (nothing, ["--fine", MILLION], "aaaa", "does not exist"),
    "a link in a circle": (link("loop.nc", "loop.nc"), "--fine loop.nc", "does not exist"),
    "an empty folder": (folder_named("empty"), "--fine empty", "'empty' as a Zarr store"),
    "a folder of files": (nothing, ["--fine", "."], "'.' as a Zarr store", "check that it is one"),
    "a store with '::'": (folder_named("a::b.zarr"), "--fine a::b.zarr", "takes for an address"),
    "declared and not there": (
        *(boundless("big.nc", 10**6), "--fine big.nc --chunked no", "24 TB of values", "cut it to"),
    ),
    "declared and not there, in chunks": (
        *(boundless("big.nc", 10**6), "--fine big.nc", "'lat' runs to", "mark the value"),
    ),
    "declared coarse data": (boundless("big.nc", 10**6), "--coarse big.nc", "'big.nc' does not"),
    "a line without end": (
        *(boundless_line, "--fine line.nc --chunked yes", "'line.nc' does not fit into memory"),
    ),
    "a store without end": (
        boundless_store,
        "--fine fine.zarr --chunked no",
        "'fine.zarr'",
        "conflicting sizes",
    ),
    "axes too long for each other": (long_axes, "", "40000000000 cells", "cut it to the region"),
    "a store of bad JSON": (
        content("fine.zarr/zarr.json", "{"),
        "--fine fine.zarr",
        "'fine.zarr'",
        "whole",
    ),
    "a store of no object": (
        content("fine.zarr/zarr.json", "[1, 2]"),
        "--fine fine.zarr",
        "'fine.zarr'",
        "whole",
    ),
    "a store of an unknown version": (
        metadata("fine.zarr/zarr.json", lambda m: m.update(zarr_format=17)),
        "--fine fine.zarr",
        "'fine.zarr'",
        "whole",
    ),
    "a store that is an array": (
        lambda folder: shutil.copytree(folder / "fine.zarr/cloud", folder / "one.zarr"),
        "--fine one.zarr",
        "'one.zarr'",
        "check that it is one",
    ),
    "an array of negative size": (
        metadata("fine.zarr/cloud/zarr.json", lambda m: m.update(shape=[-12, 24])),
        "--fine fine.zarr",
        "'fine.zarr'",
        "whole",
    ),
    "an array of an unknown type": (
        metadata("fine.zarr/cloud/zarr.json", lambda m: m.update(data_type="float1024")),
        "--fine fine.zarr",
        "'fine.zarr'",
        "whole",
    ),
    "an array of an unknown codec": (
        metadata("fine.zarr/cloud/zarr.json", lambda m: m.update(codecs=[{"name": "magic"}])),
        "--fine fine.zarr",
        "'fine.zarr'",
        "whole",
    ),
    "an array without names of dimensions": (
        metadata("fine.zarr/cloud/zarr.json", lambda m: m.pop("dimension_names")),
        "--fine fine.zarr",
        "'fine.zarr'",
        "whole",
    ),
    "attributes that are no object": (
        metadata("fine.zarr/cloud/zarr.json", lambda m: m.update(attributes=[1])),
        "--fine fine.zarr",
        "'fine.zarr'",
    ),
    "an array without metadata": (
        lambda folder: (folder / "fine.zarr/cloud/zarr.json").unlink(),
        "--fine fine.zarr",
        "no variable 'cloud'",
        "it has",
    ),
    "chunks of rubbish": (chunks("cloud", b"rubbish"), "--fine fine.zarr", "fine.zarr", "whole"),
    "chunks of nothing": (chunks("cloud", b""), "--fine fine.zarr", "fine.zarr", "whole"),
    "chunks that run code": (
        pickled(compressor={"id": "pickle"}),
        "--fine fine2.zarr",
        "pickled objects, which run code",
        "nothing was read",
    ),
    "chunks that run code, as a filter": (
        pickled(filters=[{"id": "pickle", "protocol": 5}]),
        "--fine fine2.zarr",
        "pickled objects, which run code",
        "nothing was read",
    ),
    "names that steer a terminal": (
        lambda folder: shutil.copytree(
            folder / "fine.zarr/cloud", folder / "fine.zarr/\x1b[31mred"
        ),
        "--fine fine.zarr --covariates gone",
        "no variable 'gone'",
        r"\x1b[31mred",
    ),
    "names that turn the order of letters": (
        lambda folder: shutil.copytree(folder / "fine.zarr/cloud", folder / "fine.zarr/\u202egnp"),
        "--fine fine.zarr --covariates gone",
        "no variable 'gone'",
        r"\u202egnp",
    ),
    "files on other cells": (
        fine_as(axis("lon", lambda lon: lon + 0.5), "b.nc"),
        "--fine fine.nc b.nc",
        "2 fine files do not fit together",
        "'lon' differ",
    ),
    "a file and a text": (content("b.txt", "b"), "--fine fine.nc b.txt", "'b.txt'"),
}


def text_axis(data):
    return plain(data).assign_coords(lat=("lat", [f"{value}N" for value in data.lat.values]))


def dated(times, **encoding):
    """With a time axis."""

    def change(data):
        data = plain(data).expand_dims(time=np.array(times, dtype="datetime64[ns]"))
        data.time.encoding.update(encoding)
        return data

    return change


def in_calendar(calendar):
    return lambda data: dated(["2000-01-01", "2000-01-05"])(data).convert_calendar(
        calendar, use_cftime=True, align_on="date"
    )


def times_of(values, units="days since 2000-01-01", **attrs):
    """A time axis as it stands in the file."""

    def prepare(folder):
        for name in ("fine.nc", "coarse.nc"):
            with xr.open_dataset(folder / name) as opened:
                data = plain(opened.load())
            data = data.expand_dims(time=np.arange(len(values), dtype=float))
            data.to_netcdf(folder / name)
            with netCDF4.Dataset(folder / name, "a") as file:
                file["time"][:] = values
                file["time"].setncatts({"units": units, **attrs})

    return prepare


def attribute(variable, **attrs):
    def change(file):
        file[variable].setncatts(attrs)

    return change


def mapped(kind, **attrs):
    """With a grid mapping."""

    def change(data):
        data["crs"] = ((), 0, {"grid_mapping_name": kind, **attrs})
        for name in ("altitude", "cloud", "tas"):
            if name in data:
                data[name].attrs["grid_mapping"] = "crs"
        return data

    return change


def masked(change):
    return fine_as(lambda f: f.assign(land=change(f.altitude.notnull().astype(float))))


def with_bounds(values):
    return lambda data: data.assign(lat_bnds=(("lat", "bnds"), values(data.lat_bnds.values)))


def texts(name):
    return lambda data: data.assign(
        {name: (data[name].dims, data[name].values.astype(str).astype(object))}
    )


def stored_as(change):
    """The fine data as a store."""

    def prepare(folder):
        with xr.open_dataset(folder / "fine.nc") as opened, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            change(opened.load().drop_encoding()).to_zarr(folder / "odd.zarr")

    return prepare


VALUES = {
    # coordinates
    "a latitude that is missing": (fine_as(axis("lat", at(2, np.nan))), "", "'lat' has missing"),
    "a longitude that is missing": (fine_as(axis("lon", at(2, np.nan))), "", "'lon' has missing"),
    "an infinite latitude": (coarse_as(axis("lat", at(1, np.inf))), "", "'lat' has missing"),
    "a longitude beyond all": (fine_as(axis("lon", at(3, 1e300))), "", "'lon' runs to 1e+300"),
    "longitudes in disorder": (
        fine_as(axis("lon", lambda v: v[[1, 0, *range(2, len(v))]])),
        "",
        "'lon' are not in order",
        "sort",
    ),
    "a longitude twice": (fine_as(axis("lon", lambda v: v[[0, *range(23)]])), "", "'lon' has rep"),
    "a meridian twice": (
        fine_as(axis("lon", lambda v: np.linspace(0, 360, len(v)))),
        "",
        "hold a meridian twice",
        "drop one",
    ),
    "latitudes in disorder": (
        coarse_as(axis("lat", lambda v: v[[1, 0, *range(2, len(v))]])),
        "",
        "'lat' is not in order",
        "ds.sortby('lat')",
    ),
    "metres as degrees": (fine_as(axis("lat", stretched)), "", "'lat' runs to", "nowhere"),
    "no rows": (fine_as(lambda f: f.isel(lat=slice(0))), "", "'lat' has no values at all"),
    "no columns": (coarse_as(lambda c: c.isel(lon=slice(0))), "", "'lon' has no values at all"),
    "latitudes in words": (fine_as(text_axis), "", "no latitude", "--dims y="),
    "one latitude for all": (
        fine_as(lambda f: plain(f).isel(lat=0)),
        "",
        "no latitude",
        "--dims y=",
    ),
    "a latitude of yes and no": (
        fine_as(lambda f: plain(f).assign_coords(lat=("lat", f.lat.values > 0))),
        "",
        "lat",
    ),
    "one row without bounds": (
        fine_as(lambda f: plain(f).isel(lat=[3])),
        "",
        "'lat' has a single value and no bounds",
        "'lat_bnds'",
    ),
    "feet": (fine_as(axis("lat", lambda v: v, units="feet")), "", "are 'feet'", "expected degrees"),
    "kelvin": (coarse_as(axis("lon", lambda v: v, units="K")), "", "are 'K'", "expected degrees"),
    "a degree and a metre": (
        fine_as(
            lambda f: (
                plain(f)
                .rename(lat="n", lon="e")
                .assign_coords(
                    n=("n", f.lat.values, {"units": "degrees_north"}),
                    e=("e", f.lon.values, {"units": "m", "axis": "X"}),
                )
            )
        ),
        "",
        "not coordinates of one kind",
        "Correct their units",
    ),
    "bounds beside their cells": (
        fine_as(with_bounds(lambda b: b + 20)),
        "",
        "'lat_bnds' do not enclose",
    ),
    "bounds that are missing": (
        fine_as(with_bounds(lambda b: b * np.nan)),
        "",
        "'lat_bnds' must hold two finite numbers",
    ),
    "bounds of one end": (
        fine_as(lambda f: f.assign(lat_bnds=(("lat", "bnd1"), f.lat_bnds.values[:, :1]))),
        "",
        "'lat_bnds' must hold two finite numbers",
        "(12, 1)",
    ),
    "bounds in words": (fine_as(texts("lat_bnds")), "", "'lat_bnds' must hold two finite numbers"),
    "empty cells": (
        fine_as(with_bounds(lambda b: np.repeat(b.mean(1, keepdims=True), 2, 1))),
        "",
        "'lat_bnds' is empty",
    ),
    "a coordinate of another kind": (
        stored_as(lambda f: f.assign_coords(odd=("lat", f.lat.values * 1j))),
        "--fine odd.zarr",
        "'odd' cannot be written",
        "complex128",
    ),
    "a coordinate of another name": (
        stored_as(lambda f: f.assign_coords({"<b>": ("lat", f.lat.values)})),
        "--fine odd.zarr",
        "'<b>' cannot be written to 'out.nc', because of its name",
        "rename",
    ),
    # projections
    "another projection": (
        both(
            fine_as(mapped("latitude_longitude")),
            coarse_as(mapped("rotated_latitude_longitude")),
        ),
        "",
        "is rotated latitude longitude, the other one in latitude",
        "give a CF grid mapping",
    ),
    "a pole in words": (
        both(
            fine_as(mapped("rotated_latitude_longitude", grid_north_pole_latitude="forty")),
            coarse_as(mapped("rotated_latitude_longitude", grid_north_pole_latitude="fifty")),
        ),
        "",
        "grid mapping 'rotated_latitude_longitude' cannot be understood",
        "correct its attributes",
    ),
    # numbers
    "a target in words": (coarse_as(texts("tas")), "", "'tas' holds", "not numbers"),
    "a covariate in words": (fine_as(texts("cloud")), "", "'cloud' holds", "not numbers"),
    "an infinite target": (
        coarse_as(lambda c: c.assign(tas=c.tas + np.inf)),
        "",
        "'tas' is missing in every",
    ),
    "an infinite covariate": (
        fine_as(lambda f: f.assign(cloud=f.cloud + np.inf)),
        "",
        "'cloud' is missing everywhere",
    ),
    "marks of missing values": (
        coarse_as(lambda c: c.assign(tas=c.tas.fillna(9.96921e36))),
        "",
        "'tas' holds values up to 9.969e+36",
        "_FillValue",
    ),
    "marks in a covariate": (
        fine_as(lambda f: f.assign(cloud=f.cloud.fillna(1e20))),
        "",
        "'cloud' holds values up to 1e+20",
        "_FillValue",
    ),
    "a mediator that is missing": (
        coarse_as(lambda c: c.assign(water_vapour=c.water_vapour * np.nan)),
        "--mediators water_vapour",
        "'water_vapour' is missing in every",
    ),
    "a scale in words": (
        raw("fine.nc", attribute("cloud", scale_factor="ten")),
        "",
        "fine.nc",
        "scale_factor",
    ),
    "several scales": (
        raw("fine.nc", attribute("cloud", scale_factor=[1.0, 2.0, 3.0])),
        "",
        "fine.nc",
        "scale_factor",
    ),
    "a projection that is a number": (
        raw("fine.nc", attribute("cloud", grid_mapping=[1, 2])),
        "",
        "the attributes of its variables",
    ),
    "bounds that are a number": (
        raw("coarse.nc", attribute("lat", bounds=7.5)),
        "",
        "the attributes of its variables",
    ),
    # masks
    "a mask below zero": (masked(lambda m: m - 2), "--mask land", "'land' runs from -2 to -1"),
    "a mask of per cent": (masked(lambda m: m * 100), "--mask land", "divide percentages"),
    "a mask of nothing": (masked(lambda m: m * 0), "--mask land", "zero or missing everywhere"),
    "a mask that is missing": (masked(lambda m: m * np.nan), "--mask land", "zero or missing"),
    "a mask in words": (
        both(masked(lambda m: m), fine_as(texts("land"))),
        "--mask land",
        "'land' holds",
        "not numbers",
    ),
    "a mask in time": (
        masked(lambda m: m.expand_dims(time=np.array(["2000-01-01", "2001"], "M8[ns]"))),
        "--mask land",
        "'land' has 2 times",
        "isel(time=0)",
    ),
    "a mask on other cells": (
        masked(lambda m: m.rename(lat="lat2")),
        "--mask land",
        "'land'",
    ),
    # times
    "times of a flood": (times_of([0, 1], "days since the flood"), "", "correct the units of its"),
    "times in fortnights": (times_of([0, 1], "fortnights since 2000-01-01"), "", "correct the uni"),
    "times by a strange calendar": (
        times_of([0, 1], calendar="martian"),
        "",
        "calendar",
    ),
    "times beyond time": (times_of([0, 1e300]), "", "correct the units of its times"),
    "a time that is missing": (times_of([0, np.nan]), "", "'time' have missing values", "drop"),
    "a time twice": (times_of([3, 3]), "", "'time' are not distinct"),
    "no times at all": (
        both(
            fine_as(lambda f: dated(["2000-01-01"])(f).isel(time=slice(0))),
            coarse_as(lambda c: dated(["2000-01-01"])(c).isel(time=slice(0))),
        ),
        "",
        "no times at all",
    ),
    "two calendars": (
        both(fine_as(in_calendar("noleap")), coarse_as(in_calendar("360_day"))),
        "",
        "'noleap'",
        "'360_day'",
    ),
    "dates and a calendar": (
        both(fine_as(dated(["2000-01-01", "2000-01-02"])), coarse_as(in_calendar("360_day"))),
        "",
        "dates of NumPy",
        "convert",
    ),
    "files of two calendars": (
        both(fine_as(in_calendar("noleap"), "a.nc"), fine_as(in_calendar("360_day"), "b.nc")),
        "--fine a.nc b.nc",
        "2 fine files do not fit together",
    ),
    "a time that is no time": (
        both(fine_as(dated(["2000-01-01"])), coarse_as(dated(["2000-01-01"]))),
        ["--time", "\x1b[2J"],
        r"'\x1b[2J'",
    ),
}

OPTIONS = {
    "cover in words": (nothing, "--min-cover much", "--min-cover", "'much'"),
    "cover of NaN": (nothing, "--min-cover nan", "between 0 and 1, not nan"),
    "cover below zero": (nothing, "--min-cover=-0.5", "between 0 and 1, not -0.5"),
    "quantile NaN": (nothing, "--quantiles nan", "strictly between 0 and 1"),
    "quantile of 1": (nothing, "--quantiles 0.5,1", "strictly between 0 and 1"),
    "quantile infinite": (nothing, "--quantiles inf", "strictly between 0 and 1"),
    "samples as a fraction": (nothing, "--samples 1e3", "--samples", "whole number, not '1e3'"),
    "samples beyond memory": (nothing, "--samples 1000000000000", "PB", "fewer samples"),
    "seed below zero": (nothing, "--seed=-1", "--seed", "at least 0, not -1"),
    "seed too large": (nothing, "--seed 99999999999999999999", "--seed", "at most 4294967295"),
    "seed of 5000 digits": (nothing, ["--seed", "9" * 5000], "--seed", "must be a whole number"),
    "restarts without end": (nothing, "--restarts 10000000", "--restarts", "at most 1000"),
    "no workers": (nothing, "--workers 0", "--workers", "at least 1, not 0"),
    "too many workers": (nothing, "--workers 100000", "--workers 100000", "at most"),
    "two clusters": (nothing, "--workers 1 --scheduler tcp://h:1", "--workers", "give one"),
    "points per bag of zero": (nothing, "--points-per-bag 0", "'0'", "a positive number"),
    "points per bag squared": (nothing, "--points-per-bag ²", "--points-per-bag", "²"),
    "an axis twice": (nothing, "--dims y=lat,y=lon", "--dims", "y=lat,x=lon"),
    "an axis unheard of": (nothing, "--dims z=lat", "--dims", "y=lat,x=lon"),
    "one axis for two": (nothing, "--dims y=lat,x=lat", "'lat'", "name two dimensions"),
    "bounds of NaN": (nothing, "--bounds nan,1", "--bounds", "LOW,HIGH"),
    "bounds in words": (nothing, "--bounds cold,warm", "--bounds", "LOW,HIGH"),
    "a transform unheard of": (nothing, "--transform sqrt", "--transform", "'sqrt'"),
    "a kernel unheard of": (nothing, "--kernel deep", "--kernel", "'deep'"),
    "a consistency unheard of": (nothing, "--consistency loose", "--consistency", "'loose'"),
    "maybe chunked": (nothing, "--chunked maybe", "--chunked", "'maybe'"),
    "a model of no name": (nothing, ["--model", ""], "--model", "choose from"),
    "a target of no name": (nothing, ["--target", ""], "target must be the name"),
    "a target of a million letters": (nothing, ["--target", MILLION], "no variable 'aaa", "it has"),
    "a covariate of a million": (nothing, ["--covariates", MILLION], "no variable 'aaa", "it has"),
    "an option of a million": (nothing, ["--" + MILLION], "unrecognized", "--help"),
    "a target of an odd byte": (nothing, ["--target", "t\udcffs"], r"'t\udcffs'", "it has"),
    "a dimension unheard of": (nothing, "--map-over member", "'member' to map over", "it has"),
    "an option without its value": (nothing, "--seed", "--seed", "expected one argument"),
    "a mask that is the target": (nothing, "--mask tas", "'tas'", "it has"),
    "dims of a million": (nothing, ["--dims", f"y={MILLION}"], "neither dataset has it"),
}


def side_file(folder):
    shutil.copytree(folder / "fine.zarr", folder / ".out.zarr.part")


OUTPUTS = {
    "no name": (nothing, ["--out", ""], "must end in .nc, .zarr, .tif"),
    "a dot": (nothing, "--out .", "must end in .nc, .zarr, .tif"),
    "the folder above": (nothing, "--out ..", "must end in .nc, .zarr, .tif"),
    "another suffix": (nothing, "--out out.nc.exe", "'out.nc.exe'", ".nc, .zarr, .tif"),
    "NUL": (nothing, ["--out", "a\0.nc"], "cannot be seen"),
    "a line break": (nothing, ["--out", "a\nb.nc"], r"'a\nb.nc'", "cannot be seen"),
    "a tab": (nothing, ["--out", "a\tb.nc"], r"'a\tb.nc'", "cannot be seen"),
    "an escape": (nothing, ["--out", "\x1b[31m.nc"], r"'\x1b[31m.nc'", "cannot be seen"),
    "an odd byte": (nothing, ["--out", "\udcff.nc"], r"'\udcff.nc'", "cannot be seen"),
    "letters turned": (nothing, ["--out", "a\u202ecn.b.nc"], r"\u202e", "cannot be seen"),
    "a million letters": (nothing, ["--out", f"{MILLION}.nc"], "name another"),
    "a long name": (nothing, ["--out", f"{'b' * 230}.nc"], "233 bytes", "at most 215"),
    "no folder": (nothing, "--out far/away/out.nc", "far", "make it first"),
    "below a file": (nothing, "--out fine.nc/out.nc", "name another"),
    "below a device": (nothing, "--out /dev/null/out.nc", "/dev/null", "make it first"),
    "where nobody can write": (nothing, "--out /proc/out.nc", "'/proc' cannot be written"),
    "a folder": (folder_named("a.nc"), "--out a.nc --overwrite", "'a.nc' is a folder"),
    "a file as a store": (
        content("a.zarr", "mine"),
        "--out a.zarr --overwrite",
        "'a.zarr' is a file",
    ),
    "a folder as a store": (
        content("a.zarr/mine.txt", "mine"),
        "--out a.zarr --overwrite",
        "not a Zarr store",
    ),
    "an address": (nothing, "--out a::b.zarr", "takes for an address", "name another"),
    "a bucket": (nothing, "--out s3://bucket/out.zarr", "does not exist; make it first"),
    "a pipe": (pipe("out.nc"), "--out out.nc --overwrite", "'out.nc' is a device or a pipe"),
    "a link to nothing": (link("out.nc", "gone.nc"), "--out out.nc", "'out.nc' exists"),
    "a link to an input": (
        link("out.nc", "fine.nc"),
        "--out out.nc --overwrite",
        "'out.nc' is also an input",
    ),
    "a link in a circle": (link("out.nc", "out.nc"), "--out out.nc", "name another"),
    "another name of an input": (
        lambda folder: os.link(folder / "fine.nc", folder / "out.nc"),
        "--out out.nc --overwrite",
        "'out.nc' is also an input",
    ),
    "an input through a link": (
        link("here", "."),
        "--out here/fine.nc --overwrite",
        "'here/fine.nc' is also an input",
    ),
    "within an input": (
        nothing,
        "--fine fine.zarr --out fine.zarr/out.nc",
        "'fine.zarr/out.nc' is also an input",
    ),
    "around an input": (
        lambda folder: shutil.copy(folder / "fine.nc", folder / "fine.zarr/fine.nc"),
        "--fine fine.zarr/fine.nc --out fine.zarr --overwrite",
        "'fine.zarr' is also an input",
    ),
    "a file of a stopped run as input": (
        side_file,
        "--fine .out.zarr.part --out out.zarr",
        "'out.zarr' is also an input",
    ),
    "a checkpoint over an input": (
        nothing,
        ["--fine", "f*.nc", "--checkpoint", "fine.nc"],
        "the checkpoint 'fine.nc' is also an input",
    ),
    "a checkpoint through a link": (
        link("kept.npz", "coarse.nc"),
        "--checkpoint kept.npz",
        "the checkpoint 'kept.npz' is also an input",
    ),
    "a checkpoint with a line break": (nothing, ["--checkpoint", "a\nb.npz"], "cannot be seen"),
    "a report over an input": (
        lambda folder: shutil.copy(folder / "fine.nc", folder / "fine.html"),
        "--fine fine.html --report fine.html --overwrite",
        "the report 'fine.html' is also an input",
    ),
    "a report in the result": (
        folder_named("out.zarr"),
        "--out out.zarr --report out.zarr/a.html --overwrite",
        "the report 'out.zarr/a.html' is also an input",
    ),
    "a report in a folder's place": (folder_named("a.html"), "--report a.html", "is a folder"),
    "a report with NUL": (nothing, ["--report", "a\0.html"], "cannot be seen"),
    "a report of many letters": (nothing, ["--report", f"{MILLION}.html"], "name another"),
    "a report over a link": (link("a.html", "gone.html"), "--report a.html", "'a.html' exists"),
    "a report of another kind": (nothing, "--report a.pdf", "'a.pdf' must end in .html"),
    "a report to a pipe": (pipe("a.html"), "--report a.html --overwrite", "device or a pipe"),
}


@pytest.mark.parametrize(
    ("what", "rows"),
    [
        ("files that are damaged, forged or something else", FILES),
        ("coordinates, values, units, times and masks", VALUES),
        ("options of the command", OPTIONS),
        ("names of outputs", OUTPUTS),
    ],
    ids=["files", "values", "options", "outputs"],
)
def test_downscale_refuses(place, what, rows):
    # Of an option that is given twice, the last counts.
    check(rows, place, ["downscale", *GIVEN.split(), "--out", "out.nc"], f"downscale: {what}")


# ---------------------------------------------------------------------- pages and other commands


def result(**changes):
    """A small result file with other facts."""

    def prepare(folder):
        facts = {"target": "tas", "model": "cmp", "units": "K"} | changes
        fine(folder, json.dumps(facts))

    return prepare


def fine(folder, facts, change=lambda data: data):
    field = xr.DataArray(
        np.arange(12.0).reshape(3, 4),
        {"lat": [1.0, 2.0, 3.0], "lon": [0.0, 1.0, 2.0, 3.0]},
        ("lat", "lon"),
    )
    data = xr.Dataset({"mean": field, "std": field + 1}, attrs={"deconditional": facts})
    change(data).to_netcdf(folder / "result.nc")


def result_as(change):
    return lambda folder: fine(folder, '{"target": "tas"}', change)


def truth(folder):
    result()(folder)
    xr.Dataset({"other": ("lat", [1.0])}).to_netcdf(folder / "truth.nc")


PAGES = {
    "over its own result": (
        lambda folder: (result()(folder), shutil.copy("result.nc", "result.html")),
        "result.html",
        "the report 'result.html' is also an input",
    ),
    "over its truth": (
        lambda folder: (truth(folder), shutil.copy("truth.nc", "truth.html")),
        "result.nc --truth truth.html --out truth.html",
        "is also an input",
    ),
    "of nothing": (nothing, [""], "is no file", "deconditional downscale wrote"),
    "of a pipe": (pipe("result.nc"), "result.nc", "is a device or a pipe"),
    "of an empty folder": (folder_named("result"), "result", "'result' as a Zarr store"),
    "of too much": (boundless("result.nc", 10**6), "result.nc", "24 TB of values"),
    "of inputs": (nothing, "fine.nc", "'fine.nc' is no result"),
    "of facts without end": (
        lambda folder: fine(folder, "[" * 100_000),
        "result.nc",
        "is damaged",
    ),
    "of facts that are a number": (lambda f: fine(f, "7"), "result.nc", "is damaged"),
    "of parameters in words": (
        result(parameters="many"),
        "result.nc",
        "no page can be made",
    ),
    "of parameters in numbers": (result(parameters=[1]), "result.nc", "no page can be made"),
    "of lines understood": (result(understood=[1, 2]), "result.nc", "no page can be made"),
    "of timings": (result(timings=[1, 2]), "result.nc", "no page can be made"),
    "of options": (result(options="all"), "result.nc", "no page can be made"),
    "of a fit": (result(fit={"notes": 3}), "result.nc", "no page can be made"),
    "of residuals": (result(residuals={"mean": "small"}), "result.nc", "no page can be made"),
    "of a comparison": (result(comparison={"rows": [[]]}), "result.nc", "no page can be made"),
    "of PIT values": (
        result(comparison={"rows": [["a"]], "pit": ["b"]}),
        "result.nc",
        "no page can be made",
    ),
    "of a distribution": (result(distribution="cauchy"), "result.nc", "'cauchy'", "this version"),
    "of words": (
        result_as(lambda d: d.assign(mean=d["mean"].astype(str).astype(object))),
        "result.nc",
        "no page can be made",
    ),
    "of a line": (result_as(lambda d: d.isel(lat=0)), "result.nc", "two horizontal dimensions"),
    "of no cells": (result_as(lambda d: d.isel(lat=slice(0))), "result.nc", "no page can be made"),
    "of two grids": (
        result_as(lambda d: d.assign(std=d["std"].rename(lat="lat2"))),
        "result.nc",
        "no page can be made",
    ),
    "with another truth": (truth, "result.nc --truth truth.nc", "no variable 'tas'", "Rename"),
    "with no truth": (result(), "result.nc --truth gone.nc", "'gone.nc' does not exist"),
    "into a line break": (result(), ["result.nc", "--out", "a\n.html"], "cannot be seen"),
    "into no folder": (result(), "result.nc --out far/a.html", "make it first"),
}


def test_report_refuses(place):
    check(PAGES, place, ["report"], "report: results, truths and names")


COMMANDS = {
    "nothing": (nothing, [], "COMMAND"),
    "unheard of": (nothing, ["conquer"], "invalid choice: 'conquer'"),
    "a million letters": (nothing, [MILLION], "invalid choice"),
    "an escape": (nothing, ["\x1b[2J"], r"\x1b[2J"),
    "demo of month 13": (nothing, "demo --out a --month 13", "--month"),
    "demo by a seed in words": (nothing, "demo --out a --seed x", "whole number, not 'x'"),
    "demo into a file": (nothing, "demo --out fine.nc", "'fine.nc' is a file"),
    "demo into a line break": (nothing, ["demo", "--out", "a\nb"], "cannot be seen"),
    "demo into NUL": (nothing, ["demo", "--out", "a\0b"], "cannot be seen"),
    "demo where nobody can write": (nothing, "demo --out /proc/a", "cannot write"),
}


def test_commands_refuse(place):
    check(COMMANDS, place, [], "other commands")


# ---------------------------------------------------------------------- as processes


def test_refuses_as_a_process(place):
    here = place()
    before = seen(here)
    out = os.fsdecode(b"\xff.nc")
    done = subprocess.run(
        [sys.executable, "-m", "deconditional", "downscale", *GIVEN.split(), "--out", out],
        capture_output=True,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "DECONDITIONAL_CACHE": "off"},
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"deconditional: error: ") and done.stderr.count(b"\n") == 1
    assert b"cannot be seen" in done.stderr
    assert seen(here) == before
    record(GROUP, "a name that is no text, as a process", 1, {"one-line error": 1})


FULL = """
import os, resource, sys
from test_downscale_command import Regression
from deconditional.cli import main as cli
from deconditional.fields import learn
learn.Learner.fit = lambda self, name, data, z: Regression(data, z)
learn.mixed = list  # of such models there is no mixture
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
for out in ("out.nc", "out.zarr"):
    child = os.fork()
    if child == 0:
        os._exit(cli.main([*sys.argv[1:], "--out", out]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_full_disk_leaves_what_was_there(place):
    here = place()
    (here / "out.nc").write_bytes(b"mine")
    shutil.copytree(here / "fine.zarr", here / "out.zarr")
    given = ["downscale", *GIVEN.split(), "--samples", "40", "--overwrite", "--quiet"]
    before = seen(here)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FULL, *given],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parent),
            "DECONDITIONAL_CACHE": "off",
            "JAX_PLATFORMS": "cpu",
        },
    )
    assert done.stdout == "2\n2\n", done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    for line, out in zip(lines, ("out.nc", "out.zarr"), strict=True):
        assert line.startswith(f"deconditional: error: could not write '{out}'")
        assert "what was there has not changed" in line
    assert seen(here) == before
    record(GROUP, "a disk that is full while a result is written", 2, {"one-line error": 2})


# ---------------------------------------------------------------------- what is no error


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(Learner, "fit", lambda self, name, data, z: Regression(data, z))
    monkeypatch.setattr(learn, "mixed", list)  # of such models there is no mixture


def means(path):
    with xr.open_dataset(path) as data:
        return data["mean"].values


@pytest.fixture
def expected(good, tmp_path, at_once):
    """The undisturbed answer."""
    out = tmp_path / "expected.nc"
    command = GIVEN.replace("fine.nc", str(good / "fine.nc"))
    command = command.replace("coarse.nc", str(good / "coarse.nc"))
    assert run("downscale", *command.split(), "--out", out, "--quiet") == (0, "", "")
    return means(out)


def odd_attributes(folder):
    """Attributes that no convention foresees, in both files."""
    for name, variable in (("fine.nc", "altitude"), ("coarse.nc", "tas")):
        with netCDF4.Dataset(folder / name, "a") as file:
            file[variable].setncatts({"standard_name": [1.5, 2.5], "long_name": 7, "units": 3.0})
            file["lat"].setncatts({"axis": np.arange(3), "long_name": "a\x1bb\x00c" + MILLION})
            file["lon"].setncatts({"positive": [1.0], "valid_range": ["a", "b"]})
            file.setncatts({"history": [1, 2, 3], "title": "\u202e<b>", "Conventions": 1.0})


def store_attributes(folder):
    """Attributes of a store may be any JSON."""
    for name in ("altitude", "lat"):
        metadata(
            f"fine.zarr/{name}/zarr.json",
            lambda m: m["attributes"].update(
                {
                    "nested": {"a": [1, {"b": None}]},
                    "none": None,
                    "yes": True,
                    "": 1,
                    "a/b": [],
                    "mixed": [1, "a"],
                    "_Netcdf4Dimid": 3,
                    "big": 10**30,
                }
            ),
        )(folder)


SURVIVED = {
    "attributes of odd types": (odd_attributes, ""),
    "attributes of any JSON": (store_attributes, "--fine fine.zarr"),
    "a link to another file, which stays": (
        both(content("other.nc", "other"), link("out.nc", "other.nc")),
        "--overwrite",
    ),
}


@pytest.mark.parametrize("out", ["out.nc", "out.zarr"])
def test_odd_things_change_nothing(good, tmp_path, monkeypatch, expected, out):
    for k, (name, (prepare, extra)) in enumerate(SURVIVED.items()):
        here = tmp_path / f"odd{k}"
        shutil.copytree(good, here)
        monkeypatch.chdir(here)
        prepare(here)
        before = seen(here)
        code, _, err = run("downscale", *GIVEN.split(), *extra.split(), "--out", out, "--quiet")
        assert (code, err) == (0, ""), f"{name}: {err}"
        np.testing.assert_array_equal(means(out), expected, err_msg=name)
        after = seen(here)
        changed = {path for path in before | after if before.get(path) != after.get(path)}
        assert {path.split("/")[0] for path in changed} == {out}, name
        with xr.open_dataset(out) as data:
            attrs = [data.attrs, *(v.attrs for v in data.variables.values())]
        for text in (v for each in attrs for v in each.values() if isinstance(v, str)):
            assert visible(text) == text
    record(
        GROUP,
        f"odd attributes and links, into {out}",
        len(SURVIVED),
        {"same answer": len(SURVIVED)},
    )


@pytest.mark.parametrize("out", ["x.nc", "x.zarr"])
def test_a_folder_named_like_a_home_is_no_home(good, tmp_path, monkeypatch, expected, out):
    here, home = tmp_path / "work", tmp_path / "home"
    shutil.copytree(good, here)
    home.mkdir()
    (here / "~").mkdir()
    shutil.copy(here / "fine.nc", here / "~")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    given = ["downscale", *GIVEN.split(), "--fine", "~/fine.nc", "--out", f"~/{out}", "--quiet"]
    assert run(*given) == (0, "", "")
    np.testing.assert_array_equal(means(here / "~" / out), expected)
    assert sorted(p.name for p in (here / "~").iterdir()) == sorted(["fine.nc", out])
    assert not list(home.iterdir())
    record(GROUP, f"a folder named ~, {out} into it", 1, {"written where asked": 1})


def test_a_link_in_place_of_the_hidden_file_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("a.nc", "a.html"):
        (tmp_path / f".{name}.{os.getpid()}.part").symlink_to(victim)
    files.write_fields(xr.Dataset({"a": ("x", [1.0])}), tmp_path / "a.nc")
    write_atomically(tmp_path / "a.html", "page")
    assert victim.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "a.nc", "victim"]


def test_replacing_a_link_to_a_store_leaves_the_store(good, tmp_path):
    shutil.copytree(good / "fine.zarr", tmp_path / "kept.zarr")
    (tmp_path / "out.zarr").symlink_to("kept.zarr")
    before = seen(tmp_path / "kept.zarr")
    files.write_fields(xr.Dataset({"a": ("x", [1.0])}), tmp_path / "out.zarr")
    assert seen(tmp_path / "kept.zarr") == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kept.zarr", "out.zarr"]
    assert not (tmp_path / "out.zarr").is_symlink()


# ---------------------------------------------------------------------- killed while writing


KILLS = """
import json, os, random, signal, sys, time
from pathlib import Path
import numpy as np, xarray as xr, zarr
from deconditional.fields.io import write_fields
from deconditional.saving.outputs import write_atomically

folder, n = Path(sys.argv[1]), int(sys.argv[2])
size, letters = (20, 150, 150), 10_000_000

def field(version):
    return np.random.default_rng(version).normal(size=size)

def write(name, version):
    if name.endswith(".html"):
        write_atomically(folder / name, str(version) * letters)
    else:
        write_fields(xr.Dataset({"mean": (("t", "y", "x"), field(version))}), folder / name)

def version(name):
    if name.endswith(".html"):
        text = (folder / name).read_text()
        return int(text[0]) if text == text[0] * letters else 0
    with xr.open_dataset(folder / name) as data:
        found = data["mean"].values
    return next((k for k in (1, 2) if np.array_equal(found, field(k))), 0)

def apart(work, *args, after=None):
    # In a child, which may be killed after a while: its exit code, or None.
    child = os.fork()
    if child == 0:
        try:
            os._exit(work(*args) or 0)
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(99)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else None

random.seed(0)
found = {}
for name in ("out.nc", "out.zarr", "out.html"):
    assert apart(write, name, 1) == 0
    began = time.perf_counter()
    assert apart(write, name, 1) == 0
    usual = time.perf_counter() - began
    current, found[name] = 1, {"the old file, whole": 0, "the new file, whole": 0}
    for k in range(n):
        wanted = 3 - current
        code = apart(write, name, wanted, after=random.uniform(0.0, 1.2 * usual))
        now = apart(version, name)
        assert now in (1, 2), (name, k, now)
        assert code is None or now == wanted, "it ended, and wrote nothing"
        found[name][f"the {'new' if now == wanted else 'old'} file, whole"] += 1
        current = now
assert {p.name for p in folder.iterdir() if not p.name.startswith(".")} == set(found)
print(json.dumps(found))
"""


def test_killed_while_writing_leaves_the_old_or_the_new(tmp_path):
    tried = tries(1, 40)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLS, str(tmp_path), str(tried)],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    for name, outcomes in json.loads(done.stdout).items():
        record("outputs", f"killed while {name} was replaced", tried, outcomes)


# ---------------------------------------------------------------------- faults of the program


def test_a_fault_of_the_program_is_told_from_one_of_the_user(place, monkeypatch):
    place()

    def broken(*_, **__):
        raise KeyError("\x1b[31m" + MILLION)

    monkeypatch.setattr(Downscaler, "prepare", broken)
    command = ["downscale", *GIVEN.split(), "--out", "out.nc"]
    code, _, err = run(*command)
    assert code == 3
    assert "KeyError" in err and "please report it" in err and len(err) < 1000
    assert visible(err) == err
    monkeypatch.setenv("DECONDITIONAL_TRACEBACK", "1")
    with pytest.raises(KeyError):
        run(*command)


def test_a_reader_that_stops_is_no_fault():
    process = subprocess.Popen(
        [sys.executable, "-m", "deconditional", "downscale", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    process.wait()
    assert err == b""


# ---------------------------------------------------------------------- in Python


def datasets(good):
    with xr.open_dataset(good / "fine.nc") as fine, xr.open_dataset(good / "coarse.nc") as coarse:
        return fine.load(), coarse.load()


def asked(
    change=lambda fine, coarse: (fine, coarse), target="tas", covariates=("cloud",), **options
):
    """A call of downscale with something wrong."""

    def call(fine, coarse):
        fine, coarse = change(fine, coarse)
        return dc.downscale(fine, coarse, target, covariates, **options)

    return call


def framed(change=lambda frame: frame, **options):
    """A call of Bags.from_frame with something wrong."""

    def call(fine, coarse):
        frame = pd.DataFrame(
            {"bag": ["a", "a", "b"], "x": [1.0, 2.0, 3.0], "y": [1.0, 1.0, 2.0], "w": 1.0}
        )
        given = {"bag": "bag", "covariates": ["x"], "mediators": ["y"], "weight": "w"} | options
        return dc.Bags.from_frame(change(frame), **given)

    return call


def complex_lat(fine, coarse):
    return plain(fine).assign_coords(lat=("lat", fine.lat.values * 1j)), coarse


def mixed_times(fine, coarse):
    times = np.array([np.datetime64("2000-01-01"), "soon"], dtype=object)
    return fine.expand_dims(time=times), coarse


API = {
    "None as data": (asked(lambda f, c: (None, c)), "must be an xarray Dataset, not NoneType"),
    "a DataArray as data": (asked(lambda f, c: (f.cloud, c)), "must be an xarray Dataset"),
    "a dict as data": (asked(lambda f, c: (f, {})), "coarse data must be an xarray Dataset"),
    "no variables": (asked(lambda f, c: (xr.Dataset(), c)), "no variables at all"),
    "a number as covariate": (asked(covariates=[3]), "one of them is 3"),
    "no name as covariate": (asked(covariates=[""]), "one of them is ''"),
    "None as mediator": (asked(mediators=[None]), "mediators must be names"),
    "a number as mask": (asked(mask=3), "mask must be the name"),
    "text as dims": (asked(dims="lat"), "dims must look like"),
    "a role unheard of": (asked(dims={"z": "lat"}), "no role 'z'"),
    "complex latitudes": (asked(complex_lat), "no latitude"),
    "complex values": (asked(lambda f, c: (f.assign(cloud=f.cloud * 1j), c)), "complex128 values"),
    "objects as values": (
        asked(lambda f, c: (f.assign(cloud=f.cloud.astype(object)), c)),
        "object values, not numbers",
    ),
    "a name of a million": (asked(covariates=[MILLION]), "aaa…aaa"),
    "times of several kinds": (asked(mixed_times), "no order"),
    "an option unheard of": (asked(magic=True), "unexpected keyword argument 'magic'"),
    "a list as a table": (framed(lambda f: [1]), "must be a DataFrame, not list"),
    "no rows": (framed(lambda f: f.iloc[:0]), "no rows"),
    "no such column": (framed(covariates=["z"]), "no column 'z'; it has 'bag'"),
    "a column twice": (
        framed(lambda f: pd.concat([f, f[["x"]]], axis=1)),
        "2 columns 'x'; rename all but one",
    ),
    "words in a column": (
        framed(lambda f: f.assign(x=["1.5", "two", "3"])),
        "column 'x' must hold numbers, and has 'two'",
    ),
    "a million letters in a column": (
        framed(lambda f: f.assign(x=["1.5", MILLION, "3"])),
        "column 'x' must hold numbers, and has 'aaa",
    ),
    "complex numbers in a column": (
        framed(lambda f: f.assign(x=[1j, 2j, 3j])),
        "column 'x' must hold numbers",
    ),
    "dates in a column": (
        framed(lambda f: f.assign(x=pd.to_datetime(["2000", "2001", "2002"]))),
        "column 'x' must hold numbers",
    ),
    "words as mediators": (framed(lambda f: f.assign(y=["p", "p", "q"])), "column 'y' must hold"),
    "words as weights": (framed(lambda f: f.assign(w=["p", "p", "q"])), "column 'w' must hold"),
    "an infinite covariate": (framed(lambda f: f.assign(x=[1, np.inf, 3])), "missing or infinite"),
    "a point without a bag": (framed(lambda f: f.assign(bag=["a", None, "b"])), "needs a bag"),
    "a negative weight": (framed(lambda f: f.assign(w=[1, -1, 1])), "a point with weight -1"),
    "two mediators in a bag": (framed(lambda f: f.assign(y=[1, 2, 3])), "more than one value"),
    "bags up to 10^12": (
        lambda f, c: dc.Bags.from_points([[1.0], [2.0]], [0, 10**12]),
        "bag 1 is empty",
    ),
    "words as points": (
        lambda f, c: dc.Bags.from_list([[[1.0]], [["a"]]]),
        "bag 1 must be numbers",
    ),
}


def test_python_refuses(good, monkeypatch):
    monkeypatch.setattr(Learner, "fit", _begun)
    wrong = {}
    for name, (call, words) in API.items():
        try:
            call(*datasets(good))
        except (ValueError, TypeError) as error:
            if words not in str(error) or len(str(error)) > 3000:
                wrong[name] = f"{type(error).__name__}: {error}"
        except BaseException as error:
            wrong[name] = repr(error)
        else:
            wrong[name] = "no error"
    assert not wrong, "\n".join(f"{name}: {text[:600]}" for name, text in wrong.items())
    record(GROUP, "arguments and tables in Python", len(API), {"clear error": len(API)})


# ---------------------------------------------------------------------- parts


def test_messages_are_for_reading():
    error = UsageError("a\x1b[31m " + MILLION + " remedy\u202e.")
    assert str(error).startswith(r"a\x1b[31m aaa") and str(error).endswith(r" remedy\u202e.")
    assert len(str(error)) < 400
    many = UsageError("it has " + ", ".join(f"v{k}" for k in range(10**5)) + "; name one.")
    assert len(str(many)) < 2100 and str(many).endswith("v99999; name one.")
    assert visible("naïve °C 降水 👩‍🚀\tx\n") == "naïve °C 降水 👩‍🚀\tx\n"
    assert shortened("abc", 3) == "abc"


def test_names_that_can_be_made_can_be_written(tmp_path):
    longest = os.pathconf(tmp_path, "PC_NAME_MAX") - 40
    path = tmp_path / ("a" * (longest - 3) + ".nc")
    check_place(path, "output")
    files.write_fields(xr.Dataset({"a": ("x", [1.0])}), path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    with pytest.raises(UsageError, match="at most"):
        check_place(tmp_path / ("a" * longest + ".nc"), "output")


def test_memory_is_that_of_the_system():
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 1e6 < checks.available_memory() <= total


def test_reading_what_is_too_large_takes_no_memory(tmp_path):
    boundless("big.nc", 10**6)(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match="24 TB of values"):
        files.open_fields(tmp_path / "big.nc", "fine")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 100_000  # kilobytes


@pytest.mark.parametrize("kind", ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET"])
@pytest.mark.parametrize("records", ["none", "one variable", "two variables", "no record yet"])
def test_classic_files_that_lack_their_end(tmp_path, kind, records):
    path = tmp_path / "old.nc"
    with netCDF4.Dataset(path, "w", format=kind) as file:
        file.title = "a file"
        file.createDimension("x", 7)
        file.createDimension("t", None)
        file.createVariable("a", "f8", ("x",))[:] = np.arange(7.0)
        file["a"].units = "K"
        file.createVariable("b", "i2", ("x",))[:] = np.arange(7)
        if records != "none":
            file.createVariable("c", "i1", ("t", "x"))
        if records in ("one variable", "two variables"):
            file["c"][:3] = np.ones((3, 7))
        if records == "two variables":
            file.createVariable("d", "f4", ("t",))[:] = np.arange(3.0)
    whole = path.read_bytes()
    check_whole(str(path))
    # Up to three bytes at the end may fill a value up to a multiple of four.
    for left in (*(len(whole) - lost for lost in (4, 5, 8, 12)), 4, 9, 20, 50):
        path.write_bytes(whole[:left])
        with pytest.raises(ValueError, match="cut short"):
            check_whole(str(path))


@pytest.mark.parametrize(
    ("free", "prepare", "arguments", "words"),
    [
        (1e3, nothing, "", "the fine file 'fine.nc'"),
        (1e3, nothing, "--fine fine.zarr --coarse gone.nc", "does not fit into memory"),
        (
            4e3,
            both(
                fine_as(lambda f: plain(f).isel(lat=slice(6), lon=slice(12)), "a.nc"),
                fine_as(lambda f: plain(f).isel(lat=slice(6, 12), lon=slice(12, 24)), "b.nc"),
            ),
            "--fine a.nc b.nc",
            "the grid that all of them make does not fit",
        ),
    ],
)
def test_too_large_for_memory(place, monkeypatch, free, prepare, arguments, words):
    prepare(place())
    monkeypatch.setattr(checks, "available_memory", lambda: free)
    code, _, err = run("downscale", *GIVEN.split(), "--out", "out.nc", *arguments.split())
    assert code == 2
    assert words in err, err


def test_grids_too_large_for_memory(monkeypatch):
    grid = find_grid(synthetic_fields(12, 24), ["tas"], "fine")
    overlap.check_cells(grid, 3, "fine")
    monkeypatch.setattr(checks, "available_memory", lambda: 1e4)
    with pytest.raises(UsageError, match=r"the 288 cells of the fine grid .* does not fit"):
        overlap.check_cells(grid, 3, "fine")
