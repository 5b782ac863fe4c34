"""The keys of `[model]`. Imports no torch."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from springtide_client.system.settings import Settings, nearest

BUILT_IN_MODELS = {
    # feature interactions
    "dlrm": "springtide.app.models.interactions.dlrm:DLRM",
    "deepfm": "springtide.app.models.interactions.wide_and_deep:DeepFM",
    "logistic": "springtide.app.models.interactions.factorization_machines:Logistic",
    "wide_and_deep": "springtide.app.models.interactions.wide_and_deep:WideAndDeep",
    "dcn": "springtide.app.models.interactions.dcn:DCN",
    "xdeepfm": "springtide.app.models.interactions.xdeepfm:XDeepFM",
    "pnn": "springtide.app.models.interactions.pnn:PNN",
    "fwfm": "springtide.app.models.interactions.factorization_machines:FwFM",
    "ffm": "springtide.app.models.interactions.factorization_machines:FFM",
    "autoint": "springtide.app.models.interactions.autoint:AutoInt",
    "finalmlp": "springtide.app.models.interactions.finalmlp:FinalMLP",
    # several labels
    "shared_bottom": "springtide.app.models.multitask.mixtures:SharedBottom",
    "mmoe": "springtide.app.models.multitask.mixtures:MMoE",
    "ple": "springtide.app.models.multitask.mixtures:PLE",
    "esmm": "springtide.app.models.multitask.esmm:ESMM",
    # sequences
    "din": "springtide.app.models.sequence.din:DIN",
    "sasrec": "springtide.app.models.sequence.sasrec:SASRec",
    "hstu": "springtide.app.models.sequence.hstu:HSTU",
    "transformer": "springtide.app.models.sequence.transformer:Transformer",
    # retrieval
    "two_tower": "springtide.app.models.retrieval.two_tower:TwoTower",
}
# their scores are dot products of two vectors: a weight for a pair of ids has no place there
MODELS_WITHOUT_WIDE = ("two_tower",)


class ModelConfig(Settings, frozen=True, kw_only=True):
    """Which dense net is trained."""

    name: Annotated[
        str,
        Meta(
            description=", ".join(f'`"{name}"`' for name in BUILT_IN_MODELS)
            + ', or a class of your own as `"package.module:Class"`.'
        ),
    ] = "dlrm"
    options: Annotated[Mapping[str, Any], Meta(description="Keyword arguments of the model's class.")] = msgspec.field(
        default_factory=dict
    )

    wide: Annotated[
        Literal["auto"] | bool,
        Meta(
            description="Score with a wide part beside the net: weights of ids and of pairs of ids, learned sample by "
            'sample, on the host whatever `[train] device` is. "auto": yes, where the model can have one.'
        ),
    ] = "auto"
    crosses: Annotated[
        int,
        Meta(ge=0, le=4096, description="Pairs of fields that the wide part crosses, at most; 0: none."),
    ] = 64

    @property
    def has_wide_part(self) -> bool:
        """True if there is a wide part; "auto" stands for False until a configuration has decided."""
        return self.wide is True

    def decided(self) -> "ModelConfig":
        """Return the same settings with "auto" decided."""
        if self.wide != "auto":
            return self
        return msgspec.structs.replace(self, wide=self.name not in MODELS_WITHOUT_WIDE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.has_wide_part and self.name in MODELS_WITHOUT_WIDE:
            raise ValueError(
                f'wide = true does not fit name = "{self.name}", which finds items by dot products: leave out wide'
            )
        if self.name not in BUILT_IN_MODELS and ":" not in self.name:
            near = nearest(self.name, BUILT_IN_MODELS, cutoff=0.4)
            hint = f': did you mean "{near}"?' if near else ""
            raise ValueError(
                f"name must be one of {', '.join(BUILT_IN_MODELS)} or a class of your own as "
                f'"package.module:Class", not "{self.name}"{hint}'
            )
