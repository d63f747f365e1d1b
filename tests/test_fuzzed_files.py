"""Files damaged at random: a clear error, or an understanding that what is in them explains.

Each file is read in a process of its own, with limits on memory and time, as the command line reads
it. What it was understood to hold must be that of the undamaged file wherever its own library reads
the same numbers, names and attributes from both.
"""

import json
import shutil
import signal
import warnings
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from deconditional.datasets import split_cells, synthetic_fields
from deconditional.errors import visible
from fuzzing import SECONDS, Readers
from reliability import record, tries

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
pytest.importorskip("zarr")
pytest.importorskip("dask")
pytestmark = pytest.mark.reliability

GROUP = "fuzzed files"
LIBRARY = "the data cannot be read ("
FORMATS = {"HDF5": "NETCDF4", "classic": "NETCDF3_CLASSIC", "64-bit": "NETCDF3_64BIT"}


@pytest.fixture(scope="module")
def readers():
    started = Readers()
    yield started
    started.close()


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The undamaged files, in every form."""
    folder = tmp_path_factory.mktemp("undamaged")
    times = ["2000-01-01", "2000-01-02"]
    fields = synthetic_fields(8, 16, times=times)
    data = split_cells(fields, "tas", ["altitude", "cloud"], ["water_vapour"], 2, matched=0.5)
    for name, part in (("fine", data.fine), ("coarse", data.coarse)):
        for form, kind in FORMATS.items():
            part.to_netcdf(folder / f"{name}-{form}.nc", format=kind)
        packed = {
            v: {"zlib": True, "dtype": "i2", "scale_factor": 0.01, "_FillValue": -9999}
            for v in ("cloud", "tas")
            if v in part
        }
        part.to_netcdf(folder / f"{name}-packed.nc", encoding=packed)
        with warnings.catch_warnings():  # of consolidated metadata, which Zarr 3 does not define
            warnings.simplefilter("ignore")
            part.to_zarr(folder / f"{name}-new.zarr")
            part.to_zarr(folder / f"{name}-old.zarr", zarr_format=2)
    result(folder)
    pd.DataFrame(
        {
            "county": [c for c in "abcdefgh" for _ in range(5)],
            "altitude": np.linspace(0.0, 800.0, 40).round(2),
            "slope": np.sin(np.arange(40)).round(4),
            "rain": np.repeat(np.arange(8) / 8, 5),
            "area": 1.0 + np.arange(40) % 3,
        }
    ).to_csv(folder / "table.csv", index=False)
    return folder


def result(folder):
    """What deconditional downscale might have written."""
    rng = np.random.default_rng(0)
    axes = {"lat": np.linspace(40.0, 50.0, 6), "lon": np.linspace(0.0, 20.0, 8)}
    coarse = {"coarse_lat": [42.0, 48.0], "coarse_lon": [5.0, 15.0]}
    field = (("lat", "lon"), rng.normal(280.0, 5.0, (6, 8)), {"units": "K"})
    observed = (("coarse_lat", "coarse_lon"), rng.normal(280.0, 5.0, (2, 2)), {"units": "K"})
    roles = (("coarse_lat", "coarse_lon"), np.array([[0, 1], [2, 3]], dtype="i1"))
    data = xr.Dataset(
        {
            "mean": field,
            "std": (("lat", "lon"), rng.uniform(0.5, 1.0, (6, 8))),
            "samples": (("sample", "lat", "lon"), rng.normal(280.0, 5.0, (2, 6, 8))),
            "coarse_observed": observed,
            "coarse_residual": (observed[0], rng.normal(0.0, 0.1, (2, 2))),
            "coarse_role": roles,
        },
        {**axes, **coarse},
        {"deconditional": json.dumps(FACTS), "history": "made", "title": "temperature"},
    )
    data.to_netcdf(folder / "result.nc")


FACTS = {
    "target": "tas",
    "units": "K",
    "long_name": "temperature",
    "covariates": ["altitude"],
    "mediators": [],
    "model": "cmp",
    "mediation": "matched",
    "distribution": "normal",
    "bounds": [None, None],
    "options": {"seed": 0, "model": "auto"},
    "understood": [["fine grid", "6 by 8"], ["bags", "4"]],
    "parameters": [{"name": "noise_std", "value": 0.1, "unit": "K", "meaning": "noise"}],
    "fit": {
        "converged": True,
        "iterations": 3,
        "log_evidence": -1.5,
        "notes": ["a"],
        "details": {},
    },
    "comparison": {
        "columns": ["model", "crps"],
        "rows": [["cmp", 0.5], ["gpr", 0.7]],
        "chosen": "cmp",
        "folds": "5 blocks",
        "pit": [0.1, 0.5, 0.7, 0.9],
    },
    "residuals": {"n": 4, "mean": 0.1, "rmse": 0.2, "largest": 0.4},
    "timings": {"fit": 1.0},
    "versions": {"jax": "1"},
}


# ---------------------------------------------------------------------- damage


def damaged(content, rng):
    """Bytes with something done to them."""
    data = bytearray(content)
    # Headers are short and decide everything, so half of the damage is done there.
    top = len(data) if rng.random() < 0.5 else min(len(data), 3000)
    place = int(rng.integers(top))
    length = int(min(2 ** rng.integers(12), len(data) - place))
    how = rng.integers(9)
    if how == 0:
        data[place] ^= 1 << int(rng.integers(8))
    elif how == 1:
        for _ in range(int(rng.integers(2, 30))):
            data[int(rng.integers(top))] = int(rng.integers(256))
    elif how == 2:
        data[place : place + length] = rng.bytes(length)
    elif how == 3:
        data[place : place + length] = bytes([int(rng.choice([0, 255, 32]))]) * length
    elif how == 4:
        del data[place:]
    elif how == 5:
        del data[place : place + length]
    elif how == 6:
        data[place:place] = data[place : place + length]
    elif how == 7:
        other = int(rng.integers(len(data) - length + 1))
        data[place : place + length], data[other : other + length] = (
            data[other : other + length],
            data[place : place + length],
        )
    else:
        size = int(rng.choice([1, 2, 4, 8]))
        value = int(rng.choice([0, 1, -1, 2 ** (8 * size - 1) - 1, -(2 ** (8 * size - 1))]))
        order = str(rng.choice(["big", "little"]))
        data[place : place + size] = value.to_bytes(size, order, signed=True)
    return bytes(data)


VALUES = (
    None,
    True,
    -1,
    0,
    10**12,
    1e308,
    "",
    "x" * 10**5,
    "nan",
    [],
    {},
    [1, [2]],
    {"a": 1},
    "<b>",
)


def altered(value, rng):
    """JSON with a value replaced, a key removed or renamed, somewhere inside."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = list(value)[int(rng.integers(len(value)))]
        changed = dict(value)
        how = rng.random()
        if how < 0.15:
            del changed[key]
        elif how < 0.25:
            changed[f"{key}'"] = changed.pop(key)
        else:
            changed[key] = altered(changed[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = int(rng.integers(len(value)))
        changed = list(value)
        if rng.random() < 0.2:
            del changed[place]
        else:
            changed[place] = altered(changed[place], rng)
        return changed
    return VALUES[int(rng.integers(len(VALUES)))]


def damaged_store(store, rng):
    """A store with a file spoilt, exchanged, lost or in another's place."""
    files = sorted(f for f in store.rglob("*") if f.is_file())
    described = [f for f in files if f.name.startswith((".z", "zarr.json"))]
    how = rng.integers(8)
    file = files[int(rng.integers(len(files)))]
    if how <= 2:
        file = described[int(rng.integers(len(described)))]
        file.write_text(json.dumps(altered(json.loads(file.read_text()), rng)))
    elif how == 3:
        file.write_bytes(damaged(file.read_bytes() or b"\0", rng))
    elif how == 4:
        other = files[int(rng.integers(len(files)))]
        first, second = file.read_bytes(), other.read_bytes()
        file.write_bytes(second)
        other.write_bytes(first)
    elif how == 5:
        file.unlink()
    elif how == 6:
        file.unlink()
        file.mkdir()
    else:
        shutil.rmtree(file.parent) if file.parent != store else file.unlink()


# ---------------------------------------------------------------------- what may happen


def outcome(answer, undamaged):
    """What became of a file, in words; a wrong outcome is an AssertionError."""
    code, error = answer["code"], answer.get("error", "")
    if code == "crash":
        return f"crash of the C library ({signal.Signals(answer['signal']).name})"
    assert code != "hang", f"no answer within {SECONDS} s"
    assert code in (0, 2), f"{code}: {error}"
    if code == 2:
        assert error.startswith("deconditional: error: ") and error.count("\n") == 1, error
        assert visible(error) == error and "Traceback" not in error and len(error) < 3000, error
        assert "the computation with the model" not in error, error
        return "error of a library, passed on" if LIBRARY in error else "clear error"
    assert error == "", error
    if answer["data"] == undamaged["data"]:
        assert answer["understood"] == undamaged["understood"], "the same data, read otherwise"
        return "same answer"
    if answer["understood"] == undamaged["understood"]:
        return "same answer"
    return "other data, understood as the file now has it"


def count(readers, case_of, undamaged, tried, what):
    """Try so many cases and count what happens; `undamaged` is the answer, or one per option."""
    counts, wrong = Counter(), {}
    for seed in range(tried):
        case = case_of(seed)
        answer = readers.read(**case)
        try:
            counts[outcome(answer, undamaged[len(case.get("options", ()))])] += 1
        except AssertionError as error:
            wrong[seed] = str(error)
    assert not wrong, "\n".join(f"seed {seed}: {text[:1500]}" for seed, text in wrong.items())
    crashed = sum(n for name, n in counts.items() if name.startswith("crash"))
    record(GROUP, what, tried, dict(counts))
    print(what, dict(counts))
    return crashed


def options(rng):
    """Some are read chunk by chunk."""
    return ["--chunked", "yes"] if rng.random() < 0.2 else []


def as_they_are(readers, folder, whole):
    """What is understood of the undamaged files, by the number of words in the options."""
    found = {}
    for given in ([], ["--chunked", "yes"]):
        case = {"kind": "downscale", "folder": str(folder), "options": given, **whole}
        found[len(given)] = readers.read(**case)
        assert found[len(given)]["code"] == 0, found
    return found


@pytest.mark.parametrize(
    ("form", "few", "many"),
    [("HDF5", 4, 200), ("packed", 2, 100), ("classic", 4, 200), ("64-bit", 2, 80)],
)
def test_damaged_netcdf(readers, good, tmp_path, form, few, many):
    names = {which: f"{which}-{form}.nc" for which in ("fine", "coarse")}
    whole = {which: str(good / name) for which, name in names.items()}
    undamaged = as_they_are(readers, tmp_path, whole)

    def case(seed):
        rng = np.random.default_rng([seed, many])
        which = str(rng.choice(["fine", "coarse"]))
        path = tmp_path / names[which]
        path.write_bytes(damaged((good / names[which]).read_bytes(), rng))
        given = whole | {which: str(path)}
        return {"kind": "downscale", "folder": str(tmp_path), "options": options(rng), **given}

    crashed = count(readers, case, undamaged, tries(few, many), f"netCDF, {form}")
    assert crashed <= 0.02 * tries(few, many) + 1
    assert not (tmp_path / "out.nc").exists()


@pytest.mark.parametrize(("form", "few", "many"), [("new", 3, 150), ("old", 2, 80)])
def test_damaged_stores(readers, good, tmp_path, form, few, many):
    names = {which: f"{which}-{form}.zarr" for which in ("fine", "coarse")}
    whole = {which: str(good / name) for which, name in names.items()}
    undamaged = as_they_are(readers, tmp_path, whole)

    def case(seed):
        rng = np.random.default_rng([seed, many])
        which = str(rng.choice(["fine", "coarse"]))
        store = tmp_path / f"{seed}-{names[which]}"
        shutil.copytree(good / names[which], store)
        damaged_store(store, rng)
        given = whole | {which: str(store)}
        return {"kind": "downscale", "folder": str(tmp_path), "options": options(rng), **given}

    what = f"Zarr, version {3 if form == 'new' else 2}"
    assert count(readers, case, undamaged, tries(few, many), what) == 0
    assert not (tmp_path / "out.nc").exists()


def test_damaged_results(readers, good, tmp_path):
    with xr.open_dataset(good / "result.nc") as data:
        names = sorted(map(str, data.variables))
    about = {"kind": "report", "folder": str(tmp_path), "names": names}
    undamaged = {0: readers.read(result=str(good / "result.nc"), **about)}
    assert undamaged[0]["code"] == 0, undamaged

    def case(seed):
        rng = np.random.default_rng([seed, 1])
        path = tmp_path / "result.nc"
        path.write_bytes(damaged((good / "result.nc").read_bytes(), rng))
        return {"result": str(path), **about}

    tried = tries(3, 80)
    assert count(readers, case, undamaged, tried, "results, for a report") <= 0.02 * tried + 1


def test_altered_facts(readers, good, tmp_path):
    with xr.open_dataset(good / "result.nc") as opened:
        data = opened.load()
    about = {"kind": "report", "folder": str(tmp_path), "names": sorted(map(str, data.variables))}
    undamaged = {0: readers.read(result=str(good / "result.nc"), **about)}
    assert undamaged[0]["code"] == 0, undamaged

    def case(seed):
        rng = np.random.default_rng([seed, 2])
        facts = altered(FACTS, rng)
        for _ in range(int(rng.integers(3))):
            facts = altered(facts, rng)
        path = tmp_path / "result.nc"
        data.assign_attrs(deconditional=json.dumps(facts)).to_netcdf(path)
        return {"result": str(path), **about}

    tried = tries(3, 60)
    assert count(readers, case, undamaged, tried, "facts of a result, for a report") == 0


def test_damaged_tables(readers, good, tmp_path):
    about = {"kind": "table", "folder": str(tmp_path), "table": "table.csv"}
    shutil.copy(good / "table.csv", tmp_path)
    undamaged = {0: readers.read(**about)}
    assert undamaged[0]["code"] == 0, undamaged

    def case(seed):
        rng = np.random.default_rng([seed, 3])
        (tmp_path / "table.csv").write_bytes(damaged((good / "table.csv").read_bytes(), rng))
        return about

    assert count(readers, case, undamaged, tries(5, 100), "CSV tables, made into bags") == 0
