"""Opens a log for learning: a new one gets its first base, an existing one is read back. Or learning without a log."""

import logging
from functools import partial

import torch
from msgspec.structs import replace
from torch import nn

from springtide.app.errors import UserError
from springtide.app.models.export.torch_export import export_model
from springtide.app.models.interface import ModelSpec
from springtide.app.models.losses.loss import add_task_weights
from springtide.app.models.registry import build_model
from springtide.app.models.retrieval.two_tower import TwoTower
from springtide.app.models.wide_part import add_wide_part
from springtide.app.scores.progressive import ProgressiveScores
from springtide.app.training.config import DenseOptimizerConfig, TrainerConfig, disk_folder, with_adagrad_eps
from springtide.app.training.device import TrainDevice, resolve_device
from springtide.app.training.ranks.ranks import Ranks
from springtide.app.training.state.row_budget import RowBudget
from springtide.app.training.state.spill_gc import BaseRows
from springtide.app.training.state.training_state import TrainingState
from springtide.app.training.step.learner import Learner
from springtide.app.training.step.memory_step import memory_table
from springtide.app.version_log.change.plan import CROSSES_TABLE, ArrayForm, ModelSignature, plan_change
from springtide.app.version_log.change.start_migrated import start_migrated
from springtide.app.version_log.compact.base_writer import BaseImage, TableImage, write_base, write_exported_model
from springtide.app.version_log.disk_budget import DiskBudget, folder_bytes
from springtide.app.version_log.read.replay_state import Resume
from springtide.app.version_log.trainer_meta import erasures_of
from springtide.app.version_log.write.writer import LogWriter
from springtide.embeddings.collection import AnyTable, check_device_bytes, open_tables, table_configs
from springtide.embeddings.config import FeaturePolicy, FeatureTable, TableConfig
from springtide.embeddings.policy.admission import AdmissionControl
from springtide.embeddings.sharding.row_format import Precision
from springtide.embeddings.table import EmbeddingTable
from springtide.embeddings.tiers.host_tier import HostTier
from springtide.embeddings.tiers.interface import Spill
from springtide.embeddings.tiers.no_spill import NoSpill
from springtide.embeddings.tiers.rocksdb.spill import PATIENCE_SECONDS, RocksSpill, has_rocksdb
from springtide.kernels.backend import backend
from springtide.kernels.ops import Ops
from springtide_client.keys import CROSSES
from springtide_client.log.base import MODEL, Base, ModelIdentity, TableSpec
from springtide_client.rows.table_names import MAIN_TABLE
from springtide_client.schema import Schema
from springtide_client.wide.fields import WideFields
from springtide_client.wide.layout import wide_width
from springtide_client.wide.slots import all_pairs

logger = logging.getLogger(__name__)


def model_spec(config: TrainerConfig) -> ModelSpec:
    """Return what the net of a configuration sees."""
    return ModelSpec.of(config.schema, config.table.widest_dim, config.table.dims)


def load_state(config: TrainerConfig, log: LogWriter, *, ranks: Ranks | None = None) -> TrainingState:
    """Return the state at the end of the log; a new log gets its first base.

    UserError if the configuration does not fit the log or cannot be used, LogError if the log cannot be read. Of
    several `ranks` the first begins the log; then each reads it, and keeps the rows of its range.
    """
    ranks = ranks or Ranks()
    model, device = new_net(config)
    if ranks.is_first:
        resume = Resume.of(log.directory, log.last_encoded, log.sealed_records)
    else:
        resume = _begun_by_first(log, ranks)
    try:
        program = export_model(model, model_spec(config)) if resume is None and ranks.is_first else b""
        if resume is not None and ranks.is_first:
            resume = go_on_with(config, log, resume, model)
    except ValueError as error:
        raise UserError(f"[model] {error}") from error
    base = None if resume is None else resume.base
    state = empty_state(config, model, device, log.budget, epoch=log.epoch, base=base, ranks=ranks)
    if resume is None:
        write_first_base(config, log, state, program)
    if ranks.is_first:
        ranks.barrier()
        ranks.broadcast(log.last_encoded)
    if resume is not None:
        restore_state(state, resume)
    try:
        if state.row_budget is not None:
            state.row_budget.check()
    except ValueError as error:
        state.learner.table.close()
        raise UserError(str(error)) from error
    if ranks.is_first:
        _log_how_the_net_learns(state.learner)
    return state


def _log_how_the_net_learns(learner: Learner) -> None:
    if learner.compiled is None:
        logger.info("the net learns by autograd", extra={"reason": learner.autograd_reason})
    else:
        most = learner.max_compiled_samples
        logger.info("the net is compiled; larger batches learn by autograd", extra={"max_samples": most})


def _begun_by_first(log: LogWriter, ranks: Ranks) -> Resume:
    """Wait until rank 0 has begun the log's epoch, perhaps with a base; return what this rank loads."""
    ranks.barrier()
    head = ranks.broadcast(log.last_encoded)
    assert head is not None
    if head == log.first_base_head and log.start_head != head:
        log.start_after(head)
    resume = Resume.of(log.directory, head)
    assert resume is not None
    return resume


def state_without_log(config: TrainerConfig) -> TrainingState:
    """Return the state that a trainer has before its first sample, for learning that no log keeps.

    Its spill is in `[table] disk_path`. UserError if the configuration cannot be used.
    """
    torch.manual_seed(config.train.seed)
    return empty_state(config, *new_net(config), DiskBudget(config.log.log_bytes), epoch=1, base=None)


def new_net(config: TrainerConfig) -> tuple[nn.Module, TrainDevice]:
    """Return the net of a configuration, and where it is trained; UserError without that device."""
    try:
        device = resolve_device(config.train)
    except ValueError as error:
        raise UserError(str(error)) from error
    return new_model(config), device


def new_model(config: TrainerConfig) -> nn.Module:
    """Return the net with what is learned beside it, not trained yet; UserError if it cannot be built."""
    try:
        model = build_model(config.model, model_spec(config), seed=config.train.seed)
        add_wide_part(model, config.model, config.schema)
        if config.train.task_weights == "uncertainty":
            add_task_weights(model, len(config.schema.labels))
    except ValueError as error:
        raise UserError(f"[model] {error}") from error
    return model


def empty_state(
    config: TrainerConfig,
    model: nn.Module,
    device: TrainDevice,
    budget: DiskBudget,
    *,
    epoch: int,
    base: Base | None,
    ranks: Ranks | None = None,
) -> TrainingState:
    """Return a state that has learned nothing, over a table whose lowest tier is the base.

    UserError if two towers are to have another loss, or if several `ranks` cannot learn the model.
    """
    ranks = ranks or Ranks()
    if isinstance(model, TwoTower) and any(loss.name != "bce" for loss in config.losses):
        raise UserError(f'[model] name = "{config.model.name}" has a loss of its own: leave out [train] loss')
    table = open_table(config, epoch, base, device=device.table, ranks=ranks)
    try:
        learner = Learner(
            model,
            table,
            config.train,
            config.schema,
            score_field=config.table.score,
            device=device,
            losses=config.losses,
            exchange=ranks.exchange,
            negatives=config.negatives,
            precision=Precision(
                rows=config.cluster.rows, gradients=config.cluster.gradients, dense=config.cluster.dense_gradients
            ),
        )
    except ValueError as error:
        table.close()
        raise UserError(str(error)) from error
    row_budget = RowBudget(
        budget.max_base_bytes, dim=table.dim, state_width=table.layout.state_width, onnx=config.log.onnx
    )
    scores = ProgressiveScores(config.schema.labels, config.train.window_samples, config.scores, config.schema)
    return TrainingState(learner, scores, config.schema, row_budget, ranks, config.policies)


def open_table(
    config: TrainerConfig,
    epoch: int,
    base: Base | None,
    *,
    device: str | Ops = "cpu",
    ranks: Ranks | None = None,
) -> AnyTable:
    """Return an empty table, or one for each width of rows, over its lower tiers.

    These are host memory if `host_bytes` is set, the disk, the base. Each of several `ranks` has a spill of its own.
    Without rocksdb-py there is no disk: rows that memory evicts are lost, as the next version says.
    """
    settings = replace(with_wide_columns(config), num_threads=max(config.table.num_threads, config.train.num_threads))
    ranks = ranks or Ranks()
    folder = ranks.spill_folder(disk_folder(config))
    # the other ranks wait in a collective: they must hear of a full spill before they take its rank for dead
    patience = min(PATIENCE_SECONDS, ranks.patience_seconds)
    ops, has_disk = backend(device), has_rocksdb()
    host = ops if ops.device == "cpu" else backend("cpu")
    if not has_disk:
        if settings.host_bytes:
            raise UserError("[table] host_bytes needs the disk below it, and so rocksdb-py, which this Python lacks")
        logger.warning("rocksdb-py is missing: memory is the last tier, and rows that it evicts are lost")

    def make(name: str, own: TableConfig, admission: AdmissionControl | None) -> EmbeddingTable:
        own = with_adagrad_eps(own)
        # no net sees its rows: the wide part learns them on the host
        is_plain = name in settings.tables and settings.tables[name].is_plain
        layout, subfolder = own.layout, (name or "main") if settings.tables else ""
        widths = {"dim": layout.dim, "state_width": layout.state_width}
        spill: Spill
        if has_disk:
            spill = RocksSpill.of_epoch(folder, epoch, **widths, table=subfolder, patience_seconds=patience)
        else:
            spill = NoSpill(**widths, over_base=True)
        try:
            if own.host_bytes:
                num_rows = HostTier.rows_of_bytes(own.host_bytes, layout, host)
                spill = HostTier(spill, num_rows=num_rows, layout=layout, ops=host)
            return EmbeddingTable(
                own,
                seed=config.train.seed,
                spill=spill,
                base=None if base is None else BaseRows(base, name),
                device=host if is_plain else ops,
                other_disk_bytes=partial(folder_bytes, config.log.path),
                admission=admission,
            )
        except BaseException:
            spill.close()
            raise

    try:
        check_device_bytes(settings, ops)
        return open_tables(settings, ops, make)
    except ValueError as error:
        raise UserError(f"[table] {error}") from error


def with_wide_columns(config: TrainerConfig) -> TableConfig:
    """Return the table's settings with the columns of the wide part, and the tables of crosses and of memories."""
    table = with_memory_tables(config.table, config.schema)
    if not config.model.has_wide_part:
        return table
    return with_wide_rows(table, config.schema, crosses=config.model.crosses > 0)


def with_memory_tables(table: TableConfig, schema: Schema) -> TableConfig:
    """Return the settings with a table for each memory of the schema; admission never holds one back."""
    if not schema.remembered:
        return table
    num_bytes = table.memory_bytes // sum(memory.dim for memory in schema.remembered)
    features, tables = dict(table.features), dict(table.tables) or {MAIN_TABLE: _main_table(table, schema)}
    for memory in schema.remembered:
        number = schema.memory_number(memory)
        features[number] = FeaturePolicy(min_count=1, ttl_seconds=memory.row_ttl_seconds)
        tables[memory_table(schema, memory)] = FeatureTable(
            dim=memory.dim,
            optimizer={"name": "sgd", "lr": 0.0},
            features=(number,),
            is_plain=True,
            device_bytes=num_bytes * memory.dim,
        )
    return replace(table, features=features, tables=tables)


def _main_table(table: TableConfig, schema: Schema) -> FeatureTable:
    """Return the main table where all features have their rows in it."""
    memories = {schema.memory_number(memory) for memory in schema.remembered}
    return FeatureTable(dim=table.dim, features=tuple(n for n in range(schema.unused_number) if n not in memories))


def with_wide_rows(table: TableConfig, schema: Schema, *, crosses: bool) -> TableConfig:
    """Return the settings with the columns of the wide part; crosses are never held back by admission."""
    num_labels = len(schema.labels)
    table = replace(table, wide_width=wide_width(num_labels))
    fields = WideFields.of(schema)
    if not crosses or not len(all_pairs(len(fields), fields.num_bias)):
        return table
    main = _main_table(table, schema)
    # no optimizer: the wide part writes the rows itself
    pairs = FeatureTable(dim=2 * num_labels, optimizer={"name": "sgd", "lr": 0.0}, features=(CROSSES,), is_plain=True)
    return replace(
        table,
        features={**table.features, CROSSES: FeaturePolicy(min_count=1)},
        tables={**(table.tables or {MAIN_TABLE: main}), CROSSES_TABLE: pairs},
    )


def write_first_base(config: TrainerConfig, log: LogWriter, state: TrainingState, program: bytes) -> None:
    """Start a new log with a base without rows, so that followers can start before the first version."""
    design = signature_of(config, state.learner.model)
    image = BaseImage(
        head=log.first_base_head,
        schema=design.schema,
        table=TableImage(spec=design.table),
        model=design.model,
        meta=state.meta(created_ms=0),
        dense=state.base_arrays(),
        tables={name: TableImage(spec=spec) for name, spec in design.tables.items()},
        program=program,
    )
    write_base(log.config.path, image)
    log.start_after(log.first_base_head)
    state.base_number = log.first_base_head.number
    if (base := log.directory.open_base()) is not None:
        state.on_base_mapped(base)


def signature_of(config: TrainerConfig, model: nn.Module) -> ModelSignature:
    """Return what rows and parameters mean under a configuration."""

    def spec(own: TableConfig, holder: FeatureTable | None = None) -> TableSpec:
        return TableSpec(
            dim=own.dim,
            state_width=own.layout.state_width,
            seed=config.train.seed,
            init_scale=own.init_scale,
            optimizer=dict(with_adagrad_eps(own).optimizer),
            dtype=own.dtype,
            wide_width=own.wide_width,
            features=[] if holder is None else list(holder.features),
        )

    settings = with_wide_columns(config)
    (_, table), *others = table_configs(settings, backend("cpu")).items()
    return ModelSignature(
        schema=config.schema,
        table=spec(table),
        tables={name: spec(own, settings.tables[name]) for name, own in others},
        model=ModelIdentity(
            name=config.model.name,
            options=dict(config.model.options),
            optimizer=DenseOptimizerConfig.of(config.train.optimizer).name,
        ),
        dense={name: ArrayForm.of(value.numpy()) for name, value in model.state_dict().items()},
    )


def go_on_with(config: TrainerConfig, log: LogWriter, resume: Resume, model: nn.Module) -> Resume:
    """If the configuration means other rows or parameters than the log, begin the epoch with what fits of them.

    If the exported model is damaged, the net is exported again. ValueError if that is not possible.
    """
    old, new = ModelSignature.of(resume.base), signature_of(config, model)
    is_sound = resume.base.model_path is None or resume.base.is_sound(MODEL)
    if not (plan := plan_change(old, new)):
        if is_sound:
            return resume
        write_exported_model(resume.base, log.directory, export_model(model, model_spec(config)))
        return Resume.of(log.directory, resume.head, log.sealed_records) or resume
    logger.warning("the log goes on with changed settings", extra=plan.document())
    is_same_net = (old.model.name, old.model.options) == (new.model.name, new.model.options) and old.dense == new.dense
    is_same_net &= ModelSpec.of(old.schema, old.widest_dim, old.dims) == model_spec(config)
    return start_migrated(
        log,
        resume,
        plan,
        old,
        new,
        initial={f"dense.{name}": value.numpy() for name, value in model.state_dict().items()},
        program=None if is_same_net and is_sound else export_model(model, model_spec(config)),
        window_samples=config.train.window_samples,
    )


def restore_state(state: TrainingState, resume: Resume) -> None:
    """Read the log back up to its sealed end; LogError if that cannot be reached."""
    try:
        state.restore(resume.base, resume.records(), resume.read_state)
        state.base_number, state.executed_commands = resume.base.head.number, dict(resume.executed_commands)
        state.stream.logged_erasures = erasures_of(resume.erasure_entries, state.schema)
    except ValueError as error:
        raise UserError(f"{error}: restore the setting, or start a new log with [log] path") from error
