"""What a rank takes over from a version that other ranks, or another number of them, have written.

A partition of impressions goes on where the rank that held it was: what is learned, and what was refused, stays. The
events are read by every rank, and each has decided by itself which of their partitions were idle, and which records
late because of that. Where several such decisions meet in one rank, it

- reads events from the earliest offset that one of them needs, and emits nothing before it is where the furthest was;
- takes a partition of events as idle if it was so for the one that had read furthest;
- keeps an event that came too late for the time that silence had let pass only as late as it was for all who read it.

So no impression that is not learned yet loses an event that it had.

The counts behind F, the share of events within the window, are kept per rank and not per partition. If the number of
ranks has changed, each new rank starts with a share of the total that is proportional to its number of partitions, so
the total, and the F that is served, stay the same.
"""

from collections.abc import Iterable, Sequence

import msgspec

from springtide.stream.join_state import (
    BEGINNING,
    NO_TIME,
    NOTHING_JOINED,
    EventCount,
    JoinState,
    PartitionMark,
    SamplePlace,
    WindowShare,
)
from springtide.stream.positions import Partition, PartitionShare

Cursors = dict[str, dict[str, PartitionMark]]


def take_over(version: JoinState, share: PartitionShare) -> JoinState | None:
    """Return where the join of this rank's share goes on; its own part where there were as many ranks.

    None if nothing was learned of its partitions.
    """
    former = version.ranks
    if len(former) == share.num_ranks:
        return former[share.rank]
    places: dict[str, SamplePlace] = {}  # of this rank's partitions of impressions: up to where they are learned
    cursors: Cursors = {}
    holders: list[JoinState] = []  # the former ranks that held one of them
    for rank, state in enumerate(former):
        held = PartitionShare(rank, len(former))
        if state is None:
            holders += [NOTHING_JOINED] * held.meets(share)
            continue
        own = [
            (cursor, name, mark)
            for cursor, marks in state.cursors.items()
            for name, mark in marks.items()
            if of_impressions(cursor, partition := Partition.parse(name)) and share.holds(partition)
        ]
        for cursor, name, mark in own:
            cursors.setdefault(cursor, {})[name] = mark
            places[name] = max(state.released, state.ahead.get(name, state.released))
        holders += [state] * bool(own)
    if not places:
        return None
    for cursor, name in event_partitions(holders):
        first = None if former[0] is None else former[0].cursors.get(cursor, {}).get(name)
        letters_offset = 0 if first is None else first.known_letters_offset
        marks_H = [state.cursors.get(cursor, {}).get(name) for state in holders]
        cursors.setdefault(cursor, {})[name] = merge_marks(marks_H, letters_offset if share.rank == 0 else -1)
    released = min([*places.values(), *(state.released for state in holders)])
    return JoinState(
        released,
        cursors,
        num_duplicates=sum(state.num_duplicates for state in former if state is not None) if share.rank == 0 else 0,
        events=merge_counts(holders),
        ahead={name: place for name, place in places.items() if place > released},
        shares=part_of_shares(version, len(places)),
        settings=next((state.settings for state in holders if state.settings is not None), None),
    )


def part_of_shares(version: JoinState, num_partitions: int) -> dict[str, WindowShare]:
    """What is known of shares, as if every partition of impressions had an equal part in it, of so many of them."""
    known = {
        name
        for state in version.ranks
        for cursor, marks in ({} if state is None else state.cursors).items()
        for name in marks
        if of_impressions(cursor, Partition.parse(name))
    }
    part = num_partitions / len(known)
    return {label: share.times(part) for label, share in version.total_shares().items()}


def merge_counts(holders: Sequence[JoinState]) -> dict[str, EventCount]:
    """What became of each label's events. It is exact while one rank joins: no other knows all impressions."""
    counts: dict[str, EventCount] = {}
    for state in holders:
        for name, count in state.events.items():
            other = counts.setdefault(name, count)
            if other is not count:
                counts[name] = EventCount(
                    min(other.over_ms, count.over_ms),
                    max(other.num_unmatched, count.num_unmatched),
                    other.num_matched + count.num_matched,
                )
    return counts


def of_impressions(cursor: str, partition: Partition) -> bool:
    """Return True if the cursor reads impressions: the name of one that reads events is their topic's."""
    return cursor != partition.topic


def event_partitions(states: Iterable[JoinState]) -> list[tuple[str, str]]:
    """The cursors of events and their partitions that any rank knows."""
    found = {
        (cursor, name)
        for state in states
        for cursor, marks in state.cursors.items()
        for name in marks
        if not of_impressions(cursor, Partition.parse(name))
    }
    return sorted(found)


def merge_marks(marks_H: Sequence[PartitionMark | None], letters_offset: int) -> PartitionMark:
    """The mark of a partition of events from those of the former ranks whose impressions are joined here.

    None, of a rank that had learned nothing: the partition is read from its first record. `letters_offset`: -1 where
    another rank reports its dead letters.
    """
    known = [mark for mark in marks_H if mark is not None]
    # of a topic that was created again some ranks may know the former one: their offsets mean nothing
    known = [mark for mark in known if mark.topic_id == known[0].topic_id]
    furthest = max(mark.next_offset for mark in known)
    begin = min(known, key=lambda mark: mark.replay_offset)
    mark = PartitionMark(
        begin.topic_id,
        furthest,
        begin.replay_offset,
        begin.replay_newest_ms,
        is_idle=all(mark.is_idle for mark in known if mark.next_offset == furthest),
        floors=common_floors(known),
        letters_offset=letters_offset,
    )
    if len(known) < len(marks_H):
        return msgspec.structs.replace(mark, replay_offset=BEGINNING, replay_newest_ms=NO_TIME)
    return mark


def common_floors(marks: Sequence[PartitionMark]) -> list[tuple[int, int]]:
    """The floors at which all agree that have read that offset: the least of theirs."""
    floors = []
    for offset in sorted({offset for mark in marks for offset, _ in mark.floors}):
        readers = [mark for mark in marks if mark.replay_offset <= offset < mark.next_offset]
        if all(offset in dict(mark.floors) for mark in readers):
            floors.append((offset, min(dict(mark.floors)[offset] for mark in readers)))
    return floors
