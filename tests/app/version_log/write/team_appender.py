"""A trainer of two ranks for tests to kill: every version writes its count to all keys. Prints what is durable."""

import sys
from pathlib import Path

from tests.support.writer_log import WriterLog

KEYS = [(0, key) for key in range(8)]

if __name__ == "__main__":
    team = WriterLog(Path(sys.argv[1])).start(2, durable_seconds=0.005)
    reported = team.lead.durable
    for count in range(1, 10_000_000):
        team.put({key: (float(count), 100) for key in KEYS})
        if team.lead.durable != reported:
            reported = team.lead.durable
            print(reported.number, flush=True)
