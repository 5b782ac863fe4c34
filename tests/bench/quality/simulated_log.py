"""The clicks of `springtide simulate` as one batch, without a broker, and the probabilities they were drawn from."""

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

import springtide.app.tools
from springtide.app.config.load import load_config
from springtide.app.tools.simulated_world import SimulatorConfig
from springtide.app.tools.simulator import ClickGenerator
from springtide.stream.columns import Batch
from springtide_client.encode import encode_instances
from springtide_client.features import Features
from springtide_client.schema import Schema
from tests.support.batches import batch_of

START_MS = 1_700_000_000_000


def simulated_schema() -> Schema:
    """Return the schema of `springtide demo`."""
    return load_config(Path(springtide.app.tools.__file__).with_name("demo.toml")).schema


def simulate_log(num_samples: int, *, seed: int = 0) -> tuple[Batch, npt.NDArray[np.float64]]:
    """Return clicks at 3,000 a second, and the true probability of each."""
    schema, decoder = simulated_schema(), msgspec.json.Decoder()
    generator = ClickGenerator(SimulatorConfig(seed=seed), start_ms=START_MS)
    features, clicks, times, probabilities = [], [], [], []
    for _ in range(-(-num_samples // ClickGenerator.CHUNK)):
        chunk = generator.take_chunk()
        features.append(encode_instances(schema, [decoder.decode(message) for message in chunk.to_json()]))
        clicks.append(chunk.click_N)
        times.append(chunk.ts_N)
        probabilities.append(chunk.impressions.probability_N)
    batch = batch_of(Features.concatenate(features), np.concatenate(clicks), np.concatenate(times))
    return batch, np.concatenate(probabilities)
