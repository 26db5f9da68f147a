"""Patches a copy of gopy's sources, so that what it generates has one order and holds no more than is bound.

gopy ranges over Go maps while it writes, and Go shuffles those; it binds 17 slice types that nobody asked for; and it
gives every function without a result an argument that runs it on a goroutine of its own, where a panic would end the
process.
"""

import pathlib
import re

SORTED_KEYS = """package bind

import "sort"

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
"""


def _over_sorted_keys(match: re.Match[str]) -> str:
    """`for key, value := range m {` becomes a loop over the sorted keys of m."""
    key, value, mapping = match.groups()
    key = "key" if key == "_" else key
    return f"for _, {key} := range sortedKeys({mapping}) {{\n{value} := {mapping}[{key}]"


# file in gopy's bind/, pattern, replacement, how often it must match
PATCHES = (
    ("package.go", r"for (\w+), (\w+) := range (structs|funcs|ifaces|slices|maps) \{", _over_sorted_keys, 6),
    ("gen.go", r"for (_), (im) := range (g\.pkg\.pyimports) \{", _over_sorted_keys, 1),
    ("gen.go", r"for (pp), (pnm) := range (current\.imports) \{", _over_sorted_keys, 1),
    ("symbols.go", r"\taddStdSliceMaps\(\)", "\tmakeGoPackage()", 1),
    ("gen_func.go", r"if nres == 0 \{", "if nres < 0 {", 3),
)


def patch(source: pathlib.Path) -> None:
    """Patch the gopy sources in `source`."""
    (source / "bind" / "sorted_keys.go").write_text(SORTED_KEYS)
    for name, pattern, replacement, expected in PATCHES:
        path = source / "bind" / name
        text, count = re.subn(pattern, replacement, path.read_text())
        if count != expected:
            raise SystemExit(
                f"gopy's bind/{name}: {count} matches of {pattern!r}, want {expected}: is this another version?"
            )
        path.write_text(text)
