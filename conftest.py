"""Settings shared by all tests and docstring examples."""

import gc
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

# Most of the time goes into compiling, so the compiler does the least it can; `make reliability`
# and `make compat` have it do for tests what it does for users. Modules and processes share what is
# compiled, those that tests start included, and the next run finds it again. JAX reads this when it
# is imported.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent / ".pytest_cache" / "compiled")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# Small algebra gains nothing from threads, which wait for each other by spinning: with a worker for
# every core they took a third of the processor time of some files.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

QUICK = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
"""The older emitters of XLA:CPU compile in two thirds of the time."""


def known(flags: str) -> bool:
    """Whether the XLA that is installed knows its flags: one that does not ends the process."""
    parsing = [sys.executable, "-c", "from jaxlib import xla_client as x; x.CompileOptions()"]
    tried = subprocess.run(parsing, env={**os.environ, "XLA_FLAGS": flags}, capture_output=True)
    return tried.returncode == 0


# Asked once: workers of pytest-xdist get the answer in their environment.
if os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1" and "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = QUICK if known(QUICK) else ""

import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

# Tracing makes and drops many small objects: looking for cycles after every 700 of them takes up to
# a fifth of the time of a short fit.
gc.set_threshold(20_000, 50, 100)

# The first call of a compiled function takes longer than any deadline; the same examples every
# time make a failure one that anybody can repeat.
settings.register_profile("deconditional", deadline=None, derandomize=True)
settings.load_profile("deconditional")

LONG = (
    "tests/test_saving.py",
    "tests/test_large_results.py",
    "tests/test_downscale_command.py",
    "tests/test_downscaler.py",
    "tests/test_chunked.py",
    "docs/arrays.md",
    "tests/test_variational_study.py",
    "docs/fields.md",
    "src/deconditional/fields/downscaler.py",
    "tests/test_swiss_roll_study.py",
    "tests/test_sharding.py",
    "docs/pitfalls.md",
)
"""Files that take longest, the longest first: begun last, one of them would run alone."""

MOST_MAPS = 25_000
"""Every compiled function holds memory maps, of which Linux grants a process 65 530."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files first; the order of the others, and within files, stays."""
    place = {name: k for k, name in enumerate(LONG)}

    def rank(item: pytest.Item) -> int:
        return place.get(item.path.relative_to(config.rootpath).as_posix(), len(LONG))

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Where a test presses Ctrl-C itself, one that nobody caught is its failure, not the end."""
    try:
        return (yield)
    except KeyboardInterrupt as interrupt:
        if "python_handles_interrupts" not in pyfuncitem.fixturenames:
            raise
        raise AssertionError("An interrupt was not caught.") from interrupt


def memory_maps() -> int:
    """Memory maps of this process, as far as the system says."""
    try:
        with open("/proc/self/maps", "rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return MOST_MAPS + 1


@pytest.fixture(scope="module", autouse=True)
def memory() -> Iterator[None]:
    """Forget what is compiled before the system runs out of memory maps."""
    yield
    if memory_maps() > MOST_MAPS:
        jax.clear_caches()
