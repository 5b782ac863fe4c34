"""A trainer process for tests to kill: appends versions as fast as it can and prints what is durable."""

import sys
from pathlib import Path

from tests.support.writer_log import WriterLog, put

if __name__ == "__main__":
    log = WriterLog(Path(sys.argv[1]))
    writer = log.open(durable_seconds=0.02, segment_bytes=1 << 16, take_over="--take-over" in sys.argv)
    print("started", writer.epoch, flush=True)
    reported = writer.durable
    for step in range(10_000_000):
        put(writer, step % 1000 + 1, step=step)
        if writer.durable != reported:
            reported = writer.durable
            print(reported.number, reported.checksum, flush=True)
