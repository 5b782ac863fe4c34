"""Every built-in ranking net with its defaults, and the nets that an option makes of them."""

from springtide.app.models.config import BUILT_IN_MODELS, MODELS_WITHOUT_WIDE, ModelConfig
from tests.support.scale import IS_LONG

# nets for retrieval need options, and have tests of their own
VARIANTS = {name: ModelConfig(name=name) for name in BUILT_IN_MODELS if name not in MODELS_WITHOUT_WIDE} | {
    "dcn, low rank": ModelConfig(name="dcn", options={"rank": 8}),
    "pnn, outer": ModelConfig(name="pnn", options={"product": "outer"}),
}
# simple ones, but for the default net, have parts that others have too; in `make test` they are exported, in `make
# torture` they pass the whole loop
SIMPLE = {"deepfm", "logistic", "wide_and_deep", "dcn", "pnn", "shared_bottom", "mmoe"}
IN_OWN_TESTS = {"din", "sasrec", "transformer"}  # exported in tests/app/models/sequence, looped in `make torture`
LOOPED = [name for name in VARIANTS if IS_LONG or name not in SIMPLE | IN_OWN_TESTS]
