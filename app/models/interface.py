"""The interface of a dense net: a torch module from rows and dense features to logits. Knows no table and no stream."""

# N samples, C categorical, P multi_value, S sequence features, T longest sequence, F dense, D dimension, L labels
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from springtide_client.schema import Schema


@dataclass(frozen=True, kw_only=True)
class FieldSpec:
    """One id feature, as a model may ask for it by name."""

    name: str
    dim: int  # numbers of its rows: its vectors are padded with zeros to `ModelSpec.dim`
    owner: str  # the feature whose rows it uses: itself, or the one that it shares with ([schema] share)
    max_length: int = 1  # elements of a list feature, at most


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Names of a model's inputs and outputs, in the order in which they come."""

    categorical: tuple[FieldSpec, ...] = ()
    multi_value: tuple[FieldSpec, ...] = ()
    sequence: tuple[FieldSpec, ...] = ()
    dense: tuple[str, ...] = ()
    labels: tuple[str, ...]
    links: tuple[str, ...] = ()  # of the labels, if any is a value and not a probability (Schema.label_links)
    dim: int  # numbers of a vector that a model sees: of the widest rows

    @staticmethod
    def of(schema: Schema, dim: int, dims: Mapping[int, int] | None = None) -> "ModelSpec":
        """Return what a model of this schema sees.

        `dims`: the widths of features whose rows are narrower than `dim`, by feature number.
        """

        def fields(names: Sequence[str]) -> tuple[FieldSpec, ...]:
            return tuple(
                FieldSpec(
                    name=name,
                    dim=(dims or {}).get(schema.number(name), dim),
                    owner=schema.share.get(name, name),
                    max_length=schema.length_limit(name) if name in schema.lists else 1,
                )
                for name in names
            )

        return ModelSpec(
            categorical=fields(schema.categorical),
            multi_value=fields(schema.multi_value),
            sequence=fields(schema.sequence),
            dense=schema.dense,
            labels=schema.labels,
            links=schema.label_links if schema.links else (),
            dim=dim,
        )

    @property
    def fields(self) -> tuple[FieldSpec, ...]:
        """The id features in the order of `join_fields`."""
        return (*self.categorical, *self.multi_value, *self.sequence)

    @property
    def num_categorical(self) -> int:
        return len(self.categorical)

    @property
    def num_pooled(self) -> int:
        """How many multi_value features there are."""
        return len(self.multi_value)

    @property
    def num_sequence(self) -> int:
        return len(self.sequence)

    @property
    def num_dense(self) -> int:
        return len(self.dense)

    @property
    def num_labels(self) -> int:
        return len(self.labels)

    @property
    def num_fields(self) -> int:
        """Vectors per sample, once its sequences are averaged."""
        return len(self.fields)

    def categorical_index(self, name: str) -> int:
        """Return the place of a categorical feature in axis C; ValueError that lists the ones there are."""
        return _index("categorical feature", name, [field.name for field in self.categorical])

    def field_index(self, name: str) -> int:
        """Return the place of an id feature in axis E of `join_fields`; ValueError that lists the ones there are."""
        return _index("id feature", name, [field.name for field in self.fields])

    def multi_value_index(self, name: str) -> int:
        """Return the place of a multi_value feature in axis P; ValueError that lists the ones there are."""
        return _index("multi_value feature", name, [field.name for field in self.multi_value])

    def sequence_index(self, name: str) -> int:
        """Return the place of a sequence in axis S; ValueError that lists the ones there are."""
        return _index("sequence", name, [field.name for field in self.sequence])

    def dense_index(self, name: str) -> int:
        """Return the place of a dense feature in axis F; ValueError that lists the ones there are."""
        return _index("dense feature", name, self.dense)

    def label_index(self, name: str) -> int:
        """Return the place of a label in axis L; ValueError that lists the ones there are."""
        return _index("label", name, self.labels)


def _index(what: str, name: str, names: Sequence[str]) -> int:
    if name not in names:
        raise ValueError(f"[schema] has no {what} {name!r}: it has {', '.join(names) or 'none'}")
    return names.index(name)


class ParameterGroup(NamedTuple):
    """Parameters that are learned with a learning rate and a weight decay of their own, as factors of the settings."""

    parameters: list[nn.Parameter]
    lr_factor: float = 1.0
    weight_decay_factor: float = 1.0


class DenseModel(nn.Module):
    """From a sample's rows and dense features to one logit per label.

    A subclass is built as `Subclass(spec, **options)` and defines `forward`. Buffers are for statistics; only the two
    `observe_*` methods write them, so that `forward` is a pure function that can be exported and served.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(
        self,
        categorical_NCD: Tensor,
        pooled_NPD: Tensor,
        sequence_NSTD: Tensor,
        length_NS: Tensor,
        dense_NF: Tensor,
    ) -> Tensor:
        """Return logits [N, L], float32. Sequences are padded with zeros at the end; dense is raw, missing is NaN."""
        raise NotImplementedError

    def label_scales(self) -> Tensor | None:
        """Return by what the loss divides errors of labels that are values, (L); None: by 1. 0: not known yet."""
        return None

    def observe_inputs(self, dense_NF: Tensor) -> None:
        """Called with a batch's dense features after it was scored, before `observe_labels`."""

    def observe_labels(self, logits_NL: Tensor, labels_NL: Tensor, weights_N: Tensor) -> None:
        """Called with a batch's logits and labels (NaN: masked) after it was scored, before the optimizer's step.

        Where `[labels.*] late` weighs each label of a sample by itself, weights are (N, L).
        """

    def parameter_groups(self) -> list[ParameterGroup]:
        """Return parameters that are learned otherwise than the settings say: see `groups_of`."""
        return []


def groups_of(model: nn.Module) -> list[ParameterGroup]:
    """Return all parameters: a model's own groups, then the others, with weight decay if they have two dimensions.

    Biases and norms, of one dimension or none, have no weight decay. ValueError if its groups name one twice, or
    another's.
    """
    own = list(model.parameter_groups()) if isinstance(model, DenseModel) else []
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    grouped: set[int] = set()
    for parameter in (one for group in own for one in group.parameters):
        if id(parameter) not in names:
            raise ValueError("parameter_groups() names a parameter that is not the model's")
        if id(parameter) in grouped:
            raise ValueError(f"parameter_groups() must name each parameter once, not {names[id(parameter)]} twice")
        grouped.add(id(parameter))
    others = [parameter for parameter in model.parameters() if id(parameter) not in grouped]
    decayed = [parameter for parameter in others if parameter.dim() > 1]
    plain = [parameter for parameter in others if parameter.dim() <= 1]
    return [*own, ParameterGroup(decayed), ParameterGroup(plain, weight_decay_factor=0.0)]
