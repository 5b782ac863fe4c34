"""Our server over a log, as `springtide serve` runs it; prints its port: `server_process LOG [SETTINGS AS JSON]`."""

import json
import sys

from springtide.app.serving.config import ServeConfig
from springtide.app.serving.server.serve import serve


def main() -> None:
    settings = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    serve(
        sys.argv[1],
        ServeConfig(**{"port": 0, **settings}),
        on_listening=lambda url: print(url.rpartition(":")[2], flush=True),
    )


if __name__ == "__main__":
    main()
