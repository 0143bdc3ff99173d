"""Compile CUDA C++ programs to cubins with NVRTC; no graphics processor is needed.

usage: compile.py ARCHS PROGRAM.cu [PROGRAM.cu ...]

ARCHS is a list such as sm_80,sm_90. Prints one JSON line for each program and architecture:
{"program": ..., "arch": ..., "seconds": ..., "bytes": ...} or, with "log", the compiler's messages. Exit status 1 if any
program is refused.
"""

import ctypes
import json
import pathlib
import sys
import sysconfig
import time


def load():
    """The library of the Python wheel."""
    site = pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    found = sorted((site / "cuda_nvrtc" / "lib").glob("libnvrtc.so.*"))
    if not found:
        sys.exit(f"expected libnvrtc in {site}, found none")
    # The library looks for its builtins by name.
    for builtins in sorted((site / "cuda_nvrtc" / "lib").glob("libnvrtc-builtins.so.*")):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(found[0])), site


def check(nvrtc, status, what):
    if status != 0:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(f"{what}: {nvrtc.nvrtcGetErrorString(status).decode()}")


def compile_program(nvrtc, text, name, arch):
    """(cubin bytes, None) or (0, log)."""
    program = ctypes.c_void_p()
    check(
        nvrtc,
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name.encode(), 0, None, None),
        "nvrtcCreateProgram",
    )
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    log = None
    if status != 0:
        check(nvrtc, nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)), "nvrtcGetProgramLogSize")
        buffer = ctypes.create_string_buffer(size.value)
        check(nvrtc, nvrtc.nvrtcGetProgramLog(program, buffer), "nvrtcGetProgramLog")
        log = buffer.value.decode(errors="replace")
        n_bytes = 0
    else:
        check(nvrtc, nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
        n_bytes = size.value
        if n_bytes == 0:
            log = "expected a cubin, found none"
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return n_bytes, log


def main():
    archs, paths = sys.argv[1].split(","), sys.argv[2:]
    nvrtc, _ = load()
    is_refused = False
    for path in paths:
        text = pathlib.Path(path).read_bytes()
        for arch in archs:
            start = time.perf_counter()
            n_bytes, log = compile_program(nvrtc, text, pathlib.Path(path).name, arch)
            line = {
                "program": path,
                "arch": arch,
                "seconds": round(time.perf_counter() - start, 3),
                "bytes": n_bytes,
            }
            if log is not None:
                line["log"] = log
                is_refused = True
            print(json.dumps(line), flush=True)
    sys.exit(1 if is_refused else 0)


if __name__ == "__main__":
    main()
