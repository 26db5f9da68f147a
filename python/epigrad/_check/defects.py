"""Malformed calls: the defects that a call can have, and the class of the error for each."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from epigrad import errors
from epigrad._check.spoilable import Call
from epigrad._core import tables

PYTHON = ("autograd", "forward", "backward")
INTO = ("forward", "backward", "c", "plan")
ALL = ("autograd", *INTO)


Spoil = Callable[[Call], bool]


@dataclass(frozen=True)
class Defect:
    """A way to spoil a call.

    Attributes:
        name: the defect, in words.
        error: the class that it raises.
        ways: calls that can have it.
        spoil: changes the call; False where it has nothing of this sort to change.
    """

    name: str
    error: type[errors.EpigradError]
    ways: tuple[str, ...]
    spoil: Spoil


def spoiled(call: Call) -> Defect:
    """Something that is wrong with a call from now on."""
    possible = [defect for defect in DEFECTS if call.way in defect.ways]
    call.rng.shuffle(possible)
    return next(defect for defect in possible if defect.spoil(call))


def _dtype(call: Call) -> bool:
    keys = call.floats
    key = call.rng.choice(keys)
    others = [torch.int32] if call.way == "c" else [torch.int32, torch.complex64, torch.bool, torch.uint8]
    if len(keys) > 1 and key == keys[0]:
        others.append(torch.float32 if call.tensors[key].dtype == torch.float64 else torch.float64)
    made = torch.zeros(call.tensors[key].shape, dtype=call.rng.choice(others), device=call.tensors[key].device)
    call.tensors[key] = made
    return True


def _an_output(call: Call) -> str:
    return call.rng.choice(list(call.outputs))


def _out_dtype(call: Call) -> bool:
    name = _an_output(call)
    out = call.outputs[name]
    call.outputs[name] = out.to(torch.float64 if call.problem.torch_dtype != torch.float64 else torch.float32)
    return True


def _out_shape(call: Call) -> bool:
    name = _an_output(call)
    out = call.outputs[name]
    call.outputs[name] = call.rng.choice((out.unsqueeze(0), torch.cat([out.reshape(-1), out.new_zeros(1)])))
    return True


def _out_overlaps_itself(call: Call) -> bool:
    name = _an_output(call)
    out = call.outputs[name]
    wide = [dim for dim, size in enumerate(out.shape) if size > 1]
    if not wide or not out.numel():
        return False
    strides = list(out.stride())
    strides[call.rng.choice(wide)] = 0
    call.outputs[name] = out.as_strided(out.shape, strides)
    return True


def _beside(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Tensors of these shapes and dtypes, whose memory has one element in common."""
    size = max(one.element_size(), other.element_size())
    buffer = torch.zeros(size * (one.numel() + other.numel() + 1), dtype=torch.uint8, device=one.device)
    begin = (one.numel() - 1) * one.element_size() // size * size
    first = buffer[: one.numel() * one.element_size()].view(one.dtype).view(one.shape)
    second = buffer[begin : begin + other.numel() * other.element_size()].view(other.dtype).view(other.shape)
    return first.copy_(one), second


def _out_overlaps_input(call: Call) -> bool:
    # a gradient may take the place of the output's gradient
    names = [name for name in call.floats if name != "grad_output" and call.tensors[name].numel()]
    name = _an_output(call)
    if not names or not call.outputs[name].numel():
        return False
    key = call.rng.choice(names)
    call.tensors[key], call.outputs[name] = _beside(call.tensors[key], call.outputs[name])
    return True


def _outputs_overlap(call: Call) -> bool:
    names = [name for name, out in call.outputs.items() if out.numel()]
    if len(names) < 2:
        return False
    one, other = call.rng.sample(names, 2)
    call.outputs[one], call.outputs[other] = _beside(call.outputs[one], call.outputs[other])
    return True


def _argument(name: str, *values: Any, in_c: tuple[Any, ...] = ()) -> Spoil:
    """Gives an argument one of these values."""

    def spoil(call: Call) -> bool:
        key = call.problem.row.kind_argument if name == "kind" else name
        if key in call.options:
            call.options[key] = call.rng.choice(in_c if in_c and call.way == "c" else values)
        return key in call.options

    return spoil


def _field(name: str, *values: Any) -> Spoil:
    """Gives a field of the C interface's struct one of these values."""

    def spoil(call: Call) -> bool:
        call.fields[name] = call.rng.choice(values)
        return True

    return spoil


def _dim(call: Call) -> bool:
    rank = call.tensors["input"].dim() if call.problem.row.splits else 0
    return _argument("dim", rank, -rank - 1, 2**20)(call)


def _save(call: Call) -> bool:
    if call.problem.row.keeps:
        call.options["save"] = call.rng.choice(("all", "", "Auto", "output"))
    return "save" in call.options


def _offsets(call: Call) -> bool:
    """Those that fall, are negative, or exceed the rows: on a CPU, which reads them."""
    offsets = call.tensors.get("offsets")
    if offsets is None or call.backend != "cpu":
        return False
    offsets = offsets.clone()
    rows, place = call.problem.sizes[0], call.rng.randrange(len(offsets))
    offsets[place] = call.rng.choice((-1, rows + 1, -(2**31), 2**31 - 1))
    if len(offsets) > 1 and rows and call.rng.random() < 0.5:
        offsets[:] = rows
        offsets[-1] = rows - 1
    call.tensors["offsets"] = offsets
    return True


def _not_a_tensor(call: Call) -> bool:
    key = call.rng.choice([name for name in call.floats if name != "weight" or call.problem.op != "lerp"])
    call.tensors[key] = call.rng.choice(("x", 3, [1.0], object()))
    return True


def _rank(call: Call) -> bool:
    """More dimensions than any tensor may have."""
    tensor = call.tensors[key := call.floats[0]]
    if not tensor.numel():
        return False
    call.tensors[key] = tensor.reshape(*(1,) * 70, *tensor.shape)
    return True


def _device(call: Call) -> bool:
    """Memory that is not there."""
    if len(call.floats) < 2:
        return False
    key = call.floats[-1]
    call.tensors[key] = call.tensors[key].to("meta")
    return True


def _shape(call: Call) -> bool:
    """An operand whose last size fits to nothing."""
    row, tensors = call.problem.row, call.tensors
    names = [name for name in call.floats if tensors[name].dim()]
    match row.name:
        case "matmul_bias_activation":  # another size of b makes another output
            names = [name for name in names if name != "b"]
        case "lerp":  # which broadcasts
            sizes = [tensors[name].shape[-1] for name in names]
            names = [name for name in names if sizes.count(tensors[name].shape[-1]) > 1 < tensors[name].shape[-1]]
        case _ if not row.multiplies:
            channels = [each.name for each in row.inputs if each.channels]
            fits = [name for name in channels if tensors[name].shape[0] + 1 in (1, tensors["input"].shape[1])]
            names = [name for name in names if name not in fits and (name != "input" or call.is_backward)]
    if not names:
        return False
    tensor = tensors[key := call.rng.choice(names)]
    tensors[key] = tensor.new_zeros((*tensor.shape[:-1], tensor.shape[-1] + 1))
    return True


def _misaligned(call: Call) -> bool:
    """Memory that begins one byte behind an element's place."""
    # An adapter that is rounded before the call is read by PyTorch.
    names = [name for name in call.floats if not (name.startswith("adapter") and call.problem.is_wide(name))]
    places = [(call.tensors, name) for name in names] + [(call.outputs, name) for name in call.outputs]
    places = [(where, name) for where, name in places if where[name].numel() and not where[name].is_cuda]
    if not places:
        return False
    where, name = call.rng.choice(places)
    tensor = where[name]
    memory = bytearray(tensor.numel() * tensor.element_size() + 64)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % 16 + 1
    where[name] = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=start).view(tensor.shape)
    return True


def _workspace(call: Call) -> bool:
    needed = call.plan().workspace_size if call.way == "plan" else call.prepared().workspace_size()
    call.short = call.rng.randint(1, needed) if needed else 0
    return bool(needed)


def _buffer(call: Call) -> bool:
    """A size of a buffer that is less than shape and strides reach."""
    row = tables.row_with(call.op, call.described)
    tensors = [*map(call.tensors.get, row.tensors), *map(call.outputs.get, row.results)]
    places = [(place, t) for place, t in enumerate(tensors) if isinstance(t, Tensor) and t.numel()]
    if not places:
        return False
    place, tensor = call.rng.choice(places)
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    nbytes = (ctypes.c_uint64 * len(tensors))()
    nbytes[place] = call.rng.randint(1, reach * tensor.element_size() - 1)
    call.fields["nbytes"] = nbytes
    return True


def _accumulate(call: Call) -> bool:
    row = tables.row_with(call.op, call.described)
    added = [name for name, each in zip(row.results, row.outputs, strict=True) if each.is_added_to]
    names = [name for name in call.outputs if name in added]
    if not names:
        return False
    call.options["accumulate"] = True
    del call.outputs[call.rng.choice(names)]
    return True


def _half_an_adapter(call: Call) -> bool:
    names = [name for name in call.floats if name.startswith("adapter")]
    if names:
        call.tensors[call.rng.choice(names)] = None
    return bool(names)


def _no_bias(call: Call) -> bool:
    """A tensor for a gradient that cannot exist."""
    names = [name for name, shape in call.problem.shapes.items() if shape is None]
    if not names:
        return False
    name = call.rng.choice(names)
    call.outputs[f"grad_{name}"] = torch.full(
        (3,), torch.nan, dtype=call.problem.torch_dtype, device=call.tensors["grad_output"].device
    )
    return True


_KINDS = ("Relu", "swigluu", "none ", "x" * 1000, "relu(1)")
_OPS = b"", b"linearr", b"Linear", b"x" * 1000, None
_GATE = _argument("gate", "third", "", "Second", in_c=(-1, 4, 77))
DEFECTS = (
    Defect("a dtype", errors.DTypeError, ALL, _dtype),
    Defect("out's dtype", errors.DTypeError, INTO, _out_dtype),
    Defect("out's shape", errors.InvalidProblemError, INTO, _out_shape),
    Defect("out shares memory with itself", errors.InvalidProblemError, INTO, _out_overlaps_itself),
    Defect("out shares memory with an operand", errors.InvalidProblemError, INTO, _out_overlaps_input),
    Defect("two outputs share memory", errors.InvalidProblemError, INTO[1:], _outputs_overlap),
    Defect("out for a gradient that cannot exist", errors.InvalidProblemError, ("backward",), _no_bias),
    Defect("half an adapter", errors.DTypeError, PYTHON, _half_an_adapter),
    Defect("half an adapter of buffers", errors.InvalidProblemError, ("c", "plan"), _half_an_adapter),
    Defect("accumulate without an out", errors.InvalidProblemError, ("backward",), _accumulate),
    Defect("an unknown kind", errors.InvalidProblemError, ALL, _argument("kind", *_KINDS)),
    Defect("a kind of a wrong type", errors.InvalidProblemError, PYTHON, _argument("kind", 3, b"relu", 1.5, ["relu"])),
    Defect("an unknown gate", errors.InvalidProblemError, ALL, _GATE),
    Defect("a dimension that is not there", errors.InvalidProblemError, ALL, _dim),
    Defect("an unknown save", errors.InvalidProblemError, ("autograd",), _save),
    Defect("wrong offsets", errors.InvalidProblemError, (*PYTHON, "c"), _offsets),
    Defect("an operand's shape", errors.InvalidProblemError, ALL, _shape),
    Defect("not a tensor", errors.DTypeError, (*PYTHON, "plan"), _not_a_tensor),
    Defect("too many dimensions", errors.InvalidProblemError, ALL, _rank),
    Defect("a tensor on another device", errors.DeviceMismatchError, (*PYTHON, "plan"), _device),
    Defect("misaligned memory", errors.MisalignedOperandError, ALL, _misaligned),
    Defect("too small a workspace", errors.WorkspaceTooSmallError, ("c", "plan"), _workspace),
    Defect("too small a buffer", errors.BufferTooSmallError, ("c",), _buffer),
    Defect("an unknown flag", errors.InvalidProblemError, ("c",), _field("flags", *[1 << bit for bit in range(8, 32)])),
    Defect("an unknown operation", errors.InvalidProblemError, ("c",), _field("op", *_OPS)),
)
