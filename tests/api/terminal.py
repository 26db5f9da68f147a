"""A terminal of 80 columns, for what the command line prints in one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import termios
import threading
from collections.abc import Iterator

COLUMNS = 80


class Screen:
    """What a terminal got.

    Attributes:
        raw: all of it, once the terminal is closed.
    """

    raw = ""

    @property
    def lines(self) -> list[str]:
        """Everything that was written, without colours and movements of the cursor: a bar's lines
        too, as often as they were drawn."""
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw)
        return [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]


@contextlib.contextmanager
def terminal(name: str = "stdout") -> Iterator[Screen]:
    """Put a terminal in the place of a stream of `sys`."""
    redirected = {"stdout": contextlib.redirect_stdout, "stderr": contextlib.redirect_stderr}[name]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    screen, chunks = Screen(), list[bytes]()

    def read() -> None:
        with contextlib.suppress(OSError):  # which is how the end looks
            while chunk := os.read(ours, 4096):
                chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with open(theirs, "w") as stream, redirected(stream):
            yield screen
    finally:
        reader.join()
        os.close(ours)
        screen.raw = b"".join(chunks).decode()
