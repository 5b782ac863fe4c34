"""Which twin runs: chosen when a table is made, imported no earlier."""

from kernels.spec import Ops


def backend(device: str | Ops = "cpu") -> Ops:
    """The ops of a device; ValueError where no twin knows it, or what it needs is not there. Verbs are their own."""
    if not isinstance(device, str):
        return device
    if device == "cpu":
        from kernels.cpu.ops import CpuOps

        return CpuOps()
    if device == "cuda":
        from kernels.cuda.ops import CudaOps

        return CudaOps(late=True)
    raise ValueError(f"no kernels for the device {device!r}: it must be 'cpu' or 'cuda'")
