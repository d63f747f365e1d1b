"""A real browser for tests of pages: what it measures, what went wrong, what it asked for."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# Chromium reads commands from file descriptor 3 and answers on 4.
LAUNCH = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(commands, 3), os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Headless Chromium, spoken to over a pipe; every event it reports is kept."""

    def __init__(self, profile):
        their_input, self._commands = os.pipe()
        self._answers, their_output = os.pipe()
        self.events, self._buffer, self._last = [], b"", 0
        launch = [sys.executable, "-c", LAUNCH, str(their_input), str(their_output)]
        self.process = subprocess.Popen(
            [*launch, CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(their_input, their_output),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile)},
        )
        os.close(their_input)
        os.close(their_output)

    def close(self):
        try:
            self.call("Browser.close")
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self._commands)
            os.close(self._answers)

    def call(self, method, session=None, **params):
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda m: m.get("id") == message["id"])
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def wait_for(self, method):
        if not any(message.get("method") == method for message in self.events):
            self._until(lambda m: m.get("method") == method)

    def _until(self, wanted, seconds=60):
        deadline = time.monotonic() + seconds
        while True:
            while b"\0" in self._buffer:
                line, self._buffer = self._buffer.split(b"\0", 1)
                message = json.loads(line)
                self.events.append(message)
                # A dialog would keep the page from ever answering.
                assert message.get("method") != "Page.javascriptDialogOpening", message
                if wanted(message):
                    return message
            ready, _, _ = select.select([self._answers], [], [], deadline - time.monotonic())
            chunk = os.read(self._answers, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError("Chromium did not answer")
            self._buffer += chunk

    def look(self, path, width, measure):
        """Open a page at a width: measurements, what went wrong, what it asked for, its picture."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", session, **metrics)
        self.events.clear()
        self.call("Page.navigate", session, url=path.as_uri())
        self.wait_for("Page.loadEventFired")
        found = self.call("Runtime.evaluate", session, expression=measure, returnByValue=True)
        shot = self.call("Page.captureScreenshot", session, captureBeyondViewport=True)
        self.call("Target.closeTarget", targetId=target)
        trouble = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return {
            **found["result"]["value"],
            "trouble": [e for e in self.events if e.get("method") in trouble],
            "requests": [
                url
                for e in self.events
                if e.get("method") == "Network.requestWillBeSent"
                and not (url := e["params"]["request"]["url"]).startswith("data:")
            ],
            "png": base64.b64decode(shot["data"]),
        }
