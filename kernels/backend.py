"""Choose the backend for a device when a table is made; importing it is delayed until then."""

from springtide.kernels.ops import Ops


def backend(device: str | Ops = "cpu") -> Ops:
    """Return the `Ops` of a device; an `Ops` is returned as is.

    ValueError if the device is unknown or its libraries are not installed.
    """
    if not isinstance(device, str):
        return device
    if device == "cpu":
        from springtide.kernels.cpu.ops import CpuOps

        return CpuOps()
    if device == "cuda":
        from springtide.kernels.cuda.ops import CudaOps

        return CudaOps(late=True)
    raise ValueError(f"no kernels for the device {device!r}: it must be 'cpu' or 'cuda'")
