"""Tells of the problem at which the process ended, as a fault in a kernel ends it."""

from __future__ import annotations

import contextlib
import subprocess
import sys

_WATCHER = """
import sys
last = ""
for line in sys.stdin:
    last = line.strip()
if last:
    print(f"the process ended at this problem:\\n  {last}", file=sys.stderr)
"""


class Watch:
    """A process that hears of each problem, and prints the last one where it hears of no end."""

    def __enter__(self) -> Watch:
        # Of a session of its own, where Ctrl-C does not end it.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WATCHER], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        return self

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{command}\n")
            self._process.stdin.flush()

    def __exit__(self, *_: object) -> None:
        self.tell("")
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()
