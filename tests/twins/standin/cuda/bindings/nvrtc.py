"""NVRTC: a version that no real one has, so that what it "compiles" is never taken for code."""

from enum import IntEnum


class nvrtcResult(IntEnum):
    NVRTC_SUCCESS = 0
    NVRTC_ERROR_COMPILATION = 6


def nvrtcVersion():
    return nvrtcResult.NVRTC_SUCCESS, 13, 99


_programs = {}


def nvrtcCreateProgram(text, name, count, headers, names):
    program = max(_programs, default=0) + 1
    _programs[program] = [text.decode() if isinstance(text, bytes) else text, b""]
    return nvrtcResult.NVRTC_SUCCESS, program


def nvrtcCompileProgram(program, count, options):
    import re

    from cuda.core import compiled

    macros = {}
    options = [o.decode() if isinstance(o, bytes) else o for o in options]
    joined = re.sub(r"(?:-D|--define-macro)[= ]", "-D", "\n".join(options).replace("-D\n", "-D "))
    for key, _, value in re.findall(r"-D ?(\w+)(=([^\n]*))?", joined):
        macros[key] = value or "1"
    text = _programs[program][0]
    name = re.search(r'extern "C" __global__[^{;]*?\b(\w+)\(int m', text)[1]
    _programs[program][1] = compiled(text, name, macros)
    return (nvrtcResult.NVRTC_SUCCESS,)


def nvrtcGetCUBINSize(program):
    return nvrtcResult.NVRTC_SUCCESS, len(_programs[program][1])


def nvrtcGetCUBIN(program, into):
    into[: len(_programs[program][1])] = _programs[program][1]
    return (nvrtcResult.NVRTC_SUCCESS,)


_LOG = (
    b"ptxas info : 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    b"ptxas info : Used 128 registers\n\0"
)


def nvrtcGetProgramLogSize(program):
    return nvrtcResult.NVRTC_SUCCESS, len(_LOG)


def nvrtcGetProgramLog(program, into):
    into[: len(_LOG)] = _LOG
    return (nvrtcResult.NVRTC_SUCCESS,)


def nvrtcDestroyProgram(program):
    _programs.pop(program, None)
    return (nvrtcResult.NVRTC_SUCCESS,)


def nvrtcGetErrorString(result):
    return nvrtcResult.NVRTC_SUCCESS, str(result).encode()
