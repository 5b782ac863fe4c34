"""The emulated GPU detects what is undefined on a real one."""

import numpy as np
import pytest

from tests.support.gpu_emulation.simt import COMPILER, SimtDevice, built, call

SOURCE = """
extern "C" void reversed(const int* numbers, int* out) {
  __shared__ int shared[64];
  shared[threadIdx.x] = __shfl_xor_sync(0xffffffffu, numbers[threadIdx.x], 31);
  __syncthreads();
  out[threadIdx.x] = shared[threadIdx.x ^ 32];
}
extern "C" void leaves_early(int* out) {
  if (threadIdx.x % 32 == 5) return;
  out[0] = __ballot_sync(0xffffffffu, true);
}
extern "C" void meets_elsewhere(int* out) {
  if (threadIdx.x % 2) out[0] = __ballot_sync(0xffffffffu, true);
  else __syncwarp();
}
extern "C" void misses_a_barrier() {
  if (threadIdx.x < 32) __syncthreads();
}
"""
KERNELS = ("reversed", "leaves_early", "meets_elsewhere", "misses_a_barrier")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="neither g++ nor clang++ is installed")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_lanes_and_blocks_wait_for_one_another_in_any_order(seed: int) -> None:
    device = SimtDevice()
    numbers, out = device.put(np.arange(64, dtype=np.int32)), device.empty(64, np.int32)
    call(built("simt", SOURCE, KERNELS), "reversed", (numbers, out), num_blocks=3, threads=64, seed=seed)
    assert out.tolist() == np.arange(64)[::-1].tolist()


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        ("leaves_early", "a lane left before"),
        ("meets_elsewhere", "meet at different calls"),
        ("misses_a_barrier", "a thread left before"),
    ],
)
def test_what_is_undefined_on_a_gpu_is_an_error(kernel: str, why: str) -> None:
    arguments = () if kernel == "misses_a_barrier" else (SimtDevice().empty(1, np.int32),)
    with pytest.raises(AssertionError, match=why):
        call(built("simt", SOURCE, KERNELS), kernel, arguments, num_blocks=1, threads=64, seed=1)


def test_a_write_beside_an_array_is_found_out() -> None:
    device = SimtDevice()
    meta, slots = device.filled((4, 4), np.int64, 0), device.put(np.array([4]))
    with pytest.raises(AssertionError, match="set_flags wrote beside an array"):
        device.launch("row_metadata", "set_flags", 1, (meta, slots, np.int64(1), np.int64(7)))


def test_arguments_of_other_sizes_and_arrays_of_the_host_are_refused() -> None:
    functions, out = built("simt", SOURCE, KERNELS), SimtDevice().empty(64, np.int32)
    for arguments in ((out,), (out, np.int32(1)), (np.zeros(64, np.int32), out)):
        with pytest.raises(AssertionError):
            call(functions, "reversed", arguments, num_blocks=1, threads=64, seed=0)
