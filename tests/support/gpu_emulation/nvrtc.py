"""NVIDIA's run-time compiler from its wheel, by ctypes: compiles for any GPU and wants neither a GPU nor its driver."""

import ctypes
import re
from functools import cache
from importlib.metadata import files
from typing import Any

WHEEL = "nvidia-cuda-nvrtc"


@cache
def compiler() -> Any:
    """The library; its own helper is loaded first, for it looks for that beside the program."""
    found = {path.name: path.locate() for path in files(WHEEL) or ()}
    helper, library = (
        next(path for name, path in sorted(found.items()) if re.match(pattern, name))
        for pattern in (r"(lib)?nvrtc-builtins.*\.(so|dll)", r"(lib)?nvrtc(64_\d+_\d+)?\.(so|dll)")
    )
    ctypes.CDLL(str(helper), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(library))


def compiled(source: str, options: tuple[str, ...]) -> tuple[str, int]:
    """The compiler's messages, and the bytes of machine code that came out; 0 where it refused."""
    nvrtc, program = compiler(), ctypes.c_void_p()
    created = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    assert created == 0
    try:
        arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = nvrtc.nvrtcCompileProgram(program, len(options), arguments)
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        if not failed:
            assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
        return log.value.decode(), 0 if failed else size.value
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
