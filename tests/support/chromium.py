"""A headless Chromium that is driven over a pipe, by its DevTools protocol: windows as narrow as phones."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
from typing import Any, Self

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


class Chromium:
    """One browser with one tab.

    Args:
        profile: A directory for the browser's own files.
    """

    def __init__(self, profile: os.PathLike[str] | str) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The browser reads commands from descriptor 3 and answers on descriptor 4.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)]

        def place() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [str(BROWSER), *OPTIONS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=place,  # noqa: PLW1509 - dup2 is all that it calls
            pass_fds=(3, 4),
        )
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self._number, self._buffer, self._session = 0, b"", ""
        self.complaints: list[str] = []
        """What pages wrote to the console, and what their policies refused."""
        target = next(
            found for found in self.call("Target.getTargets")["targetInfos"] if found["type"] == "page"
        )
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session = ""
        self.call("Browser.close")
        self._process.wait(timeout=60)
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def open(
        self, url: str, *, width: int, height: int = 800, dark: bool = False, print_: bool = False
    ) -> None:
        """Open a page in a window of this size, and wait until it is complete."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call("Page.navigate", url=url)
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript, which the page's policy does not concern."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def screenshot(self, *, height: int | None = None) -> bytes:
        """Return a PNG file of the page from its top: all of it, or so many pixels."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {
            "x": 0,
            "y": 0,
            "scale": 1,
            "width": size["width"],
            "height": min(size["height"], height or size["height"]),
        }
        found = self.call(
            "Page.captureScreenshot", captureBeyondViewport=True, clip=clip, optimizeForSpeed=True
        )
        return base64.b64decode(found["data"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            block = os.read(self._read, 1 << 20)
            assert block, f"the browser has ended with status {self._process.wait()}"
            self._buffer += block
        first, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        if message.get("method") in {"Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"}:
            self.complaints.append(json.dumps(message["params"]))
        return message
