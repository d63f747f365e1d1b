"""Work tells how far it is, to whoever listens and to nobody else."""

import os
import subprocess
import sys
import threading
from copy import deepcopy

import gpjax.kernels as gk
import numpy as np
import pytest

import deconditional.inference.posterior
from deconditional import BaggGP
from deconditional.fitting.progress import Step, listening, show, tell
from helpers import ragged_bags

FIXED = {"kernel.lengthscale": 0.8, "kernel.variance": 1.4}
BAGS = ragged_bags([3, 1, 4, 2, 3], d=1)
Z = np.random.default_rng(1).normal(size=5)
X = np.linspace(-2, 2, 7)


def quiet(capfd):
    """Whether nothing was written, to either stream."""
    out, err = capfd.readouterr()
    return out == err == ""


# --------------------------------------------------------------------------- listening


def test_without_a_listener_nothing_happens(capfd):
    tell("points", 1, 2)
    assert quiet(capfd)


def test_a_listener_hears_every_step_and_what_it_is():
    heard = []
    with listening(heard.append):
        tell("fit", 3, note="3 evaluations")
        tell("points", 4096, 10000)
    assert heard == [Step("fit", 3, None, "3 evaluations"), Step("points", 4096, 10000, "")]


def test_a_listener_is_gone_afterwards():
    heard = []
    with listening(heard.append):
        pass
    tell("points", 1, 2)
    assert heard == []


def test_the_innermost_listener_hears():
    outer, inner = [], []
    with listening(outer.append):
        tell("a", 1)
        with listening(inner.append):
            tell("b", 2)
        tell("c", 3)
    assert [step.what for step in outer] == ["a", "c"]
    assert [step.what for step in inner] == ["b"]


def test_errors_remove_the_listener():
    heard, outer = [], []
    with listening(outer.append):
        with pytest.raises(KeyError), listening(heard.append):
            raise KeyError
        tell("after", 1)
    tell("long after", 2)
    assert heard == []
    assert [step.what for step in outer] == ["after"]


def test_errors_of_the_listener_reach_the_work():
    def stop(step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), listening(stop):
        tell("points", 1)
    tell("points", 2)


def test_other_threads_are_heard():
    heard = []
    with listening(heard.append):
        thread = threading.Thread(target=tell, args=("restart", 1))
        thread.start()
        thread.join()
    assert heard == [Step("restart", 1)]


# --------------------------------------------------------------------------- showing


def test_a_display_that_is_off_is_silent(capfd):
    heard = []
    with listening(heard.append), show(False) as stage:
        stage("learning")
        tell("fit", 1)
    assert quiet(capfd)
    assert heard == [Step("fit", 1)]  # it does not stand in the way of another listener


def test_a_display_names_its_stages_on_stderr(capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with show(True) as stage:
        stage("pairing cells")
        stage("learning the model")
        tell("fit", 12, note="12 evaluations, -3.4")
        stage("predicting")
        tell("points", 4096, 10000)
    out, err = capfd.readouterr()
    assert out == ""
    for text in ("pairing cells", "learning the model", "12 evaluations, -3.4", "predicting"):
        assert text in err
    assert "4096 of 10000 points" in err


def test_a_display_without_stages_takes_the_name_of_the_work(capfd):
    with show(True):
        tell("points", 3, 4)
    assert "points" in capfd.readouterr().err


def test_a_display_listens_only_while_it_is_there(capfd):
    with show(True):
        pass
    capfd.readouterr()
    tell("points", 1, 2)
    assert quiet(capfd)


def test_a_display_leaves_after_errors(capfd):
    with pytest.raises(KeyError), show(True) as stage:
        stage("learning")
        raise KeyError
    capfd.readouterr()
    tell("points", 1, 2)
    assert quiet(capfd)
    with show(True) as stage:  # a display that had stayed would stand in its way
        stage("again")
    assert "again" in capfd.readouterr().err


def test_a_terminal_sees_the_bar_move():
    pty = pytest.importorskip("pty")
    code = (
        "from deconditional.fitting.progress import show, tell\n"
        "with show() as stage:\n"
        "    stage('predicting')\n"
        "    tell('points', 1, 4)\n"
    )
    parent, child = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=child, env=environment
    )
    written = os.read(parent, 100_000).decode()
    for end in (parent, child):
        os.close(end)
    assert done.returncode == 0 and done.stdout == b""
    assert "predicting" in written and "1 of 4 points" in written
    assert "\x1b[" in written


# --------------------------------------------------------------------------- what tells


@pytest.fixture(scope="module")
def fitted():
    """A model that learns its noise, and what its fit told."""
    heard = []
    model = BaggGP(gk.RBF(), trend="none", fixed=FIXED, n_restarts=1)
    with listening(heard.append):
        model.fit(BAGS, Z)
    return model, heard


def test_a_fit_tells_its_evaluations(fitted):
    model, heard = fitted
    assert [step.what for step in heard] == ["fit"] * len(heard)
    assert [step.done for step in heard] == list(range(1, model.fit_report_.evaluations + 1))
    log_posterior = model.fit_report_.log_posterior
    assert heard[-1].note == f"{len(heard)} evaluations, {log_posterior:.1f}"
    assert all(step.total is None for step in heard)


def test_a_fit_that_nobody_listens_to_is_the_same(fitted):
    model, _ = fitted
    alone = BaggGP(gk.RBF(), trend="none", fixed=FIXED, n_restarts=1).fit(BAGS, Z)
    np.testing.assert_array_equal(alone.predict(X).mean, model.predict(X).mean)


def test_a_posterior_tells_its_points(fitted, monkeypatch):
    monkeypatch.setattr(deconditional.inference.posterior, "BLOCK", 3)
    model, _ = fitted
    heard = []
    with listening(heard.append):
        post = model.predict(X)
        assert heard == []  # nothing is computed until it is asked for
        assert post.mean.shape == (7,)
    assert heard == [Step("points", done, 7) for done in (3, 6, 7)]
    with listening(heard.append):
        assert post.std.shape == (7,)
    assert len(heard) == 3  # the variance came with the mean


def test_a_mixture_tells_the_points_of_all_its_components(fitted, monkeypatch):
    monkeypatch.setattr(deconditional.inference.posterior, "BLOCK", 4)
    model, _ = fitted
    fields = model.predict(X).fields
    post = deconditional.inference.posterior.Posterior([*fields, *deepcopy(fields)], X[:, None])
    heard = []
    with listening(heard.append):
        assert post.mean.shape == (7,)
    assert heard == [Step("points", done, 14) for done in (4, 7, 11, 14)]
    twice = deconditional.inference.posterior.Posterior([*fields, *fields], X[:, None])
    with listening(heard.append):
        np.testing.assert_array_equal(twice.variance, post.variance)
    assert heard[4:] == [Step("points", done, 14) for done in (4, 7, 14)]
