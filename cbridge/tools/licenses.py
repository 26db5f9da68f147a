"""Collects the licences of everything that a Go program contains beside epigrad: Go itself, and
modules linked into it.

    python cbridge/tools/licenses.py [--tags TAGS] PACKAGE OUTPUT

Who passes a binary on passes these texts on with it. They come from the module cache, or from the
folder vendor where that is what the build uses. Needs go on PATH.
"""

import argparse
import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What `go mod vendor` copies beside a module's packages, of the files that bind who passes it on.
NAMES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "PATENTS")
HEAD = """This binary of epigrad contains the software below, under the licences below. epigrad's own is in LICENSE.
"""


def linked_modules(package: str, tags: str) -> dict[str, pathlib.Path]:
    """The root folder of each module that a package is linked from, by name and version, epigrad
    aside."""
    vendor = ["-mod=vendor"] if (ROOT / "vendor").is_dir() else []
    listed = _go("list", *vendor, f"-tags={tags}", "-deps", "-json=ImportPath,Dir,Module", package)
    decoder, modules = json.JSONDecoder(), {}
    while listed:
        found, end = decoder.raw_decode(listed)
        listed = listed[end:].lstrip()
        module = found.get("Module")
        if module and not module.get("Main"):
            # Module.Dir would be the module cache, which a vendored build does not have.
            below = found["ImportPath"].removeprefix(module["Path"])
            modules[f"{module['Path']} {module['Version']}"] = pathlib.Path(found["Dir"].removesuffix(below))
    return modules


def texts(folder: pathlib.Path) -> list[str]:
    """A folder's licence and what else goes with it."""
    paths = [path for path in folder.iterdir() if path.is_file() and path.name.upper().startswith(NAMES)]
    return [path.read_text() for path in sorted(paths)]


def collect(package: str, tags: str = "") -> str:
    """All of the texts, under a heading each."""
    modules = linked_modules(package, tags)
    sections = {name: texts(modules[name]) for name in sorted(modules)}
    go = texts(pathlib.Path(_go("env", "GOROOT")))
    # Some distributions leave the text out of Go's folder. Modules of the same authors have the
    # same.
    go = go or next((found for name, found in sections.items() if name.startswith("golang.org/x/")), [])
    sections = {f"Go {_go('env', 'GOVERSION').removeprefix('go')} (runtime and standard library)": go} | sections
    for name, found in sections.items():
        if not found:
            raise SystemExit(f"cbridge/tools/licenses.py finds no licence of {name}")
    rule = "=" * 80
    return HEAD + "".join(f"\n{rule}\n{name}\n{rule}\n\n" + "\n".join(found) for name, found in sections.items())


def write(output: pathlib.Path, package: str, tags: str = "") -> None:
    """Write the texts to a file, and leave it alone where nothing changed."""
    collected = collect(package, tags)
    if not output.exists() or output.read_text() != collected:
        output.write_text(collected)


def _go(*arguments: str) -> str:
    return subprocess.run(["go", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description="Collect the licences of what a Go program contains.")
    parser.add_argument("--tags", default="", help="build tags")
    parser.add_argument("package")
    parser.add_argument("output", type=pathlib.Path)
    arguments = parser.parse_args()
    os.environ.setdefault("GOTOOLCHAIN", "local")
    write(arguments.output, arguments.package, arguments.tags)


if __name__ == "__main__":
    main()
