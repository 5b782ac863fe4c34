"""Our server over a log, as `springtide serve` runs it; prints its port."""

import sys

from app.serving.config import ServeConfig
from app.serving.server import serve


def main() -> None:
    serve(sys.argv[1], ServeConfig(port=0), on_listening=lambda url: print(url.rpartition(":")[2], flush=True))
