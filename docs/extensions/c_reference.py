"""The C reference: epigrad.h's comments and declarations as Markdown for Sphinx.

A comment belongs to the declarations that follow it without an empty line. A comment behind a
field, or in the lines above it, belongs to that field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKENS = re.compile(
    r"/\*(?P<comment>.*?)\*/"
    r"|^#define (?P<macro>EPG_\w+) (?P<value>[^\n]+)$"
    r"|enum \{(?P<enum>.*?)\};"
    r"|typedef struct (?P<struct>\w+) \{(?P<fields>.*?)\} \w+;"
    r"|typedef (?P<type>[^;{]+);"
    r"|^(?P<function>[\w *]+?\w+\([^;{]*\));"
    r"|(?P<gap>\n\n)",
    re.M | re.S,
)
_MEMBER = re.compile(
    r"(?:/\*(?P<above>.*?)\*/\s*)?(?P<text>\w[^,;/]*?)\s*(?:[,;]|(?=/\*)|$)[ \t]*(?:/\*(?P<behind>.*?)\*/)?", re.S
)


class _Declaration(NamedTuple):
    directive: str
    signatures: tuple[str, ...]
    body: str = ""


def markdown(header: str) -> str:
    """The header's documentation, beginning with the comment at its top."""
    roles = _roles(header)
    blocks: list[str] = []
    comment = ""
    declared: list[_Declaration] = []
    for token in _TOKENS.finditer(header + "\n\n"):
        if token["gap"] or token["comment"] is not None:
            blocks += _group(comment, declared, roles)
            comment, declared = token["comment"] or "", []
        else:
            declared += _declarations(token, roles)
    return "```{eval-rst}\n" + "\n\n".join(blocks) + "\n```\n"


def _declarations(token: re.Match[str], roles: dict[str, str]) -> Iterator[_Declaration]:
    if token["macro"]:
        yield _Declaration("c:macro", (token["macro"],), f"``{token['value']}``")
    elif token["enum"]:
        yield from (_Declaration("c:enumerator", (name,), body) for name, body in _members(token["enum"], roles))
    elif token["struct"]:
        fields = (_Declaration("c:member", (name,), body) for name, body in _members(token["fields"], roles))
        yield _Declaration("c:struct", (token["struct"],), "\n".join(map(_rst_of, fields)))
    elif token["type"]:
        yield _Declaration("c:type", (token["type"],))
    else:
        yield _Declaration("c:function", (" ".join(token["function"].split()),))


def _group(comment: str, declared: list[_Declaration], roles: dict[str, str]) -> Iterator[str]:
    """A comment with its declarations. Neighbouring functions are one directive, which holds the
    comment where there is no other."""
    merged: list[_Declaration] = []
    for each in declared:
        if merged and each.directive == merged[-1].directive == "c:function":
            merged[-1] = each._replace(signatures=merged[-1].signatures + each.signatures)
        else:
            merged.append(each)
    text = _prose_of(comment, roles)
    if len(merged) == 1:
        merged[0] = merged[0]._replace(body=f"{text}\n\n{merged[0].body}")
    elif text:
        yield text
    yield from map(_rst_of, merged)


def _rst_of(declaration: _Declaration) -> str:
    signatures = f"\n{' ' * 6}".join(declaration.signatures)
    body = "".join(f"   {line}".rstrip() + "\n" for line in declaration.body.strip().split("\n"))
    return f".. {declaration.directive}:: {signatures}\n\n{body}"


def _members(text: str, roles: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The fields of a struct, or the constants of an enum, with their comments."""
    for member in _MEMBER.finditer(text.strip()):
        body = "\n\n".join(_prose_of(comment, roles) for comment in (member["above"], member["behind"]) if comment)
        yield " ".join(member["text"].split()), body


def _roles(header: str) -> dict[str, str]:
    """How each name of the header is linked to."""
    roles = dict.fromkeys(re.findall(r"^#define (EPG_\w+) ", header, re.M), "c:macro")
    roles |= dict.fromkeys(re.findall(r"\b(EPG_\w+) = ", header), "c:enumerator")
    roles |= dict.fromkeys(re.findall(r"\b(epg_\w+)\(", header), "c:func")
    return roles | {"epg_call": "c:struct", "epg_plan": "c:type"}


def _prose_of(comment: str, roles: dict[str, str]) -> str:
    """A comment as reStructuredText: paragraphs, tables and code."""
    text = re.sub(r"\n *\* ?", "\n", comment.strip())
    return "\n\n".join(
        _indented(part) if part.startswith("  ") else _paragraph(part, roles) for part in re.split(r"\n\n+", text)
    )


def _paragraph(text: str, roles: dict[str, str]) -> str:
    escaped = re.sub(r"([*`|\\]|_\b)", r"\\\1", text)

    def link(name: re.Match[str]) -> str:
        return f":{roles[name[0]]}:`{name[0]}`" if name[0] in roles else f"``{name[0]}``"

    return re.sub(r"\b(?:epg|EPG|EPIGRAD)_\w+", link, escaped)


def _indented(text: str) -> str:
    """A table where the first line has several columns, else code. A line that ends in a backslash
    goes on in the next one."""
    first = text.split("\n")[0].strip()
    if not re.fullmatch(r"(\w+\s{2,})+\w+", first):
        return "::\n\n" + "\n".join(f"   {line.strip()}" for line in text.split("\n"))
    table = ".. list-table::\n   :header-rows: 1\n\n"
    for line in re.sub(r"\s*\\\n\s*", "   ", text).split("\n"):
        name, rest = line.split(maxsplit=1)
        cells = [name, *re.split(r"\s{2,}", rest.strip(), maxsplit=len(first.split()) - 2)]
        table += "".join(
            f"   {'- ' if place else '* - '}".rjust(7) + f"{' '.join(cell.split())}\n"
            for place, cell in enumerate(cells)
        )
    return table
