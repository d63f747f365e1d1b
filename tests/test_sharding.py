"""Bag kernels spread over several devices, against one device and against dense matrices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from deconditional.kernels import devices as sharding

HERE = Path(__file__).parent


# --------------------------------------------------------------------------- choosing devices


def test_one_device_needs_no_mesh():
    assert sharding.current_mesh() is None
    with sharding.use_devices(jax.devices()[:1]):
        assert sharding.current_mesh() is None


@pytest.mark.parametrize("number", [0, -1, 1000])
def test_a_number_of_devices_that_are_not_there(number):
    with pytest.raises(ValueError, match=f"asked for {number} devices, but JAX has"):
        sharding.use_devices(number)


@pytest.mark.parametrize("wrong", ["all", [], [0, 1], True, 1.5])
def test_what_is_no_device(wrong):
    with pytest.raises(TypeError, match="devices must be a number"):
        sharding.use_devices(wrong)


def test_the_same_device_twice():
    with pytest.raises(ValueError, match="distinct"):
        sharding.use_devices([jax.devices()[0]] * 2)


# --------------------------------------------------------------------------- four virtual devices


def printed(script, devices, **env):
    """What a script prints in a process with so many virtual devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    run = subprocess.run(
        [sys.executable, str(HERE / script)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path]),
            "XLA_FLAGS": flags.strip(),
            "JAX_PLATFORMS": "cpu",
            **env,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout)


def test_products_of_sums_over_devices_are_right():
    assert printed("two_devices.py", 2, JAX_DISABLE_MOST_OPTIMIZATIONS="0") < 1e-10


@pytest.fixture(scope="module")
def found():
    """What a process with four virtual devices found; see the module it runs."""
    return printed("four_devices.py", 4)


@pytest.mark.parametrize("form", ["product", "differences"])
def test_values_and_gradients_are_those_of_one_device(found, form):
    errors = found["errors"][form]
    assert set(errors) == {"gram", "cross", "by parameters", "by points", "by queries"}
    assert max(errors.values()) < 1e-12, errors


@pytest.mark.parametrize("form", ["product", "differences"])
def test_values_are_those_of_the_dense_matrices(found, form):
    assert max(found["dense"][form].values()) < 1e-12


def test_one_compiled_function_serves_both(found):
    """Devices are part of what a function is compiled for, so none is taken for the other."""
    assert found["compiled"] == {"devices of results": [1, 4, 1, 4], "compilations": 2}


def test_every_device_has_its_share_of_tiles(found):
    for shape, counts in found["tiles"].items():
        assert len(counts) == 4, shape
        assert sum(counts) == found["all tiles"][shape], shape
        assert max(counts) - min(counts) <= found["uneven"][shape], shape


def test_a_whole_fit_is_that_of_one_device(found):
    one, four = found["fit"]["one"], found["fit"]["four"]
    assert four["devices"] == 4
    assert one["devices"] == 1
    assert four["log evidence"] == pytest.approx(one["log evidence"], abs=1e-4)
    assert four["mean"] == pytest.approx(one["mean"], abs=1e-3)
    assert four["std"] == pytest.approx(one["std"], abs=1e-3)


def test_a_block_ends_with_the_devices_of_before(found):
    assert found["after the block"] == 1
