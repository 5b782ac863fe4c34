"""Where in a topic a time is: the first record of each partition that is not older, by the records' timestamps."""

from collections.abc import Mapping

import numpy as np

from stream.kafka.consumer import KafkaConfig
from stream.kafka.range_reader import read_range
from stream.positions import Partition, Position


def scan_offsets_for_time(
    kafka: KafkaConfig, begins: Mapping[Partition, int], ends: Mapping[Partition, int], time_ms: int
) -> dict[Partition, int]:
    """The offset of each partition's first record at or after the time; its end where there is none.

    Found by reading from `begins` on.
    """
    found: dict[Partition, int] = {}
    for partition, end in ends.items():
        begin, stop = {partition: Position("", begins[partition])}, {partition: Position("", end)}
        for raw in read_range(kafka, begin, stop) if begins[partition] < end else ():
            if len(later_N := np.flatnonzero(raw.record_ms_N >= time_ms)):
                found[partition] = int(raw.offset_N[later_N[0]])
                break
    return {partition: found.get(partition, end) for partition, end in ends.items()}
