"""Damaged files read in processes of their own, so that a crash or a hang is seen and counted.

``Readers`` starts one process that has everything imported. For every case it forks a child with a
limit on memory, which reads the files as the command line does and says what it understood. Run as
a script, this module is that process.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

MEMORY = 2 * 2**30
"""Bytes that a child may have beyond what its parent has."""

SECONDS = 10
"""Of the processor, which do not depend on what else runs; a child that takes more is hanging."""

PATIENCE = 180.0
"""Seconds of the clock after which a child that does nothing is hanging too."""

USED = {
    "fine": ("altitude", "cloud", "lat", "lon", "lat_bnds", "lon_bnds", "time", "crs"),
    "coarse": ("tas", "water_vapour", "lat", "lon", "lat_bnds", "lon_bnds", "time", "crs"),
}


class Readers:
    """The process that forks."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "DECONDITIONAL_CACHE": "off",
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
        )

    def read(self, **case):
        """What became of a case: code, error, understood, and what the files really say."""
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the process that forks has ended"
        return json.loads(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


# ---------------------------------------------------------------------- in the process that forks


def serve():
    import_all()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(forked(json.loads(line))) + "\n")
        answers.flush()


def import_all():
    import cf_xarray  # noqa: F401
    import dask.array  # noqa: F401
    import netCDF4  # noqa: F401
    import pandas  # noqa: F401
    import zarr  # noqa: F401

    import deconditional.fields.downscaler  # noqa: F401
    from deconditional.report import page, sections  # noqa: F401
    from deconditional.report import write as report  # noqa: F401


def forked(case):
    """Carry a case out in a child; its answer, or how it ended."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(here)
        in_child(case, there)
    os.close(there)
    deadline, parts = time.monotonic() + PATIENCE, []
    while True:
        ready, _, _ = select.select([here], [], [], max(0.0, deadline - time.monotonic()))
        chunk = os.read(here, 1 << 16) if ready else None
        if not chunk:
            break
        parts.append(chunk)
    if chunk is None:
        os.kill(child, signal.SIGKILL)
    os.close(here)
    _, status = os.waitpid(child, 0)
    if chunk is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return {"code": "hang"}
    if os.WIFSIGNALED(status) or not parts:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return {"code": "crash", "signal": number}
    return json.loads(b"".join(parts))


def in_child(case, out):
    try:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        try:
            answer = CASES[case["kind"]](case)
        except BaseException:
            answer = {"code": "traceback", "error": traceback.format_exc()[-2000:]}
        with os.fdopen(out, "w") as file:
            file.write(json.dumps(answer))
    finally:
        os._exit(0)


def commanded(arguments):
    """Exit code and standard error of the command line."""
    from deconditional.cli import main as cli

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(arguments)
    return {"code": code, "error": err.getvalue()}


class UnderstoodError(BaseException):
    """The files have been understood; what follows is not tried."""


def downscale(case):
    """Files read as ``deconditional downscale`` does, up to what was understood of them."""
    from deconditional.fields.downscaler import Downscaler

    found = {}

    def stop(self, learner, checkpoint=None):
        found["understood"] = digest(learner.problem.pairing, learner.bags.make())
        raise UnderstoodError

    Downscaler.learn = stop
    os.chdir(case["folder"])
    command = ["downscale", "--fine", case["fine"], "--coarse", case["coarse"]]
    command += ["--target", "tas", "--covariates", "altitude,cloud", "--mediators", "water_vapour"]
    try:
        answer = commanded([*command, *case["options"], "--out", "out.nc", "--quiet"])
    except UnderstoodError:
        answer = {"code": 0, "error": "", **found}
        answer["data"] = [stored(case[which], USED[which]) for which in USED]
    return answer


def digest(pairing, bags):
    """A digest of bags and observations."""
    import numpy as np

    found = hashlib.sha256()
    for array in (
        pairing.z,
        pairing.mediator,
        pairing.bag_mediator,
        pairing.own_bag,
        pairing.observed_unit,
        bags.points,
        bags.weights,
        bags.bag,
        pairing.coarse.y.bounds,
        pairing.coarse.x.bounds,
        pairing.fine.y.bounds,
        pairing.fine.x.bounds,
    ):
        found.update(np.round(np.asarray(array, dtype=float), 9).tobytes())
    return found.hexdigest()


def stored(path, names):
    """A digest of variables as they stand in a file, by its own library and nobody else."""
    import numpy as np

    found = hashlib.sha256()
    try:
        if os.path.isdir(path):
            import zarr

            group = zarr.open_group(path, mode="r")
            for name in (name for name in names if name in group):
                array = group[name]
                about = [name, str(array.dtype), array.shape, str(array.metadata.to_dict())]
                found.update(json.dumps(about, default=str).encode())
                found.update(np.ascontiguousarray(array[...]).tobytes())
        else:
            import netCDF4

            with netCDF4.Dataset(path) as file:
                file.set_auto_maskandscale(False)
                for name in (name for name in names if name in file.variables):
                    v = file[name]
                    attrs = {key: str(v.getncattr(key)) for key in sorted(v.ncattrs())}
                    about = [name, str(v.dtype), v.dimensions, v.shape, attrs]
                    found.update(json.dumps(about, default=str).encode())
                    found.update(np.ascontiguousarray(v[...]).tobytes())
    except Exception as error:
        return f"unreadable: {error}"
    return found.hexdigest()


def report(case):
    """A result read, and all of its page but the drawing of figures."""
    from deconditional.report import plots

    picture = b"\x89PNG" + bytes(12) + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
    plots.png = lambda figure, dpi=150: picture
    os.chdir(case["folder"])
    answer = commanded(["report", case["result"], "--out", "page.html"])
    if answer["code"] == 0:
        page = Path("page.html").read_bytes()
        answer["understood"] = hashlib.sha256(page).hexdigest()
        answer["data"] = [stored(case["result"], case["names"]), attribute(case["result"])]
    return answer


def attribute(path):
    """Global attributes as they stand in a file."""
    import netCDF4

    with netCDF4.Dataset(path) as file:
        attrs = {key: str(file.getncattr(key)) for key in sorted(file.ncattrs())}
        names = sorted(file.variables)
    return hashlib.sha256(json.dumps([attrs, names]).encode()).hexdigest()


def table(case):
    """A table read by pandas and made into bags."""
    import pandas as pd

    from deconditional import Bags

    try:
        frame = pd.read_csv(Path(case["folder"]) / case["table"])
    except (ValueError, OSError, OverflowError, MemoryError) as error:
        return {"code": 2, "error": f"deconditional: error: not read by pandas: {error!r:.200}\n"}
    try:
        bags = Bags.from_frame(frame, "county", ["altitude", "slope"], ["rain"], "area")
    except ValueError as error:
        return {"code": 2, "error": f"deconditional: error: {' '.join(str(error).split())}\n"}
    found = hashlib.sha256(repr(bags.ids).encode())
    for array in (bags.points, bags.weights, bags.bag, bags.mediator):
        found.update(array.tobytes())
    said = hashlib.sha256()
    for name in ("county", "altitude", "slope", "rain", "area"):
        said.update(repr(frame[name].tolist()).encode())
    return {"code": 0, "error": "", "understood": found.hexdigest(), "data": [said.hexdigest()]}


CASES = {"downscale": downscale, "report": report, "table": table}


if __name__ == "__main__":
    serve()
