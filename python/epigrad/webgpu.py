"""Arrays on a WebGPU adapter: data that stays there between calls.

The functions of `epigrad.forward` and `epigrad.backward` take arrays and return them, also as
``out``. Calls on arrays do not wait: work is done in the order of the calls, and `Array.to_torch`
waits for what it reads.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from epigrad import errors
from epigrad._core import loader

__all__ = ["Array"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32)
_DLPACK_WEBGPU = 15  # kDLWebGPU


def _free(address: int) -> None:
    # After a fork the array belongs to the parent: its core must not be entered here.
    if loader.is_loaded():
        loader.core().webgpu_free(address)


class _Memory:
    """Bytes on the adapter, which are freed with the last array in them."""

    __slots__ = ("__weakref__", "address")

    def __init__(self, nbytes: int) -> None:
        self.address: int = loader.core().webgpu_alloc(nbytes)
        weakref.finalize(self, _free, self.address).atexit = False


class Array:
    """A contiguous tensor in an adapter's memory; it has no graph.

    `copy.copy` gives an array in the same memory, which both hold. `copy.deepcopy` copies the data.
    A pickle carries the data, so it can be read by any process that has an adapter.

    Args:
        shape: its sizes.
        dtype: `torch.float32`, `torch.bfloat16` or `torch.float16`; `torch.int64` or `torch.int32`
            for indices and offsets.

    Raises:
        UnsupportedError: (a ``NotImplementedError``) another dtype.
        BackendUnavailableError: (a ``RuntimeError``) WebGPU cannot run here; the message says why.
        DeviceError: (a ``RuntimeError``) the adapter has no memory left.

    Examples:
        >>> import torch
        >>> import epigrad
        >>> from epigrad.webgpu import Array
        >>> def on_the_adapter():
        ...     x, weight = (Array.from_torch(torch.ones(2, 3)) for _ in range(2))
        ...     return epigrad.forward.linear(x, weight, None, "relu").to_torch()
        >>> is_here = any(info.name == "webgpu" and info.available for info in epigrad.backends())
        >>> on_the_adapter().sum().item() if is_here else 12.0
        12.0
    """

    __slots__ = ("__weakref__", "_dtype", "_memory", "_shape", "address")

    def __init__(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        if dtype not in _DTYPES:
            raise errors.UnsupportedError(
                f"webgpu.Array: dtype: {dtype}, want one that WebGPU has kernels for: {', '.join(map(str, _DTYPES))}"
            )
        self._shape = torch.Size(shape)
        if any(size < 0 for size in self._shape):
            raise errors.InvalidProblemError(f"webgpu.Array: shape: {list(self._shape)}, want sizes >= 0")
        self._dtype = dtype
        self._memory = _Memory(self.nbytes)
        self.address: int = self._memory.address
        """What names its memory, as the address that no other tensor has; nothing can be read or
        written there."""

    @classmethod
    def from_torch(cls, tensor: Tensor) -> Array:
        """Copy a tensor of the host to the adapter.

        Raises:
            DTypeError: (a ``TypeError``) not a tensor.
            DeviceMismatchError: (a ``ValueError``) a tensor that is not on the CPU.
        """
        if not isinstance(tensor, Tensor):
            raise errors.DTypeError(f"webgpu.Array: tensor: {type(tensor).__name__}, want a torch.Tensor")
        if tensor.device.type != "cpu":
            raise errors.DeviceMismatchError(f"webgpu.Array: tensor: on {tensor.device}, want a tensor on the CPU")
        array = cls(tensor.shape, tensor.dtype)
        host = tensor.detach().resolve_neg().contiguous()
        if host._is_zerotensor():  # forward mode's zeros, which have no memory
            host = host.clone()
        if array.nbytes:
            loader.core().webgpu_write(array.address, host.data_ptr(), array.nbytes)
        return array

    def to_torch(self) -> Tensor:
        """Wait for the calls that write to the array, and copy it to a new tensor on the CPU."""
        host = torch.empty(self._shape, dtype=self._dtype)
        if self.nbytes:
            loader.core().webgpu_read(self.address, host.data_ptr(), self.nbytes)
        return host

    def new_empty(self, shape: Sequence[int]) -> Array:
        """A new array of the same dtype, with nothing in it yet."""
        return Array(shape, self._dtype)

    @property
    def shape(self) -> torch.Size:
        """The sizes."""
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype, which is PyTorch's."""
        return self._dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return math.prod(self._shape) * self._dtype.itemsize

    def stride(self) -> tuple[int, ...]:
        """The strides of a contiguous tensor, in elements."""
        strides = [1] * len(self._shape)
        for dim in range(len(strides) - 1, 0, -1):
            strides[dim - 1] = strides[dim] * max(self._shape[dim], 1)
        return tuple(strides)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device type kDLWebGPU, and its index."""
        return _DLPACK_WEBGPU, 0

    def __copy__(self) -> Array:
        copied = object.__new__(type(self))
        copied._shape, copied._dtype = self._shape, self._dtype
        copied._memory, copied.address = self._memory, self.address
        return copied

    def __deepcopy__(self, memo: dict[int, object]) -> Array:
        return type(self).from_torch(self.to_torch())  # copy.deepcopy keeps it in the memo

    def __reduce__(self) -> tuple[Callable[[Tensor], Array], tuple[Tensor]]:
        return type(self).from_torch, (self.to_torch(),)

    def __repr__(self) -> str:
        return f"epigrad.webgpu.Array(shape={tuple(self._shape)}, dtype={self._dtype})"


loader.set_array_class(Array)

Data = TypeVar("Data", Tensor, Array)
"""What a call's operands and results all are: tensors, or arrays."""
