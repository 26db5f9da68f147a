"""Runs gopy's build.py, which writes the C half of the control plane with PyBindGen, and makes what it writes safe.

gopy leaves some functions without a look at Python's error, so that a panic would be lost; and a call in a forked child
would hang, since a Go runtime does not survive fork(): every function asks epg_forked() first. Reference counts, which
destructors change, are left alone there without a word.
"""

import pathlib
import re
import runpy
import sys

from pybindgen import Function

_generate_call = Function.generate_call


def _generate_gated_call(self: Function) -> None:
    silent = self.function_name in ("IncRef", "DecRef")
    self.before_parse.write_code(f"if (epg_forked()) {'Py_RETURN_NONE' if silent else 'return gopy_refuse()'};")
    _generate_call(self)
    if type(self) is Function:  # gopy's own subclass looks itself
        self.before_call.write_error_check("PyErr_Occurred()")


def generate(folder: pathlib.Path, target: pathlib.Path) -> None:
    """Write the C source of gopy's output in `folder` to `target`."""
    Function.generate_call = _generate_gated_call
    runpy.run_path(str(folder / "build.py"))
    text = (folder / "control.c").read_text()
    # The declarations after each definition only repeat it.
    text = re.sub(r"^PyObject \* _wrap_\w+\(.*\);\n", "", text, flags=re.M)
    text = re.sub(r"^PyObject \*\n_wrap_", "static PyObject *\n_wrap_", text, flags=re.M)
    # Not in the limited API, and used nowhere.
    text = text.replace("typedef PyAsyncMethods* cmpfunc;", "typedef void* cmpfunc;")
    text = text.replace('#include "control_go.h"\n', '#include "gopy.h"\n#include "_cgo_export.h"\n')
    target.write_text(text)


if __name__ == "__main__":
    generate(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
