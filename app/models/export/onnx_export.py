"""Converts an exported program to ONNX: `python -m springtide.app.models.export.onnx_export model.pt2 model.onnx`.

Needs the extra `onnx`. The inputs are those of springtide_client.model.inputs.ModelInputs; the output is
`logits`.
"""

import importlib.util
import io
import sys
import warnings
from pathlib import Path
from typing import Any

from springtide_client.errors import LogError
from springtide_client.model.archive_check import check_archive
from springtide_client.model.inputs import ModelInputs

PACKAGES = ("onnx", "onnxscript")


def is_possible() -> bool:
    """Return True if the extra is installed, without importing it."""
    return all(importlib.util.find_spec(name) is not None for name in PACKAGES)


def export_onnx(archive: bytes) -> bytes:
    """Return the ONNX file of a `model.pt2`: parameters and buffers are initializers of the same names, as raw bytes.

    ValueError if the program cannot be converted, LogError if the archive is not safe to load.
    """
    check_archive(archive)
    import torch

    program = torch.export.load(io.BytesIO(archive))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own warnings, about its internals
            made = torch.onnx.export(
                program,
                input_names=list(ModelInputs._fields),
                output_names=["logits"],
                dynamo=True,
                optimize=False,  # constant folding would hide parameters, which later versions replace by name
                verbose=False,
            )
            assert made is not None
            model: Any = made.model_proto
    except Exception as error:  # torch and onnxscript raise whatever their translation meets
        raise ValueError(f"the model has no form in ONNX: {str(error).partition(chr(10))[0]}") from error
    raw = {tensor.name for tensor in model.graph.initializer if tensor.HasField("raw_data")}
    if inlined := sorted(used_state(program) - raw):
        raise ValueError(f"the model has no form in ONNX with {', '.join(inlined)} replaceable by name")
    content: bytes = model.SerializeToString()
    return content


def used_state(program: Any) -> set[str]:
    """Return the names of the parameters and buffers that the graph reads."""
    used = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    specs = program.graph_signature.input_specs
    return {spec.target for spec in specs if spec.target in program.state_dict and spec.arg.name in used}


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    try:
        target.write_bytes(export_onnx(source.read_bytes()))
    except (ValueError, LogError) as error:
        sys.exit(str(error))
