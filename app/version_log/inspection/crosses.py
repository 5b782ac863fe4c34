"""Crosses that the wide part has learned at one version: the pairs of fields in use, and one cross of two ids."""

# P pairs of fields, L labels, W numbers of the wide part beside a row
from dataclasses import dataclass

import numpy as np

from springtide.app.errors import UserError
from springtide.app.version_log.read.version_range import VersionImage
from springtide_client.array_types import Float32Array
from springtide_client.keys import CROSSES, encode_id
from springtide_client.rows.row_block import RowBlock
from springtide_client.schema import Schema
from springtide_client.wide.fields import WideFields, bin_ids, signed_logs, standardize
from springtide_client.wide.layout import COLUMNS_OF_A_LABEL, INFORMATION, WEIGHT, born_column
from springtide_client.wide.parameters import PREFIX, WideParameters
from springtide_client.wide.slots import cross_ids, row_hashes

OF_A_CROSS = [WEIGHT, INFORMATION]


@dataclass(frozen=True)
class FieldPair:
    """Two fields whose crosses are learned, and by how much they have lowered the loss since pairs were last chosen."""

    fields: tuple[str, str]
    gain: float


@dataclass(frozen=True)
class CrossWeight:
    """One cross's weight in the score of a label, and how much was learned about it (its information)."""

    label: str
    weight: float
    information: float


@dataclass(frozen=True)
class Cross:
    """The cross of two ids at one version. Its row's figures are None, and `reason` says why, if it has no row."""

    fields: tuple[str, str]
    ids: tuple[int, int]
    is_live: bool  # whether crosses of these fields are learned at present
    id: int | None = None  # of its row
    weights: tuple[CrossWeight, ...] = ()
    count: int | None = None
    last_seen_ms: int | None = None
    reason: str = ""


def wide_parameters(image: VersionImage) -> WideParameters | None:
    """Return the wide part's arrays at a version; None if the model has none."""
    arrays = image.dense(PREFIX)
    return WideParameters.of(arrays)


def live_pairs(schema: Schema, parameters: WideParameters) -> list[FieldPair]:
    """Return the pairs of fields whose crosses are learned, the one of most gain first."""
    names = schema.row_names()
    fields = [names[feature] for feature in parameters.numbers_F.tolist()]
    pairs = [
        FieldPair((fields[left], fields[right]), float(parameters.pair_gains_P[pair]))
        for pair in parameters.live_pairs.tolist()
        for left, right in [parameters.pair_fields_P2[pair].tolist()]
    ]
    return sorted(pairs, key=lambda pair: -pair.gain)


def find_cross(image: VersionImage, named: list[tuple[str, str]]) -> Cross:
    """Return the cross of two ids, given as (field, id as people write it). UserError if there can be none."""
    schema, parameters = image.schema, wide_parameters(image)
    if parameters is None:
        raise UserError("the model has no wide part, so no crosses: set [model] wide = true")
    fields = WideFields.of(schema).names
    owners = [schema.share.get(name, name) for name, _ in named]
    for name, owner in zip((name for name, _ in named), owners, strict=True):
        if owner not in fields:
            raise UserError(f"--cross {name}: there is no such field, only {', '.join(fields)}")
    if owners[0] == owners[1]:
        raise UserError(f"--cross: both ids are of {owners[0]}, a cross is of two fields")
    ids = [_row_id(schema, parameters, owner, text) for owner, (_, text) in zip(owners, named, strict=True)]
    # the lower field comes first, as in the hash
    (left, left_id), (right, right_id) = sorted(zip(owners, ids, strict=True), key=lambda key: fields.index(key[0]))
    pair = [fields.index(left), fields.index(right)]
    places = np.flatnonzero((parameters.pair_fields_P2 == pair).all(axis=1))
    is_live = bool(len(places)) and bool(parameters.pair_is_live_P[places[0]])
    cross = Cross((left, right), (left_id, right_id), is_live)
    hashes = []
    for name, row_id in ((left, left_id), (right, right_id)):
        feature = next(feature for feature, owner in schema.row_names().items() if owner == name)
        born = _born(image, feature, row_id, parameters.num_labels)
        if born == 0:
            reason = f"{name} = {row_id} has no row that was learned from"
            return Cross(cross.fields, cross.ids, is_live, reason=reason)
        keys = np.array([feature]), np.array([row_id]), np.array([born], np.float32)
        hashes.append(row_hashes(*keys))
    cross_id = int(cross_ids(hashes[0], hashes[1])[0])
    row = image.find(CROSSES, cross_id)
    if row is None:
        reason = "it has no row: the two have not come together since both were known, or the row was evicted"
        return Cross(cross.fields, cross.ids, is_live, cross_id, reason=reason)
    weights = tuple(
        CrossWeight(label, float(weight), float(information))
        for label, (weight, information) in zip(schema.labels, _numbers(image, row), strict=True)
    )
    return Cross(cross.fields, cross.ids, is_live, cross_id, weights, int(row.count[0]), int(row.last_seen[0]))


def _row_id(schema: Schema, parameters: WideParameters, field: str, text: str) -> int:
    """Return the id of a categorical value, or of the bin that a number is in at this version."""
    if field not in schema.dense:
        return encode_id(text)[0]
    try:
        numbers_1D = np.full((1, len(schema.dense)), float(text or "nan"), np.float32)
    except ValueError:
        raise UserError(f"--cross {field}={text}: {field} is a number") from None
    bins = bin_ids(standardize(signed_logs(numbers_1D), parameters.number_statistics_3D))
    return int(bins[0, schema.dense.index(field)])


def _numbers(image: VersionImage, row: RowBlock) -> Float32Array:
    """Return weight and information of a cross for each label, float32 (L, 2).

    In a table of its own they are the row's values; among other rows they are where these have theirs.
    """
    spec = image.table_of(CROSSES).spec
    numbers_L2: Float32Array = row.value[0].reshape(-1, 2)
    if spec.wide_width:
        wide_W = row.state[0, spec.state_width - spec.wide_width :]
        num_labels = len(image.schema.labels)
        numbers_L2 = wide_W[: COLUMNS_OF_A_LABEL * num_labels].reshape(num_labels, -1)[:, OF_A_CROSS]
    return numbers_L2


def _born(image: VersionImage, feature: int, row_id: int, num_labels: int) -> float:
    """Return when a row was first learned from, as it is hashed; 0 if it has no row, or none that was learned from."""
    row: RowBlock | None = image.find(feature, row_id)
    if row is None:
        return 0.0
    spec = image.table_of(feature).spec
    return float(row.state[0, spec.state_width - spec.wide_width + born_column(num_labels)])
