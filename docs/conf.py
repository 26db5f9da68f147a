"""The site: `make docs` builds it into build/site, with warnings as errors.

Pages are the Markdown files and notebooks of this folder. The reference of Python comes from
docstrings, that of C from epigrad.h, that of Go from its package, and that of the command line from
its parser, so none of them is written by hand.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "extensions"))

import c_reference
import command_line
import llms
import repository_links
from docutils import nodes
from epigrad import cli, errors
from repository_links import REPOSITORY, ROOT
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

HEADER = ROOT / "cbridge" / "include" / "epigrad.h"
(version,) = re.findall(r'^#define EPG_VERSION "(.+)"$', HEADER.read_text(), re.M)

project = "epigrad"
author = "The epigrad developers"
copyright = author
release = version

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["README.md", "extensions"]
nitpicky = True
# What is not epigrad's, or private, has no page here. One word in backticks may be an argument.
nitpick_ignore_regex = [("py:.*", r"(?!epigrad\.).*|.*\._.*"), ("c:.*", r"(?!epg_|EPG_).*")]

# --- Markdown and notebooks -----------------------------------------------------------------------

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # notebooks.py has run them

# --- docstrings -----------------------------------------------------------------------------------

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_custom_sections = [("Shape", "returns_style")]
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
c_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

# --- HTML -----------------------------------------------------------------------------------------

html_theme = "furo"
html_title = f"epigrad {version}"
html_baseurl = "https://epigrad.github.io/epigrad/"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["extensions/style.css"]
html_css_files = ["style.css"]
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}

# Links to files of the repository are checked when they are made. Its other pages may ask for a
# login, and the site's address is where this build goes.
linkcheck_ignore = [f"{REPOSITORY}.*", f"{html_baseurl}.*"]
linkcheck_timeout = 20
linkcheck_retries = 2


def go_reference() -> str:
    command = ["go", "run", "./docs/extensions/godoc", "go/epigrad"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


# What a page has below the text in its file.
GENERATED = {
    "reference/c": lambda: c_reference.markdown(HEADER.read_text()),
    "reference/command-line": lambda: command_line.markdown(cli.parser()),
    "reference/go": go_reference,
}


def read_page(app: Sphinx, name: str, text: list[str]) -> None:
    text[0] = repository_links.resolved(text[0], Path(app.env.doc2path(name)).parent)
    if name in GENERATED:
        text[0] += "\n" + GENERATED[name]()


def read_included(app: Sphinx, path: Path, name: str, text: list[str]) -> None:
    text[0] = repository_links.resolved(text[0], Path(app.srcdir, path).parent)


def link_pages_in_docstrings(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    lines[:] = [re.sub(r"(?<![\w/])docs/([\w/-]+)\.md", r":doc:`\1 </\1>`", line) for line in lines]


def name_public_bases(app: Sphinx, name: str, thing: type, options: object, bases: list[type]) -> None:
    """The bases of a private base in its place."""
    bases[:] = [public for base in bases for public in (base.__bases__ if base.__name__.startswith("_") else (base,))]


def hide_how_plans_are_made(
    app: Sphinx, what: str, name: str, thing: object, options: object, signature: str | None, result: str | None
) -> tuple[str, None] | None:
    """`select` makes a plan, not its class."""
    return ("", None) if what == "class" and hasattr(thing, "select") else None


def find_short_names(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element) -> Any:
    """A docstring's name of a function, a module's class or an error without what is before it."""
    if node.get("refdomain") != "py" or node["reftarget"].startswith("epigrad."):
        return None
    module = "epigrad.errors" if node["reftarget"] in errors.__all__ else "epigrad"
    target = f"{module}.{node['reftarget']}"
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, content)


def setup(app: Sphinx) -> None:
    app.connect("source-read", read_page)
    app.connect("include-read", read_included)
    app.connect("autodoc-process-docstring", link_pages_in_docstrings)
    app.connect("autodoc-process-signature", hide_how_plans_are_made)
    app.connect("autodoc-process-bases", name_public_bases)
    app.connect("missing-reference", find_short_names)
    app.connect("build-finished", llms.write)
