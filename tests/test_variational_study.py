"""The study of variational inference and that of deep kernels at their smallest sizes."""

import gpjax.kernels as gk
import numpy as np
import pytest
from rich.console import Console

import deconditional as dc
from helpers import assert_close
from studies import deep_kernel, variational
from studies.deep_kernel import DeepKernels
from studies.frame import Task
from studies.records import Results
from studies.variational import Variational

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """All parts with as few settings as they can have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(variational, "KERNELS", {"Gaussian": gk.RBF})
        patch.setattr(variational, "CHOICES", ("kmeans",))
        patch.setattr(variational, "INDUCING", (4, 16))
        patch.setattr(variational, "LEARNT_UP_TO", 4)
        patch.setattr(variational, "FEATURES", (20, 500))
        patch.setattr(variational, "TRACE_KEYS", 2)
        patch.setattr(variational, "TRACE_INDUCING", (16,))
        patch.setattr(variational, "CLIMBS", {"natural, all": {}})
        small = Variational(seeds=1, points=150, bags=8, steps=20)
        yield small.run(tmp_path_factory.mktemp("variational"), console=QUIET)


def test_the_gap_of_the_bound_closes_with_inducing_points(study):
    assert not study.failures
    rows = study.where(part="inducing")
    gap = {(row["choice"], row["inducing"]): row["gap"] for row in rows}
    assert set(gap) == {("kmeans", 4), ("kmeans", 16), ("learnt", 4)}
    assert min(gap.values()) > -1e-6
    assert gap["kmeans", 16] < gap["kmeans", 4]
    assert gap["learnt", 4] < gap["kmeans", 4]
    apart = {row["inducing"]: row["mean"] for row in rows if row["choice"] == "kmeans"}
    assert apart[16] < apart[4]


def test_the_other_parts_report_what_they_compare(study):
    rows = study.where(part="trace")
    assert len(rows) == 1
    assert all(abs(row["mean_error"]) < 5 and row["sd"] > 0 for row in rows)
    (natural,) = study.where(part="steps")
    assert natural["bound"] == pytest.approx(natural["collapsed_bound_there"], abs=1e-6)
    assert natural["log_posterior"] < natural["collapsed_log_posterior"]
    few, many = study.where(part="features")
    assert many["mean"] < few["mean"]


def test_tables_and_pictures_show_the_records(study):
    text = (study.folder / "table.md").read_text()
    (row,) = study.where(part="inducing", choice="kmeans", inducing=16)
    shown = " | ".join(f"{row[name]:.3g}" for name in ("gap", "mean", "std"))
    assert f"| Gaussian | kmeans | 16 | {shown} | {row['rmse']:.3f} |" in text
    (row,) = study.where(part="steps")
    assert (
        f"| 0 | natural, all | {row['steps']} | {row['seconds']:.0f} | {row['bound']:.3f}" in text
    )
    for name in ("inducing.png", "steps.png", "features.png"):
        assert (study.folder / name).read_bytes()[:4] == b"\x89PNG"


# ---------------------------------------------------------------------- deep kernels


def test_the_index_is_hidden_from_the_coarse_values():
    data = deep_kernel.band_index("indirect", n_bags=12, seed=3)
    again = deep_kernel.band_index("indirect", n_bags=12, seed=3)
    np.testing.assert_array_equal(data.z, again.z)
    assert_close([data.f.mean(), data.f.std()], [0.0, 1.0])
    means = dc.Bags.from_points(data.x, np.arange(24).repeat(10)).means(data.f)
    # Observed cells are those without points: their values are noisy means over cells.
    nearest = np.abs(data.z[:, None] - means[None]).min(1)
    assert nearest.max() < 5 * deep_kernel.NOISE_STD
    assert data.bags.mediator.shape == (12, 4)
    assert data.mediator.shape == (12, 4)


def test_a_deep_kernel_is_fitted_scored_and_drawn(tmp_path, monkeypatch):
    models = deep_kernel._models

    def short(matching, seed):
        quick = {"n_inducing": 6, "n_restarts": 1, "max_iter": 2}
        return {"deep k": models(matching, seed)["deep k"].set_params(**quick)}

    monkeypatch.setattr(deep_kernel, "_models", short)
    monkeypatch.setattr(deep_kernel, "MATCHINGS", ("direct",))
    results = DeepKernels(seeds=1, bags=6).run(tmp_path, console=QUIET)
    (record,) = results.records
    data = deep_kernel.band_index("direct", 6, 0)
    with pytest.warns(dc.FitWarning):
        model = short("direct", 0)["deep k"].fit(data.bags, data.z)
    assert record["rmse"] == pytest.approx(dc.scores.rmse(model.predict(data.x).mean, data.f))
    assert record["bound"] == pytest.approx(model.log_evidence_) and not record["converged"]
    assert (tmp_path / "feature.png").exists()
    assert DeepKernels().picture(Task("direct", "deep k", 1)) is None


def test_kernels_are_compared_on_matched_and_unmatched_draws(tmp_path):
    tasks = {(task.matching, task.model) for task in DeepKernels(seeds=1, bags=6).tasks()}
    plain = "length scale per band"
    expected = {("direct", plain), ("direct", "deep k"), ("indirect", plain)}
    assert tasks == expected | {("indirect", f"deep {w}") for w in ("k", "l", "k and l")}
    results = Results(tmp_path, Task._fields)
    scores = dict.fromkeys(("crps", "coverage95", "bound", "fit_seconds"), 1.0)
    for seed, rmse in enumerate((0.2, 0.4)):
        task = {"matching": "direct", "model": "deep k", "seed": seed}
        results.records.append(task | scores | {"rmse": rmse, "converged": seed == 0})
    text = "\n".join(DeepKernels().table(results))
    assert (
        "| direct | deep k | 2 | 0.300 | 0.400 | 1.000 | 1.000 | 1.00 | 1.00 | 1 | 1 | 1 |" in text
    )
