"""Takes the README's picture of the dashboard: runs the demo and lets headless Chromium watch it.

python deploy/docs/screenshot.py [--seconds 45] [--out deploy/docs/dashboard.png]; needs `chromium` on the PATH.
"""

import argparse
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from websockets.sync.client import connect

ROOT = Path(__file__).parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE = (1280, 1000)  # pixels
ANSWER_SECONDS = 30.0  # at most, of the browser


def main() -> int:
    parser = argparse.ArgumentParser(description="Takes a picture of the dashboard of a running demo.")
    parser.add_argument("--seconds", type=float, default=45.0, help="how long the demo learns before the picture")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("dashboard.png"))
    arguments = parser.parse_args()
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        print(f"no browser found: install one of {', '.join(BROWSERS)}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        demo = subprocess.Popen(
            [sys.executable, "-m", "springtide", "demo"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'deploy' / 'package'}:{ROOT / 'deploy' / 'client'}"},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            url = dashboard_url(demo)
            take_picture(browser, url, arguments.out, Path(folder) / "browser", arguments.seconds)
        finally:
            demo.send_signal(signal.SIGINT)
            demo.communicate(timeout=60)
    print(arguments.out)
    return 0


def dashboard_url(demo: "subprocess.Popen[str]") -> str:
    """The address that the demo prints when it is ready; RuntimeError if it ends before that."""
    assert demo.stderr is not None
    for line in demo.stderr:
        if match := re.search(r"dashboard: (http://\S+)", line):
            return match[1]
    raise RuntimeError("the demo ended before it was ready")


def take_picture(browser: str, url: str, out: Path, profile: Path, seconds: float) -> None:
    """Open the page, let it draw for so long, write it as a PNG. Speaks Chromium's DevTools protocol."""
    width, height = SIZE
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0")
    chromium = subprocess.Popen(
        [browser, *options, f"--user-data-dir={profile}", f"--window-size={width},{height}", url],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        time.sleep(seconds)
        port = (profile / "DevToolsActivePort").read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=ANSWER_SECONDS) as answer:
            [page] = [tab for tab in json.load(answer) if tab["type"] == "page"]
        with connect(page["webSocketDebuggerUrl"], max_size=None) as socket:
            socket.send(json.dumps({"id": 1, "method": "Page.captureScreenshot", "params": {"format": "png"}}))
            picture = json.loads(socket.recv(timeout=ANSWER_SECONDS))["result"]["data"]
        out.write_bytes(base64.b64decode(picture))
    finally:
        chromium.terminate()
        chromium.wait(timeout=ANSWER_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
