"""cuda.core, as far as kernels are compiled by it: a program's parameters and macros, no code."""

import json
import re

__version__ = "1.2.2"


class ProgramOptions:
    def __init__(self, **options):
        self.__dict__.update(options)


class _Code:
    def __init__(self, code):
        self.code = code


class Program:
    def __init__(self, code, kind, options=None):
        self.text, self.options = code, options
        self.name = re.search(r'extern "C" __global__[^{;]*?\b(\w+)\(int m', code)[1]

    def compile(self, kind, logs=None):
        macros = dict(getattr(self.options, "define_macro", None) or ())
        if logs is not None:
            logs.write(
                "ptxas info : 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
                "ptxas info : Used 128 registers\n"
            )
        return _Code(compiled(self.text, self.name, macros))


def compiled(text, name, macros):
    """What tests/twins/standin/cupy loads: as its text has them, the parameters of the kernel."""
    signature = re.search(rf"\b{name}\((int m[^{{]*)\)\s*{{", text)[1]
    signature = re.sub(r"//.*", "", signature)

    def kept(found):  # #if SPLIT ... #endif
        return found[2] if int(macros.get(found[1], 0)) else ""

    signature = re.sub(r"#if (\w+)(.*?)#endif", kept, signature, flags=re.S)
    parameters = []
    for each in signature.split(","):
        words = each.replace("const ", " ").replace("__grid_constant__", " ")
        words = words.replace("__restrict__", " ").replace("*", "* ").split()
        parameters.append((" ".join(words[:-1]).replace(" *", "*"), words[-1]))
    facts = {"name": name, "macros": macros, "parameters": parameters}
    return b"STANDIN\n" + json.dumps(facts).encode()


class Device:
    """As Dask-CUDA makes a context with it."""

    def __init__(self, index=0):
        self.device_id = index

    def set_current(self):
        pass

    @property
    def uuid(self):
        from cupy import _machine

        return _machine.uuid(_machine.device(self.device_id).physical)
