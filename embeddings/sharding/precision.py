"""How numbers travel between ranks."""

import msgspec

from springtide.embeddings.sharding.row_format import check_formats


class Precision(msgspec.Struct, frozen=True):
    """Each one float32, bfloat16 or int8; dense gradients float32 or bfloat16."""

    rows: str = "float32"
    gradients: str = "float32"
    dense: str = "float32"

    def __post_init__(self) -> None:
        check_formats(self.rows, self.gradients, self.dense)
        if self.dense == "int8":
            raise ValueError("gradients of the dense net can travel as float32 or bfloat16, not as int8")
