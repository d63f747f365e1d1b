"""Tasks one after another and on several processes."""

import math
import os

import pytest
from rich.console import Console

from deconditional.experiments import workers
from deconditional.outputs import UsageError

QUIET = Console(quiet=True)
CORES = len(workers._cores())


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
def test_a_process_that_dies_is_reported():
    outcomes = [o for _, o in workers.carry_out([3, 3], os._exit, QUIET, 2)]
    assert len(outcomes) == 2 and all("a process died" in str(o) for o in outcomes)


def test_cores_are_divided_evenly():
    assert workers._divided([0, 1, 2, 3, 4], 2) == [[0, 1], [2, 3, 4]]
    assert workers._divided([7, 9], 1) == [[7, 9]]


@pytest.mark.parametrize("jobs", [0, CORES + 1])
def test_numbers_of_jobs_that_make_no_sense(jobs):
    with pytest.raises(UsageError, match="job"):
        workers.check_jobs(jobs)
