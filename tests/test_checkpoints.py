"""Fits that are stopped: kept, resumed, interrupted, and their files damaged or mistaken."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from functools import lru_cache
from pathlib import Path

import gpjax.kernels as gk
import jax
import numpy as np
import pytest
from numpyro.infer import MCMC, NUTS
from paramax import non_trainable

import checkpointed_run
import deconditional as dc
from deconditional.cli import main as cli
from deconditional.datasets import split_cells, swiss_roll, synthetic_fields
from deconditional.errors import CheckpointError, CheckpointWarning, UsageError
from deconditional.fitting import interrupts, nuts
from deconditional.fitting import map as fit
from deconditional.fitting.interrupts import Stop, aborting, current, stoppable
from deconditional.fitting.nuts import sample_posterior
from deconditional.fitting.progress import listening
from deconditional.saving import resume as checkpoints
from deconditional.saving.resume import Checkpoint, opened, within
from reliability import record, tries

pytestmark = pytest.mark.usefixtures("python_handles_interrupts")

GROUP = "stopped fits"
ROLL = swiss_roll(n_points=200, n_bags=16, matching="indirect", seed=0)
BAGS, Z = checkpointed_run.sine()
CHAINS = {"num_warmup": 12, "num_samples": 12, "num_chains": 2, "max_tree_depth": 4}
CLIMB = {"batch_size": 5, "max_steps": 70, "patience": 6}


@pytest.fixture
def python_handles_interrupts(monkeypatch):
    """Workers of pytest may ignore Ctrl-C; and tests press it more often than people do."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(interrupts, "_last", -np.inf)
    yield
    signal.signal(signal.SIGINT, before)


def press():
    """Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


def press_once(at):
    """A listener that presses Ctrl-C at a step, or the next: what is remembered is not told."""
    first = threading.Lock()

    def listener(step):
        if step.what == "fit" and step.done >= at and first.acquire(blocking=False):
            press()

    return listener


def sections(path):
    """What a checkpoint has, by section."""
    return {name: state for name, (_, state) in checkpoints._read(Path(path)).items()}


# --------------------------------------------------------------------------- models

MATCHED = (BAGS, Z)
MEDIATED = (ROLL.bags, ROLL.z, ROLL.mediator)
MODELS = {
    "bagg-gp": (lambda: dc.BaggGP(gk.RBF(), n_restarts=4), MATCHED),
    "pseudo-targets": (
        lambda: dc.PseudoTarget(dc.BaggGP(gk.RBF(), n_restarts=2), n_restarts=2),
        MEDIATED,
    ),
    "minibatches": (
        lambda: dc.VBagg(
            gk.RBF(), n_inducing=6, n_restarts=2, inference="stochastic", inference_options=CLIMB
        ),
        MATCHED,
    ),
    "nuts": (
        lambda: dc.BaggGP(gk.RBF(), n_restarts=1, method="nuts", method_options=CHAINS),
        MATCHED,
    ),
}


def learnt(model):
    """Everything that a fit learnt, in one array for each stage."""
    stages = [model.regressor_, model.model_] if hasattr(model, "regressor_") else [model]
    return [np.asarray(stage.fitted_.vectors) for stage in stages]


def fitted(name, listener=lambda step: None, **options):
    """A model and the steps it took."""
    make, data = MODELS[name]
    steps = []
    with warnings.catch_warnings(), listening(lambda step: (steps.append(step), listener(step))):
        warnings.simplefilter("ignore", dc.FitWarning)
        return make().fit(*data, **options), steps


def assert_same(model, other):
    """The same to the bit."""
    for one, two in zip(learnt(model), learnt(other), strict=True):
        np.testing.assert_array_equal(one, two)
    assert_as_good(model, other, 0.0)
    assert model.fit_report_.evaluations == other.fit_report_.evaluations


def assert_as_good(model, other, tolerance=1e-2):
    """As good an optimum, in nats: an optimiser that begins anew takes another way there."""
    one, two = model.fit_report_, other.fit_report_
    if one.details["inference"] == "stochastic" and tolerance:  # higher with steps of its own
        assert one.log_posterior > two.log_posterior - 0.5
        return
    assert one.log_posterior == pytest.approx(two.log_posterior, abs=tolerance)
    assert one.converged == two.converged
    x = getattr(model, "model_", model).bags_.points[:5]
    means = model.predict(x).mean, other.predict(x).mean
    np.testing.assert_allclose(*means, rtol=0, atol=10 * tolerance)


EXACT = ("nuts",)
"""Fits that go on as if they had not stopped, to the bit."""


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """NUTS in blocks of few steps, so that there is something between its beginning and end.

    As many steps in every run, however fast the machine is at that moment.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nuts, "BLOCK", 3)
        patch.setattr(nuts, "BLOCK_SECONDS", np.inf)
        yield


@pytest.fixture(scope="module")
def undisturbed():
    """A model that was not stopped, and its steps."""
    return lru_cache(fitted)


@pytest.mark.parametrize("name", MODELS)
def test_a_fit_goes_on_from_any_moment(name, tmp_path, undisturbed):
    alone, steps = undisturbed(name)
    path = tmp_path / "fit.checkpoint"
    moments = [max(3, int(share * len(steps))) for share in (0.6, 0.9)][name in EXACT :]
    count = iter(range(1, 10**6))

    def snapshot(step):
        # What a kill at this moment would leave on the disk.
        if (k := next(count)) in moments and path.exists():
            shutil.copy(path, tmp_path / f"{k}.kept")

    with_checkpoint, taken = fitted(name, snapshot, checkpoint=Checkpoint(path, interval=0))
    assert_same(with_checkpoint, alone)
    assert not path.exists()
    snapshots = sorted(tmp_path.glob("*.kept"))
    assert len(snapshots) == len(moments)
    for kept in snapshots:
        again, repeated = fitted(name, checkpoint=kept)
        if name in EXACT:
            assert_same(again, alone)
        else:
            assert_as_good(again, alone)
        assert "resumed" in again.fit_report_.details
        assert not kept.exists()
        # A restart of an optimiser has no memory of its way: it may take as many steps again.
        assert len(repeated) < (1.0 if name in EXACT else 1.2) * len(taken)


def test_a_checkpoint_that_is_kept_ends_the_next_fit_at_once(tmp_path):
    kept = Checkpoint(tmp_path / "fit.checkpoint", keep=True)
    first, _ = fitted("bagg-gp", checkpoint=kept)
    again, steps = fitted("bagg-gp", checkpoint=kept)
    assert_same(again, first)
    assert steps == [] and Path(kept.path).exists()
    kept.remove()
    assert not Path(kept.path).exists()


def test_stages_of_float32_and_float64_are_told_apart(tmp_path, monkeypatch):
    # A bound in float32 that is off makes the fit begin again in float64.
    monkeypatch.setattr("deconditional.inference.learn.DISAGREEMENT", -1.0)
    kept = Checkpoint(tmp_path / "fit.checkpoint", keep=True)
    model = dc.VBagg(gk.RBF(), n_inducing=8, n_restarts=1, precision="float32")
    with pytest.warns(dc.FitWarning, match="repeated in float64"):
        model.fit(BAGS, Z, checkpoint=kept)
    found = sections(kept.path)
    assert sorted(found) == ["map in float32", "map in float64"]
    ended = [state["ended"].log_posterior for state in found.values()]
    assert ended[0] == pytest.approx(ended[1], abs=0.1) and ended[0] != ended[1]


# --------------------------------------------------------------------------- NUTS


class Bent:
    """A log posterior that is quick to compile: a normal distribution along a parabola."""

    def evaluate(self, v):
        return self.log_posterior(v), None

    def log_posterior(self, v):
        return -0.5 * (v[0] ** 2 + (v[1] - v[0] ** 2) ** 2 / 0.25)


BENT = {"num_warmup": 12, "num_samples": 12, "num_chains": 2, "max_tree_depth": 4}
ORIGIN = np.zeros(2)


def test_draws_in_blocks_are_those_of_numpyro():
    problem = Bent()
    draws, about = sample_posterior(problem, ORIGIN, seed=3, **BENT)
    sampler = NUTS(
        potential_fn=lambda v: -problem.log_posterior(v),
        dense_mass=True,
        max_tree_depth=4,
        target_accept_prob=0.85,
    )
    key = jax.random.key(3)
    chains = MCMC(
        sampler,
        num_warmup=12,
        num_samples=12,
        num_chains=2,
        chain_method="sequential",
        progress_bar=False,
    )
    init = 0.05 * jax.random.normal(key, (2, 2))
    chains.run(key, init_params=init, extra_fields=("diverging", "potential_energy"))
    np.testing.assert_allclose(draws, chains.get_samples(), rtol=1e-6, atol=1e-9)
    extra = chains.get_extra_fields()
    assert about["log_posterior"] == pytest.approx(-float(np.min(extra["potential_energy"])))
    assert about["divergences"] == int(np.sum(extra["diverging"]))


# --------------------------------------------------------------------------- Ctrl-C


def pressing(at, what="fit"):
    """A listener that presses Ctrl-C at a step, and lets nobody go on before it is seen."""
    count = iter(range(1, 10**6))
    pressed = threading.Event()

    def listener(step):
        if step.what == what and next(count) == at:
            pressed.set()
            press()
        deadline = time.monotonic() + 10
        while pressed.is_set() and interrupts._scopes and not interrupts._scopes[0].asked:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    return listener


@pytest.fixture
def evaluated(monkeypatch):
    """All vectors that were evaluated, with their log posterior."""
    found = []
    compute = fit.loss_and_gradient

    def spied(problem, vector):
        value, gradient = compute(problem, vector)
        found.append((np.asarray(vector), -float(value)))
        return value, gradient

    monkeypatch.setattr(fit, "loss_and_gradient", spied)
    return found


@pytest.mark.parametrize("at", [1, 4, 25])
def test_an_interrupted_fit_has_the_best_parameters_so_far(at, evaluated):
    make, data = MODELS["bagg-gp"]
    with listening(pressing(at)), pytest.warns(dc.FitWarning, match="interrupted after") as caught:
        model = make().fit(*data)
    report = model.fit_report_
    assert not report.converged
    assert "interrupted after" in report.notes[0] and "Fit again" in report.notes[0]
    assert not any("before it converged" in str(w.message) for w in caught)
    best = max(value for _, value in evaluated)
    assert report.log_posterior == pytest.approx(best, abs=1e-9)
    np.testing.assert_array_equal(
        model.fitted_.vectors[0], next(v for v, value in evaluated if value == best)
    )
    # Threads that were evaluating may end what they began, and no more.
    assert at <= len(evaluated) <= at + 1 + (os.cpu_count() or 1)
    assert np.isfinite(model.predict([[1.5]]).std).all()


def test_an_interrupted_fit_goes_on_from_its_checkpoint(tmp_path, undisturbed):
    alone, steps = undisturbed("bagg-gp")
    path = tmp_path / "fit.checkpoint"
    stopped, _ = fitted("bagg-gp", pressing(len(steps) // 2), checkpoint=path)
    assert f"goes on from '{path}'" in stopped.fit_report_.notes[0]
    kept = sections(path)["map in float64"]  # whatever the interval
    np.testing.assert_array_equal(kept["vectors"][0], stopped.fitted_.vectors[0])
    again, rest = fitted("bagg-gp", checkpoint=path)
    assert_as_good(again, alone)
    assert not path.exists() and len(rest) < len(steps)


@pytest.mark.parametrize("what", ["fit", "steps of NUTS"])
def test_nuts_without_enough_draws_falls_back_on_the_optimum(what, tmp_path):
    make, data = MODELS["nuts"]
    with listening(pressing(2, what)), pytest.warns(dc.FitWarning, match="interrupted after"):
        model = make().fit(*data)
    assert model.fit_report_.method == "map" and not model.fit_report_.converged
    assert model.fitted_.vectors.shape[0] == 1
    assert not hasattr(model, "nuts_diagnostics_")
    again = dc.load(model.save(tmp_path / "model.npz"))
    np.testing.assert_array_equal(again.predict([[1.0]]).mean, model.predict([[1.0]]).mean)


def test_nuts_with_enough_draws_keeps_them(monkeypatch, undisturbed):
    monkeypatch.setattr(nuts, "ENOUGH_DRAWS", 5)
    alone, _ = undisturbed("nuts")
    # Past the warm-up of 12 steps and some draws of the first chain, in blocks of three at most.
    stopped, _ = fitted("nuts", pressing(8, "steps of NUTS"))
    n = len(stopped.fitted_.vectors)
    assert 5 <= n < 12
    np.testing.assert_array_equal(stopped.fitted_.vectors, alone.fitted_.vectors[:n])
    assert stopped.fit_report_.method == "nuts" and not stopped.fit_report_.converged
    assert f"interrupted after {n} of 24 draws" in stopped.fit_report_.notes[0]


def test_an_interrupt_in_the_second_chain_leaves_the_first(monkeypatch, tmp_path):
    monkeypatch.setattr(nuts, "ENOUGH_DRAWS", 5)
    steps = []
    with listening(steps.append):
        alone, _ = sample_posterior(Bent(), ORIGIN, **BENT)
    path = tmp_path / "fit.checkpoint"
    listener = pressing(len(steps) - 1, "steps of NUTS")
    with opened(path) as kept, stoppable(), listening(listener):
        section = kept.section("nuts")
        stopped, _ = sample_posterior(Bent(), ORIGIN, **BENT, section=section)
    np.testing.assert_array_equal(stopped, alone[:12])
    with opened(path) as kept:
        section = kept.section("nuts")
        again, _ = sample_posterior(Bent(), ORIGIN, **BENT, section=section)
    np.testing.assert_array_equal(again, alone)
    assert not path.exists()


def test_a_climb_that_is_interrupted_stands_at_its_last_step(tmp_path, undisturbed):
    alone, _ = undisturbed("minibatches")
    path = tmp_path / "fit.checkpoint"
    stopped, steps = fitted("minibatches", pressing(20), checkpoint=path)
    assert "interrupted after 20 steps" in stopped.fit_report_.notes[0]
    assert not stopped.fit_report_.converged and len(steps) == 20
    again, _ = fitted("minibatches", checkpoint=path)
    assert again.fit_report_.details["resumed"] == "20 steps"
    assert_as_good(again, alone)


def test_an_interrupt_in_the_first_stage_ends_the_second_too(tmp_path, undisturbed):
    path = tmp_path / "fit.checkpoint"
    alone, steps = undisturbed("pseudo-targets")
    stopped, taken = fitted("pseudo-targets", pressing(5), checkpoint=path)
    assert not stopped.fit_report_.converged
    assert sum("interrupted after" in note for note in stopped.fit_report_.notes) == 2
    assert len(taken) < 12 < len(steps)
    assert np.isfinite(stopped.predict(ROLL.x).std).all()
    assert_as_good(fitted("pseudo-targets", checkpoint=path)[0], alone)


def test_the_second_interrupt_ends_the_program(tmp_path, undisturbed):
    path = tmp_path / "fit.checkpoint"
    pressed = iter(range(1, 10**6))

    def twice(step):
        if next(pressed) == 10:
            press()
            time.sleep(0.05)
            press()

    with pytest.raises(KeyboardInterrupt):
        fitted("bagg-gp", twice, checkpoint=path)
    assert_as_good(fitted("bagg-gp", checkpoint=path)[0], undisturbed("bagg-gp")[0])


def test_an_interrupt_within_a_larger_task_is_none_of_the_fit(tmp_path, undisturbed):
    path = tmp_path / "fit.checkpoint"
    with pytest.raises(KeyboardInterrupt), aborting():
        fitted("bagg-gp", press_once(12), checkpoint=path)
    assert sections(path)["map in float64"]["done"] >= 10
    assert_as_good(fitted("bagg-gp", checkpoint=path)[0], undisturbed("bagg-gp")[0])
    with pytest.raises(KeyboardInterrupt), aborting():
        fitted("minibatches", lambda step: step.done == 12 and press(), checkpoint=path)
    assert_as_good(fitted("minibatches", checkpoint=path)[0], undisturbed("minibatches")[0])


def test_an_error_in_a_thread_ends_the_others():
    def broken(step):
        if step.done == 9:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fitted("bagg-gp", broken)


def test_fits_of_other_threads_do_not_know_of_signals():
    found = []

    def work():
        with stoppable() as stop:
            found.append((stop.asked, current().asked))
        with aborting():
            found.append(current().graceful)

    with stoppable() as stop:
        stop.ask()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert stop.reached()
    assert found == [(False, False), True]


def test_a_block_that_can_be_stopped():
    with stoppable() as stop:
        with stoppable() as inner:
            assert inner is stop is current()
        press()
        assert stop.asked and not stop.used
        assert stop.reached() and stop.used
        with pytest.raises(KeyboardInterrupt):
            press()
            time.sleep(1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not current().asked


def test_an_interrupt_that_nobody_could_act_upon_is_not_lost():
    with pytest.raises(KeyboardInterrupt), stoppable():
        press()


def test_two_interrupts_in_a_row_end_a_loop_of_fits():
    with stoppable() as stop:
        press()
        assert stop.reached()
    with pytest.raises(KeyboardInterrupt), stoppable():
        press()
        time.sleep(1)


def test_the_handler_of_somebody_else_is_left_alone():
    heard = []
    signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    with stoppable() as stop:
        press()
        assert heard == [1] and not stop.asked


def test_what_a_stop_takes():
    assert Stop().taken() and not Stop(graceful=False).taken()
    stop = Stop()
    stop.ask()
    assert not stop.taken()


# --------------------------------------------------------------------------- files


@pytest.fixture(scope="module")
def half(tmp_path_factory, undisturbed):
    """The checkpoint of a fit that stopped half-way, the data it belongs to, the true end."""
    folder = tmp_path_factory.mktemp("half")
    path = folder / "fit.checkpoint"
    alone, steps = undisturbed("bagg-gp")

    def cut(step):
        if step.done >= len(steps) // 2:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fitted("bagg-gp", cut, checkpoint=path)
    return path, alone


@pytest.fixture
def half_way(half, tmp_path):
    return shutil.copy(half[0], tmp_path / "fit.checkpoint"), half[1]


OTHERS = {
    "other observations": (lambda: MODELS["bagg-gp"][0](), (BAGS, Z + 1e-9)),
    "other points": (
        lambda: MODELS["bagg-gp"][0](),
        (dc.Bags.from_points(BAGS.points + 1e-9, BAGS.bag), Z),
    ),
    "other seed": (lambda: MODELS["bagg-gp"][0]().set_params(seed=1), MATCHED),
    "other restarts": (lambda: MODELS["bagg-gp"][0]().set_params(n_restarts=3), MATCHED),
    "other kernel": (lambda: dc.BaggGP(gk.RBF() + gk.RBF(), n_restarts=4), MATCHED),
    "other fixed value": (
        lambda: dc.BaggGP(gk.RBF(), n_restarts=4, fixed={"noise_std": 0.2}),
        MATCHED,
    ),
    "other model": (lambda: dc.CentroidGP(gk.RBF(), n_restarts=4), MATCHED),
    "other kind of model": (
        lambda: dc.PseudoTarget(dc.BaggGP(gk.RBF())),
        (ROLL.bags, ROLL.z, ROLL.mediator),
    ),
    "same names, other family": (lambda: dc.BaggGP(gk.Matern32(), n_restarts=4), MATCHED),
    "other value that is held": (
        lambda: dc.BaggGP(gk.RBF(variance=non_trainable(2.0)), n_restarts=4),
        MATCHED,
    ),
    "other prior": (
        lambda: dc.BaggGP(
            gk.RBF(), n_restarts=4, priors={"noise_std": dc.LogNormal(median=0.5, sigma=0.1)}
        ),
        MATCHED,
    ),
}


@pytest.mark.reliability
def test_the_checkpoint_of_another_fit_is_refused_and_kept(half_way):
    path, _ = half_way
    before = path.read_bytes()
    outcomes = {"clear error": 0}
    for make, data in OTHERS.values():
        with pytest.raises(CheckpointError, match="belongs to another fit") as error:
            make().fit(*data, checkpoint=path)
        assert "delete it" in str(error.value) and str(path) in str(error.value)
        assert path.read_bytes() == before
        outcomes["clear error"] += 1
    record(GROUP, "checkpoint of other data, model or options", len(OTHERS), outcomes)


@pytest.mark.reliability
def test_files_that_are_no_checkpoints_are_left_alone(tmp_path):
    model = dc.CentroidGP(gk.RBF(), n_restarts=1).fit(BAGS, Z, noise_std=0.2)
    saved = model.save(tmp_path / "model.npz")
    text, numbers = tmp_path / "notes.txt", tmp_path / "numbers.npz"
    text.write_text("mine")
    np.savez(numbers, a=np.arange(3))
    outcomes = {"clear error": 0}
    for path in (saved, text, numbers):
        before = path.read_bytes()
        with pytest.raises(CheckpointError, match="is no checkpoint, or is damaged"):
            fitted("bagg-gp", checkpoint=path)
        assert path.read_bytes() == before
        outcomes["clear error"] += 1
    record(GROUP, "file that is no checkpoint", 3, outcomes)
    with pytest.raises(dc.SavedModelError, match="no deconditional model"):
        with opened(Checkpoint(tmp_path / "a.checkpoint", keep=True)) as kept:
            kept.section("map").keep({"a": np.zeros(2)})
        dc.load(tmp_path / "a.checkpoint")


BAD_PLACES = {
    "a folder": (lambda here: here, "is a folder"),
    "no folder": (lambda here: here / "missing" / "a", "does not exist"),
    "hidden characters": (lambda here: here / "a\nb", "cannot be seen"),
    "a number": (lambda here: 3, "path of a file"),
}


@pytest.mark.parametrize("name", BAD_PLACES)
def test_places_where_nothing_can_be_kept_are_refused_before_the_fit(name, tmp_path):
    make, message = BAD_PLACES[name]
    with pytest.raises((UsageError, TypeError), match=message):
        fitted("bagg-gp", lambda step: pytest.fail("began"), checkpoint=make(tmp_path))


@pytest.mark.parametrize("interval", [-1, np.inf, np.nan, "often", True])
def test_intervals_are_checked(interval):
    with pytest.raises((ValueError, TypeError), match="interval must be"):
        Checkpoint("a", interval=interval)


def damaged(content, rng):
    """A file with one thing wrong, and what it is."""
    how = rng.choice(["a byte", "a bit", "cut", "zeros", "longer"])
    at = int(rng.integers(len(content)))
    if how == "a byte":
        changed = content[:at] + bytes([rng.integers(256)]) + content[at + 1 :]
    elif how == "a bit":
        changed = content[:at] + bytes([content[at] ^ (1 << rng.integers(8))]) + content[at + 1 :]
    elif how == "cut":
        changed = content[:at]
    elif how == "zeros":
        changed = content[:at] + bytes(min(64, len(content) - at)) + content[at + 64 :]
    else:
        changed = content + rng.bytes(20)
    return changed


@pytest.mark.reliability
def test_a_damaged_checkpoint_gives_an_error_or_the_same_answer(half_way):
    path, alone = half_way
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    n = tries(12, 200)
    outcomes = {"clear error": 0, "resumed, ends as high": 0, "begun anew, ends as high": 0}
    make, data = MODELS["bagg-gp"]
    for _ in range(n):
        path.write_bytes(damaged(content, rng))
        before = path.read_bytes()
        try:
            model = make().fit(*data, checkpoint=path)
        except CheckpointError as error:
            assert "is damaged" in str(error) and path.read_bytes() == before
            outcomes["clear error"] += 1
            continue
        assert_as_good(model, alone)
        resumed = "resumed" in model.fit_report_.details
        assert resumed or before == b""
        outcomes[f"{'resumed' if resumed else 'begun anew'}, ends as high"] += 1
    record(GROUP, "damaged checkpoint", n, outcomes)


def test_a_later_stage_made_from_other_numbers_begins_anew(tmp_path, undisturbed):
    path = tmp_path / "fit.checkpoint"
    alone, _ = undisturbed("pseudo-targets")
    fitted("pseudo-targets", checkpoint=Checkpoint(path, keep=True))
    found = checkpoints._read(path)
    last = list(found)[-1]
    checkpoints._write(path, {**found, last: ("another", found[last][1])})
    with pytest.warns(CheckpointWarning, match="made from other numbers"):
        again, _ = fitted("pseudo-targets", checkpoint=path)
    assert_as_good(again, alone)


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_fit(
    tmp_path, monkeypatch, undisturbed
):
    def full(*_):
        raise OSError(28, "No space left on device")

    alone, _ = undisturbed("bagg-gp")
    monkeypatch.setattr("deconditional.saving.outputs.os.fsync", full)
    make, data = MODELS["bagg-gp"]
    with pytest.warns(CheckpointWarning, match="No space left.*goes on without") as caught:
        model = make().fit(*data, checkpoint=Checkpoint(tmp_path / "a", interval=0))
    assert len(caught) == 1
    assert_same(model, alone)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / ".a.checkpoint.1234.part").write_text("half")
    other = tmp_path / ".b.checkpoint.1234.part"
    other.write_text("of another")
    with opened(tmp_path / "a.checkpoint"):
        assert list(tmp_path.iterdir()) == [other]


def test_an_empty_file_is_a_new_checkpoint(tmp_path):
    path = tmp_path / "a"
    path.touch()
    with opened(Checkpoint(path, keep=True)) as kept:
        kept.section("map").keep({"n": 3})
    assert sections(path) == {"map": {"n": 3}}


def test_sections_not_asked_for_yet_are_carried_along(tmp_path):
    kept = Checkpoint(tmp_path / "a", interval=0, keep=True)
    with opened(kept) as part:
        part.section("one").keep({"n": np.arange(2)})
        inner = within(part, "fit")["checkpoint"]
        inner.section("two").keep({"m": np.arange(40.0)})
    with pytest.raises(RuntimeError), opened(kept) as part:
        part.section("one").keep({"n": np.arange(3)})
        raise RuntimeError
    found = sections(kept.path)
    assert list(found) == ["fit/two", "one"] or list(found) == ["one", "fit/two"]
    np.testing.assert_array_equal(found["fit/two"]["m"], np.arange(40.0))


# --------------------------------------------------------------------------- cost


def test_short_fits_write_nothing_and_slow_disks_are_written_to_less_often(tmp_path, monkeypatch):
    seen = []
    fitted("bagg-gp", lambda step: seen.extend(tmp_path.iterdir()), checkpoint=tmp_path / "a")
    assert seen == []
    now = [0.0]
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now[0])
    writes = []

    def slow(*_):
        now[0] += 0.5
        writes.append(now[0])

    monkeypatch.setattr(checkpoints, "_write", slow)
    with opened(Checkpoint(tmp_path / "a", interval=10)) as kept:
        section = kept.section("map")
        while now[0] < 300:
            section.keep({})
            now[0] += 0.25
    # Half a second of writing allows for one write in fifty seconds.
    np.testing.assert_allclose(np.diff(writes), 50.5, atol=0.3)
    assert len(writes) == 6


@pytest.mark.reliability
@pytest.mark.skipif(not tries(0, 1), reason="measures time")
def test_checkpoints_cost_less_than_a_fiftieth(tmp_path, monkeypatch):
    roll = swiss_roll(n_points=1500, n_bags=50, seed=0)
    model = dc.BaggGP(n_restarts=2, max_iter=30, precision="float64")
    kept = Checkpoint(tmp_path / "a", interval=0.5)
    spent = []

    def timed(work):
        def timer(*arguments, **options):
            began = time.thread_time()
            work(*arguments, **options)
            spent.append(time.thread_time() - began)

        return timer

    def seconds():
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dc.FitWarning)
            model.fit(roll.bags, roll.z, checkpoint=kept)
        return time.process_time() - began

    seconds()  # compiles
    write = timed(checkpoints._write)
    writes = []
    monkeypatch.setattr(checkpoints, "_write", lambda *a: (writes.append(1), write(*a)))
    total = seconds()
    share = sum(spent) / total
    assert writes and share < 0.02
    what = f"cost of a write every half second, in a fit of {total:.1f} s of processor time"
    record(GROUP, what, 1, {f"{100 * share:.1f} % of it": 1})


# --------------------------------------------------------------------------- kill -9

RUN = Path(checkpointed_run.__file__)
PAUSE = {"map": 0.02, "nuts": 0.02, "climb": 0.01}


def started(kind, folder, pause=None):
    """A fit in a process of its own."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    pause = PAUSE[kind] if pause is None else pause
    return subprocess.Popen(
        [sys.executable, str(RUN), kind, str(folder), str(pause)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def log_of(folder):
    """Times and numbers of the steps that were taken, in all processes together."""
    path = folder / "log"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [line.split() for line in lines if line.endswith("\n")]
    return [(float(words[0]), " ".join(words[1:-1]), int(words[-1])) for words in whole]


def kept_steps(folder):
    """How many steps of every kind the checkpoint has."""
    path = folder / "fit.checkpoint"
    if not path.exists():
        return {}
    copy = shutil.copy(path, folder / "copy")
    found = {}
    for name, state in sections(copy).items():
        if "chains" not in state:
            found["fit"] = found.get("fit", 0) + state["done"]
        else:
            found["steps of NUTS"] = state["chains"].chain * 80 + state["chains"].done
        assert name
    return found


def result_of(folder):
    with np.load(folder / "result.npz") as file:
        return {key: file[key] for key in ("vectors", "mean")}, json.loads(str(file["about"]))


def alone_in_a_process(kind, folder):
    folder.mkdir(parents=True)
    process = started(kind, folder, 0.0)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return result_of(folder)


def killed_run(kind, folder, rng, expected, most):
    """Kill a fit at random moments, so often at most, until it ends; the number of kills.

    After every kill, what the checkpoint has is compared with the log: whatever is older than the
    interval, and the time of one step and one write, must be there.
    """
    folder.mkdir(parents=True)
    kills, left = 0, False
    while True:
        before = len(log_of(folder))
        process = started(kind, folder)
        deadline = time.monotonic() + 120
        while len(log_of(folder)) == before and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        try:
            limit = float(rng.uniform(0.0, 3.0)) if kills < most else 300.0
            _, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            moment = time.time()
            process.kill()
            process.communicate()
            assert kills < most, "the run does not end"
            kills += 1
            _assert_little_lost(kind, folder, log_of(folder)[before:], moment)
            left = (folder / "fit.checkpoint").exists()
            continue
        assert process.returncode == 0, errors
        break
    arrays, about = result_of(folder)
    if kind != "nuts":  # which begin anew where they stopped
        slack = 1e-2 if kind == "map" else 0.5
        assert about["log_posterior"] > expected[1]["log_posterior"] - slack
        if kind == "map":
            np.testing.assert_allclose(arrays["mean"], expected[0]["mean"], atol=0.05)
    else:
        for key, value in expected[0].items():
            np.testing.assert_array_equal(arrays[key], value)
        assert about["log_posterior"] == expected[1]["log_posterior"]
    assert about["converged"] == expected[1]["converged"] or kind == "climb"
    assert about["resumed"] or not left
    assert not (folder / "fit.checkpoint").exists()
    assert not list(folder.glob(".*.part"))
    return kills


def _assert_little_lost(kind, folder, lines, moment):
    slack = 1.5  # of a busy machine: a step and a write
    old = [line for line in lines if line[0] < moment - checkpointed_run.INTERVAL - slack]
    have = kept_steps(folder)
    if not have and any(what == "ended" for _, what, _ in lines):
        return  # a fit that has ended needs no checkpoint; what it is used for was killed
    for what in {line[1] for line in old}:
        steps = [number for _, each, number in old if each == what]
        assert have.get(what, 0) >= max(steps), (what, have)


@pytest.mark.reliability
@pytest.mark.parametrize("kind", ["map", *(["nuts", "climb"] if tries(0, 1) else [])])
def test_kill_9_at_any_moment_loses_at_most_the_last_interval(kind, tmp_path):
    if kind == "map":  # which is compared in nats, not in bits
        model = checkpointed_run.model_of(kind).fit(*checkpointed_run.sine())
        report = model.fit_report_
        expected = ({"mean": model.predict([[1.5]]).mean}, vars(report))
    else:
        expected = alone_in_a_process(kind, tmp_path / "alone")
    rng = np.random.default_rng(0)
    wanted, kills, chains = tries(1, 20 if kind == "map" else 10), 0, 0
    while kills < wanted:
        kills += killed_run(kind, tmp_path / f"run{chains}", rng, expected, wanted - kills)
        chains += 1
    words = {"map": "optimiser", "nuts": "NUTS", "climb": "stochastic optimiser"}[kind]
    end = "resumed, equal to the bit" if kind == "nuts" else "resumed, ends as high"
    record(GROUP, f"kill -9 at a random moment, {words}", kills, {end: kills})


@pytest.mark.reliability
def test_ctrl_c_at_any_moment_leaves_a_fitted_model(tmp_path):
    n = tries(1, 10)
    rng = np.random.default_rng(1)
    outcomes = {"best parameters so far": 0, "had ended": 0}
    for k in range(n):
        folder = tmp_path / f"run{k}"
        folder.mkdir()
        process = started("map", folder)
        while not log_of(folder):
            time.sleep(0.02)
        time.sleep(float(rng.uniform(0.0, 1.0)))
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, errors = process.communicate(timeout=60)
        ended = any(what == "ended" for _, what, _ in log_of(folder))
        if process.returncode and "KeyboardInterrupt" in errors and ended:
            outcomes["had ended"] += 1
            continue
        assert process.returncode == 0, errors
        assert time.monotonic() - began < 30
        arrays, about = result_of(folder)
        kept = sections(folder / "fit.checkpoint")["map in float64"]
        assert not about["converged"] and "interrupted" in about["notes"][0]
        np.testing.assert_array_equal(kept["vectors"][0], arrays["vectors"][0])
        outcomes["best parameters so far"] += 1
    record(GROUP, "Ctrl-C at a random moment of a fit", n, outcomes)


# --------------------------------------------------------------------------- fields


@pytest.fixture(scope="module")
def cells():
    fields = synthetic_fields(n_lat=12, n_lon=24)
    return split_cells(fields, "tas", ["altitude"], ["water_vapour"], block=3)


def downscaler(**options):
    return dc.Downscaler("tas", ["altitude"], ["water_vapour"], n_restarts=1, **options)


def events(work):
    steps = []
    with warnings.catch_warnings(), listening(steps.append):
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        return work(), len([step for step in steps if step.what == "fit"])


def cut_at(n):
    count = iter(range(1, 10**6))

    def listener(step):
        if step.what == "fit" and next(count) == n:
            raise RuntimeError("power cut")

    return listener


def test_a_downscaling_of_several_fits_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("deconditional.fields.learn.LOG_TOLERANCE", 0.0)
    monkeypatch.setattr("deconditional.fields.learn.LOG_PASSES", 2)
    fields = synthetic_fields(n_lat=12, n_lon=24)
    skewed = np.exp((fields["tas"] - fields["tas"].mean()) / fields["tas"].std())
    fields["tas"] = skewed.assign_attrs(fields["tas"].attrs)
    cells = split_cells(fields, "tas", ["altitude"], ["water_vapour"], block=3)
    # Pseudo-targets and their model, again for every correction: many fits in one file.
    make = lambda: downscaler(model="gpr", transform="log")  # noqa: E731
    kept = Checkpoint(tmp_path / "alone.checkpoint", keep=True)
    alone, n = events(lambda: make().fit(cells.fine, cells.coarse, checkpoint=kept))
    names = list(sections(kept.path))
    assert names[0] == "gpr/regressor/map in float64"
    assert "gpr, correction 1/base/map in float64" in names
    path = tmp_path / "learning.checkpoint"
    with (
        pytest.raises(RuntimeError, match="power cut"),
        warnings.catch_warnings(),
        listening(cut_at(int(0.8 * n))),
    ):
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        make().fit(cells.fine, cells.coarse, checkpoint=path)
    again, rest = events(lambda: make().fit(cells.fine, cells.coarse, checkpoint=path))
    assert rest < 0.8 * n
    assert again.model_name_ == alone.model_name_
    for name, model in alone.candidates_.items():
        assert_as_good(again.candidates_[name], model)
    assert_as_good(again.model_, alone.model_)
    assert not path.exists()


def test_an_interrupt_leaves_a_downscaler_that_predicts(cells, tmp_path, monkeypatch):
    two = ("bagg-gp", "u-cmp")
    monkeypatch.setattr("deconditional.fields.learn.candidates", lambda *_: two)
    path = tmp_path / "learning.checkpoint"
    one = downscaler()
    with listening(pressing(4)), pytest.warns(dc.FitWarning) as caught:
        one.fit(cells.fine, cells.coarse, checkpoint=path)
    assert list(one.candidates_) == ["bagg-gp"]
    assert any("left u-cmp untried" in str(w.message) for w in caught)
    assert any("left u-cmp untried" in note for note in one.fit_report_.notes)
    assert any("interrupted after" in note for note in one.fit_report_.notes)
    assert not one.fit_report_.converged and path.exists()
    assert np.isfinite(one.predict(cells.everywhere)["mean"]).any()


def test_downscale_keeps_its_checkpoint_until_the_result_is_there(cells, tmp_path, monkeypatch):
    path = tmp_path / "learning.checkpoint"
    given = (cells.fine, cells.coarse, "tas", ["altitude"], ["water_vapour"])
    options = {"model": "gpr", "n_restarts": 1}
    alone, n = events(lambda: dc.downscale(*given, **options))
    with monkeypatch.context() as patch:
        patch.setattr(dc.Downscaler, "predict", lambda *_, **__: pytest.fail("no room"))
        with pytest.raises(pytest.fail.Exception):
            events(lambda: dc.downscale(*given, checkpoint=path, **options))
    assert path.exists()
    again, rest = events(lambda: dc.downscale(*given, checkpoint=path, **options))
    assert (n > 0, rest) == (True, 0)
    np.testing.assert_array_equal(again["mean"], alone["mean"])
    assert not path.exists()
    with pytest.raises(UsageError, match="store keeps the slices"):
        dc.downscale(*given, checkpoint=path, map_over={"seed": [0, 1]}, **options)


# --------------------------------------------------------------------------- command line


@pytest.fixture
def here(cells, tmp_path, monkeypatch):
    cells.fine.to_netcdf(tmp_path / "fine.nc")
    cells.coarse.to_netcdf(tmp_path / "coarse.nc")
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMAND = [
    *("downscale", "--fine", "fine.nc", "--coarse", "coarse.nc", "--target", "tas", "--quiet"),
    *("--covariates", "altitude", "--mediators", "water_vapour", "--model", "gpr"),
]


@pytest.fixture
def one_at_a_time(monkeypatch):
    """Restarts take turns, and Ctrl-C at a step ends the search with that step.

    Otherwise it depends on the threads how many more there are, and so what a checkpoint has.
    """
    halts = []
    event = fit.Event
    monkeypatch.setattr(fit, "side_by_side", lambda *_: 1)
    monkeypatch.setattr(fit, "Event", lambda: halts.append(event()) or halts[-1])

    def pressed_at(at):
        pressed = press_once(at)

        def listener(step):
            pressed(step)
            if step.what == "fit" and step.done >= at:
                assert halts[-1].wait(60)

        return listener

    return pressed_at


def test_an_interrupted_command_says_how_to_go_on(here, capsys, one_at_a_time):
    assert cli.main([*COMMAND, "--out", "alone.nc"]) == 0
    capsys.readouterr()
    kept = [*COMMAND, "--out", "out.nc", "--checkpoint", "learning.checkpoint"]
    with listening(one_at_a_time(9)):
        assert cli.main(kept) == 130
    assert capsys.readouterr().err == (
        "\ndeconditional: interrupted. No output was written; what was there has not changed. The "
        "same command goes on from learning.checkpoint.\n"
    )
    assert not Path("out.nc").exists()
    _, rest = events(lambda: cli.main(kept))
    alone, n = events(lambda: cli.main([*COMMAND, "--out", "again.nc"]))
    assert alone == 0 and rest < 1.2 * n  # begun anew from the best, by another way
    import xarray as xr

    with xr.open_dataset("out.nc") as one, xr.open_dataset("alone.nc") as other:
        np.testing.assert_allclose(one["mean"], other["mean"], rtol=1e-5)
        np.testing.assert_allclose(one["std"], other["std"], rtol=1e-3)
    found = sorted(path.name for path in here.iterdir())
    assert found == ["again.nc", "alone.nc", "coarse.nc", "fine.nc", "out.nc"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--checkpoint", "fine.nc"], "another file of the command"),
        (["--checkpoint", "notes.txt"], "is no checkpoint"),
        (["--checkpoint", "a", "--map-over", "time"], "leave --checkpoint out"),
    ],
)
def test_checkpoints_that_the_command_refuses(here, capsys, options, message):
    Path("notes.txt").write_text("mine")
    with listening(lambda step: pytest.fail("began")):
        assert cli.main([*COMMAND, "--out", "out.nc", *options]) == 2
    assert message in capsys.readouterr().err
    assert Path("notes.txt").read_text() == "mine" and not Path("out.nc").exists()


# --------------------------------------------------------------------------- many fits

MAPPED = """
import sys, time, warnings
import numpy as np, xarray as xr
import deconditional as dc
from deconditional.fitting.progress import listening
from pathlib import Path
folder = Path(sys.argv[1])
fine, coarse = (xr.open_dataset(folder / name) for name in ("fine.nc", "coarse.nc"))
warnings.simplefilter("ignore")
def slowly(step):
    (folder / "begun").touch()
    time.sleep(float(sys.argv[2]))
with listening(slowly):
    found = dc.downscale(
        fine, coarse, "tas", ["altitude"], ["water_vapour"], model="gpr", n_restarts=1,
        map_over={"seed": range(6)}, store=folder / "store",
    )
found.load().to_netcdf(folder / "part.nc")
(folder / "part.nc").rename(folder / "result.nc")
"""


@pytest.mark.reliability
@pytest.mark.skipif(not tries(0, 1), reason="one in tests/test_large_results.py; many here")
def test_kill_9_of_many_fits_keeps_those_that_are_done(cells, tmp_path):
    import xarray as xr

    rng = np.random.default_rng(2)
    wanted, kills = tries(1, 10), 0
    expected = None
    round_ = 0
    while kills < wanted or expected is None:
        folder = tmp_path / f"run{round_}"
        (folder / "store").mkdir(parents=True)
        cells.fine.to_netcdf(folder / "fine.nc")
        cells.coarse.to_netcdf(folder / "coarse.nc")
        while True:
            done = {p: p.stat().st_mtime_ns for p in (folder / "store").glob("0*.nc")}
            process = subprocess.Popen(
                [sys.executable, "-c", MAPPED, folder, "0.05"],
            )
            while not (folder / "begun").exists() and process.poll() is None:
                time.sleep(0.05)
            (folder / "begun").unlink(missing_ok=True)
            undisturbed = expected is None or kills >= wanted
            try:
                assert process.wait(None if undisturbed else float(rng.uniform(0.0, 6.0))) == 0
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
            for path, when in done.items():
                assert path.stat().st_mtime_ns == when  # not computed again
        with xr.open_dataset(folder / "result.nc") as data:
            found = data[["mean", "std"]].load()
        if expected is None:
            expected = found
        xr.testing.assert_identical(found["mean"], expected["mean"])
        np.testing.assert_array_equal(found["std"], expected["std"])
        round_ += 1
    record(
        GROUP,
        "kill -9 at a random moment, many fits with a store",
        kills,
        {"resumed, equal": kills},
    )
