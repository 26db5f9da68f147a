"""The reference of the command line: the parsers of ``python -m epigrad`` as Markdown."""

from __future__ import annotations

import argparse
from collections.abc import Iterator


def markdown(parser: argparse.ArgumentParser) -> str:
    """A section for each subcommand: what it does, its options, and the end of its help."""
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return "\n".join(line for name, command in commands.choices.items() for line in _section(name, command))


def _section(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## {name}\n"
    yield f"{command.description}\n"
    yield f"```sh\n{command.prog} [options]\n```\n"
    formatter = command._get_formatter()
    for group in command._action_groups:
        rows = [
            f"| `{formatter._format_action_invocation(action)}` | {_cell(formatter._expand_help(action))} |"
            for action in group._group_actions
            if action.dest != "help"
        ]
        if rows:
            yield f"| {_cell(group.title or '')} | |\n|---|---|\n" + "\n".join(rows) + "\n"
    yield f"```text\n{(command.epilog or '').strip()}\n```\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
