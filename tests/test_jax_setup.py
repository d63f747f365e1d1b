"""JAX as importing the package sets it up: 64 bits, and compiled functions kept on disk."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from deconditional.errors import UsageError
from deconditional.kernels import jax_setup

FOLDER = "JAX_COMPILATION_CACHE_DIR"


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A process whose user has chosen nothing, with a cache folder of its own."""
    names = ("jax_compilation_cache_dir", "jax_compilation_cache_max_size")
    before = {name: getattr(jax.config, name) for name in names}
    shortest = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_compilation_cache_dir", None)
    for name in (FOLDER, jax_setup.SIZE, jax_setup.LEAST, jax_setup.SWITCH):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield jax_setup.cache_folder()
    for name, value in before.items():
        jax.config.update(name, value)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", shortest)
    jax_setup.compilation_cache.reset_cache()


def test_what_is_compiled_is_kept(fresh):
    assert jax_setup.keep_compiled() == fresh and fresh.is_dir()
    assert jax.config.jax_compilation_cache_dir == str(fresh)
    assert jax.config.jax_compilation_cache_max_size == 128 * 2**20


def test_a_folder_of_the_users_own_is_left_alone(fresh, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    assert jax_setup.keep_compiled() is None
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "mine")
    assert not fresh.exists()


def test_nothing_is_kept_if_told_so(fresh, monkeypatch):
    monkeypatch.setenv("DECONDITIONAL_CACHE", "off")
    assert jax_setup.keep_compiled() is None and not fresh.exists()
    monkeypatch.setenv("DECONDITIONAL_CACHE", "sometimes")
    with pytest.raises(UsageError, match="must be on or off, not 'sometimes'"):
        jax_setup.keep_compiled()


def test_nothing_is_kept_where_nothing_can_be_written(fresh, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert jax_setup.keep_compiled() is None
    assert jax.config.jax_compilation_cache_dir is None


def test_without_filelock_the_size_has_no_bound_so_nothing_is_kept(fresh, monkeypatch):
    monkeypatch.setattr(jax_setup.importlib.util, "find_spec", lambda name: None)
    assert jax_setup.keep_compiled() is None and not fresh.exists()


def test_a_relative_cache_home_is_ignored():
    folder = jax_setup.cache_folder({"XDG_CACHE_HOME": "here"})
    assert folder.parent == Path.home() / ".cache" / "deconditional" / "compiled"


def test_another_processor_has_another_folder(fresh, monkeypatch):
    monkeypatch.setattr(jax_setup, "_instructions", lambda: "an abacus")
    other = jax_setup.cache_folder()
    assert other != fresh and other.parent == fresh.parent


COMPILES = """
import jax
from jax import monitoring
jax.jit(lambda x: x + 1)(1.0)  # JAX has begun to compile before the package is there
import deconditional as dc
found = []
monitoring.register_event_listener(lambda name, **_: found.append(name))
assert not jax.config.jax_enable_x64
import deconditional.kernels.jax_setup
assert jax.config.jax_enable_x64
jax.jit(lambda x: jax.numpy.sin(x) ** 3)(1.0)
print(sum("cache_hits" in name for name in found))
"""


def test_the_second_process_finds_what_the_first_compiled(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != FOLDER}
    environment |= {
        "XDG_CACHE_HOME": str(tmp_path),
        "DECONDITIONAL_CACHE": "on",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-c", COMPILES]
    run = {"env": environment, "check": True, "capture_output": True, "text": True}
    hits = [int(subprocess.run(command, **run).stdout) for _ in range(2)]
    assert hits[0] == 0 and hits[1] > 0
    assert list((tmp_path / "deconditional" / "compiled").glob("*/*-cache"))


# --------------------------------------------------------------------------- cores

DEVICES = "import deconditional.models, jax; print(len(jax.devices()))"


NAMES = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", jax_setup.CORES)


def test_a_processor_has_as_many_devices_as_it_is_to_have():
    mine = {name: value for name, value in os.environ.items() if name not in NAMES}
    found = subprocess.run(
        [sys.executable, "-c", DEVICES],
        env={**mine, jax_setup.CORES: "3", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(found.stdout) == 3


def test_jax_that_has_started_or_was_told_otherwise_is_left_alone(monkeypatch):
    asked = []
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    n = len(jax.devices())
    assert jax_setup.use_cores(n + 2) == 1 and len(jax.devices()) == n
    monkeypatch.setattr(jax_setup.jax.config, "update", lambda *given: asked.append(given))
    assert jax_setup.use_cores(3) == 3
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    assert jax_setup.use_cores(3) == 1
    assert asked == [("jax_num_cpu_devices", 3)]


def test_a_number_of_cores_that_is_none(monkeypatch):
    monkeypatch.setenv(jax_setup.CORES, "all")
    with pytest.raises(UsageError, match="must be a number of cores, not 'all'"):
        jax_setup.use_cores()
