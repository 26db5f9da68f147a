"""The hand-written part of the extension: tensors go to the core without a copy; all arguments are positional."""

from collections.abc import Callable

from torch import Tensor

Tensors = tuple[Tensor | None, ...]

def configure(
    tensor_type: type,
    parameter_type: type,
    make_error: Callable[[int, str, bytes, int, int], Exception],
    allows_tf32: Callable[[], bool],
    array_type: type,
    /,
) -> None: ...
def infer(
    op: str,
    kind: str | None,
    dim: int,
    gate_first: bool,
    weight: float | None,
    inputs: Tensors,
    needs: tuple[bool, ...],
    /,
) -> tuple[tuple[tuple[int, ...] | None, ...], int]: ...
def launch(
    op: str,
    kind: str | None,
    dim: int,
    gate_first: bool,
    weight: float | None,
    inputs: Tensors,
    needs: tuple[bool, ...],
    outputs: Tensors | None,
    threads: int,
    accumulate: bool,
    backend: str | None,
    /,
) -> Tensors: ...
def run(
    op: str,
    kind: str | None,
    dim: int,
    gate_first: bool,
    weight: float | None,
    inputs: Tensors,
    outputs: Tensors,
    workspace: Tensor | None,
    stream: int | None,
    threads: int,
    accumulate: bool,
    /,
) -> None: ...
def plan_check(
    handle: int, inputs: Tensors, outputs: Tensors, workspace: Tensor | None, accumulate: bool, /
) -> None: ...
def plan_run(
    handle: int,
    inputs: Tensors,
    outputs: Tensors,
    workspace: Tensor | None,
    stream: int | None,
    threads: int,
    accumulate: bool,
    /,
) -> None: ...
def forked() -> bool: ...
def webgpu_alloc(nbytes: int, /) -> int: ...
def webgpu_free(address: int, /) -> None: ...
def webgpu_write(address: int, host: int, nbytes: int, /) -> None: ...
def webgpu_read(address: int, host: int, nbytes: int, /) -> None: ...
