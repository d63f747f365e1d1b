"""The study of real fields on made-up ones of toy size: its records, its table, how it resumes."""

from types import SimpleNamespace

import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from scipy.special import ndtri

from deconditional import NoSkillWarning, datasets
from deconditional.inference.posterior import Gaussians
from studies import global_fields as study
from studies.frame import Task
from studies.global_fields import MODELS, GlobalFields
from studies.records import Results

xr = pytest.importorskip("xarray")
pytest.importorskip("cf_xarray")

from deconditional.fields.learn import Learner  # noqa: E402
from deconditional.fields.opponents import bilinear  # noqa: E402
from deconditional.fields.recipes import Recipe, candidates  # noqa: E402
from deconditional.models import PseudoTarget  # noqa: E402


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """16 x 32 cells in blocks of 4 x 4."""
    monkeypatch.setattr(
        datasets, "global_fields", lambda month: datasets.synthetic_fields(16, 32, seed=month)
    )
    monkeypatch.setattr(study, "BLOCK", 4)

    def two(matching, *_):
        return ("bagg-gp",) if matching == "matched" else ("bagg-gp", "u-cmp")

    monkeypatch.setattr("deconditional.fields.learn.candidates", two)


class Line:
    """A model that learns in no time: a constant, and a spread that its name decides."""

    kernel_ = None

    def __init__(self, name, z):
        self.level, self.n, self.name = z.mean(), len(z), name
        self.parameters_ = {"noise_std": 0.1}
        self.fit_report_ = SimpleNamespace(
            converged=True,
            iterations=1,
            log_evidence=-7.0,
            notes=(f"{name} was quick",),
            details={},
        )

    def marginals(self, n):
        spread = 0.5 if self.name == "u-cmp" else 1.0
        found = Gaussians(np.full((1, n), self.level), np.full((1, n), spread**2))
        found.extrapolation, found.latent = np.zeros(n, dtype=np.int8), found
        return found

    def predict(self, x, fine_noise=False, features=None):
        return self.marginals(len(x))

    def predict_held_out(self, folds):
        return self.marginals(self.n)

    predict_from_means = predict_held_out


@pytest.fixture
def at_once(monkeypatch):
    """Everything but the fits as it is."""
    monkeypatch.setattr(Learner, "fit", lambda self, name, data, z: Line(name, z))


# --- one model on one draw ----------------------------------------------------------------------


def test_a_record_has_the_scores_of_its_fit(monkeypatch):
    """A real fit, with a simple kernel that is held."""
    estimator = Recipe.estimator
    held = {"kernel.lengthscale": 1.0, "kernel.variance": 1.0, "noise_std": 0.1}
    kernel = gk.RBF(lengthscale=jnp.ones(6))
    monkeypatch.setattr(
        Recipe,
        "estimator",
        lambda *given: estimator(*given).set_params(kernel=kernel, fixed=held),
    )
    task = Task("matched", "gpr", 203)
    data = study.data_of(task)
    with pytest.warns(NoSkillWarning):  # these parameters suit no field
        (outcome,) = GlobalFields().fit(task)
        result = study.downscaler_of(task).fit(data.fine, data.coarse).predict(data.everywhere)
    (record,) = outcome.records
    mean, std = (result[name].values for name in ("mean", "std"))
    error = mean - data.truth.values
    assert record["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert record["mae"] == pytest.approx(np.mean(np.abs(error)))
    assert record["bias"] == pytest.approx(error.mean())
    for level in (50, 95):
        half = ndtri(0.5 + level / 200) * std
        assert record[f"coverage{level}"] == pytest.approx(np.mean(np.abs(error) <= half))
    assert 0 < record["crps"] < record["mae"] < 0.5 * data.truth.values.std()
    assert record["fit_seconds"] > 0 and record["predict_seconds"] > 0
    assert outcome.details["chosen"] == "gpr" and np.isfinite(outcome.details["log_evidence"])
    assert [row["model"] for row in outcome.details["comparison"]][::2] == ["gpr", "bilinear"]


def test_interpolation_has_no_distribution():
    task = Task("half", "bilinear", 101)
    (outcome,) = GlobalFields().fit(task)
    (record,) = outcome.records
    data = study.data_of(task)
    error = bilinear(data.coarse.tas, data.truth).values - data.truth.values
    assert record["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert record["bias"] == pytest.approx(error.mean())
    assert record["crps"] is record["coverage95"] is record["coverage50"] is None
    assert outcome.draw is None and GlobalFields().picture(task) is None


def test_draws_roll_the_grid_and_divide_cells_anew():
    first, again, other = (study.data_of(Task("half", "cmp", seed)) for seed in (100, 100, 101))
    xr.testing.assert_identical(first.coarse, again.coarse)
    shifts = [study.shift_of(draw) for draw in (0, 1)]
    fields = datasets.global_fields(1)
    assert sorted(study.shift_of(draw) for draw in range(4)) == [0, 1, 2, 3]
    for data, shift in zip((first, other), shifts, strict=True):
        np.testing.assert_array_equal(data.truth, np.roll(fields.tas.values, shift, axis=1))
        assert int(data.coarse.tas.notnull().sum()) == 16
        covered = data.fine.altitude.notnull().values.reshape(4, 4, 8, 4).any((1, 3))
        np.testing.assert_array_equal(covered, data.coarse.tas.isnull())
    whole = study.data_of(Task("matched", "gpr", 100))
    assert whole.coarse.tas.notnull().all() and whole.fine.altitude.notnull().all()
    assert not np.array_equal(study.data_of(Task("half", "cmp", 200)).truth, first.truth)


def test_the_oracle_sees_the_covariates_of_the_cells_that_give_the_target():
    data, oracle = (study.data_of(Task("half", model, 100)) for model in ("cmp", "oracle"))
    xr.testing.assert_identical(oracle.coarse, data.coarse)
    given = data.coarse.tas.notnull().values.repeat(4, 0).repeat(4, 1)
    for name in study.COVARIATES:
        expected = np.where(given, data.everywhere[name], np.nan)
        np.testing.assert_array_equal(oracle.fine[name], expected)


def test_random_cells_of_every_coarse_cell():
    data = study.data_of(Task("cells", "5 random", 100))
    kept = data.fine.altitude.notnull().values
    np.testing.assert_array_equal(kept.reshape(4, 4, 8, 4).sum((1, 3)), 5)
    assert data.coarse.tas.notnull().all()
    other = study.data_of(Task("cells", "5 random", 101)).fine.altitude.notnull().values
    assert not np.array_equal(kept, other)
    sizes = {
        name: study.downscaler_of(Task("cells", name, 100)).points_per_bag
        for name in MODELS["cells"]
    }
    assert sizes == {"16 condensed": 16, "16 random": None, "36 random": None, "all": None}


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_of_the_study_can_be_asked_for(kind):
    for name in set(MODELS[kind]) - {"bilinear"}:
        downscaler = study.downscaler_of(Task(kind, name, 100))
        downscaler.question()
        assert downscaler.n_restarts == 1 and downscaler.covariates == study.COVARIATES
    of = {name: study.downscaler_of(Task(kind, name, 100)) for name in MODELS[kind] if "," in name}
    if kind == "matched":
        smooth = of["bagg-gp, smooth kernel"]
        assert (smooth.model, smooth.kernel) == ("bagg-gp", "smooth")
    elif kind == "half":
        plug_in = of["bagg-gp, plug-in"].model
        assert isinstance(plug_in, PseudoTarget) and not plug_in.propagate


# --- the whole of it ----------------------------------------------------------------------------


def run(folder, figures=False, **changes):
    options = {"months": (1,), "draws": 1, "models": ("bilinear", "gpr", "auto")} | changes
    return GlobalFields(**options).run(folder, figures=figures, console=Console(quiet=True))


def keys(results):
    return [(r["matching"], r["model"], r["seed"]) for r in results.records]


@pytest.fixture
def fitted(monkeypatch):
    """The tasks that were fitted."""
    done, fit = [], GlobalFields.fit
    monkeypatch.setattr(
        GlobalFields, "fit", lambda self, task: done.append(task.model) or fit(self, task)
    )
    return done


def test_models_that_auto_fits_are_not_fitted_again(tmp_path, at_once, fitted, monkeypatch):
    monkeypatch.setattr(study, "FITTED_BY_AUTO", ("bagg-gp", "u-cmp"))
    results = run(tmp_path, matching=("half",), models=("bagg-gp", "auto", "u-cmp", "gpr"))
    assert fitted == ["gpr", "auto"]
    assert {r["model"] for r in results.records} == {"gpr", "auto", "bagg-gp", "u-cmp"}
    assert "auto chose: " in (tmp_path / "table.md").read_text()


def test_what_auto_fits_is_what_it_compares_at_this_size():
    assert candidates("unmatched", 100, 100, True) == study.FITTED_BY_AUTO


def test_candidates_of_auto_have_records_of_their_own(tmp_path, at_once):
    results = run(tmp_path, matching=("half",), models=("auto",))
    auto, first, second = results.records
    assert [auto["model"], first["model"], second["model"]] == ["auto", "bagg-gp", "u-cmp"]
    fits = {fit["model"]: fit for fit in results.fits}
    twin = next(r for r in (first, second) if r["model"] == fits["auto"]["chosen"])
    assert auto["crps"] == twin["crps"] and auto["rmse"] == first["rmse"] == second["rmse"]
    assert first["crps"] != second["crps"]
    assert fits["u-cmp"]["warnings"] == ["u-cmp was quick"]
    rows = [row["model"] for row in fits["auto"]["comparison"]]
    assert rows == ["bagg-gp", "u-cmp", "bilinear"]


def test_maps_of_the_first_draw(tmp_path, at_once):
    pytest.importorskip("matplotlib")
    smooth = ("bagg-gp, smooth kernel",)
    run(tmp_path, draws=2, matching=("matched",), models=smooth, figures=True)
    pictures = [file.name for file in tmp_path.glob("*.png")]
    assert pictures == ["maps-matched-bagg-gp-smooth-kernel.png"]
    run(tmp_path, matching=("half",), models=("auto",), figures=True)
    names = {file.name for file in tmp_path.glob("maps-half-*.png")}
    assert names == {"maps-half-auto.png", "maps-half-bagg-gp.png", "maps-half-u-cmp.png"}


# --- the table ----------------------------------------------------------------------------------


def test_the_table_sums_up(tmp_path):
    results = Results(tmp_path, Task._fields)
    for k in range(6):
        for name, rmse in (("bilinear", 2.0 + 0.1 * k), ("gpr", 1.0 + 0.1 * k)):
            record = {"matching": "half", "model": name, "seed": 100 + k, "rmse": rmse}
            plain = dict.fromkeys(("crps", "coverage95", "coverage50"))
            scores = {"crps": rmse / 2, "coverage95": 0.90 + 0.01 * k, "coverage50": 0.5}
            record |= plain if name == "bilinear" else scores | {"fit_seconds": 3.0}
            results.records.append(record)
    auto = {"matching": "half", "model": "auto", "seed": 100}
    results.records.append(auto | {"rmse": 1.5, "crps": 0.8, "coverage95": 0.94})
    results.fits.append(auto | {"chosen": "u-cmp"})
    text = "\n".join(GlobalFields().table(results))
    spread = np.std([2.0, 2.1, 2.2, 2.3, 2.4, 2.5], ddof=1)
    assert f"| bilinear | 6 | 2.25 ± {spread:.2f} | 2.50 | – | – | – | – | – | – |" in text
    crps = f"{1.25 / 2:.2f} ± {spread / 2:.2f}"
    line = f"| gpr | 6 | 1.25 ± {spread:.2f} | 1.50 | {crps} | 0.925 | 0.90 | 0.95 | 0.50 | 3 |"
    assert line in text
    assert "| auto | 1 | 1.50 | 1.50 | 0.80 | 0.940 | 0.94 | 0.94 | – | – |" in text
    assert "auto chose: u-cmp 1." in text and "## matched" not in text
    # All six pairs fall on one side: 2 / 2^6. Interpolation has no CRPS to compare.
    rmse, crps = text.split("### half: RMSE compared")[1].split("### half: CRPS compared")
    assert "| gpr | 0.031 |" in rmse and "bilinear" not in crps
