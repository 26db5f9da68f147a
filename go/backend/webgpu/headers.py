"""Lays webgpu.h and wgpu.h, of the `wgpu` package that is installed, beside the sources that
include them.

    python go/backend/webgpu/headers.py

They describe the library in the same package, which epigrad opens at run time, and are not kept in
git. Without the package nothing is laid, and what is built has no WebGPU and says so. A file that
is up to date is left alone.
"""

import importlib.util
import pathlib

TARGET = pathlib.Path(__file__).resolve().parent
HEADERS = ("webgpu.h", "wgpu.h")


def main() -> None:
    spec = importlib.util.find_spec("wgpu")  # which imports nothing
    if spec is None or spec.origin is None:
        return
    resources = pathlib.Path(spec.origin).parent / "resources"
    for name in HEADERS:
        source, target = resources / name, TARGET / name
        if source.exists() and not (target.exists() and target.read_bytes() == source.read_bytes()):
            target.write_bytes(source.read_bytes())


if __name__ == "__main__":
    main()
