"""Writes the tables that pages make of records, and draws their pictures.

    python -m tests.tools.pages

A table stands between two comments of its page, of which the first has its name.
tests/docs/test_pages.py fails where a table or a picture is stale.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.repository import ROOT
from tests.tools import check_page, gains, gpu_tables, readme, startup

TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"claims": readme.claims_table},
    "docs/performance.md": {
        "CPUs": readme.cpu_table,
        "startup": startup.table,
        "operations": gpu_tables.operations_table,
        "slower rows": gpu_tables.slower_table,
    },
    "docs/models.md": {"models": readme.models_table},
    "docs/pays.md": {"gains": gains.pays_table},
    "docs/experts.md": {
        "mixtures": gains.gpu_tables,
        "beside SonicMoE": gains.sonicmoe_table,
        "mixtures on a CPU": gains.cpu_table,
    },
    "docs/howto/expert-parallel.md": {"many GPUs": gains.parallel_table},
    "docs/promises.md": {"checks": check_page.written},
    "docs/results/README.md": {"goals": readme.summary_table},
}
END = "<!-- the end of the table -->\n"


def begin(name: str) -> str:
    """The comment above a table."""
    return f"<!-- python -m tests.tools.pages writes this table: {name} -->\n"


def filled(path: str) -> str:
    """A page with its tables anew."""
    page = (ROOT / path).read_text()
    for name, table in TABLES[path].items():
        before, rest = page.split(begin(name))
        page = before + begin(name) + table() + END + rest.split(END, 1)[1]
    return page


def main() -> None:
    for path in TABLES:
        (ROOT / path).write_text(filled(path))
    readme.draw()


if __name__ == "__main__":
    main()
