"""The site says all that there is to say: every page is in a list, and the reference has every
public name. `make docs` builds it, where a link that leads nowhere is an error."""

from __future__ import annotations

import fnmatch
import importlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import c_reference
import command_line
import epigrad
import pytest
import repository_links
from epigrad import cli

from tests.support.repository import ROOT

DOCS = ROOT / "docs"
HEADER = (ROOT / "cbridge" / "include" / "epigrad.h").read_text()
REFERENCE = DOCS / "reference"


def pages() -> set[str]:
    """The pages of the site, without their endings."""
    found = [path.relative_to(DOCS) for ending in ("md", "ipynb") for path in DOCS.rglob(f"*.{ending}")]
    return {path.with_suffix("").as_posix() for path in found} - {"README"}


def listed() -> list[str]:
    """What the lists of the first page and of the reference name, patterns among them."""
    names = []
    for page in (DOCS / "index.md", REFERENCE / "index.md"):
        folder = page.parent.relative_to(DOCS)
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.M | re.S):
            lines = [line for line in block.split("\n") if line and not line.startswith(":")]
            names += [(folder / re.sub(r".*<(.+)>", r"\1", line)).as_posix() for line in lines]
    return names


def test_every_page_is_in_one_list() -> None:
    patterns = listed()
    for page in pages() - {"index"}:
        assert sum(fnmatch.fnmatchcase(page, pattern) for pattern in patterns) == 1, page
    for name in patterns:
        assert "*" in name or name in pages(), f"{name} is listed and is no page"


def test_the_repositorys_list_has_every_page_too() -> None:
    """docs/README.md, by itself; those of the reference by the first of them."""
    links = re.findall(r"\]\(([^)#]+)\)", (DOCS / "README.md").read_text())
    named = {(DOCS / link).resolve().relative_to(ROOT).as_posix() for link in links}
    named |= {f"docs/{repository_links.PAGES[name]}" for name in named & repository_links.PAGES.keys()}
    for page in pages() - {"index"}:
        first = "reference/index" if page.startswith("reference/") else page
        assert {f"docs/{first}.md", f"docs/{first}.ipynb"} & named, page


# --- environment variables ------------------------------------------------------------------------

SOURCES = ("go", "kernels", "cbridge", "python", "tests", "examples", ".ci", ".github", "setup.py", "Makefile")


def sources() -> Iterator[Path]:
    for name in SOURCES:
        top = ROOT / name
        for path in [top] if top.is_file() else top.rglob("*"):
            text = path.suffix in (".go", ".c", ".h", ".cpp", ".cu", ".cuh", ".py", ".yml", "")
            if text and path.is_file() and "__pycache__" not in path.parts and path != Path(__file__).resolve():
                yield path


def test_every_environment_variable_has_a_row() -> None:
    read = {name for path in sources() for name in re.findall(r"\bEPIGRAD_[A-Z_]*[A-Z]\b", path.read_text())}
    read.remove("EPIGRAD_H")  # the header's guard
    told = set(re.findall(r"\bEPIGRAD_[A-Z_]*[A-Z]\b", (REFERENCE / "environment.md").read_text()))
    assert len(read) > 20
    assert read - told == set(), "docs/reference/environment.md does not have these"
    assert told - read == set(), "docs/reference/environment.md has these, and nothing reads them"


# --- the reference --------------------------------------------------------------------------------

MODULES = (
    *("forward", "backward", "plan", "nn", "errors", "parallel", "webgpu", "instruments"),
    *("integrations.transformers", "integrations.kernels"),
)


def test_the_reference_has_every_python_name() -> None:
    texts = "\n".join(path.read_text() for path in REFERENCE.glob("*.md"))
    modules = set(re.findall(r"automodule:: epigrad\.(\S+)", texts))
    assert modules == set(MODULES)
    told = set(re.findall(r"auto(?:function|class):: (\w+)", texts))
    own = {name for name in epigrad.__all__ if not hasattr(getattr(epigrad, name), "__path__")}
    assert own - {name.split(".")[0] for name in MODULES} == told


def test_modules_in_the_order_of_their_source_show_what_they_list() -> None:
    """Where a page leaves ``__all__`` to Sphinx's own rule, both name the same."""
    texts = "".join(path.read_text() for path in REFERENCE.glob("*.md"))
    names = re.findall(r"automodule:: (\S+)\n.*\n   :ignore-module-all:", texts)
    assert names
    for name in names:
        module = importlib.import_module(name)
        own = {key for key, value in vars(module).items() if getattr(value, "__module__", "") == name}
        assert {key for key in own if not key.startswith("_")} == set(module.__all__)


def directives(kind: str) -> list[str]:
    """The signatures of a kind of declaration in the C reference."""
    found = re.findall(rf"^ *\.\. c:{kind}:: (.*(?:\n {{6}}\S.*)*)", c_reference.markdown(HEADER), re.M)
    return [line.strip() for signatures in found for line in signatures.split("\n")]


def test_the_c_reference_has_the_whole_header() -> None:
    code = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)
    functions = re.findall(r"\b(epg_\w+)\(", code)
    assert len(functions) > 20
    assert [re.findall(r"\b(epg_\w+)\(", signature) for signature in directives("function")] == [
        [name] for name in functions
    ]
    assert directives("enumerator") == re.findall(r"\b(EPG_\w+ = \d+)", code)
    assert directives("macro") == re.findall(r"^#define (EPG_\w+) ", code, re.M)
    structs = re.findall(r"typedef struct epg_\w+ \{(.*?)\}", code, re.S)
    fields = [" ".join(field.split()) for struct in structs for field in struct.split(";")[:-1]]
    assert len(structs) > 1 and directives("member") == fields


def test_the_c_reference_has_every_comment() -> None:
    def words(text: str) -> list[str]:
        return re.findall(r"\w+", text)

    comments = re.findall(r"/\*(.*?)\*/", HEADER, re.S)
    text = " ".join(words(re.sub(r":c:\w+:|\\", "", c_reference.markdown(HEADER))))
    for comment in comments:
        for paragraph in re.split(r"\n \*\n", comment):
            assert " ".join(words(paragraph)) in text, paragraph


def test_the_go_reference_has_every_exported_name() -> None:
    if shutil.which("go") is None:
        pytest.skip("no Go here")
    command = ["go", "run", "./docs/extensions/godoc", "go/epigrad"]
    page = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = {path: path.read_text() for path in (ROOT / "go" / "epigrad").glob("*.go")}
    sources = [text for path, text in files.items() if not path.stem.endswith("_test")]
    types = {name for text in sources for name in re.findall(r"^type ([A-Z]\w*)", text, re.M)}
    functions = {name for text in sources for name in re.findall(r"^func (?:\([^)]*\) )?([A-Z]\w*)", text, re.M)}
    assert types == set(re.findall(r"^## type (\w+)$", page, re.M))
    assert functions == set(re.findall(r"^##+ func (?:\([^)]*\) )?(\w+)$", page, re.M))
    assert page.count("It prints:") == sum(text.count("// Output:") for text in files.values()) > 0


def test_the_command_lines_reference_has_every_option() -> None:
    page = command_line.markdown(cli.parser())
    _, *parts = re.split(r"^## (\w+)$", page, flags=re.M)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    assert list(sections) == ["doctor", "bench", "plans", "check"]
    commands: Any = next(action for action in cli.parser()._actions if action.dest == "command")
    for name, command in commands.choices.items():
        for option in command._option_string_actions:
            assert option in ("-h", "--help") or re.search(rf"`[^`]*{option}\b", sections[name]), f"{name} {option}"


@pytest.mark.parametrize("page", ["index", "start"])
def test_the_first_pages_name_what_is_there(page: str) -> None:
    named = set(re.findall(r"`(?:with )?(epigrad\.[\w.]+)", (DOCS / f"{page}.md").read_text()))
    assert named
    for name in named:
        thing: Any = epigrad
        for part in name.split(".")[1:]:
            thing = getattr(thing, part)


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[a](gpu.md#tests)", "[a](/gpu.md#tests)"),
        ("[a](design/)", "[a](/design/README.md)"),
        ("[a](../CHANGELOG.md)", "[a](/project/changelog.md)"),
        ("[a](../README.md)", "[a](/index.md)"),
        ("[a](../tests/README.md)", "[a](https://github.com/epigrad/epigrad/blob/main/tests/README.md)"),
        ("[a](../tests/parity)", "[a](https://github.com/epigrad/epigrad/tree/main/tests/parity)"),
        ("![a](results/kinds.png)", "![a](/results/kinds.png)"),
        ("[a](results/kinds.png)", "[a](https://github.com/epigrad/epigrad/blob/main/docs/results/kinds.png)"),
        ("[a](nowhere.md)", "[a](nowhere.md)"),
        ("[a](https://example.org/gpu.md)", "[a](https://example.org/gpu.md)"),
        ("[a](#tests)", "[a](#tests)"),
    ],
)
def test_links_lead_to_the_site_or_to_the_repository(text: str, wanted: str) -> None:
    assert repository_links.resolved(text, DOCS) == wanted
