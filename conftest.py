"""Settings shared by all tests and docstring examples."""

import jax
import pytest
from hypothesis import settings

# The first call of a compiled function takes longer than any deadline; the same examples every
# time make a failure one that anybody can repeat.
settings.register_profile("deconditional", deadline=None, derandomize=True)
settings.load_profile("deconditional")


@pytest.fixture(scope="module", autouse=True)
def forget_compiled_functions():
    """Every compiled function holds memory maps, of which Linux grants a process 65 530."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def quick_compilation():
    """For tests that compile for seconds what then runs for milliseconds."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
