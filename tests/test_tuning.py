"""Sizes of tiles: defaults, measurements that are kept, and answers that do not depend on them."""

import itertools
import json
import os
from functools import cache

import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deconditional import bag_cross, bag_gram, tuning
from deconditional.layout import layout_bags
from deconditional.tuning import Tiles
from helpers import assert_close, flat_kernel, ragged_bags, weight_matrix

SLOW, FAST = Tiles(64, 128, "product"), Tiles(128, 128, "product")


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A cache folder of its own, measuring switched on, nothing known."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("DECONDITIONAL_TUNE", "on")
    monkeypatch.setattr(tuning, "_known", {})
    return tmp_path / "deconditional" / f"tiles-{tuning.__version__}.json"


@pytest.fixture
def measured(monkeypatch):
    """Problems that were measured; FAST wins."""
    calls = []

    def tune(n, dtype):
        calls.append((n, jnp.dtype(dtype).name))
        return FAST, {"slow": 2.0, "fast": 1.0}

    monkeypatch.setattr(tuning, "tune", tune)
    return calls


# --------------------------------------------------------------------------- defaults


def test_small_problems_are_not_measured(kept, measured):
    assert tuning.tiles_for(20_000) == Tiles(512, 1024, "product")
    assert tuning.tiles_for(300) == Tiles(256, 512, "product")
    assert measured == [] and not kept.exists()


@pytest.mark.parametrize("accelerator", [True, False])
@pytest.mark.parametrize("n", [10, 5_000, 500_000])
def test_an_accelerator_gets_larger_tiles_by_differences(n, accelerator):
    tiles = tuning.defaults(n, accelerator)
    assert tiles.form == ("differences" if accelerator else "product")
    assert (tiles.rows * tiles.columns >= 2**24) == accelerator
    # Four bytes a value, should the compiler write a tile.
    assert 4 * tiles.rows * tiles.columns <= 2**29


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("accelerator", [True, False])
def test_candidates_begin_with_the_default_and_differ(dtype, accelerator):
    tried = tuning.candidates(100_000, dtype, accelerator)
    assert tried[0] == tuning.defaults(100_000, accelerator)
    assert len(set(tried)) == len(tried) > 1


@pytest.mark.parametrize(
    ("rows", "columns", "form"),
    [(100, 128, "product"), (32, 64, "product"), (64.0, 64, "product"), (64, 64, "guess")],
)
def test_impossible_tiles(rows, columns, form):
    with pytest.raises(ValueError, match="must be"):
        Tiles(rows, columns, form)


# --------------------------------------------------------------------------- measuring


def test_a_measurement_is_made_once_for_each_type_and_class_of_size(kept, measured):
    for _ in range(2):
        assert tuning.tiles_for(30_000) == FAST
        assert tuning.tiles_for(60_000) == FAST
        assert tuning.tiles_for(30_000, np.float64) == FAST
        assert tuning.tiles_for(100_000) == FAST
    assert measured == [(30_000, "float32"), (30_000, "float64"), (100_000, "float32")]
    entries = json.loads(kept.read_text())["tiles"]
    assert len(entries) == 3
    for entry in entries.values():
        assert (entry["rows"], entry["seconds"]["fast"]) == (128, 1.0)


def test_another_process_finds_the_measurement(kept, measured, monkeypatch):
    tuning.tiles_for(30_000)
    monkeypatch.setattr(tuning, "_known", {})
    assert tuning.tiles_for(40_000) == FAST
    assert len(measured) == 1


def test_switched_off_nothing_is_measured_read_or_written(kept, measured, monkeypatch):
    tuning.tiles_for(30_000)
    monkeypatch.setenv("DECONDITIONAL_TUNE", "off")
    assert tuning.tiles_for(30_000) == Tiles(512, 1024, "product")
    assert tuning.tiles_for(100_000) == Tiles(512, 1024, "product")
    assert len(measured) == 1
    monkeypatch.setenv("DECONDITIONAL_TUNE", "perhaps")
    with pytest.raises(ValueError, match="DECONDITIONAL_TUNE must be on or off, not 'perhaps'"):
        tuning.tiles_for(30_000)


BROKEN = {
    "empty": "",
    "no JSON": "{tiles",
    "binary": b"\xff\xfe\x00",
    "a list": "[1, 2]",
    "foreign": '{"tiles": [1]}',
    "deep": "[" * 100_000,
    "impossible sizes": '{"tiles": {"KEY": {"rows": -3, "columns": 128, "form": "product"}}}',
    "no sizes": '{"tiles": {"KEY": {}}}',
    "no table": '{"tiles": {"KEY": 7}}',
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_measured_over(kept, measured, name):
    kept.parent.mkdir(parents=True)
    content = BROKEN[name]
    if isinstance(content, str):
        content = content.replace("KEY", tuning._key(30_000, np.float32)).encode()
    kept.write_bytes(content)
    assert tuning.tiles_for(30_000) == FAST
    assert len(measured) == 1
    assert json.loads(kept.read_text())["tiles"][tuning._key(30_000, np.float32)]["rows"] == 128


def test_entries_of_other_machines_stay(kept, measured):
    kept.parent.mkdir(parents=True)
    kept.write_text('{"tiles": {"another": {"rows": 64, "columns": 64, "form": "product"}}}')
    tuning.tiles_for(30_000)
    assert len(json.loads(kept.read_text())["tiles"]) == 2


def test_a_folder_that_cannot_be_written(kept, measured):
    kept.parent.parent.mkdir(exist_ok=True)
    kept.parent.write_text("a file where the folder should be")
    assert tuning.tiles_for(30_000) == tuning.tiles_for(30_000) == FAST
    assert len(measured) == 1  # kept in memory


def test_a_relative_cache_folder_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tuning.cache_file().parent == tmp_path / ".cache" / "deconditional"


def ticking(*seconds):
    """A clock under which successive timings take so long."""
    ticks = itertools.accumulate(itertools.chain.from_iterable((0.0, s) for s in seconds))
    return lambda: next(ticks)


def test_the_fastest_wins_if_it_is_faster_by_a_tenth(monkeypatch):
    def tuned(default, other):
        times = (default, default + 1.0, other + 1.0, other)  # the better of two counts
        return tuning.tune(30_000, np.float32, (SLOW, FAST), clock=ticking(*times))

    monkeypatch.setattr(jax, "jit", lambda function: lambda *operands: 0.0)  # only the clock runs
    best, seconds = tuned(1.0, 0.85)
    assert best == FAST
    assert seconds == {
        "64 x 128 product": pytest.approx(1.0),
        "128 x 128 product": pytest.approx(0.85),
    }
    assert tuned(1.0, 0.95)[0] == SLOW


@pytest.mark.usefixtures("quick_compilation")
def test_a_real_measurement_inside_a_traced_function(kept, monkeypatch):
    """Bags may be laid out while another function is traced."""
    monkeypatch.setattr(tuning, "candidates", lambda n, dtype: (SLOW, FAST))
    real = tuning._seconds
    sizes = []

    def small(n, dtype, tiles, clock):
        sizes.append(n)
        return real(512, dtype, tiles, clock)

    monkeypatch.setattr(tuning, "_seconds", small)
    found = []

    @jax.jit
    def traced(x):
        found.append(tuning.tiles_for(30_000))
        return x + 1.0

    assert float(traced(1.0)) == 2.0
    assert sizes == [30_000, 30_000]
    assert found[0] in (SLOW, FAST)
    entry = next(iter(json.loads(kept.read_text())["tiles"].values()))
    assert all(0.0 < s < 60.0 for s in entry["seconds"].values())
    assert os.listdir(kept.parent) == [kept.name]


# --------------------------------------------------------------------------- what tiles must not do

BAGS = {
    "ragged": ragged_bags([3, 1, 7, 40, 9, 2, 90, 33, 5], weighted=True),
    "equal": ragged_bags([17] * 9, weighted=True),
}
KERNEL = gk.Matern32(active_dims=[0, 2]) * gk.RationalQuadratic(active_dims=[1], lengthscale=0.8)
QUERIES = np.random.default_rng(5).normal(size=(70, 3))
THETA, rebuild = flat_kernel(KERNEL)


def linear_form(of_gram, of_cross):
    """A random linear form of both, whose gradients are compared."""
    rng = np.random.default_rng(11)
    by_gram, by_cross = rng.normal(size=of_gram.shape), rng.normal(size=of_cross.shape)
    return jnp.sum(by_gram * of_gram) + jnp.sum(by_cross * of_cross), (of_gram, of_cross)


def values_and_gradients(function, bags):
    """K̄, k̄ and the gradients of the form by parameters, points and queries."""
    gradient = jax.jit(jax.grad(function, argnums=(0, 1, 2), has_aux=True))
    gradients, values = gradient(THETA, jnp.asarray(bags.points), jnp.asarray(QUERIES))
    return *values, *gradients


@cache
def dense_answers(which):
    """The same from dense matrices, which know no tiles."""
    bags = BAGS[which]
    p = weight_matrix(bags)

    def dense(theta, points, queries):
        kernel = rebuild(theta)
        square = kernel.cross_covariance(points, points)
        return linear_form(p.T @ square @ p, kernel.cross_covariance(queries, points) @ p)

    return values_and_gradients(dense, bags)


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize(
    ("which", "tiles"),
    [
        ("ragged", Tiles(64, 64, "product")),
        ("ragged", Tiles(128, 64, "product")),
        ("ragged", Tiles(64, 128, "differences")),
        ("ragged", Tiles(512, 128, "differences")),
        ("equal", Tiles(64, 64, "differences")),
    ],
    ids=str,
)
def test_values_and_gradients_do_not_depend_on_tiles(which, tiles):
    bags = BAGS[which]
    layout, source = layout_bags(bags.points, bags.bag, bags.weights, bags.n_bags, tiles=tiles)
    assert layout.form == tiles.form
    assert len(layout.points) % layout.row_tile == len(layout.points) % layout.tile == 0
    if which == "equal":
        assert (layout.chunk, layout.one_chunk_per_bag) == (17, True)

    def fused(theta, points, queries):
        kernel, moved = rebuild(theta), layout.with_points(points[source])
        return linear_form(bag_gram(kernel, moved), bag_cross(kernel, queries, moved))

    found = values_and_gradients(fused, bags)
    for actual, desired in zip(found, dense_answers(which), strict=True):
        assert_close(actual, desired)
