"""Results written by regions, many fits, and workers that die: nothing lost, nothing done twice."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

xr = pytest.importorskip("xarray")
pytest.importorskip("dask")
pytest.importorskip("distributed")
pytest.importorskip("zarr")
pytest.importorskip("cf_xarray")

import deconditional as dc  # noqa: E402
from benchmarks.__main__ import main as benchmark  # noqa: E402
from deconditional.cli.main import main  # noqa: E402
from deconditional.datasets import split_cells, synthetic_fields  # noqa: E402
from deconditional.errors import UsageError  # noqa: E402
from deconditional.fields import mapped, part, predict, streaming  # noqa: E402
from deconditional.fields.cluster import active_client  # noqa: E402
from deconditional.fields.predict import Predictor  # noqa: E402

ROLES = ("tas", ["altitude", "cloud"], ["water_vapour"])
DAYS = ["2000-01-01", "2000-01-02", "2000-01-03"]
CHUNKS = {"lat": 5, "lon": 12}
FIXED = {
    "kernel.0.lengthscale": 0.7,
    "kernel.0.variance": 1.0,
    "kernel.1.lengthscale": np.array([1.5, 1.5]),
    "kernel.1.variance": 0.5,
    "kernel.2.lengthscale": 0.5,
    "kernel.2.variance": 0.1,
    "noise_std": 0.1,
}


def options(**changes):
    """A model that learns nothing, so that a fit takes no time."""
    held = {"model": "bagg-gp", "n_restarts": 1, "model_options": {"fixed": FIXED}}
    return held | changes


@pytest.fixture(scope="module")
def fitted():
    data = split_cells(synthetic_fields(18, 36), *ROLES, 3, matched=1.0)
    downscaler = dc.Downscaler(*ROLES, **options()).fit(data.fine, data.coarse)
    return data.fine.chunk(CHUNKS), downscaler, downscaler.predict(data.fine)


@pytest.fixture(scope="module")
def coarse():
    return split_cells(synthetic_fields(18, 36), *ROLES, 3, matched=1.0).coarse


@pytest.fixture(autouse=True)
def small_regions(monkeypatch):
    monkeypatch.setattr(streaming, "CELLS_PER_REGION", 100)


def opened(path):
    engine = "zarr" if path.suffix == ".zarr" else None
    with xr.open_dataset(path, engine=engine) as data:
        return data.load()


def assert_complete(path, expected):
    found = opened(path)
    assert set(found.variables) == set(expected.variables)
    for name in ("mean", "std", "coarse_mean", "coarse_residual"):
        np.testing.assert_allclose(found[name], expected[name], atol=1e-9, err_msg=name)
        assert found[name].attrs == expected[name].attrs
    facts = [json.loads(data.attrs["deconditional"]) for data in (found, expected)]
    for key, value in facts[1]["residuals"].items():
        assert facts[0]["residuals"][key] == pytest.approx(value, abs=1e-9)
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name]


# ---------------------------------------------------------------------- regions


@pytest.mark.parametrize("name", ["out.zarr", "out.nc"])
def test_what_is_written_is_what_memory_gives(fitted, tmp_path, name):
    fine, downscaler, expected = fitted
    assert downscaler.predict_to(tmp_path / name, fine) == tmp_path / name
    assert_complete(tmp_path / name, expected)


def test_regions_cover_every_cell_once():
    field = xr.DataArray(np.zeros((2, 18, 36)), dims=("time", "y", "x"))
    lazy = field.chunk({"time": 1, "y": 5, "x": 12}).to_dataset(name="mean")
    count = np.zeros(field.shape, dtype=int)
    found = streaming.regions(lazy)
    for region in found:
        count[region["time"], region["y"], region["x"]] += 1
    assert (count == 1).all() and len(found) == 8


def test_a_stopped_run_goes_on(fitted, tmp_path, monkeypatch):
    fine, downscaler, expected = fitted
    out = tmp_path / "out.zarr"
    written = []
    bare = streaming._bare

    def failing(dataset):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(dataset)
        return bare(dataset)

    monkeypatch.setattr(streaming, "_bare", failing)
    with pytest.raises(KeyboardInterrupt):
        downscaler.predict_to(out, fine)
    assert not out.exists()
    record = json.loads((tmp_path / ".out.zarr.progress.json").read_text())
    assert record["done"] == [0, 1]
    again = []
    monkeypatch.setattr(streaming, "_bare", lambda d: again.append(d) or bare(d))
    downscaler.predict_to(out, fine)
    assert len(again) == len(streaming.regions(downscaler.predict(fine))) - 2
    assert_complete(out, expected)


def test_what_another_run_has_left_is_not_used(fitted, tmp_path):
    fine, downscaler, expected = fitted
    out = tmp_path / "out.zarr"
    (tmp_path / ".out.zarr.part").mkdir()
    for text in ("{", '{"identity": "other", "done": [0, 1, 2]}', '{"done": 3}'):
        (tmp_path / ".out.zarr.progress.json").write_text(text)
        downscaler.predict_to(out, fine, overwrite=True)
        assert_complete(out, expected)


def test_uneven_chunks_are_evened_out(fitted, tmp_path):
    fine, downscaler, expected = fitted
    downscaler.predict_to(tmp_path / "out.zarr", fine.chunk({"lat": (3, 9, 6), "lon": 36}))
    assert_complete(tmp_path / "out.zarr", expected)


def test_an_existing_output_is_kept(fitted, tmp_path):
    fine, downscaler, _ = fitted
    out = tmp_path / "out.nc"
    out.write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        downscaler.predict_to(out, fine)
    assert out.read_text() == "mine"


KILLED = """
import sys, time
import numpy as np, xarray as xr
import deconditional as dc
from deconditional.fields import streaming
streaming.CELLS_PER_REGION = 100
downscaler = dc.load(sys.argv[1])
bare = streaming._bare
def slowly(dataset):
    time.sleep(float(sys.argv[4]))
    return bare(dataset)
streaming._bare = slowly
downscaler.predict_to(sys.argv[3], xr.open_dataset(sys.argv[2]).chunk({"lat": 5, "lon": 12}))
"""


def test_a_killed_run_goes_on_in_another_process(fitted, tmp_path_factory, tmp_path):
    fine, downscaler, expected = fitted
    given = tmp_path_factory.mktemp("given")
    downscaler.save(given / "model.npz")
    fine.compute().to_netcdf(given / "fine.nc")
    out = tmp_path / "out.zarr"
    command = [sys.executable, "-c", KILLED, given / "model.npz", given / "fine.nc", out]
    killed = subprocess.Popen([*command, "1.5"])
    record = tmp_path / ".out.zarr.progress.json"
    for _ in range(600):
        if record.exists() and json.loads(record.read_text())["done"]:
            break
        time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    done = json.loads(record.read_text())["done"]
    assert done and not out.exists()
    loaded = dc.load(given / "model.npz")
    loaded.predict_to(out, xr.open_dataset(given / "fine.nc").chunk(CHUNKS))
    assert_complete(out, expected)


# ---------------------------------------------------------------------- many fits


@pytest.fixture(scope="module")
def days():
    return split_cells(synthetic_fields(18, 36, times=DAYS), *ROLES, 3, matched=1.0)


def test_every_time_has_a_fit_of_its_own(days):
    found = dc.downscale(days.fine, days.coarse, *ROLES, map_over="time", **options())
    assert found["mean"].dims == ("time", "lat", "lon")
    for k in range(3):
        fine, coarse = (data.isel(time=k, drop=True) for data in (days.fine, days.coarse))
        alone = dc.downscale(fine, coarse, *ROLES, **options())
        for name in ("mean", "std", "coarse_residual", "coarse_role"):
            np.testing.assert_array_equal(found[name].isel(time=k), alone[name])
    facts = json.loads(found.attrs["deconditional"])
    assert [s["label"] for s in facts["slices"]] == [f"time={d}" for d in DAYS]
    assert all(s["failed"] is None and s["model"] == "bagg-gp" for s in facts["slices"])


def spied(work, carried_out):
    """What carries out a slice, and notes its label."""
    return lambda how, each, *data: carried_out.append(each.label) or work(how, each, *data)


def test_a_failed_slice_is_reported_and_tried_again(days, tmp_path, monkeypatch):
    broken = days.coarse.copy(deep=True)
    broken["tas"][1] = np.nan
    given = {"map_over": "time", "store": tmp_path / "slices", **options()}
    with pytest.warns(dc.SliceWarning, match=r"1 of 3 slices .*time=2000-01-02: the target 'tas'"):
        found = dc.downscale(days.fine, broken, *ROLES, **given)
    assert found["mean"].isel(time=1).isnull().all() and found["mean"][0].notnull().all()
    carried_out = []
    monkeypatch.setattr(mapped, "_result", spied(mapped._result, carried_out))
    again = dc.downscale(days.fine, days.coarse, *ROLES, **given)
    assert carried_out == ["time=2000-01-02"]
    np.testing.assert_array_equal(again["mean"][[0, 2]], found["mean"][[0, 2]])
    assert again["mean"].notnull().all()


def test_another_option_is_another_slice(days, tmp_path, monkeypatch):
    fine, coarse = (data.isel(time=0, drop=True) for data in (days.fine, days.coarse))
    given = {"map_over": {"seed": [0, 1]}, "store": tmp_path / "slices"}
    found = dc.downscale(fine, coarse, *ROLES, **given, **options())
    assert found["mean"].dims == ("seed", "lat", "lon") and found.seed.values.tolist() == [0, 1]
    carried_out = []
    monkeypatch.setattr(mapped, "_result", spied(mapped._result, carried_out))
    dc.downscale(fine, coarse, *ROLES, **given, **options(min_cover=0.7))
    assert carried_out == ["seed=0", "seed=1"]


@pytest.mark.parametrize(("jobs", "wanted"), [(1, None), (3, 3)])
def test_jobs_are_processes_of_a_cluster(days, jobs, wanted, monkeypatch):
    asked = []

    def cluster(workers, scheduler):
        asked.append(workers)
        return nullcontext()

    monkeypatch.setattr(mapped, "cluster", cluster)
    monkeypatch.setattr(mapped, "_result", lambda *_: 1 / 0)
    with pytest.raises(UsageError, match=r"all 3 slices failed; .*division by zero"):
        dc.downscale(days.fine, days.coarse, *ROLES, map_over="time", jobs=jobs, **options())
    assert asked == [wanted]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"map_over": "member"}, "no dimension 'member'"),
        ({"map_over": {"seed": []}}, "no values for 'seed'"),
        ({"map_over": {"seed": [0], "folds": [2]}}, "takes one option"),
        ({"map_over": {"seeed": [0]}}, "unexpected keyword argument 'seeed'"),
        ({"map_over": {"model": ["u-cmp", "guess"]}}, "no model 'guess'"),
        ({"store": "slices"}, "belong to map_over"),
        ({"map_over": "time", "jobs": 0}, "at least 1"),
        ({"map_over": "time", "store": "absent/slices"}, "does not exist"),
    ],
)
def test_what_cannot_be_mapped_is_said_at_once(days, given, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mapped, "_result", lambda *_: pytest.fail("began"))
    with pytest.raises(UsageError, match=message):
        dc.downscale(days.fine, days.coarse, *ROLES, **given, **options())


def test_fine_data_without_the_time_is_named(days):
    with pytest.raises(UsageError, match="fine data has no time=2000-01-03"):
        dc.downscale(
            days.fine.isel(time=slice(2)), days.coarse, *ROLES, map_over="time", **options()
        )


# ---------------------------------------------------------------------- the command line


def command(folder, out, *more):
    return [
        "downscale",
        *("--fine", str(folder / "fine.nc"), "--coarse", str(folder / "coarse.nc")),
        *("--target", "tas", "--covariates", "altitude,cloud", "--model", "gpr"),
        *("--restarts", "1", "--out", str(out), *more),
    ]


@pytest.fixture(scope="module")
def files(days, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    days.fine.to_netcdf(folder / "fine.nc")
    days.coarse.to_netcdf(folder / "coarse.nc")
    return folder


def test_the_command_reads_and_writes_by_chunks(files, tmp_path, capsys, monkeypatch):
    whole, by_chunks = tmp_path / "whole.nc", tmp_path / "chunks.zarr"
    time_ = ("--time", "2000-01-02")
    assert main(command(files, whole, *time_, "--chunked", "no")) == 0
    said = capsys.readouterr().out
    loaded = []
    monkeypatch.setattr(part.Reader, "part", _noting(part.Reader.part, loaded))
    assert main(command(files, by_chunks, *time_, "--chunked", "yes")) == 0
    assert loaded  # it did go by parts
    start = "residuals  observed less area mean in 72 cells: rms 0."
    assert start in said and start in capsys.readouterr().out
    found, expected = opened(by_chunks), opened(whole)
    # Two fits from inputs that differ by rounding.
    np.testing.assert_allclose(found["mean"], expected["mean"], atol=0.1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["chunks.zarr", "whole.nc"]


def _noting(part, seen):
    def noted(self, place, blocks):
        seen.append(place)
        return part(self, place, blocks)

    return noted


def test_the_command_maps_over_times_and_keeps_what_is_done(files, days, tmp_path, capsys):
    out = tmp_path / "out.nc"
    broken = days.coarse.copy(deep=True)
    broken["tas"][1] = np.nan
    folder = tmp_path / "in"
    folder.mkdir()
    days.fine.to_netcdf(folder / "fine.nc")
    broken.to_netcdf(folder / "coarse.nc")
    assert main(command(folder, out, "--map-over", "time")) == 1
    assert "1 of 3 slices failed" in capsys.readouterr().err
    assert len(list((tmp_path / ".out.nc.slices").iterdir())) == 2
    days.coarse.to_netcdf(folder / "coarse.nc", mode="w")
    assert main(command(folder, out, "--map-over", "time", "--overwrite")) == 0
    assert opened(out)["mean"].notnull().all()
    assert not (tmp_path / ".out.nc.slices").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--workers", "1", "--scheduler", "tcp://127.0.0.1:9"), "give one"),
        (("--workers", "1", "--chunked", "no"), "nothing to do for Dask"),
        (("--scheduler", "nowhere"), "no Dask scheduler answers at 'nowhere'"),
        (("--map-over", "member"), "no dimension 'member'"),
    ],
)
def test_bad_options_about_size_are_one_line(files, tmp_path, capsys, more, message):
    assert main(command(files, tmp_path / "out.nc", *more)) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert active_client() is None


@pytest.fixture(scope="module")
def client():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_the_benchmark_compares_with_memory(fitted, client, tmp_path, capsys, monkeypatch):
    # The workers of the tests below serve, whatever their number.
    monkeypatch.setattr("deconditional.fields.cluster.cluster", lambda *_: nullcontext(client))
    monkeypatch.setattr("benchmarks.out_of_core._fitted", lambda inducing: fitted[1])
    out = tmp_path / "numbers.json"
    asked = ("--quick", "--workers", "1", "--features", "50", "--out", str(out))
    assert benchmark(["out-of-core", *asked]) == 0
    found = json.loads(out.read_text())
    assert found["rows"][-1]["cells"] == 41_472 and found["features"] == 50
    assert max(found["difference"].values()) < 1e-9
    assert "50 random features" in capsys.readouterr().out


# ---------------------------------------------------------------------- workers


class Counted(Predictor):
    """Counts how often it is unpickled in a process."""

    def __setstate__(self, state):
        self.__dict__.update(state)
        Counted.arrivals = getattr(Counted, "arrivals", 0) + 1


def arrivals():
    import sys

    found = [getattr(m, "Counted", None) for m in list(sys.modules.values())]
    return max((getattr(c, "arrivals", 0) for c in found if c is not None), default=0)


def test_workers_give_the_same_answer(fitted, coarse, client):
    fine, downscaler, expected = fitted
    small = fine.chunk({"lat": 3, "lon": 6})
    found = downscaler.predict(small).compute()
    np.testing.assert_allclose(found["mean"], expected["mean"], atol=1e-9)
    np.testing.assert_allclose(found["coarse_mean"], expected["coarse_mean"], atol=1e-9)
    other = dc.Downscaler(*ROLES, **options()).fit(small, coarse)
    np.testing.assert_allclose(other.predict(small)["mean"].compute(), expected["mean"], atol=1e-6)


def test_the_model_travels_once_to_every_worker(fitted, client, monkeypatch):
    import cloudpickle

    fine, downscaler, _ = fitted
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        monkeypatch.setattr(predict, "Predictor", Counted)
        downscaler.predict(fine.chunk({"lat": 3, "lon": 6}))["mean"].compute()  # 36 tasks
        found = client.run(arrivals)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert all(1 <= n <= 2 for n in found.values()), found


def test_a_worker_starts_no_more_threads_than_it_was_given(fitted, client):
    fine, downscaler, _ = fitted
    downscaler.predict(fine)["mean"].compute()

    def pools():
        from threadpoolctl import threadpool_info

        return [pool["num_threads"] for pool in threadpool_info()]

    def compiled_code_runs_on():
        threads = os.listdir("/proc/self/task")
        names = [Path(f"/proc/self/task/{t}/comm").read_text() for t in threads]
        return sum("XLAEigen" in name for name in names)

    for found in client.run(pools).values():
        assert all(n == 1 for n in found)
    # JAX 0.6.1 does not name that thread.
    assert max(client.run(compiled_code_runs_on).values()) <= 1
    cores = client.run(lambda: len(os.sched_getaffinity(0)))
    assert set(cores.values()) == {len(os.sched_getaffinity(0))}


def test_a_killed_worker_costs_a_retry(fitted, client, tmp_path):
    fine, downscaler, expected = fitted
    first = next(iter(client.run(os.getpid).values()))

    def slow_then(field):
        time.sleep(0.3)
        return field

    lazy = fine.chunk({"lat": 3, "lon": 6})
    lazy["cloud"] = lazy.cloud.copy(data=lazy.cloud.data.map_blocks(slow_then, dtype=float))
    future = client.compute(downscaler.predict(lazy)["mean"].data)
    time.sleep(1.0)
    os.kill(first, signal.SIGKILL)
    np.testing.assert_allclose(future.result(timeout=120), expected["mean"], atol=1e-9)


def test_slices_on_workers(days, client, tmp_path):
    lazy = days.fine.chunk({"time": 1})
    broken = days.coarse.copy(deep=True)
    broken["tas"][0] = 7.0
    given = {"map_over": "time", "store": tmp_path / "slices", **options()}
    with pytest.warns(dc.SliceWarning, match="has the same value, 7"):
        found = dc.downscale(lazy, broken, *ROLES, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error", dc.SliceWarning)
        expected = dc.downscale(days.fine, days.coarse, *ROLES, map_over="time", **options())
    np.testing.assert_allclose(found["mean"][1:], expected["mean"][1:], atol=1e-9)
