"""Tasks one after another and on several processes."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from deconditional.errors import UsageError
from studies import workers

QUIET = Console(quiet=True)
CORES = len(workers._cores())


def eval_with_os(text):
    return eval(text, {"os": os})


@pytest.mark.parametrize(
    "jobs", [1, pytest.param(2, marks=pytest.mark.skipif(CORES < 2, reason="one core"))]
)
def test_a_failed_task_is_an_outcome(jobs):
    done = dict(workers.carry_out([4.0, -1.0, 9.0], math.sqrt, QUIET, jobs))
    assert (done[4.0], done[9.0]) == (2.0, 3.0)
    assert isinstance(done[-1.0], ValueError)


@pytest.mark.skipif(CORES < 2 or not hasattr(os, "sched_getaffinity"), reason="needs two cores")
def test_processes_have_cores_of_their_own():
    mine = os.sched_getaffinity(0)
    shares = workers._divided(sorted(mine), 2)
    found = [s for _, s in workers.carry_out([0] * 8, os.sched_getaffinity, QUIET, 2)]
    assert all(sorted(share) in shares for share in found)
    assert os.sched_getaffinity(0) == mine


@pytest.mark.skipif(CORES < 2, reason="one core")
def test_a_process_that_dies_costs_the_others_nothing():
    done = dict(workers.carry_out(["1", "os._exit(3)", "2", "3", "4"], eval_with_os, QUIET, 2))
    assert "its process died" in str(done.pop("os._exit(3)"))
    assert done == {"1": 1, "2": 2, "3": 3, "4": 4}


@pytest.mark.skipif(CORES < 2, reason="one core")
def test_processes_end_with_the_one_that_began_them(tmp_path):
    script = (
        "import os, sys, time\n"
        "from rich.console import Console\n"
        "from studies import workers\n"
        "if __name__ == '__main__':\n"
        "    for _, found in workers.carry_out([0, 0, 60], time.sleep, Console(quiet=True), 2):\n"
        "        print(' '.join(open(f'/proc/{os.getpid()}/task/{os.getpid()}/children')\n"
        "              .read().split()), flush=True)\n"
    )
    file = tmp_path / "parent.py"
    file.write_text(script)
    command = [sys.executable, str(file)]
    root = str(Path(__file__).parents[1])  # studies are not installed
    where = os.environ | {"PYTHONPATH": root}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=where) as parent:
        children = [int(number) for number in parent.stdout.readline().split()]
        parent.terminate()
    assert children
    for _ in range(100):
        alive = [number for number in children if os.path.exists(f"/proc/{number}")]
        if not alive:
            break
        time.sleep(0.1)
    assert not alive


def test_cores_are_divided_evenly():
    assert workers._divided([0, 1, 2, 3, 4], 2) == [[0, 1], [2, 3, 4]]
    assert workers._divided([7, 9], 1) == [[7, 9]]


@pytest.mark.parametrize("jobs", [0, CORES + 1])
def test_numbers_of_jobs_that_make_no_sense(jobs):
    with pytest.raises(UsageError, match="job"):
        workers.check_jobs(jobs)
