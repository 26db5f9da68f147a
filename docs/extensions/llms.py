"""llms.txt, by which a language model finds the pages, and llms-full.txt with the text of all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders.text import TextBuilder
from sphinx.writers.text import TextTranslator


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write both beside the pages, once these are there."""
    if exception is not None or app.builder.format != "html":
        return
    lines = [f"# {app.config.project}\n\n> {_summary(app, app.config.root_doc)}"]
    builder = TextBuilder(app, app.env)
    builder.init()
    texts = []
    for caption, pages in _sections(app):
        lines.append(f"\n## {caption}\n")
        for page in pages:
            url = f"{app.config.html_baseurl}{app.builder.get_target_uri(page)}"
            lines.append(f"- [{app.env.titles[page].astext()}]({url}): {_summary(app, page)}")
            tree = app.env.get_and_resolve_doctree(page, builder)
            translator = TextTranslator(tree, builder)
            tree.walkabout(translator)
            texts.append(f"{url}\n\n{translator.body}")
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n")
    Path(app.outdir, "llms-full.txt").write_text("\n\n".join(texts))


def _sections(app: Sphinx) -> Iterator[tuple[str, list[str]]]:
    """The captions of the first page's lists, with the pages below them."""
    for toctree in app.env.get_doctree(app.config.root_doc).findall(addnodes.toctree):
        named = [name for _, name in toctree["entries"]]
        yield toctree["caption"], [page for name in named for page in (name, *app.env.toctree_includes.get(name, ()))]


def _summary(app: Sphinx, page: str) -> str:
    """A page's first sentence."""
    paragraphs = app.env.get_doctree(page).findall(nodes.paragraph)
    text = next((paragraph.astext() for paragraph in paragraphs), "").replace("\n", " ")
    return text.split(". ")[0].rstrip(".:") + "."
