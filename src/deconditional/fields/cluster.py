"""Dask workers that share a machine without getting in each other's way.

XLA starts as many threads as it sees cores, in every process. Two workers of one thread each would
so run four threads on two cores. A plugin, registered with the cluster when work is first sent to
it, lets every worker process start as many as Dask gave it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deconditional.errors import UsageError
from deconditional.kernels.jax_setup import start_threads

NAME = "deconditional-threads"


@contextmanager
def cluster(workers: int | None, scheduler: str | None) -> Iterator[Any | None]:
    """A Dask cluster for a while: new processes of this machine, a running one, or none."""
    if workers is None and scheduler is None:
        yield None
        return
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise UsageError("several processes need: pip install 'deconditional[dask]'.") from None
    if scheduler is not None:
        try:  # a client that fails must not become the one that computations go to
            Client(scheduler, timeout=10, set_as_default=False).close()
        except (OSError, ValueError) as error:
            raise UsageError(
                f"no Dask scheduler answers at {scheduler!r} ({type(error).__name__}); check the "
                "address, and that it runs."
            ) from None
        with Client(scheduler, timeout=10) as client:
            yield client
        return
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as local,
        Client(local) as client,
    ):
        yield client


def active_client() -> Any | None:
    """The client of ``dask.distributed`` that computations go to, if there is one."""
    try:
        from distributed import get_client
    except ImportError:
        return None
    try:
        return get_client()
    except ValueError:
        return None


def limit_threads() -> None:
    """Tell the workers of the active cluster, and those that will join it, to keep to their cores.

    Does nothing where computations stay in this process.
    """
    client = active_client()
    if client is None or getattr(client, "_deconditional_threads", False):
        return
    client.register_plugin(_plugin(), name=NAME)
    client._deconditional_threads = True


def _plugin() -> Any:
    from distributed import WorkerPlugin

    home = os.getpid()

    class OwnThreads(WorkerPlugin):
        idempotent = True

        def setup(self, worker: Any) -> None:
            if os.getpid() != home:  # a worker in the process of its client shares its threads
                start_threads(worker.state.nthreads)

    return OwnThreads()
