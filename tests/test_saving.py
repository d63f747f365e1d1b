"""Saved models: the same to the bit after loading, and no file that can do harm."""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import os
import subprocess
import sys
import tracemalloc
import warnings
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, get_args, get_origin

import cftime
import equinox as eqx
import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as npd
import paramax
import pytest
import xarray as xr
from gpjax.kernels.base import AbstractKernel
from gpjax.parameters import PositiveReal, SigmoidBounded, val
from sklearn.exceptions import NotFittedError

import deconditional as dc
from deconditional.errors import SavedModelError, UsageError
from deconditional.fitting.map import Optimum
from deconditional.saving import container as files
from deconditional.saving import inspect, registry
from deconditional.saving.container import Archive, ArrayWriter, fingerprint
from deconditional.saving.hints import hints_of
from deconditional.saving.objects import ObjectReader, ObjectWriter

rng = np.random.default_rng(3)
X = np.sort(rng.uniform(0, 6, (30, 2)), axis=0)
BAG_OF = np.arange(30) // 5
BAGS = dc.Bags.from_points(X, BAG_OF, mediator=np.linspace(0, 1, 6))
Z = BAGS.means(np.sin(X[:, 0])) + 0.05 * rng.standard_normal(6)
MEDIATOR = np.linspace(0.05, 0.9, 5)
NEW = np.linspace(0, 6, 14).reshape(7, 2)
QUICK: dict[str, Any] = {"n_restarts": 1, "max_iter": 2}
STOCHASTIC = {"max_steps": 20, "batch_size": 3}


def deep_kernel() -> dc.DeepKernel:
    """A kernel with a network."""
    network = eqx.nn.MLP(2, 1, 3, 1, activation=jax.nn.tanh, key=jax.random.key(0))
    return dc.DeepKernel(gk.RBF(), network)


def matched(model: Any) -> Any:
    """Fitted to one observation of every bag."""
    return model.fit(BAGS, Z)


def mediated(model: Any) -> Any:
    """Fitted through the mediator, one observation being that of a bag."""
    return model.fit(BAGS, Z[:5], mediator=MEDIATOR, own_bag=[-1, 2, -1, -1, -1])


MODELS: dict[str, Any] = {
    "cmp": lambda: mediated(
        dc.CMP(
            trend="linear",
            fine_noise=True,
            fixed={"noise_std": 0.1},
            priors={"ridge": dc.LogNormal(0.1)},
            **QUICK,
        )
    ),
    "u-cmp": lambda: mediated(dc.CMP(uncertainty=True, centred=True, trend="none", **QUICK)),
    "bagg-gp": lambda: matched(dc.BaggGP(gk.Matern32(lengthscale=jnp.ones(2)) * gk.RBF(), **QUICK)),
    "deep kernel": lambda: matched(dc.BaggGP(deep_kernel(), **QUICK)),
    "nuts": lambda: matched(
        dc.BaggGP(
            method="nuts",
            method_options={"num_samples": 3},
            fixed={"kernel.lengthscale": [1.0, 2.0]},
            **QUICK,
        )
    ),
    "gpr": lambda: matched(dc.CentroidGP(precision="float32", points_per_bag=4, **QUICK)),
    "pseudo-targets": lambda: dc.PseudoTarget(dc.BaggGP(**QUICK), n_restarts=1).fit(
        BAGS, Z[:5], MEDIATOR
    ),
    "mediated": lambda: dc.MediatedGP(**QUICK).fit(BAGS, Z[:5], MEDIATOR),
    "varcmp": lambda: mediated(dc.VarCMP(n_inducing=5, uncertainty=True, **QUICK)),
    "stochastic": lambda: matched(
        dc.VBagg(n_inducing=5, inference="stochastic", inference_options=STOCHASTIC, n_restarts=1)
    ),
    "learnt inducing points": lambda: matched(
        dc.VBagg(n_inducing=4, learn_inducing=True, trace="subsample", **QUICK)
    ),
    "features": lambda: matched(dc.VBagg(features=20, **QUICK)),
    "variational centroids": lambda: matched(dc.VarCentroidGP(n_inducing=4, **QUICK)),
}


pytestmark = [
    # Nothing here is fitted until it converges.
    pytest.mark.filterwarnings("ignore::deconditional.errors.FitWarning"),
]


def somewhere(problem: Any, **_: Any) -> Optimum:
    """In place of the optimum, which takes a gradient: the starting values, moved a little."""
    vector = problem.parameters.start() + 0.1 * np.sin(np.arange(problem.parameters.size))
    return Optimum(vector, -1.0, True, 3, 4, (-1.0, -2.5), 0.1)


def some_draws(problem: Any, start: np.ndarray, **options: Any) -> tuple[np.ndarray, Any]:
    """In place of draws by NUTS."""
    steps = np.arange(options["num_samples"])[:, None]
    about = {"divergences": 2, "r_hat": np.nan, "effective_samples": 3.5, "log_posterior": -7.25}
    return start + 0.1 * steps, about


@pytest.fixture(scope="module", autouse=True)
def no_learning() -> Iterator[None]:
    """Where the parameters came from is nothing to a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deconditional.inference.learn.maximise", somewhere)
        patch.setattr("deconditional.inference.learn.sample_posterior", some_draws)
        yield


@pytest.fixture(scope="module")
def fitted() -> Any:
    """Models, each fitted when it is first asked for."""
    found: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in found:
            found[name] = MODELS[name]()
        return found[name]

    return get


def leaves(tree: Any) -> list[tuple[str, Any]]:
    """All leaves of a tree with their places; arrays as type, weakness, shape and bytes."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        value = leaf
        if eqx.is_array(leaf) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            value = leaf = jax.random.key_data(leaf)
        if isinstance(leaf, np.ndarray | np.generic | jax.Array):
            weak = getattr(leaf, "weak_type", False)
            value = (str(leaf.dtype), weak, leaf.shape, np.asarray(leaf).tobytes())
        elif isinstance(leaf, float):
            value = leaf.hex()  # NaN is itself
        found.append((jax.tree_util.keystr(path), value))
    return found


def assert_same(one: Any, other: Any, folder: Path) -> None:
    """The same to the bit: files of both have the same members, but for the time of writing."""
    assert set(vars(one)) == set(vars(other))
    first, second = (contents(m.save(folder / f"same{k}.npz")) for k, m in enumerate((one, other)))
    texts = [json.loads(members.pop("model.json"))["content"] for members in (first, second)]
    assert texts[0] == texts[1] and first == second


def found(node: Any, name: str) -> Any:
    """The fields of the first object of a class, in the JSON of a file."""
    if isinstance(node, dict) and "object" in node and node["object"][0] == name:
        return node["object"][1]
    inside = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return next((fields for each in inside if (fields := found(each, name)) is not None), None)


# --------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_is_the_same_to_the_bit(name: str, fitted: Any, tmp_path: Path) -> None:
    model = fitted(name)
    again = dc.load(model.save(tmp_path / "model"))
    assert_same(model, again, tmp_path)
    assert leaves(marginals(again)) == leaves(marginals(model))


def marginals(model: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation at new points."""
    post = model.predict(NEW)
    return post.mean, post.std


def test_a_loaded_model_answers_every_question(fitted: Any, tmp_path: Path) -> None:
    model = fitted("cmp")
    again = dc.load(model.save(tmp_path / "model.npz"))
    for ask in (
        lambda m: m.predict(NEW).sample(2, seed=1),
        lambda m: m.predict(NEW, features=30).std,
        lambda m: m.predict_bags(BAGS.select([1, 3])).covariance(),
        lambda m: m.predict_held_out([0, 1, 0, 1, 1]).mean,
        lambda m: m.predict_coarse(MEDIATOR).covariance(),
    ):
        assert leaves(ask(again)) == leaves(ask(model))


def test_a_loaded_model_can_be_fitted_again(fitted: Any, tmp_path: Path) -> None:
    model = fitted("bagg-gp")
    again = dc.load(model.save(tmp_path / "model.npz"))
    matched(again)
    assert np.array_equal(again.predict(NEW).mean, model.predict(NEW).mean)


IN_A_NEW_PROCESS = """
import sys, hashlib, numpy as np
import deconditional as dc
new = np.load(sys.argv[1])
for path in sys.argv[2:]:
    post = dc.load(path).predict(new)
    print(hashlib.sha256(post.mean.tobytes() + post.std.tobytes()).hexdigest())
"""


def test_a_new_process_predicts_the_same_to_the_bit(fitted: Any, tmp_path: Path) -> None:
    names = ("u-cmp", "pseudo-targets", "stochastic")
    np.save(tmp_path / "new.npy", NEW)
    paths = [fitted(name).save(tmp_path / f"{k}.npz") for k, name in enumerate(names)]
    expected = []
    for name in names:
        post = fitted(name).predict(NEW)
        expected.append(hashlib.sha256(post.mean.tobytes() + post.std.tobytes()).hexdigest())
    done = subprocess.run(
        [sys.executable, "-c", IN_A_NEW_PROCESS, tmp_path / "new.npy", *paths],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == expected
    assert len(set(expected)) == len(names)


def test_numpy_and_json_alone_give_the_posterior_mean(fitted: Any, tmp_path: Path) -> None:
    """The format is open: kbar(x) a + h b from the arrays, with no code of this package."""
    model = fitted("bagg-gp")
    path = model.save(tmp_path / "model.npz")
    with np.load(path) as file:
        header = json.loads(file["model.json"])
        members = {name.partition("/")[2]: file[name] for name in file if name != "model.json"}

    def array(node: dict[str, Any]) -> np.ndarray:
        ((kind, content),) = node.items()
        return content if kind == "weak" else members[content]

    bags = {k: array(found(header, "Bags")[k]) for k in ("points", "bag", "weights")}
    field = found(header, "ExactField")
    rough, smooth = (
        {k: array(found(field["kernel"], name)[k]) for k in ("lengthscale", "variance")}
        for name in ("Matern32", "RBF")
    )
    apart = NEW[:, None] - bags["points"][None]
    r = np.sqrt(3 * ((apart / rough["lengthscale"]) ** 2).sum(-1))
    values = rough["variance"] * (1 + r) * np.exp(-r)
    values *= smooth["variance"] * np.exp(-0.5 * ((apart / smooth["lengthscale"]) ** 2).sum(-1))
    shares = bags["weights"][:, None] * (bags["bag"][:, None] == np.arange(6))
    posterior = found(field, "Conditioned")
    weights = array(posterior["projection"]) @ array(posterior["misfit"])
    mean = values @ shares @ weights + array(posterior["trend"])[0]
    np.testing.assert_allclose(mean, model.predict(NEW).mean, rtol=1e-10)


def test_the_file_says_what_it_is(fitted: Any, tmp_path: Path) -> None:
    model = fitted("cmp")
    about = inspect(model.save(tmp_path / "model.npz"))
    assert about["class"] == "CMP" and about["schema"] == 1
    assert about["versions"]["deconditional"] == dc.__version__
    assert about["versions"]["jax"] == jax.__version__
    made = datetime.datetime.fromisoformat(about["created"])
    assert abs((datetime.datetime.now(datetime.UTC) - made).total_seconds()) < 600
    summary = about["summary"]
    assert summary["observations"] == 5 and summary["bags"] == repr(model.bags_)


# --------------------------------------------------------------------------- writing


def test_only_saved_models_are_overwritten(fitted: Any, tmp_path: Path) -> None:
    model, path = fitted("cmp"), tmp_path / "model.npz"
    model.save(path)
    with pytest.raises(UsageError, match="exists; name another, or replace it"):
        model.save(path)
    fitted("nuts").save(path, overwrite=True)
    assert inspect(path)["class"] == "BaggGP"
    np.savez(tmp_path / "data.npz", a=np.ones(3))
    with pytest.raises(UsageError, match="not a saved model, so it is not overwritten"):
        model.save(tmp_path / "data.npz", overwrite=True)
    with np.load(tmp_path / "data.npz") as data:
        assert data["a"].tolist() == [1, 1, 1]
    for bad, message in (
        (tmp_path / "model.pkl", "must end in .npz"),
        (tmp_path / "model", "exists"),
        (tmp_path / "none" / "m.npz", "does not exist"),
    ):
        with pytest.raises(UsageError, match=message):
            model.save(bad)
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        model.save(tmp_path / "folder.npz")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there(
    step: str, fitted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fitted("cmp").save(tmp_path / "model.npz")
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(UsageError, match="No space left on device"):
        fitted("nuts").save(path, overwrite=True)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.npz"]


def test_what_is_not_fitted_or_not_ours_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        dc.CMP().save(tmp_path / "m.npz")
    with pytest.raises(NotFittedError):
        dc.PseudoTarget().save(tmp_path / "m.npz")

    class Own(dc.BaggGP):
        pass

    with pytest.raises(SavedModelError, match="only estimators of this package can"):
        Own(**QUICK).fit(BAGS, Z).save(tmp_path / "m.npz")
    assert not list(tmp_path.iterdir())


# --------------------------------------------------------------------------- kernels and values


def signed(header: Any, members: Any) -> bytes:
    """A JSON text with the fingerprint it should have: what a forger would write."""
    return json.dumps({**header, "digest": fingerprint(header, members)}).encode()


def through_a_file(value: Any, own_kernels: Any = ()) -> tuple[Any, Any]:
    """What a file has for a value, and the value that is read from it again."""
    arrays = ArrayWriter()
    node = ObjectWriter(arrays).write(value)
    text = io.BytesIO()
    with zipfile.ZipFile(text, "w") as archive:
        for name, values in arrays.arrays.items():
            member = io.BytesIO()
            np.save(member, values)
            archive.writestr(f"arrays/{name}.npy", member.getvalue())
        archive.writestr(
            "model.json",
            signed({"format": "value", "schema": 1, "content": node}, archive.infolist()),
        )
    file = Archive(zipfile.ZipFile(text), "value", len(text.getvalue()))
    return node, ObjectReader(file, own_kernels).read(file.header["content"])


LINEAR = eqx.nn.Linear(2, 3, key=jax.random.key(1))
SEQUENTIAL = eqx.nn.Sequential([LINEAR, eqx.nn.Lambda(jax.nn.gelu)])
STANDARD = {
    "RBF": gk.RBF(lengthscale=[0.5, 2.0], variance=3.0),
    "active dimensions": gk.Matern12(active_dims=[1], lengthscale=0.3),
    "slice": gk.Matern52(active_dims=slice(0, 2, 1), n_dims=2),
    "rational quadratic": gk.RationalQuadratic(alpha=1.7),
    "learnt alpha": gk.RationalQuadratic(alpha=PositiveReal(1.7)),
    "periodic": gk.Periodic(period=2.0),
    "powered exponential": gk.PoweredExponential(power=SigmoidBounded(0.7, low=0.1, high=2.0)),
    "polynomial": gk.Polynomial(degree=3, shift=0.5),
    "arc cosine": gk.ArcCosine(order=1),
    "linear": gk.Linear(active_dims=[0]),
    "sum with a constant": gk.RBF() + gk.Matern32(active_dims=[0]) * gk.Constant(constant=2.0),
    "held": gk.RBF(variance=paramax.non_trainable(PositiveReal(2.0))),
    "network": deep_kernel(),
    "layers": dc.DeepKernel(gk.RBF() + gk.White(), SEQUENTIAL, active_dims=[0, 1]),
}


@pytest.mark.parametrize("name", STANDARD)
def test_standard_kernels_come_back(name: str) -> None:
    kernel = STANDARD[name]
    node, again = through_a_file(kernel)
    assert "object" in node
    assert leaves(again) == leaves(kernel)
    assert jax.tree_util.tree_structure(again) == jax.tree_util.tree_structure(kernel)
    x = jnp.asarray(NEW[:3])
    expected = [[float(kernel(a, b)) for b in x] for a in x]
    assert [[float(again(a, b)) for b in x] for a in x] == expected


class Wave(AbstractKernel):
    """A kernel of somebody's own."""

    period: Any
    power: int = eqx.field(static=True)

    def __init__(self, period: Any = 1.5, power: int = 1):
        self.period = PositiveReal(period)
        self.power = power
        super().__init__()

    def __call__(self, x: Any, y: Any) -> Any:
        """Covariance of two points."""
        return jnp.exp(-(jnp.abs(jnp.sin((x - y) / val(self.period))).sum() ** self.power))


OTHERS = {"own class": Wave(), "part of a sum": gk.RBF() + Wave(power=2)}


@pytest.mark.parametrize("name", OTHERS)
def test_classes_of_own_kernels_are_asked_for(name: str) -> None:
    with pytest.raises(SavedModelError, match=r"as in load\(path, own_kernels=\[Wave\]\)"):
        through_a_file(OTHERS[name])
    node, again = through_a_file(OTHERS[name], [Wave])
    assert "own kernel" in json.dumps(node)
    assert leaves(again) == leaves(OTHERS[name])
    assert jax.tree_util.tree_structure(again) == jax.tree_util.tree_structure(OTHERS[name])


def test_models_with_own_kernels_come_back(tmp_path: Path) -> None:
    kernels = {"kernel": gk.RBF(active_dims=[0]) + Wave(2.0), "mediator_kernel": Wave(0.7)}
    model = dc.CMP(**kernels, **QUICK).fit(BAGS, Z)
    path = model.save(tmp_path / "model.npz")
    with pytest.raises(SavedModelError, match="is a Wave, which is no kernel of GPJax"):
        dc.load(path)
    again = dc.load(path, own_kernels=[Wave])
    assert_same(model, again, tmp_path)
    assert np.array_equal(again.predict(NEW).std, model.predict(NEW).std)
    with pytest.raises(TypeError, match="must be classes of GPJax kernels"):
        dc.load(path, own_kernels=[Wave()])  # type: ignore[list-item]

    class Other(AbstractKernel):
        """A kernel of other fields."""

        def __call__(self, x: Any, y: Any) -> Any:
            return jnp.ones(())

    Other.__qualname__ = "Wave"
    with pytest.raises(SavedModelError, match="does not have the fields of a"):
        dc.load(path, own_kernels=[Other])


def test_own_functions_are_not_saved() -> None:
    network = eqx.nn.MLP(2, 1, 3, 1, activation=lambda v: v**2, key=jax.random.key(0))
    with pytest.raises(SavedModelError, match="cannot be saved"):
        through_a_file(dc.DeepKernel(gk.RBF(), network))


PRIORS = {
    "ours": dc.SplitLogNormal(np.array([1.0, 2.0])),
    "numpyro": npd.Gamma(2.0, jnp.array([1.0, 3.0])),
}


@pytest.mark.parametrize("name", PRIORS)
def test_priors_come_back(name: str) -> None:
    _, again = through_a_file(PRIORS[name])
    value = jnp.array([0.3, 1.1])
    assert type(again) is type(PRIORS[name])
    assert np.array_equal(again.log_prob(value), PRIORS[name].log_prob(value))


def test_a_prior_of_ones_own_is_missed_when_it_is_needed(tmp_path: Path) -> None:
    class Mine:
        def log_prob(self, value: Any) -> Any:
            return -(jnp.log(value) ** 2)

        def sample(self, key: Any, sample_shape: Any = ()) -> Any:
            return jnp.ones(sample_shape)

        def __repr__(self) -> str:
            return "Mine()"

    model = dc.BaggGP(priors={"noise_std": Mine()}, **QUICK).fit(BAGS, Z)
    again = dc.load(model.save(tmp_path / "model.npz"))
    assert np.array_equal(again.predict(NEW).mean, model.predict(NEW).mean)
    again = dc.load(again.save(tmp_path / "again.npz"))
    with pytest.raises(UsageError, match=r"needs the prior Mine\(\), which was not saved"):
        matched(again)


def test_plain_values_come_back() -> None:
    day = datetime.date(2020, 2, 29)
    labels = ("a", 1, 2.5, False, None, ("b", 3), day, datetime.datetime(2020, 1, 1, 3))
    labels += (np.datetime64("2020-01-05", "D"), np.inf, [1, {"a": 2, "b": ()}], {1: "c"})
    labels += (slice(1, None, 2), np.float32(1.5), np.int64(3), jnp.float32, jax.nn.relu)
    _, again = through_a_file(labels)
    assert again == labels and list(map(type, again)) == list(map(type, labels))
    for array in (
        np.array(["2001-01-01", "NaT"], dtype="datetime64[ns]"),
        np.array([[1.5, 2.5]]),
        np.arange(100, dtype=np.int32),
        np.zeros((0, 3), dtype=bool),
        np.array(["1", "ä"]),
        np.array([cftime.datetime(2001, 2, 30, 12, calendar="360_day")]),
        jnp.float32(2.0),
        jnp.asarray(2.0),
        jax.random.key(3),
    ):
        _, again = through_a_file(array)
        assert type(again) is type(array)
        is_object = getattr(array.dtype, "kind", "") == "O"  # keys have none
        assert again.tolist() == array.tolist() if is_object else leaves(again) == leaves(array)
    itself: list[Any] = []
    for bad in (1j, object(), np.array([object()]), {"a": {1}}, 2**70, np.array([1j])):
        with pytest.raises(SavedModelError, match=r"cannot be saved|too large to be saved"):
            through_a_file([bad])
    itself.append(itself)
    with pytest.raises(RecursionError):
        through_a_file(itself)


def test_shared_objects_are_one_again() -> None:
    bags = dc.Bags.from_points(X, BAG_OF)
    _, (one, two, other) = through_a_file([bags, bags, dc.Bags.from_points(X, BAG_OF)])
    assert one is two and other is not one
    assert np.array_equal(one.points, bags.points) and one.ids == bags.ids


# --------------------------------------------------------------------------- fields


@pytest.fixture(scope="module")
def fields() -> Any:
    """Unmatched fields on a small globe."""
    globe = dc.datasets.synthetic_fields(n_lat=12, n_lon=24)
    return dc.datasets.split_cells(globe, "tas", ["altitude"], ["water_vapour"], block=3)


def facts(out: xr.Dataset) -> dict[str, Any]:
    """What a result says about itself, but for the time it took."""
    return {k: v for k, v in json.loads(out.attrs["deconditional"]).items() if k != "timings"}


@pytest.mark.filterwarnings("ignore::deconditional.ExtrapolationWarning")  # few cells, no link
def test_a_loaded_downscaler_predicts_the_same_dataset(
    fields: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("gpr", "u-cmp")
    monkeypatch.setattr("deconditional.fields.learn.candidates", lambda *_: names)
    options = {"points_per_bag": 4, "folds": 3, "bounds": (0, None)}
    downscaler = dc.Downscaler("tas", ["altitude"], ["water_vapour"], **options)
    downscaler.fit(fields.fine, fields.coarse)
    again = dc.load(downscaler.save(tmp_path / "field.npz"))
    assert set(vars(again)) == set(vars(downscaler))
    ask = partial(dc.Downscaler.predict, fine=fields.everywhere, quantiles=[0.1, 0.9])
    one, other = ask(downscaler), ask(again)
    bare = [out.assign_attrs(history="", deconditional="") for out in (one, other)]
    xr.testing.assert_identical(*bare)
    assert facts(one) == facts(other)
    assert other["mean"].attrs["units"] == "K"
    assert again.parameters_ == downscaler.parameters_
    assert str(again.comparison_) == str(downscaler.comparison_)
    assert leaves(dict(again.comparison_.pit)) == leaves(dict(downscaler.comparison_.pit))
    assert again.pairing_.understood == downscaler.pairing_.understood
    assert again.timings_ == downscaler.timings_
    assert tuple(again.candidates_) == names
    for rest in set(names) - {again.model_name_}:
        assert_same(downscaler.using(rest).model_, again.using(rest).model_, tmp_path)


def test_the_fine_data_is_missed_where_it_is_needed(
    fields: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of logarithms is fitted anew when it is adopted, to the bags that it had."""
    monkeypatch.setattr("deconditional.fields.learn.LOG_TOLERANCE", 0.0)
    monkeypatch.setattr("deconditional.fields.learn.LOG_PASSES", 2)
    options = {"model": "gpr", "transform": "log"}
    downscaler = dc.Downscaler("tas", ["altitude"], ["water_vapour"], **options)
    downscaler.fit(fields.fine, fields.coarse)
    whole = dc.load(downscaler.save(tmp_path / "whole.npz"))
    assert whole.model_ is not whole.candidates_["gpr"]
    means = [d.using("gpr").predict(fields.fine)["mean"] for d in (downscaler, whole)]
    assert np.array_equal(means[0], means[1], equal_nan=True)
    assert np.isfinite(whole.predict(fields.everywhere)["mean"]).all()
    with pytest.raises(
        UsageError, match="fine data of the fit, which was not saved with the model; fit again"
    ):
        whole.learner_.data("gpr")


# --------------------------------------------------------------------------- bad files


def contents(path: Path) -> dict[str, bytes]:
    """The members of a file."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, members: dict[str, Any], how: int = zipfile.ZIP_STORED) -> Path:
    """A file of these members, the JSON last; one that is an object is signed."""
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, content in sorted(members.items(), key=lambda pair: pair[0] == "model.json"):
            text = signed(content, archive.infolist()) if isinstance(content, dict) else content
            archive.writestr(name, text)
    return path


def npy(values: np.ndarray) -> bytes:
    """An array as a member of a file."""
    member = io.BytesIO()
    np.save(member, values)
    return member.getvalue()


@pytest.fixture(scope="module")
def saved(fitted: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small saved model."""
    return fitted("u-cmp").save(tmp_path_factory.mktemp("saved") / "model.npz")


@pytest.fixture
def opened(saved: Path, tmp_path: Path) -> Any:
    """Loads the saved model after some of its members were replaced."""
    whole = contents(saved)

    def load(how: int = zipfile.ZIP_STORED, **changes: Any) -> Any:
        renamed = {name.replace("__", "/"): content for name, content in changes.items()}
        header = renamed.pop("header", None)
        members = {**whole, **{k: v for k, v in renamed.items() if v is not None}}
        if header is not None:
            members["model.json"] = header
        for name in [k for k, v in renamed.items() if v is None]:
            del members[name]
        return dc.load(write(tmp_path / "bad.npz", members, how))

    load.header = json.loads(whole["model.json"])  # type: ignore[attr-defined]
    return load


def test_files_that_are_no_models_are_refused(saved: Path, tmp_path: Path) -> None:
    bad = {
        "absent.npz": None,
        "empty.npz": b"",
        "text.npz": b"hello",
        "zeros.npz": bytes(10_000),
        "half.npz": saved.read_bytes()[: saved.stat().st_size // 2],
    }
    for name, content in bad.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(SavedModelError, match=f"cannot load .*{name}"):
            dc.load(tmp_path / name)
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    with pytest.raises(SavedModelError, match=r"part 'a\.npy', which no saved model has"):
        dc.load(tmp_path / "other.npz")
    with pytest.raises(SavedModelError, match="not a file"):
        dc.load(tmp_path)


def test_a_newer_schema_is_named(opened: Any) -> None:
    header = {**opened.header, "schema": 2, "versions": {"deconditional": "9.9"}}
    with pytest.raises(SavedModelError, match=r"deconditional 9\.9 with schema 2; .* up to 1"):
        opened(header=json.dumps(header).encode())


def test_edited_files_are_refused(opened: Any) -> None:
    header = json.loads(json.dumps(opened.header))
    found(header, "CMP")["seed"] = 1
    with pytest.raises(SavedModelError, match="do not match its fingerprint"):
        opened(header=json.dumps(header).encode())
    name = found(opened.header, "Bags")["points"]["numpy"]
    for content in (None, npy(np.full(3, 7.0))):
        with pytest.raises(SavedModelError, match="do not match its fingerprint"):
            opened(**{f"arrays__{name}.npy": content})
    with pytest.raises(SavedModelError, match=f"names an array '{name}' that it does not have"):
        opened(header=opened.header, **{f"arrays__{name}.npy": None})


def test_names_of_members_cannot_lead_elsewhere(opened: Any, tmp_path: Path) -> None:
    for name in ("../evil.npy", "/etc/evil", "arrays/../../evil.npy", "arrays/a00000.npy/x", "C:x"):
        with pytest.raises(SavedModelError, match="which no saved model has"):
            opened(**{name: b"x"})
    assert [file.name for file in tmp_path.iterdir()] == ["bad.npz"]


def test_bombs_do_not_go_off(opened: Any, saved: Path, tmp_path: Path) -> None:
    bomb = {"arrays/a00000.npy": bytes(50_000_000), "model.json": b"{}"}
    packed = write(tmp_path / "bomb.npz", bomb, zipfile.ZIP_DEFLATED)
    del bomb
    members = contents(saved)
    same = tmp_path / "overlap.npz"
    with zipfile.ZipFile(same, "w") as archive:
        archive.writestr("model.json", members["model.json"])
        archive.writestr("arrays/a00000.npy", bytes(200_000))
        for k in range(1, 500):
            info = zipfile.ZipInfo(f"arrays/a{k:05d}.npy")
            whole = archive.getinfo("arrays/a00000.npy")
            info.header_offset, info.CRC = whole.header_offset, whole.CRC
            info.file_size = info.compress_size = whole.file_size
            archive.filelist.append(info)
            archive.NameToInfo[info.filename] = info
    name = found(opened.header, "Bags")["points"]["numpy"]
    large = npy(X).replace(b"(30, 2)", b"(2**40,")
    shape = npy(X).replace(b"(30, 2), }     ", b"(30, 99999999), }")[: len(npy(X))]
    members["model.json"] = opened.header
    huge = write(tmp_path / "huge.npz", {**members, f"arrays/{name}.npy": shape})
    sums = write(tmp_path / "sums.npz", {**members, f"arrays/{name}.npy": large})
    tracemalloc.start()
    for path, why in (
        (packed, "compressed"),
        (same, "overlap"),
        (huge, "as large as its shape needs"),
        (sums, "damaged"),
    ):
        with pytest.raises(SavedModelError, match=why):
            dc.load(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


def test_members_are_each_there_once(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "twice.npz"
    path.write_bytes(saved.read_bytes())
    with (
        zipfile.ZipFile(path, "a") as archive,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        archive.writestr("model.json", b"{}")
    with pytest.raises(SavedModelError, match="two of its parts have the same name"):
        dc.load(path)


def test_objects_are_never_unpickled(opened: Any, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "executed",))

    evil = npy(np.array([Evil()], dtype=object))
    with pytest.raises(SavedModelError, match="not one of plain numbers"):
        opened(header=opened.header, **{"arrays__a00000.npy": evil})
    np.load(io.BytesIO(evil), allow_pickle=True)
    assert (tmp_path / "executed").exists()  # it would have worked


FORGED: dict[str, tuple[str, str, Any]] = {
    "class": ("", "object", ["os.system", {}]),
    "class of this package": ("", "object", ["Bags", {}]),
    "class of another": ("", "object", ["builtins.eval", {}]),
    "not fitted": ("", "object", ["CMP", {}]),
    "function": ("ExactField", "dtype", {"constant": "os.system"}),
    "option": ("CMP", "__class__", 1),
    "option of a wrong kind": ("CMP", "seed", "one"),
    "method": ("CMP", "method", "__init__"),
    "kernel": ("KernelTemplate", "kernel", {"object": ["__import__('os')", {}]}),
    "kernel of a wrong kind": ("KernelTemplate", "kernel", {"object": ["Matched", {}]}),
    "activation": ("KernelTemplate", "kernel", {"constant": "jax.nn.relu"}),
    "trend": ("Trend", "kind", "linear"),
    "text for a number": ("FitReport", "log_evidence", "lots"),
    "number for a text": ("FitReport", "method", 3),
    "list for an object": ("ExactField", "conditioned", []),
    "another object": ("ExactField", "conditioned", {"same": 0}),
    "object to come": ("ExactField", "conditioned", {"same": 10**6}),
    "no points": ("Bags", "points", None),
    "array of another": ("ExactField", "noise", {"jax": "a99999"}),
    "array of another shape": ("Conditioned", "coefficients", {"jax": "a00000"}),
    "array of another kind": ("Bags", "bag", {"numpy": "a00000"}),
    "an array too few": ("ExactField", "weights", None),
    "no array": ("ExactProblem", "z", {"jax": {"shape": [2**62, 4]}}),
    "labels": ("Bags", "ids", {"tuple": [0] * 6}),
    "tiles": ("Layout", "row_tile", 3),
    "chunks": ("Layout", "n_bags", 3),
    "infinite interval": (
        "Parameter",
        "transform",
        {"object": ["Interval", {"low": 0, "high": 0}]},
    ),
    "date": ("Bags", "ids", {"dates": ["eval", {"numpy": "a00000"}]}),
    "random key": ("CMP", "seed", {"key": ["evil", {"numpy": "a00000"}]}),
    "distribution": ("Parameter", "prior", {"distribution": ["__init__", {"mapping": {}}]}),
    "extra field": ("Bags", "run", "rm -rf /"),
    "two kinds": ("Parameter", "prior", {"float": "nan", "tuple": []}),
    "no kind": ("Parameter", "prior", {}),
    "unknown kind": ("Parameter", "prior", {"pickle": "gASV"}),
    "top": ("header", "evil", 1),
    "schema": ("header", "schema", True),
    "no schema": ("header", "schema", "1"),
    "format": ("header", "format", "pickle"),
}
"""An object of the file, a field of it, and what it says instead."""


def forged(header: dict[str, Any], name: str, key: str, value: Any) -> dict[str, Any]:
    """The JSON with one value replaced."""
    copy = json.loads(json.dumps(header))
    if not name:
        copy["content"] = {key: value}
    else:
        node = copy if name == "header" else found(copy, name)
        node[key] = value
    return copy


@pytest.mark.parametrize("name", FORGED)
def test_forged_texts_are_refused(name: str, opened: Any) -> None:
    with pytest.raises(SavedModelError):
        opened(header=forged(opened.header, *FORGED[name]))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"format":"deconditional model","schema":NaN}',
        b'{"format":"deconditional model","schema":1,"schema":1}',
        b'{"format":"deconditional model","schema":' + b"9" * 100_000 + b"}",
        b'{"format":"deconditional model","schema":1e999}',
    ],
)
def test_texts_that_are_no_json_of_ours_are_refused(text: bytes, opened: Any) -> None:
    with pytest.raises(SavedModelError):
        opened(header=text)


# --------------------------------------------------------------------------- fuzzing


def test_damaged_bytes_give_the_same_model_or_an_error(saved: Path, tmp_path: Path) -> None:
    """Flips, truncations, insertions and zeroed stretches, wherever they fall."""
    chance = np.random.default_rng(11)
    whole = np.frombuffer(saved.read_bytes(), dtype=np.uint8)
    expected = marginals(dc.load(saved))
    path = tmp_path / "damaged.npz"
    outcomes = {"same": 0, "refused": 0}
    for k in range(320):
        damaged = whole.copy()
        at = int(chance.integers(len(whole)))
        kind = k % 4
        if kind == 0:
            damaged[at] ^= 1 << int(chance.integers(8))
        elif kind == 1:
            damaged = damaged[:at]
        elif kind == 2:
            damaged = np.insert(damaged, at, chance.integers(256, size=3).astype(np.uint8))
        else:
            damaged[at : at + 16] = 0
        path.write_bytes(damaged.tobytes())
        try:
            model = dc.load(path)
        except SavedModelError:
            outcomes["refused"] += 1
        else:
            assert leaves(marginals(model)) == leaves(expected)
            outcomes["same"] += 1
    assert outcomes["refused"] > 250, outcomes


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


JUNK = [
    *(None, True, -1, 0, 1, 7, 2**60, 1e300, -1e300, "", "nan", "inf", "a00001"),
    *([], {}, [[]], {"jax": "a00000"}, {"numpy": "a00001"}, {"weak": 1.0}, {"scalar": "a00000"}),
    *({"tuple": []}, {"kernel": {}}, {"float": "nan"}, {"mapping": {"a": 1}}, {"same": 3}),
    *({"object": ["Matched", {}]}, {"constant": "jax.nn.relu"}),
]


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_forged_values_give_a_model_or_an_error(opened: Any) -> None:
    """Any value of the JSON replaced, removed or doubled."""
    chance = np.random.default_rng(5)
    everywhere = [p for p in places(opened.header) if p and p[0] not in ("digest", "summary")]
    outcomes = {"loaded": 0, "refused": 0}
    for _ in range(250):
        copy = json.loads(json.dumps(opened.header))
        *path, last = everywhere[int(chance.integers(len(everywhere)))]
        node = copy
        for key in path:
            node = node[key]
        what = int(chance.integers(8))
        if what == 0:
            del node[last]
        elif what == 1 and isinstance(node, dict):
            node[f"{last}x"] = node[last]
        else:
            node[last] = JUNK[int(chance.integers(len(JUNK)))]
        try:
            model = opened(header=copy)
        except SavedModelError:
            outcomes["refused"] += 1
        else:
            assert np.isfinite(model.predict(NEW).mean).all()
            outcomes["loaded"] += 1
    assert outcomes["refused"] > 150, outcomes


# --------------------------------------------------------------------------- the tables


def test_every_name_of_the_tables_stands_for_something() -> None:
    for name in registry.CLASSES:
        assert registry.name_of_class(registry.class_of(name)) == name
    for name in registry.CONSTANTS:
        assert registry.constant(name) is not None
    assert all(hasattr(npd, name) for name in registry.DISTRIBUTIONS)
    assert all(np.dtype(name).kind in "fiub" for name in files.DTYPES)


def within(hint: Any) -> Iterator[Any]:
    """An annotation and all it is made of; what belongs to a class is not saved."""
    if get_origin(hint) is ClassVar:
        return
    yield hint
    for part in get_args(hint):
        yield from within(part)


def test_what_saved_objects_hold_can_be_saved() -> None:
    ours = {
        kind for kind in map(registry.class_of, registry.CLASSES) if "deconditional" in str(kind)
    }
    missing = {
        part.__name__
        for kind in ours
        for hint in hints_of(kind).values()
        for part in within(hint)
        if isinstance(part, type)
        and part.__module__.startswith("deconditional")
        and not getattr(part, "_is_protocol", False)
        and not any(issubclass(known, part) for known in ours)
    }
    assert missing == {"FineBags", "LeftBehind"}  # which are left behind
