"""Takes the README's picture of the dashboard: starts the demo, waits, and lets headless Chromium take a screenshot.

python deploy/docs/screenshot.py [--seconds 45] [--out deploy/docs/dashboard.png]; needs `chromium` on the PATH.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE = (1280, 1000)  # pixels
READY_SECONDS = 120.0
PAGE_MS = 8000  # how long the page runs before the picture is taken


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
            [sys.executable, "-m", "app", "demo"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'deploy' / 'client'}"},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            url = dashboard_url(demo)
            time.sleep(arguments.seconds)
            take_picture(browser, url, arguments.out, Path(folder) / "browser")
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


def take_picture(browser: str, url: str, out: Path, profile: Path) -> None:
    """Write the page as a PNG."""
    width, height = SIZE
    subprocess.run(
        [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            f"--timeout={PAGE_MS}",
            f"--screenshot={out.resolve()}",
            url,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=READY_SECONDS,
    )


if __name__ == "__main__":
    sys.exit(main())
