"""Independent tasks, one after another or on several processes.

Every process keeps to cores of its own, so that fits side by side do not slow each other down more
than they must.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import pairwise
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from threadpoolctl import threadpool_limits

from deconditional.errors import UsageError
from deconditional.fitting.interrupts import aborting
from deconditional.kernels.jax_setup import use_cores

__all__ = ["carry_out", "check_jobs"]

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")


def check_jobs(jobs: int) -> None:
    """Refuse a number of processes that cannot be used."""
    if jobs < 1:
        raise UsageError(f"the number of jobs must be at least 1, not {jobs}.")
    if jobs > len(_cores()):
        raise UsageError(f"{jobs} jobs on {len(_cores())} core(s) would only wait for each other.")


def carry_out(
    tasks: Sequence[Task],
    work: Callable[[Task], Outcome],
    console: Console,
    jobs: int = 1,
) -> Iterator[tuple[Task, Outcome | Exception]]:
    """Tasks as they are done, each with what `work` returned or the exception it raised.

    Parameters
    ----------
    tasks, work
        With several jobs both travel to other processes: `work` is a function of a module, or a
        :func:`functools.partial` of one.
    console
        Where the progress bar goes.
    jobs
        Number of processes; 1 stays in this one.

    Examples
    --------
    >>> from rich.console import Console
    >>> list(carry_out([4, 0], lambda n: 8 // n, Console(quiet=True)))
    [(4, 2), (0, ZeroDivisionError('integer division or modulo by zero'))]
    """
    check_jobs(jobs)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # Fits take seconds to minutes: an estimate from the last half minute would come and go.
    with Progress(*columns, console=console, speed_estimate_period=3600) as progress:
        bar = progress.add_task("", total=len(tasks))

        def describe(text: str) -> None:
            progress.update(bar, description=text.replace("[", r"\["))

        jobs = min(jobs, len(tasks))
        outcomes = (
            _here(tasks, work, describe) if jobs <= 1 else _elsewhere(tasks, work, jobs, describe)
        )
        for task, outcome in outcomes:
            progress.advance(bar)
            yield task, outcome
        describe("done")


def _here(
    tasks: Sequence[Task], work: Callable[[Task], Outcome], describe: Callable[[str], None]
) -> Iterator[tuple[Task, Outcome | Exception]]:
    for task in tasks:
        describe(str(task))
        yield task, _tried(work, task)


def _elsewhere(
    tasks: Sequence[Task],
    work: Callable[[Task], Outcome],
    jobs: int,
    describe: Callable[[str], None],
) -> Iterator[tuple[Task, Outcome | Exception]]:
    waiting = deque(tasks)
    running: dict[Future[Outcome | Exception], Task] = {}
    pool = _pool(jobs)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.popleft()
                running[pool.submit(_tried, work, task)] = task
            describe(", ".join(str(task) for task in running.values()))
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            suspects = []
            for future in finished:
                task = running.pop(future)
                outcome = _outcome(future)
                if isinstance(outcome, ProcessDied):
                    suspects.append(task)
                else:
                    yield task, outcome
            if not suspects:
                continue
            # Somebody's process died and took the pool along: each of those in it gets a process of
            # its own, so that only the one at fault fails.
            suspects += running.values()
            running.clear()
            _end(pool)
            for task in suspects:
                describe(f"{task}, alone")
                yield task, _alone(work, task)
            pool = _pool(jobs)
    finally:
        _end(pool)


def _pool(jobs: int) -> ProcessPoolExecutor:
    # Forked processes would share the locks of JAX's threads.
    context = multiprocessing.get_context("spawn")
    shares: Any = context.Queue()
    for share in _divided(_cores(), jobs):
        shares.put(share)
    return ProcessPoolExecutor(jobs, context, initializer=_settle, initargs=(shares,))


def _end(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):
        process.terminate()
    pool.shutdown(wait=False, cancel_futures=True)


def _alone(work: Callable[[Task], Outcome], task: Task) -> Outcome | Exception:
    pool = _pool(1)
    try:
        return _outcome(pool.submit(_tried, work, task))
    finally:
        _end(pool)


class ProcessDied(RuntimeError):
    """The process of a task, or one beside it, died."""


def _outcome(future: Future[Outcome | Exception]) -> Outcome | Exception:
    try:
        return future.result()
    except BrokenProcessPool:
        return ProcessDied("its process died, perhaps for want of memory")
    except Exception as error:  # an outcome that cannot travel
        return error


def _tried(work: Callable[[Task], Outcome], task: Task) -> Outcome | Exception:
    try:
        with aborting():  # an interrupt means all of the work
            return work(task)
    except Exception as error:
        return error


def _settle(shares: Any) -> None:
    """Keep this process to its share of the cores; JAX starts as many threads as it then sees."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever began the work ends it
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    share = shares.get()
    threadpool_limits(len(share))
    use_cores(len(share))
    if hasattr(os, "sched_setaffinity"):
        for thread in os.listdir("/proc/self/task"):  # those of BLAS are here already
            with suppress(OSError):
                os.sched_setaffinity(int(thread), share)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _divided(cores: Sequence[int], parts: int) -> list[list[int]]:
    """Disjoint shares that differ by at most one core."""
    ends = [len(cores) * k // parts for k in range(parts + 1)]
    return [list(cores[a:b]) for a, b in pairwise(ends)]
