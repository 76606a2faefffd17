"""A real browser without a window, for tests of pages."""

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BAD_EVENTS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


@contextmanager
def open_browser(profile: Path) -> Iterator["Browser"]:
    """A browser; the test is skipped where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium to try the page in")
    browser = Browser(program, profile)
    try:
        yield browser
    finally:
        browser.close()


class Browser:
    """Chromium, spoken to in its DevTools protocol over a pair of pipes."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        options = (
            "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
            f"--disable-component-update --disable-sync --remote-debugging-pipe --user-data-dir={profile}"
        )
        command = f"exec {program} {options} 3<&{to_browser} 4>&{from_browser}"
        self._process = subprocess.Popen(
            ["bash", "-c", command], pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._received = b""
        self._calls = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _message(self) -> dict[str, Any]:
        deadline = time.monotonic() + 120
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has gone"
            self._received += piece
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One call of the protocol."""
        self._calls += 1
        request = {"id": self._calls, "method": method, "params": params}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._write, json.dumps(request).encode() + b"\0")
        while (answer := self._message()).get("id") != self._calls:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, address: str, *, width: int = 1400) -> None:
        """Loads a page anew."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=width < 500
        )
        for target in ("about:blank", address):
            self.events.clear()
            self.call("Page.navigate", url=target)
            while all(event["method"] != "Page.loadEventFired" for event in self.events):
                self.events.append(self._message())

    def run(self, script: str) -> Any:
        """What an expression is worth; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str, seconds: float = 60) -> None:
        """Waits until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < deadline, f"never: {condition}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text="\r" if key == "Enter" else "")

    def write(self, text: str) -> None:
        """Types into what has the focus."""
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        where = f"document.querySelector({json.dumps(selector)})"
        x, y = self.run(
            f"(() => {{ {where}.scrollIntoView({{block: 'center'}}); const place = {where}.getBoundingClientRect();"
            " return [place.x + place.width / 2, place.y + place.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def complaints(self) -> list[str]:
        """Errors, warnings and refusals of the content policy since the page was opened."""
        self.run("1")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in BAD_EVENTS]

    def close(self) -> None:
        self._session = None
        self.call("Browser.close")
        self._process.wait(timeout=60)
        os.close(self._read)
        os.close(self._write)
