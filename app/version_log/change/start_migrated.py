"""Begins an epoch with a base: the newest version of the log, migrated to another signature."""

from collections.abc import Iterator

from springtide.app.version_log.change.migrate import Migration, same_numbers
from springtide.app.version_log.change.plan import ModelSignature, Plan
from springtide.app.version_log.compact.base_writer import BaseImage, TableImage, write_base
from springtide.app.version_log.compact.merge import (
    MAX_REPLAYED_BYTES,
    block_bounds,
    dead_keys,
    merged_blocks,
    write_merged_base,
)
from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.read.exact_state import exact_net
from springtide.app.version_log.read.replay_state import ReplayState, Resume
from springtide.app.version_log.tables import LogTable
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.format.tensors import Arrays
from springtide_client.log.base import Base
from springtide_client.rows.layers import merge_layers
from springtide_client.rows.row_block import RowBlock


def start_migrated(
    log: LogWriter,
    resume: Resume,
    plan: Plan,
    old: ModelSignature,
    new: ModelSignature,
    *,
    initial: Arrays,
    program: bytes | None,
    window_samples: int,
    max_replayed_bytes: int = MAX_REPLAYED_BYTES,
) -> Resume:
    """1. Read the log to its sealed end. 2. Write that version, as the plan says, as this epoch's first base.

    `initial` are the `dense.*` and `state.*` of a new net; `program` is its exported form, None if the old one serves.
    Rows are migrated block by block. FencedError if another trainer has started: readers ignore the base then.
    """
    state = replay(resume, log, window_samples=window_samples, max_replayed_bytes=max_replayed_bytes)
    migration = Migration(old, new, plan, same_numbers(old.schema, new.schema))
    base = state.base
    num_ranges = log.config.base_files or state.num_ranks
    main, *others = (migrated_table(state, migration, table, num_ranges) for table in migration.new.physical_tables)
    dead = [dead_keys(state, table) for table in state.tables]
    meta = migration.meta(state.meta)
    meta.change = {"from": state.head.number, **plan.document()}
    image = BaseImage(
        head=log.first_base_head,
        schema=new.schema,
        table=main,
        tables=dict(zip(new.tables, others, strict=True)),
        model=new.model,
        meta=meta,
        dense=migration.arrays(
            exact_net(state.arrays, state.state_file(log.config.path)), initial, window_samples=window_samples
        ),
        sketch=state.sketch,
        id_strings=migration.id_strings(*state.id_strings, base.id_strings, dead=merge_layers(*dead)),
        items=migration.items(state.live_items()),
        program=base.model_path if program is None else program,
    )
    failpoint("before a changed schema begins")
    write_base(log.config.path, image)
    log.start_after(image.head)
    failpoint("after a changed schema begins")
    begun = Resume.of(log.directory, image.head)
    assert begun is not None
    return begun


def replay(resume: Resume, log: LogWriter, *, window_samples: int, max_replayed_bytes: int) -> ReplayState:
    """Return the end of the log. Beyond `max_replayed_bytes` of records an intermediate base bounds the memory.

    That is allowed to the epoch that has sealed the log: all its records are durable.
    """
    state = ReplayState(resume.base, window_samples=window_samples)
    for record in resume.records():
        state.apply(record)
        if state.num_bytes >= max_replayed_bytes and state.is_exact(log.config.path):
            path = write_merged_base(log.config.path, state, base_files=log.config.base_files)
            state = ReplayState(Base.open(path), window_samples=window_samples)
    return state


def migrated_table(state: ReplayState, migration: Migration, target: LogTable, num_ranges: int) -> TableImage:
    """Return the rows of one of the new tables: those that its features have, in whichever table they are now."""
    keys = migrated_blocks(state, migration, target, with_values=False)
    return TableImage.of(target.spec, lambda: migrated_blocks(state, migration, target), keys, num_ranges)


def migrated_blocks(
    state: ReplayState, migration: Migration, target: LogTable, *, with_values: bool = True
) -> Iterator[RowBlock]:
    """Yield those rows in key order, block by block."""
    sources = [table for table in state.tables if migration.has_rows_for(table, target)]
    stacks = [(table.base_layer(state.base), state.changed_rows(table)) for table in sources]
    if not sources:
        return
    if not with_values:
        stacks = [(rows.keys_only(), changes.keys_only()) for rows, changes in stacks]
    bounds = block_bounds(*(layer for stack in stacks for layer in stack))
    cutoffs = state.meta.expiry_cutoffs
    streams = [merged_blocks(rows, changes, cutoffs, bounds) for rows, changes in stacks]
    for blocks in zip(*streams, strict=True):
        migrated = [migration.rows(block, table, target) for table, (block, _) in zip(sources, blocks, strict=True)]
        yield merge_layers(*migrated)
