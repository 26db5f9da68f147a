"""Runs a script in a Python process of its own: for what happens once in a process, or to the
process itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import epigrad

from tests.support.repository import ROOT

PACKAGE_PARENT = Path(epigrad.__file__).resolve().parent.parent


def environment(**changes: str | None) -> dict[str, str]:
    """This process's environment, without epigrad's own variables, with these changes; None removes
    one.

    The process can import epigrad and what tests share.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("EPIGRAD_")}
    env["PYTHONPATH"] = os.pathsep.join([str(PACKAGE_PARENT), str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def torchtitan_path() -> str:
    """PYTHONPATH for a process that imports torchtitan. `make` installs it into a folder of its
    own, with what it imports and no more: it names older releases of what other tests have.
    """
    return os.pathsep.join([environment()["PYTHONPATH"], str(Path(sys.prefix) / "torchtitan")])


def start(*arguments: str, timeout: float = 60, **changes: str | None) -> subprocess.CompletedProcess[str]:
    """A finished Python process; one that hangs is ended at the timeout and raises."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(**changes),
        check=False,
    )


def run_script(script: str, timeout: float = 60, **changes: str | None) -> str:
    """What a script printed, stripped; fails if it does not end with exit code 0."""
    done = start("-c", script, timeout=timeout, **changes)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def run_together(module: str, *arguments: str, world: int = 2) -> list[str]:
    """What so many processes of a module print that train as one: their arguments are rank, world
    and port, and then these. Fails unless all end with exit code 0.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(rank), str(world), str(port), *arguments],
            cwd=ROOT,
            env=dict(os.environ, OMP_NUM_THREADS="1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return outputs
