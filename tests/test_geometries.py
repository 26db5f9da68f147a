"""What the extension remembers of geometries: a call like one before asks Go for nothing but its work."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own, which remembers nothing of other tests. When each geometry had one place of 512, every round
# forgot 24 of the 100.
PROGRAM = """
import torch, epigrad
from epigrad import _native, forward
whole = torch.ones(120, 8)
epigrad.backends()
def asked(rows):
    before = _native.inferred()
    for count in range(1, rows + 1):
        out = forward.lerp(whole[:count], whole[:count], 0.5)
        assert out.shape == (count, 8)
    return _native.inferred() - before
print(asked(50), asked(50), asked(100), asked(100), asked(100))
"""


def test_geometries_that_share_a_place_do_not_drive_each_other_out() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-5:] == ["50", "0", "50", "0", "0"]
