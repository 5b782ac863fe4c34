"""A trainer to be killed: appends versions as fast as it can, and prints what it knows to be durable."""

import sys
from pathlib import Path

from tests.support.writer_log import WriterLog, put

if __name__ == "__main__":
    log = WriterLog(Path(sys.argv[1]))
    writer = log.open(durable_seconds=0.02, segment_bytes=1 << 16, take_over="--take-over" in sys.argv)
    print("started", writer.epoch, flush=True)
    told = writer.durable
    for step in range(10_000_000):
        put(writer, step % 1000 + 1, step=step)
        if writer.durable != told:
            told = writer.durable
            print(told.number, told.checksum, flush=True)
