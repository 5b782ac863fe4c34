"""Links from the net's output to a label that is a value, such as a dwell time."""

# N samples
import numpy as np
import numpy.typing as npt

MAX_OUTPUT = 80.0  # exp of more is no float32


def value_of(link: str, outputs_N: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the values that outputs stand for, by one of springtide_client.schema.LINKS."""
    if link == "log1p":
        values_N: npt.NDArray[np.float64] = np.expm1(np.clip(outputs_N, 0.0, MAX_OUTPUT))
        return values_N
    return outputs_N


def output_of(link: str, values_N: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Invert `value_of`."""
    return np.log1p(values_N) if link == "log1p" else values_N
