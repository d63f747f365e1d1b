"""Settings shared by all tests and docstring examples."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import pytest
from hypothesis import settings

# The first call of a compiled function takes longer than any deadline; the same examples every
# time make a failure one that anybody can repeat.
settings.register_profile("deconditional", deadline=None, derandomize=True)
settings.load_profile("deconditional")

# Tile sizes that were measured would differ between machines.
os.environ.setdefault("DECONDITIONAL_TUNE", "off")

# Most of the time goes into compiling. Modules and processes share what is compiled, and the next
# run finds it again.
jax.config.update(
    "jax_compilation_cache_dir", str(Path(__file__).parent / ".pytest_cache" / "compiled")
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@contextmanager
def _without_optimisation() -> Iterator[None]:
    """For what compiles for seconds and then runs for milliseconds."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module", autouse=True)
def forget_compiled_functions() -> Iterator[None]:
    """Every compiled function holds memory maps, of which Linux grants a process 65 530."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="module", autouse=True)
def quick_examples(request: pytest.FixtureRequest) -> Iterator[None]:
    """Examples of docstrings and pages show use; the tests have the compiler's full work."""
    if "tests" in request.path.relative_to(request.config.rootpath).parts:
        yield
        return
    with _without_optimisation():
        yield


@pytest.fixture(scope="module")
def quick_compilation() -> Iterator[None]:
    """For modules of many small problems."""
    with _without_optimisation():
        yield
