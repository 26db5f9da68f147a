"""Compiles kernels/cuda/*.cu, each to a fatbin beside it, which Go embeds.

    python kernels/tools/compile_cuda.py [--toolkit FOLDER] [--jobs N]

Compiles what its sources, its headers or this script have changed for. Beside NAME.fatbin it writes
NAME.functions: a hash of what it was compiled from, by which the build tells that it is out of
date, and the kernels that are in it. Needs nvcc, which `make kernels` installs, and a C++ compiler;
no GPU and no driver.

Images are kept in a cache, EPIGRAD_KERNEL_CACHE or ~/.cache/epigrad/kernels, under a hash of all
that they depend on: sources, this script and the compilers' versions. An image whose own hash is
not the one that was stored with it is compiled anew.

A warning is an error, and so are registers spilled to memory, but for the kernels of SPILLS.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "kernels" / "cuda"
RELEASE = "13.0"
TOOLKIT = pathlib.Path(sys.prefix, "cuda", "nvidia", "cu13")

# What there is machine code for, with the virtual architecture that it is made from, and the PTX
# for the rest, which the driver compiles when it loads it. Most of the time goes into code for a
# virtual architecture, so that all from Hopper on share one.
ARCHITECTURES = {"sm_80": "compute_80", "sm_90": "compute_90", "sm_100": "compute_90", "sm_120": "compute_90"}
PTX = "compute_80"

# A source with such a part in its name has instructions of Hopper's, and no code for others; or
# those that all have, in one form for all.
OF_PART = {"sm90": {"sm_90a": "compute_90a"}, "sm80": dict.fromkeys(ARCHITECTURES, PTX)}

# No -fmad: the sources say themselves what is fused, so that all forms of a kernel give the same
# bits (intrinsics.cuh).
FLAGS = ("-std=c++17", "-O3", "-fmad=false", "-Xptxas=-v", "-Werror=all-warnings", "-Xcompiler=-Wall,-Wextra")

CACHE = pathlib.Path(
    os.environ.get("EPIGRAD_KERNEL_CACHE")
    or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "epigrad", "kernels")
)
UNUSED = 30 * 86400  # seconds after which an unused image is deleted

# Kernels that may spill, by a pattern of their names, and why.
SPILLS: dict[str, str] = {
    r"gated_curvature_\w+": "up to two words, of five inputs and three outputs that are in flight",
    r"xielu_f64_strided": "five words on sm_100a, of four elements that are computed side by side",
    r"grouped_(product|depth)_f32": "up to ten words, of sums in three levels",
    r"grouped_sums_\w+": "two words on sm_120, of four rows that are read side by side",
    r"hidden_backward_sm90_\w+_192": "a word or two, and none while it multiplies",
    r"\w+_sm80_\w+": "words where a loader goes to the next pair",
    r"grouped_gated_hidden_backward_sm90_\w+": "words for limits or column sums, none while it multiplies",
}


def find_nvcc(toolkit: pathlib.Path) -> pathlib.Path:
    """The toolkit's nvcc, once it is known to be of the right release."""
    nvcc = toolkit / "bin" / "nvcc"
    if not nvcc.exists():
        raise SystemExit(f"the CUDA kernels need nvcc {RELEASE}, and {toolkit} has none: make kernels installs it")
    version = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    if f"release {RELEASE}," not in version:
        raise SystemExit(f"the CUDA kernels need nvcc {RELEASE}, and this is another:\n{version}")
    return nvcc


def host_compiler() -> str:
    """The C++ compiler that nvcc runs: $CXX or g++."""
    command = shlex.split(os.environ.get("CXX") or "g++")[0]
    if shutil.which(command) is None:
        raise SystemExit(f"the CUDA kernels need a C++ compiler, and there is no {command}: apt-get install g++")
    return command


def hash_of(source: pathlib.Path) -> str:
    """What tells whether an image is of these sources; kernels/cuda/embed.go forms it too."""
    digest = hashlib.sha256()
    for path in (*sorted(headers_of(source)), source):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def headers_of(source: pathlib.Path) -> set[pathlib.Path]:
    """The headers of this folder that a source includes, and those that they include."""
    found: set[pathlib.Path] = set()
    unread = [source]
    while unread:
        included = {SOURCES / name for name in re.findall(r'^#include "(\w+\.cuh)"$', unread.pop().read_text(), re.M)}
        unread += included - found
        found |= included
    return found


def is_current(nvcc: pathlib.Path, source: pathlib.Path) -> bool:
    """Whether what was compiled is of these sources, and no older than this script and nvcc."""
    image, functions = source.with_suffix(".fatbin"), source.with_suffix(".functions")
    if not image.exists() or not functions.exists() or functions.read_text().partition("\n")[0] != hash_of(source):
        return False
    return all(image.stat().st_mtime > path.stat().st_mtime for path in (pathlib.Path(__file__), nvcc))


def provide(nvcc: pathlib.Path, source: pathlib.Path) -> str:
    """Put an image beside its source, from the cache or compiled, and return a line about it."""
    image, functions = source.with_suffix(".fatbin"), source.with_suffix(".functions")
    kept = Kept(key_of(nvcc, source))
    # The list last: it says that the image beside it is of these sources.
    functions.unlink(missing_ok=True)
    if (found := kept.read()) is not None:
        image.write_bytes(found[0])
        names, how = found[1], "from the cache"
    else:
        names, how = compile_source(nvcc, source), "compiled"
        kept.write(image.read_bytes(), names)
    functions.write_text("".join(f"{line}\n" for line in (hash_of(source), *names)))
    return f"kernels/cuda/{source.name}: {len(names)} kernels, {image.stat().st_size / 1024:.0f} KiB, {how}"


def compile_source(nvcc: pathlib.Path, source: pathlib.Path) -> list[str]:
    """Compile one source to the image beside it, and return the names of its kernels."""
    architectures = architectures_of(source)
    codes = [f"-gencode=arch={virtual},code={name}" for name, virtual in architectures.items()]
    if set(architectures) == set(ARCHITECTURES):
        codes.append(f"-gencode=arch={PTX},code={PTX}")
    with tempfile.TemporaryDirectory() as scratch:
        target = pathlib.Path(scratch, source.with_suffix(".fatbin").name)
        # By relative names in the source's folder: no path of this machine gets into the output.
        command = [str(nvcc), *FLAGS, *codes, f"-ccbin={host_compiler()}", "-compress-mode=size", "-fatbin"]
        command += ["-o", str(target), source.name]
        result = subprocess.run(command, cwd=SOURCES, check=False, capture_output=True, text=True)
        if result.returncode:
            raise SystemExit(f"compiling kernels/cuda/{source.name} failed:\n{result.stdout}{result.stderr}")
        names = check(source.name, architectures, result.stdout + result.stderr)
        shutil.move(target, source.with_suffix(".fatbin"))
    return names


@functools.cache
def version_of(command: str) -> str:
    """What a compiler says of itself."""
    return subprocess.run([command, "--version"], check=True, capture_output=True, text=True).stdout


def key_of(nvcc: pathlib.Path, source: pathlib.Path) -> str:
    """A hash of all that an image depends on. This script has the flags, the architectures and the
    checks of what was compiled, and nvcc's programs and headers are of several packages."""
    script = pathlib.Path(__file__).read_text()
    toolkit = [path.name for path in sorted(nvcc.parents[3].glob("nvidia*.dist-info"))]
    flags = [os.environ.get(name, "") for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")]
    compilers = (version_of(str(nvcc)), version_of(host_compiler()), *toolkit, *flags)
    parts = (hash_of(source), source.stem, script, *compilers)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Kept:
    """An image in the cache: a file with its hash, the names of its kernels, and the image."""

    def __init__(self, key: str) -> None:
        self.path = CACHE / key

    def read(self) -> tuple[bytes, list[str]] | None:
        """The image and the names, None if it is not there or not as it was written."""
        try:
            digest, _, rest = self.path.read_bytes().partition(b"\n")
        except OSError:
            return None
        if digest.decode("ascii", "replace") != hashlib.sha256(rest).hexdigest():
            return None
        with contextlib.suppress(OSError):  # a cache may be read-only
            os.utime(self.path)
        names, _, image = rest.partition(b"\n")
        return image, names.decode().split()

    def write(self, image: bytes, names: list[str]) -> None:
        """Store it. Compiling goes on where the cache cannot be written."""
        rest = " ".join(names).encode() + b"\n" + image
        try:
            CACHE.mkdir(parents=True, exist_ok=True)
            # Under another name first: a reader never meets half of it.
            with tempfile.NamedTemporaryFile(dir=CACHE, delete=False) as file:
                file.write(hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
            os.replace(file.name, self.path)
        except OSError as error:
            print(f"the cache of kernels is not written: {error}", file=sys.stderr)


def prune() -> None:
    """Delete the images of the cache that no build has taken for long."""
    with contextlib.suppress(OSError):
        for each in CACHE.iterdir():
            if time.time() - each.stat().st_mtime > UNUSED:
                each.unlink()


def architectures_of(source: pathlib.Path) -> dict[str, str]:
    parts = [part for part in source.stem.split("_") if part in OF_PART]
    return OF_PART[parts[0]] if parts else ARCHITECTURES


def check(source: str, architectures: Iterable[str], log: str) -> list[str]:
    """The kernels that ptxas tells of; the end of the build where one is missing somewhere or
    spills."""
    told = r"Compiling entry function '(\w+)' for '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads"
    compiled = re.findall(told, log, re.S)
    functions = sorted({name for name, *_ in compiled})
    for architecture in architectures:
        if sorted(name for name, found, *_ in compiled if found == architecture) != functions:
            raise SystemExit(f"kernels/cuda/{source}: ptxas does not tell of every kernel for {architecture}")
    for name, architecture, stores, loads in compiled:
        if (int(stores) or int(loads)) and not any(re.fullmatch(pattern, name) for pattern in SPILLS):
            raise SystemExit(
                f"kernels/cuda/{source}: {name} spills {stores} bytes for {architecture}: give it more registers, "
                "or a line in SPILLS of kernels/tools/compile_cuda.py with the reason"
            )
    return functions


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile the CUDA kernels.")
    parser.add_argument("--toolkit", type=pathlib.Path, default=TOOLKIT, help="the folder that has bin/nvcc")
    parser.add_argument("--jobs", type=int, default=2, help="how many sources to compile at once")
    arguments = parser.parse_args()
    nvcc = find_nvcc(arguments.toolkit)
    stale = [source for source in sorted(SOURCES.glob("*.cu")) if not is_current(nvcc, source)]
    if not stale:
        return
    prune()
    print(f"kernels/cuda: {len(stale)} to compile, ten minutes for all, or to take from {CACHE}", flush=True)
    # The largest first, so that the last one to end is not also the last to begin.
    stale.sort(key=lambda source: source.stat().st_size, reverse=True)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for line in pool.map(lambda source: provide(nvcc, source), stale):
            print(line, flush=True)


if __name__ == "__main__":
    main()
