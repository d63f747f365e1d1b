"""Benchmarks: what they count and compare, on clocks that tests set; nothing is measured long."""

import importlib.util
import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from scipy.stats import multivariate_normal

import deconditional as dc
from benchmarks import __main__ as command
from benchmarks import (
    against_dense,
    against_gpytorch,
    check,
    climate_size,
    fit,
    frame,
    kernels,
    predict,
    scaling,
    timing,
)
from benchmarks.figures import bars
from benchmarks.frame import Benchmark, shown
from benchmarks.problems import strips
from deconditional.errors import UsageError
from helpers import assert_close
from studies.clock import best_seconds
from studies.data import synthetic_globe

QUIET = Console(quiet=True)
ROOT = Path(__file__).parents[1]


def half_a_second(call, budget=0.0, least=1):
    """A clock on which every call takes half a second; what is called runs once."""
    call()
    return 0.5


@pytest.fixture
def still_clocks(monkeypatch):
    """Every call takes half a second, and `exp` does 1000 values and 100 flops in a second."""
    for module in (against_dense, climate_size, fit, kernels, predict, scaling):
        monkeypatch.setattr(module, "best_seconds", half_a_second)
        if hasattr(module, "exp_rate"):
            monkeypatch.setattr(module, "exp_rate", lambda dtype, budget: 1000.0)
    monkeypatch.setattr(kernels, "array_exp_rate", lambda dtype, budget: 250.0)
    monkeypatch.setattr(predict, "matmul_rate", lambda dtype, budget: 100.0)


def complaint(capsys, given):
    """The one line on stderr of a command that must end with code 2."""
    assert command.main(given) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("benchmarks: error: ")
    return said


# --------------------------------------------------------------------------- problems


def test_strips_are_bags_of_the_field_they_say():
    bags, z, mediator = strips(600, 12)
    x = bags.points
    means = [np.mean(np.sin(6 * p[:, 0]) + p[:, 1] ** 2) for p in np.split(x, 12)]
    assert np.abs(z - means).max() < 0.2 and np.abs(z - means).std() > 0.01
    assert_close(mediator[:, 0], (np.arange(12) + 0.5) / 12)
    for j in range(12):
        assert ((x[bags.bag == j, 0] * 12).astype(int) == j).all()


def test_every_strip_has_a_point_even_if_there_are_as_many():
    problem = strips(64, 64, observations=10, dims=1)
    assert (problem.bags.sizes == 1).all()
    assert problem.z.shape == (10,) and problem.bags.points.shape == (64, 1)


# --------------------------------------------------------------------------- ratios


def test_kernels_count_the_values_that_were_answered_for_and_computed(still_clocks):
    small = kernels.Kernels(points=1500, bags=9, dims=2, types=("float32",))
    result = small.measure(QUIET)
    n = result["points"]
    gram, gradient, cross = result["rows"][:3]
    for row, values in ((gram, n**2), (gradient, n**2), (cross, min(n, 4096) * n)):
        assert row["values_per_second"] == 2 * values
        assert row["share_of_exp"] == pytest.approx(2 * values / 1000)
        assert row["share_of_array_exp"] == pytest.approx(2 * values / 250)
    layout = kernels._ragged_bags(1500, 9, 2).layout
    slots, row_tile, tile = layout.points.shape[0], layout.row_tile, layout.tile
    visited = sum(
        row_tile * tile
        for i in range(0, slots, row_tile)
        for j in range(0, slots, tile)
        if j + tile > i
    )
    assert gram["evaluated_per_second"] == 2 * visited
    costs = small.costs(result)
    assert costs["bag_gram, Gaussian, float32"] == pytest.approx((0.5, n**2 / 1000))
    assert len(costs) == len(result["rows"]) == 6


def test_fits_are_counted_in_units_of_exp(still_clocks, monkeypatch):
    # One model is enough to see the arithmetic.
    model = dc.BaggGP(n_restarts=1, max_iter=2)
    monkeypatch.setattr(fit, "models", lambda inducing, restarts: {"Bagg-GP": model})
    small = fit.Fit(points=120, bags=6)
    result = small.measure(QUIET)
    (row,) = result["rows"]
    assert result["unit_seconds"] == pytest.approx(120**2 / 1000)
    assert row["evaluation_in_units"] == pytest.approx(0.5 / 14.4)
    assert row["fit_in_units"] == pytest.approx(row["fit_seconds"] / 14.4)
    assert row["evaluations"] == model.fit_report_.evaluations
    assert row["fit_over_evaluations"] == pytest.approx(
        row["fit_seconds"] / (0.5 * row["evaluations"])
    )
    costs = small.costs(result)
    assert costs["Bagg-GP, evaluation"] == pytest.approx((0.5, 14.4))
    within_fit = row["fit_seconds"] / row["evaluations"]
    assert costs["Bagg-GP, fit per evaluation"] == pytest.approx((within_fit, 14.4))
    assert (
        "14400.00 ms"
        in small.words({**result, "points": 1, "bags": 1, "restarts": 1} | {"device": "d"})[1]
    )


def test_all_five_models_are_fitted():
    assert [name.split(",")[0] for name in fit.models(7, 2)] == [
        "CMP",
        "S-CMP",
        "U-CMP",
        "Bagg-GP",
        "VarCMP",
    ]
    models = list(fit.models(7, 2).values())
    assert [m.cmo for m in models[:3]] == ["standard", "shrinkage", "standard"]
    assert models[2].uncertainty and models[4].n_inducing == 7
    assert {m.n_restarts for m in models} == {2}


def test_predictions_are_set_against_exp_and_products(still_clocks):
    small = predict.Predict(90, 6, 2, 8, 10, 40, blocks=())
    result = small.measure(QUIET)
    rows = {row["field"]: row for row in result["rows"] if row["block"] is None}
    for name, values, flops in (
        ("exact, 90 points", 90, 2 * 6 * 6),
        ("8 inducing points", 8, 4 * 8**2),
        ("10 features", 10, 2 * 10**2),
    ):
        row = rows[name]
        assert row["points_per_second"] == pytest.approx(80)
        assert row["share_of_exp"] == pytest.approx(40 * values / 1000 / 0.5)
        limit = 40 * values / 1000 + 40 * flops / 100
        assert row["share_of_both"] == pytest.approx(limit / 0.5)
        assert small.costs(result)[name] == pytest.approx((0.5, limit))


def test_whole_blocks_stand_for_all_points():
    asked = []

    class Field:
        def moments(self, x):
            asked.append(len(x))
            time.sleep(1e-3)
            return x[:, 0], x[:, 1]

    seconds = predict._seconds(Field(), np.zeros((25, 2)), block=10, budget=0.0)
    assert set(asked) == {10}
    assert seconds >= 2e-3 * 25 / 20


def test_the_dense_formula_is_the_opponent(still_clocks):
    small = against_dense.AgainstDense(points=80, bags=6)
    result = small.evaluations(QUIET)
    assert result["value_difference"] < 1e-8 and result["gradient_difference"] < 1e-7
    assert small.costs(result) == {"objective and gradient, 80 points": (0.5, 0.5)}


# --------------------------------------------------------------------------- clocks and processes


def test_the_best_of_several_calls_counts(monkeypatch):
    clock, naps = [0.0], iter([50.0, 30.0, 2.0, 30.0])

    def call():
        clock[0] += next(naps)

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    assert best_seconds(call, budget=0.0) == 2.0


ASKS = "import os, json; print(json.dumps([sorted(os.sched_getaffinity(0)), dict(os.environ)]))"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_a_process_of_its_own_keeps_to_its_cores_and_finds_no_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/somewhere")
    before = os.sched_getaffinity(0)
    cores, environment = json.loads(timing.in_own_process(["-c", ASKS], cores=1))
    assert cores == sorted(before)[:1] and os.sched_getaffinity(0) == before
    assert environment["OMP_NUM_THREADS"] == "1" and environment["DECONDITIONAL_CACHE"] == "off"
    assert "JAX_COMPILATION_CACHE_DIR" not in environment
    kept = timing.in_own_process(["-c", ASKS], cache=tmp_path)
    cores, environment = json.loads(kept)
    assert cores == sorted(before)
    assert environment["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path)
    with pytest.raises(UsageError, match="10000 cores were asked for"):
        timing.in_own_process(["-c", ASKS], cores=10_000)


def test_a_process_that_fails_says_why():
    with pytest.raises(RuntimeError, match=r"code 3:\nwhy"):
        timing.in_own_process(["-c", "import sys; sys.stderr.write('why'); sys.exit(3)"])


# --------------------------------------------------------------------------- scaling


def test_slopes_are_those_of_power_laws():
    sizes = (10, 100, 5000)
    rows = [{"size": n, "seconds": 3e-6 * n**1.25} for n in sizes]
    assert scaling.slopes_of(rows) == {"all": 1.25, "last": 1.25}
    rows = [{"size": n, "seconds": 1.0 + 1e-3 * n**3} for n in (1, 2, 1000, 2000)]
    assert scaling.slopes_of(rows)["last"] == pytest.approx(3, abs=1e-3)
    assert scaling.slopes_of(rows[:1]) == {"all": None, "last": None}


def test_one_quantity_grows_and_the_rest_stays(monkeypatch, tmp_path, capsys):
    asked = []

    def stand_in(command, cores=None):
        model, *sizes = command[2:]
        points, bags, observations, covariates, inducing = map(int, sizes)
        asked.append((model, points, bags, observations, covariates, inducing, cores))
        seconds = 1e-9 * points**2 * (covariates + 1) / (cores or 1)
        return "noise\n" + json.dumps({"seconds": seconds, "peak_bytes": 2**20})

    monkeypatch.setattr(scaling, "in_own_process", stand_in)
    monkeypatch.setattr(scaling, "available_cores", lambda: [0, 1, 5])
    out, plot = tmp_path / "s.json", tmp_path / "new" / "s.png"
    assert scaling.Scaling(inducing=7, sizes=2).run(out, plot) == 0
    assert asked == [
        ("exact", 2048, 64, 64, 3, 0, None),
        ("exact", 4096, 64, 64, 3, 0, None),
        ("exact", 4096, 128, 64, 3, 0, None),
        ("exact", 4096, 256, 64, 3, 0, None),
        ("exact", 4096, 64, 128, 3, 0, None),
        ("exact", 4096, 64, 256, 3, 0, None),
        ("exact", 8192, 64, 64, 2, 0, None),
        ("exact", 8192, 64, 64, 4, 0, None),
        ("exact", 16_384, 64, 64, 3, 0, 1),
        ("exact", 16_384, 64, 64, 3, 0, 2),
        ("vbagg", 10_000, 100, 100, 3, 7, None),
        ("vbagg", 31_623, 316, 316, 3, 7, None),
        ("varcmp", 10_000, 400, 400, 3, 7, None),
        ("varcmp", 31_623, 400, 400, 3, 7, None),
    ]
    slopes = json.loads(out.read_text())["slopes"]
    assert slopes["points"] == {"all": 2.0, "last": 2.0}
    assert slopes["bags"]["all"] == 0.0 and slopes["cores"]["all"] == -1.0
    assert slopes["covariates"]["all"] == pytest.approx(np.log2(5 / 3), abs=1e-3)
    assert plot.read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "exact CMP, cores" in shown and "n² kernel values" in shown


def test_sizes_stop_where_they_are_told_to(monkeypatch):
    most = scaling.Scaling(points=9000)
    assert most.chosen("points") == [2048, 4096, 8192]
    assert most.chosen("bags") == list(scaling.GROWTHS["bags"].sizes)
    with pytest.raises(UsageError, match="its least is 10000"):
        most.chosen("vbagg")
    monkeypatch.setattr(scaling, "available_cores", lambda: list(range(5)))
    assert scaling.Scaling().chosen("cores") == [1, 2, 4]


def test_one_evaluation_is_timed(still_clocks):
    size = scaling.Size("vbagg", points=600, bags=12, observations=12, covariates=2, inducing=8)
    row = scaling._one(size)
    assert (row["model"], row["points"], row["seconds"]) == ("vbagg", 600, 0.5)
    assert row["peak_bytes"] > 2**20


# --------------------------------------------------------------------------- climate size


def test_a_model_of_the_climate_size_is_fitted_and_scored(still_clocks, capsys):
    globe = synthetic_globe(rows=4, columns=6, block=3)
    model = dc.CMP(**climate_size.kernels(), points_per_bag=4, n_restarts=1, max_iter=2)
    row = climate_size._fitted(Console(), model, globe, "few points", budget=0.0)
    assert (row["model"], row["points"], row["evaluation_seconds"]) == ("few points", 48, 0.5)
    assert row["evaluations"] == model.fit_report_.evaluations
    error = model.predict(globe.x).mean - globe.f
    assert row["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert 0 <= row["coverage95"] <= 1 and row["predict_seconds"] > 0
    climate_size._add_shares(row, rate=1000.0, queries=216)
    assert row["evaluation_share_of_exp"] == pytest.approx(2 * 48**2 / 1000 / 0.5)
    shown = 2 * 48 * 216 / 1000 / row["predict_seconds"]
    assert row["predict_share_of_exp"] == pytest.approx(shown)
    assert "few points: map fit" in capsys.readouterr().out


@pytest.mark.parametrize("exact_all", [False, True])
def test_all_points_are_evaluated_once_unless_they_are_to_be_fitted(
    exact_all, monkeypatch, tmp_path, capsys
):
    asked = []

    def stand_in(where, model, globe, name, budget):
        asked.append(name)
        row = {"model": name, "points": 100, "evaluation_seconds": 2.0, "fit_seconds": 9.0}
        inducing = {"inducing points": str(model.n_inducing)} if "VarCMP" in name else {}
        return row | {"predict_seconds": 3.0, "details": inducing}

    monkeypatch.setattr(climate_size, "_fitted", stand_in)
    monkeypatch.setattr(climate_size, "_evaluation", lambda model, globe, budget: 4.0)
    monkeypatch.setattr(climate_size, "exp_rate", lambda dtype, budget: 1000.0)
    out, plot = tmp_path / "climate.json", tmp_path / "climate.png"
    small = climate_size.ClimateSize(30, exact_all=exact_all, cells=(6, 8, 5))
    assert small.run(out, plot) == 0
    expected = ["VarCMP, 30 inducing points", "exact CMP, 64 points per bag"]
    assert asked == expected + ["exact CMP, all points"] * exact_all
    variational, few, every = json.loads(out.read_text())["rows"]
    assert variational["evaluation_share_of_exp"] == pytest.approx(2 * 100 * 30 / 1000 / 2.0)
    assert few["evaluation_share_of_exp"] == pytest.approx(2 * 100**2 / 1000 / 2.0)
    assert variational["predict_share_of_exp"] == pytest.approx(2 * 30 * 1200 / 1000 / 3.0)
    assert ("fit_seconds" in every) == exact_all
    if not exact_all:
        assert every["evaluation_share_of_exp"] == pytest.approx(2 * 600**2 / 1000 / 4.0)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert timing.device_name() in capsys.readouterr().out


# --------------------------------------------------------------------------- GPyTorch


def stored_problem(tmp_path, kernel, points=120, bags=8):
    path = tmp_path / "problem.npz"
    against_gpytorch._write_problem(path, points, bags, kernel)
    with np.load(path) as stored:
        return path, {name: stored[name] for name in stored.files}


@pytest.mark.parametrize("kernel", against_gpytorch.KERNELS)
def test_the_dense_evidence_is_that_of_a_multivariate_normal(kernel, tmp_path):
    _, problem = stored_problem(tmp_path, kernel)
    scales = np.array([0.7, 1.1, 2.0])
    dense = against_gpytorch.KERNELS[kernel](lengthscale=jnp.asarray(scales), variance=1.7)
    x, bag = problem["x"], problem["bag"]
    p = np.zeros((len(x), 8))
    p[np.arange(len(x)), bag] = 1 / np.bincount(bag)[bag]
    covariance = p.T @ np.asarray(dense.cross_covariance(x, x)) @ p
    covariance += problem["offset_variance"] + 0.02 * np.eye(8)
    expected = multivariate_normal(np.zeros(8), covariance).logpdf(problem["z"])
    found = against_gpytorch.dense_log_evidence(problem, scales, 1.7, 0.02)
    assert found == pytest.approx(expected, rel=1e-9)


def test_our_side_maximises_the_evidence_alone(tmp_path, capsys):
    path, problem = stored_problem(tmp_path, "gaussian")
    assert against_gpytorch.main([str(path), "1"]) == 0
    (fitted,) = json.loads(capsys.readouterr().out)
    trace = fitted["trace"]
    assert trace[0]["lengthscale"] == pytest.approx(problem["lengthscale"].tolist())
    assert trace[0]["variance"] == pytest.approx(float(problem["variance"]))
    assert trace[0]["noise_variance"] == pytest.approx(float(problem["noise_variance"]))
    for step in (trace[0], trace[-1]):
        found = {key: step[key] for key in ("lengthscale", "variance", "noise_variance")}
        dense = against_gpytorch.dense_log_evidence(problem, **found)
        assert step["log_evidence"] == pytest.approx(dense, abs=1e-5)
    assert trace[-1]["log_evidence"] > trace[0]["log_evidence"] + 1
    seconds = [step["seconds"] for step in trace]
    assert seconds == sorted(seconds) and seconds[-1] <= fitted["seconds"]


def steps(problem, moments, evidences, **more):
    start = {
        "lengthscale": problem["lengthscale"].tolist(),
        "variance": float(problem["variance"]),
        "noise_variance": float(problem["noise_variance"]),
    }
    trace = [
        {"seconds": s, "log_evidence": e, **start} for s, e in zip(moments, evidences, strict=True)
    ]
    return {"trace": trace, "peak_bytes": 2**20, **more}


def test_times_are_compared_at_the_same_evidence(tmp_path, monkeypatch, capsys):
    path, problem = stored_problem(tmp_path, "gaussian")
    # Everybody's best parameters are the same, so that the best evidence is known to be 10.
    monkeypatch.setattr(against_gpytorch, "dense_log_evidence", lambda problem, **found: 10.0)
    theirs = {
        "lbfgs": steps(problem, [4.0, 8.0, 12.0, 16.0], [0.0, 9.4, 9.6, 10.0]),
        "adam": steps(problem, [4.0, 14.0, 20.0], [0.0, 9.7, 10.0]),
    }
    ours = {
        "cold": steps(problem, [2.0, 2.5, 3.0], [0.0, 9.8, 10.0], seconds=4.0),
        "warm": steps(problem, [0.1, 0.5, 0.6], [0.0, 9.2, 10.0], seconds=0.8),
    }
    result = against_gpytorch._compared(path, ours, theirs)
    assert result["opponent_seconds_to_reach"] == 12.0
    cold, warm = result["fits"]["cold"], result["fits"]["warm"]
    assert (cold["seconds_to_reach"], warm["seconds_to_reach"]) == (2.5, 0.6)
    assert cold["speedup_to_reach"] == pytest.approx(12 / 2.5)
    assert warm["speedup_of_whole_fit"] == pytest.approx(12 / 0.8)
    assert warm["speedup_whole_to_whole"] == pytest.approx(16 / 0.8)
    assert warm["evaluation_seconds"] == pytest.approx(0.25)
    shown = against_gpytorch.AgainstGPyTorch(points=120, bags=8)
    shown.show(Console(width=200), result)
    assert "15.0" in capsys.readouterr().out
    lines = shown.figure(result).axes[0].get_lines()
    assert_close(lines[0].get_ydata(), [10.0, 0.6, 0.4, 1e-3])


def test_an_opponent_that_never_arrives_gives_no_ratio(tmp_path, monkeypatch):
    path, problem = stored_problem(tmp_path, "gaussian")
    evidences = iter([5.0, 10.0])
    monkeypatch.setattr(
        against_gpytorch, "dense_log_evidence", lambda problem, **found: next(evidences)
    )
    theirs = {"adam": steps(problem, [4.0, 20.0], [0.0, 5.0])}
    ours = {"cold": steps(problem, [2.0, 3.0], [0.0, 10.0], seconds=4.0)}
    result = against_gpytorch._compared(path, ours, theirs)
    assert result["opponent_seconds_to_reach"] is None
    assert result["fits"]["cold"]["speedup_to_reach"] is None
    assert result["fits"]["cold"]["speedup_whole_to_whole"] == 5.0


def test_without_gpytorch_the_command_says_what_to_install(capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "deconditional.cli.options.find_spec", lambda name: None if name == "torch" else find(name)
    )
    message = complaint(capsys, ["against-gpytorch"])
    assert "needs torch: pip install 'deconditional[bench]'" in message
    assert against_gpytorch.OPPONENT.is_file()


@pytest.mark.parametrize("optimiser", against_gpytorch.OPTIMISERS)
def test_the_opponent_has_the_same_evidence_and_climbs_it(optimiser, tmp_path, monkeypatch):
    pytest.importorskip("gpytorch")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    opponent = import_module("gpytorch_bagg")
    _, problem = stored_problem(tmp_path, "matern32")
    trace = opponent.fit(problem, optimiser, steps=15)
    assert len(opponent.fit(problem, optimiser, steps=99, enough=-1e9)) < 15
    for step in (trace[0], trace[-1]):
        found = {key: step[key] for key in ("lengthscale", "variance", "noise_variance")}
        dense = against_gpytorch.dense_log_evidence(problem, **found)
        assert step["log_evidence"] == pytest.approx(dense, abs=1e-6)
    assert trace[-1]["log_evidence"] > trace[0]["log_evidence"] + 0.5


# --------------------------------------------------------------------------- the baseline


@pytest.fixture
def measured(monkeypatch):
    """Two benchmarks whose times a test sets: for each round, (ours, the opponent's)."""
    rounds = {"fit": [], "predict": []}

    def stand_in(name):
        def measure(console):
            return {"case": rounds[name].pop(0)}

        return measure

    monkeypatch.setattr(check, "WATCHED", {name: stand_in(name) for name in rounds})
    return rounds


def written(tmp_path, ratios, **more):
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps({"ratios": ratios, **more}))
    return path


def checked(path, *more):
    return command.main(["check", "--baseline", str(path), *more])


def test_a_doctored_entry_is_flagged(measured, tmp_path, capsys):
    measured["fit"] += [(3.0, 1.0)] * 2
    measured["predict"] += [(2.0, 1.0)] * 4
    path = written(tmp_path, {"fit: case": 3.0, "predict: case": 1.5})
    out = tmp_path / "now.json"
    assert checked(path, "--out", str(out)) == 1
    shown = capsys.readouterr().out
    assert "Flagged: predict: case." in shown and "--update" in shown
    rows = {row["case"]: row for row in json.loads(out.read_text())["rows"]}
    assert rows["predict: case"]["change"] == pytest.approx(2 / 1.5)
    assert rows["predict: case"]["state"] == "slower"
    assert rows["fit: case"]["state"] == "as before"


def test_the_best_of_the_rounds_counts_on_either_side(measured, tmp_path):
    measured["fit"] += [(3.0, 2.0), (6.0, 1.5)]
    measured["predict"] += [(2.0, 1.0)] * 2
    assert checked(written(tmp_path, {"fit: case": 1.9, "predict: case": 2.0})) == 0
    assert measured == {"fit": [], "predict": []}


def test_what_looks_slow_is_measured_again(measured, tmp_path):
    measured["fit"] += [(9.0, 1.0), (9.0, 1.0), (9.0, 1.0), (1.1, 1.0)]
    measured["predict"] += [(2.0, 1.0)] * 2
    assert checked(written(tmp_path, {"fit: case": 1.0, "predict: case": 2.0})) == 0
    assert measured == {"fit": [], "predict": []}


def test_a_case_that_is_gone_is_flagged_and_a_new_one_is_not(measured, tmp_path, capsys):
    measured["fit"] += [(1.0, 1.0)]
    measured["predict"] += [(1.0, 1.0)]
    path = written(tmp_path, {"fit: case": 1.0, "predict: older": 1.0})
    assert checked(path, "--rounds", "1") == 1
    assert "Flagged: predict: older." in capsys.readouterr().out


def test_update_writes_a_baseline_that_passes(measured, tmp_path, capsys):
    path = tmp_path / "new" / "baseline.json"
    measured["fit"] += [(3.0, 2.0)] * 2
    measured["predict"] += [(2.0, 1.0)] * 2
    assert checked(path, "--update", "--rounds", "1") == 0
    assert json.loads(path.read_text())["ratios"] == {"fit: case": 1.5, "predict: case": 2.0}
    assert checked(path, "--rounds", "1") == 0
    assert "ratios may differ" not in capsys.readouterr().out


def test_another_machine_is_named(measured, tmp_path, capsys):
    measured["fit"] += [(1.0, 1.0)]
    measured["predict"] += [(1.0, 1.0)]
    ratios = {"fit: case": 1.0, "predict: case": 1.0}
    path = written(tmp_path, ratios, machine={"processor": "an abacus"})
    assert checked(path, "--rounds", "1") == 0
    assert "with processor an abacus, this with" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no baseline"),
        ("{", "cannot read the baseline"),
        ("[1]", "holds no ratios"),
        ('{"ratios": {}}', "holds no ratios"),
        ('{"ratios": {"fit: case": "fast"}}', "is 'fast', no ratio"),
        ('{"ratios": {"fit: case": -1}}', "is -1, no ratio"),
    ],
)
def test_a_baseline_that_is_none_is_refused_before_any_measuring(
    content, message, measured, tmp_path, capsys
):
    path = tmp_path / "baseline.json"
    if content is not None:
        path.write_text(content)
    given = ["check", "--baseline", str(path)]
    assert message in complaint(capsys, given)  # measuring would fail: there are no rounds


def test_the_committed_baseline_has_the_cases_that_are_measured():
    known = check.read_baseline(ROOT / "benchmarks" / "baseline.json")
    assert {case.split(":")[0] for case in known["ratios"]} == set(check.WATCHED)


# --------------------------------------------------------------------------- the frame


def test_bars_have_their_values():
    figure = bars(
        ["a", "b"], {"x": [0.5, 2000.0], "y": [float("nan"), 3.0]}, "t", "share", ("limit", 1.0)
    )
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.containers[0]] == [0.5, 2000.0]
    words = [text.get_text() for text in axes.texts]
    assert words == ["0.5", "2,000", "", "3"]
    assert axes.get_lines()[0].get_xdata()[0] == 1.0


class Toy(Benchmark):
    """Two rows, of which the second lacks a number."""

    name, help = "toy", "a toy"
    columns: ClassVar = {"what": shown("what"), "ms": shown("seconds", "{:.1f}", 1e3)}
    series: ClassVar = {"seconds": "seconds"}

    def measure(self, where):
        return {"rows": [{"what": "one", "seconds": 0.25}, {"what": "two"}]}

    def words(self, result):
        return "A title", f"{len(result['rows'])} rows"


def test_a_benchmark_shows_writes_and_draws_its_rows(tmp_path, capsys):
    out, plot = tmp_path / "new" / "toy.json", tmp_path / "other" / "toy.png"
    assert Toy().run(out, plot) == 0
    said = capsys.readouterr().out
    assert "A title" in said and "250.0" in said and "–" in said and "2 rows" in said
    result = json.loads(out.read_text())
    assert result["benchmark"] == "toy" and result["rows"][0]["seconds"] == 0.25
    assert result["device"] == timing.device_name() and result["machine"]["cores"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    (axes,) = Toy().figure(result).axes
    widths = [bar.get_width() for bar in axes.containers[0]]
    assert widths[0] == 0.25 and np.isnan(widths[1])
    assert [text.get_text() for text in axes.get_yticklabels()] == ["one", "two"]


def test_a_record_is_printed_as_markdown(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(command.BENCHMARKS, "kernels", Toy)
    record = tmp_path / "toy.json"
    frame.write(
        record, {"benchmark": "kernels", **Toy().measure(QUIET), "machine": {"date": "today"}}
    )
    capsys.readouterr()
    assert command.main(["table", str(record)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1:4] == ["| --- | --- |", "| one | 250.0 |", "| two | – |"]
    assert said[5] == "A title. Machine: date today."
    assert "no record of a benchmark" in complaint(capsys, ["table", str(tmp_path)])


# --------------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["kernels", "--quick"], {"points": 20_000, "types": ("float32",), "budget": 0.5}),
        (["kernels", "--dims", "2"], {"dims": 2, "types": ("float32", "float64")}),
        (["fit", "--restarts", "2", "--quick"], {"points": 1500, "restarts": 2}),
        (["predict", "--queries", "9"], {"inducing": 400, "features": 1000, "queries": 9}),
        (["climate-size", "--exact-all"], {"inducing": 800, "exact_all": True}),
        (["scaling", "--grow", "bags", "cores"], {"grow": ("bags", "cores"), "points": None}),
        (["against-gpytorch"], {"kernel": "gaussian", "optimisers": ("lbfgs", "adam")}),
        (["check"], {"baseline": "benchmarks/baseline.json", "update": False, "rounds": 2}),
    ],
)
def test_benchmarks_get_their_options(given, expected, monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(
        command.BENCHMARKS[given[0]], "run", lambda self, *files: ran.append((self, *files)) or 0
    )
    out = tmp_path / "new" / "numbers.json"
    assert command.main([*given, "--out", str(out)]) == 0
    ((made, to, plot),) = ran
    assert (to, plot) == (out, None)
    assert {name: getattr(made, name) for name in expected} == expected


@pytest.mark.parametrize(("name", "enabled"), [("fit", False), ("kernels", True)])
def test_what_times_compilation_compiles_anew(name, enabled, monkeypatch):
    seen = []
    monkeypatch.setattr(
        command.BENCHMARKS[name],
        "run",
        lambda *_: seen.append(jax.config.jax_enable_compilation_cache) or 0,
    )
    assert command.main([name]) == 0
    assert seen == [enabled] and jax.config.jax_enable_compilation_cache


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["scaling", "--dims", "2"], "unrecognized arguments: --dims 2"),
        (["scaling", "--grow", "colours"], "unknown growth 'colours'; choose from 'points'"),
        (["kernels", "--restarts", "2"], "unrecognized arguments: --restarts 2"),
        (["fit", "--points", "0"], "at least 1"),
        (["speed"], "invalid choice: 'speed'"),
        ([], "required: BENCHMARK"),
        (["kernels", "--out", "FOLDER"], "is a folder"),
        (["kernels", "--plot", "FOLDER"], "is a folder"),
        (["kernels", "--plot", "FOLDER/a.pdf"], "does not end in .png"),
    ],
)
def test_what_cannot_be_carried_out(given, message, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(kernels.Kernels, "run", lambda *_: pytest.fail("it was measured"))
    given = [word.replace("FOLDER", str(tmp_path)) for word in given]
    assert message in complaint(capsys, given)


def test_without_matplotlib_a_figure_is_refused_first(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(kernels.Kernels, "run", lambda *_: pytest.fail("it was measured"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = complaint(capsys, ["kernels", "--plot", str(tmp_path / "a.png")])
    assert "deconditional[plots]" in message and "leave --plot out" in message
