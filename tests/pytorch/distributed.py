"""One of the processes of test_distributed.py: trains small networks in parallel, and each check
beside one process.

    python -m tests.pytorch.distributed RANK WORLD PORT DEVICE [CHECK]...

runs these checks, or all. Prints a line ``ok CHECK: FUNCTION`` for each that passed, and ends with
the first failure's traceback.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import operator
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import epigrad
import pytest
import torch
import torch.distributed as dist
from epigrad import errors
from epigrad.parallel import GatedColwiseParallel
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn.parallel import DistributedDataParallel

from tests.pytorch.networks import FEATURES, NETWORKS, WHOLE, Again, Mixture
from tests.support import adapters
from tests.support.operators import FUNCTIONS, NAMES
from tests.support.repository import ROOT

ROWS = 8


def network(op: str, device: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, nn.Module, Tensor]:
    """The same network twice, and a batch; the same in every process."""
    torch.manual_seed(7)
    model = NETWORKS[op]().to(device, dtype)
    return model, copy.deepcopy(model), torch.randn(ROWS, FEATURES, device=device, dtype=dtype)


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().sin().square().mean()


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assert_same_training(parallel: nn.Module, alone: nn.Module, **tolerance: float) -> None:
    for (name, one), other in zip(parallel.named_parameters(), alone.parameters(), strict=True):
        if not other.requires_grad:
            assert one.grad is None, name
            continue
        assert one.grad is not None and other.grad is not None, name
        torch.testing.assert_close(whole(one.grad).double(), other.grad.double(), **tolerance)


def piece(x: Tensor) -> Tensor:
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def ddp(op: str, mesh: DeviceMesh, device: str) -> None:
    for spread in (DistributedDataParallel, lambda model: DistributedDataParallel(Again(model))):
        model, alone, x = network(op, device)
        parallel = spread(model)
        for _ in range(2):
            loss(parallel, piece(x)).backward()
            loss(alone, x).backward()
        assert_same_training(parallel, alone, rtol=1e-6, atol=1e-7)


def shard(model: nn.Module, mesh: DeviceMesh, **options: Any) -> None:
    """FSDP2 of a network and of its layers: those of a block too, whose hooks gather their
    parameters."""
    for module in (*model.children(), model):
        fully_shard(module, mesh=mesh, **options)


def fsdp2(op: str, mesh: DeviceMesh, device: str) -> None:
    for again in (False, True):
        for reshard in (False, True):
            model, alone, x = network(op, device)
            shard(model, mesh, reshard_after_forward=reshard)
            parallel = Again(model) if again else model
            total = loss(parallel, piece(x))
            assert all(isinstance(parameter, DTensor) == reshard for parameter in model.parameters())
            total.backward()
            loss(alone, x).backward()
            assert_same_training(parallel, alone, rtol=1e-6, atol=1e-7)
    # Mixed precision: parameters and inputs in bfloat16, gradients summed and kept in float32.
    model, alone, x = network(op, device, torch.float32)
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    seen: list[torch.dtype] = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    loss(model, piece(x)).backward()
    loss(alone.bfloat16(), x.bfloat16()).backward()
    assert seen == [torch.bfloat16]
    assert all(p.grad.dtype == torch.float32 for p in model.parameters() if p.requires_grad)
    assert_same_training(model, alone, rtol=2e-2, atol=2e-3)


GATED_COLUMNS = torch.__version__ >= "2.12"
"""Whether this version of PyTorch has what columns of two halves need."""
TWO_HALVES = ("gated_linear", adapters.ADAPTED["gated_linear"], "gated_mlp", "experts")

GATE = "second" if GATED_COLUMNS else "odd"


def halves(dim: int) -> Any:
    """The same part of values and gates."""
    return _StridedShard(dim, split_factor=2) if GATED_COLUMNS else Shard(dim)


def with_adapters(op: str) -> list[Any]:
    """Placements of a call with adapters, which lie as their weight does."""
    found = list(COLUMNS[op])
    for place in adapters.weights(op):
        weight = COLUMNS[op][place]
        in_columns = weight.is_shard(len(adapters.CALLS[op][1][place]) - 1)
        found += [weight, Replicate()] if in_columns else [Replicate(), weight]
    return found


COLUMNS = {
    # Parameters by features, activations where that is: no communication forward.
    "matmul_bias_activation": [Replicate(), Shard(1), Shard(0)],
    "linear": [Replicate(), Shard(0), Shard(0)],
    "activation": [Shard(1)],
    "gated_activation": [Shard(0)],
    "gated_product": [Shard(1), Shard(1)],
    "lerp": [Shard(1), Shard(1), Shard(0)],
    "prelu": [Shard(1), Shard(0)],
    "xielu": [Shard(1), Replicate(), Replicate()],
    "gated_linear": [Replicate(), *[Shard(0)] * 4],
    "mlp": [Replicate(), Shard(0), Shard(0), Shard(1), Replicate()],
    "gated_mlp": [Replicate(), halves(0), halves(0), Shard(1), Replicate()],
    "grouped_linear": [Replicate(), Shard(1), Shard(1)],
    "experts": [Replicate(), Replicate(), halves(1), halves(1), Shard(2), Replicate()],
}
COLUMNS |= {row: with_adapters(op) for op, row in adapters.ADAPTED.items()}
GROUPED = tuple(name for op in ("grouped_linear", "experts") for name in (op, adapters.ADAPTED[op]))
"""Functions that also take a tensor of integers, which every device has whole."""


def call_of(op: str, device: str) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """A function and its tensors."""
    if op in FUNCTIONS:
        return FUNCTIONS[op].function, FUNCTIONS[op].tensors(device, torch.float64)
    (plain,) = (name for name, row in adapters.ADAPTED.items() if row == op)
    tensors = adapters.drawn(plain, torch.float64, torch.float64)
    options = {"gate": GATE} if plain in ("gated_mlp", "experts") else {}
    return partial(adapters.call, plain, **options), adapters.leaves([tensor.to(device) for tensor in tensors])


def placed(op: str, mesh: DeviceMesh, device: str, placements: Sequence[Any]) -> None:
    """The function on DTensors communicates nothing, and has the gradients of whole tensors."""
    function, tensors = call_of(op, device)
    shards = [
        distribute_tensor(t.detach(), mesh, [way]).requires_grad_() for t, way in zip(tensors, placements, strict=True)
    ]
    want = function(*tensors)
    grad = torch.randn(want.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(device)
    with CommDebugMode() as forward:
        out = function(*shards)
    assert forward.get_total_counts() == 0, forward.get_comm_counts()
    torch.testing.assert_close(whole(out), want)
    placed_grad = distribute_tensor(grad, mesh, _placements_of_gradient(out))
    with CommDebugMode() as backward:
        grads = torch.autograd.grad(out, shards, placed_grad)
    assert backward.get_total_counts() == 0, backward.get_comm_counts()
    for one, other in zip(grads, torch.autograd.grad(want, tensors, grad), strict=True):
        torch.testing.assert_close(whole(one), other)


def _placements_of_gradient(out: Any) -> list[Any]:
    """Of a sum in parts every part has the whole gradient."""
    return [Replicate() if way.is_partial() else way for way in out.placements]


PLANS: dict[str, Callable[[], dict[str, Any]]] = {
    "gated_product": lambda: {"value": ColwiseParallel(), "gate": ColwiseParallel(), "down": RowwiseParallel()},
    "mlp": lambda: {"up": ColwiseParallel(), "down": RowwiseParallel()},
    "gated_mlp": lambda: {"up": GatedColwiseParallel(), "down": RowwiseParallel()},
}


def tensor_parallel(op: str, mesh: DeviceMesh, device: str) -> None:
    if op == "experts":
        split_experts(mesh, device)
    if GATED_COLUMNS or op not in TWO_HALVES:
        with implicit_replication():
            placed(op, mesh, device, COLUMNS[op])
    if op in GROUPED:
        return
    # And by rows.
    rest: Any = Shard(0) if op in ("gated_product", "lerp") else Replicate()
    by_rows = [Shard(0), *[rest] * (len(COLUMNS[op]) - 1)]
    placed(op, mesh, device, [*by_rows[:2], Replicate()] if op == "lerp" else by_rows)
    if op not in PLANS or (op == "gated_mlp" and not GATED_COLUMNS):
        return
    model, alone, x = network(op, device)
    parallel = parallelize_module(model, mesh, PLANS[op]())
    x_alone = x.clone().requires_grad_()
    x.requires_grad_()
    with CommDebugMode() as communication:
        loss(parallel, x).backward()
    # One sum of outputs forward; backward one of the input's gradients for each layer that takes
    # it.
    assert set(communication.get_comm_counts()) == {torch.ops.c10d_functional.all_reduce}
    assert communication.get_total_counts() == (3 if op == "gated_product" else 2)
    loss(alone, x_alone).backward()
    torch.testing.assert_close(x.grad, x_alone.grad)
    assert_same_training(parallel, alone, rtol=1e-6, atol=1e-7)
    for (name, one), other in zip(parallel.state_dict().items(), alone.state_dict().values(), strict=True):
        assert torch.equal(whole(one), other), name


def split_experts(mesh: DeviceMesh, device: str) -> None:
    """Experts with a part of their hidden features on each device."""
    for gate in ("odd", *(["second"] if GATED_COLUMNS else [])):
        torch.manual_seed(7)
        model = Mixture(gate).to(device, torch.float64)
        alone, x = copy.deepcopy(model), torch.randn(ROWS, FEATURES, device=device, dtype=torch.float64)
        recipes()["split_experts"](model.experts, mesh)
        for one, other in list(zip(model.experts.parameters(), alone.experts.parameters(), strict=True))[:3]:
            assert one.to_local().numel() * dist.get_world_size() == other.numel()  # type: ignore[attr-defined]
        x_alone = x.clone().requires_grad_()
        x.requires_grad_()
        with CommDebugMode() as communication:
            loss(model, x).backward()
        # One sum of outputs forward; backward one of the input's gradients, and one of the scales'.
        assert set(communication.get_comm_counts()) == {torch.ops.c10d_functional.all_reduce}
        assert communication.get_total_counts() == 3
        loss(alone, x_alone).backward()
        torch.testing.assert_close(x.grad, x_alone.grad)
        assert_same_training(model, alone, rtol=1e-6, atol=1e-7)


def neighbours(ways: list[Any]) -> list[Any]:
    """Placements where values lie beside their gates."""
    return [Shard(way.dim) if isinstance(way, _StridedShard) else way for way in ways]


PARTS: dict[str, list[Any]] = {
    **{op: COLUMNS[op][1:] for op in ("matmul_bias_activation", "linear", "prelu", "gated_linear", "grouped_linear")},
    **{row: neighbours(COLUMNS[row][2 if op == "experts" else 1 :]) for op, row in adapters.ADAPTED.items()},
    "activation": [Shard(0), Shard(0)],
    "gated_activation": [Shard(0), Shard(0)],
    "lerp": [Shard(0)],
    "xielu": [Replicate(), Replicate()],
}
"""Placements of the parameters of networks that no plan splits."""


@cache
def grid(device: str) -> DeviceMesh:
    """Two processes share features, others have data of their own."""
    return init_device_mesh(device, (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "features"))


def split(op: str, model: nn.Module, mesh: DeviceMesh) -> None:
    """Tensor parallelism of a network."""
    if op == "experts":
        recipes()["split_experts"](model.experts, mesh)
    elif op in PLANS:
        parallelize_module(model, mesh, PLANS[op]())
    else:
        parameters = [(module, *item) for module in model.modules() for item in module.named_parameters(recurse=False)]
        for (module, name, parameter), way in zip(parameters, PARTS[op], strict=True):
            placed = distribute_tensor(parameter, mesh, [way])
            module.register_parameter(name, nn.Parameter(placed, parameter.requires_grad))
        distribute_module(
            model,
            mesh,
            input_fn=lambda module, inputs, mesh: (DTensor.from_local(inputs[0], mesh, [Replicate()]),),
            output_fn=lambda module, output, mesh: output.full_tensor(),
        )


def fsdp2_and_tensor_parallel(op: str, mesh: DeviceMesh, device: str) -> None:
    data = grid(device)["data"]
    for again in (False, True):
        model, alone, x = network(op, device)
        if op == "gated_mlp":  # FSDP2 splits a bias by the dimension that has two halves
            for block in (model, alone):
                block.up.register_parameter("bias", None)  # type: ignore[union-attr]
        split(op, model, grid(device)["features"])
        parallel = Again(model) if again else model
        shard(parallel, data, shard_placement_fn=recipes()["by_columns"])
        with implicit_replication():
            loss(parallel, x.chunk(data.size())[data.get_local_rank()]).backward()
        loss(alone, x).backward()
        assert_same_training(parallel, alone, rtol=1e-6, atol=1e-7)
        for one, other in zip(parallel.state_dict().values(), alone.state_dict().values(), strict=True):
            assert torch.equal(whole(one), other)
    if op == "gated_mlp" and data.size() > 1:
        model, _, _ = network(op, device)
        split(op, model, grid(device)["features"])
        shard(model, data)
        with pytest.raises(errors.UnsupportedError, match=r"up\.weight: FSDP2 has sharded its rows"):
            model.state_dict()


def refused(op: str, mesh: DeviceMesh, device: str) -> None:
    """A layer with an activation is not sharded as a linear one. A gated layer whose halves lie
    apart says so, or is gathered where it is known. So do float32 gradients where there are none.
    """
    if op in ("linear", "experts") and HAS_GRAD_DTYPE:
        float32_refused(op, mesh, device)
    if op == "linear":
        model, _, _ = network(op, device)
        with pytest.raises(NotImplementedError, match=r"ColwiseParallel currently only support nn\.Linear"):
            parallelize_module(model, mesh, ColwiseParallel())
    if op != "gated_mlp":
        return
    model, alone, x = network(op, device)
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    with pytest.raises(errors.UnsupportedError, match="GatedColwiseParallel"):
        model(x)
    model, alone, x = network(op, device)
    if not GATED_COLUMNS:
        with pytest.raises(errors.UnsupportedError, match=r"want 2\.12"):
            parallelize_module(model, mesh, PLANS[op]())
    plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
    torch.testing.assert_close(parallelize_module(model, mesh, plan)(x), alone(x))


@cache
def recipes() -> dict[str, Any]:
    """The functions and classes that pages define for several processes."""
    scope: dict[str, Any] = {}
    for name in ("pytorch.md", "howto/parallel.md"):
        for block in re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / name).read_text(), re.MULTILINE | re.DOTALL):
            tree = ast.parse(block)
            tree.body = [node for node in tree.body if isinstance(node, DEFINITIONS)]
            exec(compile(tree, name, "exec"), scope)
    return scope


DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


class Exact:
    """A network whose gradients in float32 are exact, and have more bits than bfloat16: operands
    and values inside are small whole numbers, of which gradients are sums.
    """

    def __init__(self, op: str, device: str, dtype: torch.dtype) -> None:
        def drawn(shape: tuple[int, ...], low: int, high: int) -> Tensor:
            return torch.randint(low, high + 1, shape, generator=generator).to(device)

        generator = torch.Generator().manual_seed(7)
        self.model = WHOLE[op]().to(device)
        for parameter in self.model.parameters():
            # PEFT has adapters in float32 beside frozen layers of 16 bits
            parameter.data = drawn(parameter.shape, -1, 1).to(dtype if parameter.requires_grad else torch.bfloat16)
        self.alone = copy.deepcopy(self.model).double()
        self.x = drawn((1024, FEATURES), 0, 2)
        self.grad_output = drawn(self.alone(self.x.double()).shape, 0, 2)
        (self.alone(self.x.double()) * self.grad_output).sum().backward()

    def backward(self, parallel: nn.Module) -> None:
        """Backward of this process's piece of the batch."""
        out = parallel(piece(self.x).bfloat16().requires_grad_())
        assert out.dtype == torch.bfloat16
        (out.double() * piece(self.grad_output)).sum().backward()

    def check(self, times: int, of: Callable[[Any], Any] = operator.attrgetter("grad")) -> None:
        """The mean over processes of so many equal batches."""
        for (name, parameter), other in zip(self.model.named_parameters(), self.alone.parameters(), strict=True):
            if not other.requires_grad:
                continue
            assert other.grad is not None
            want = other.grad * times / dist.get_world_size()
            assert of(parameter).dtype == torch.float32, name
            assert torch.equal(whole(of(parameter)).double(), want), name
            assert want.ndim == 1 or not torch.equal(want, want.bfloat16().double()), f"bfloat16 has {name}"


HAS_GRAD_DTYPE = hasattr(torch.Tensor, "grad_dtype")
FOLLOWS_GRAD_DTYPE = torch.__version__ >= "2.15"
"""Whether FSDP2 does, and functions can declare the dtype of gradients."""


def asking(model: nn.Module) -> nn.Module:
    """The model, whose gradients shall be float32."""
    for parameter in model.parameters():
        parameter.grad_dtype = torch.float32
    return model


def with_main_grads(model: nn.Module) -> nn.Module:
    """The model, whose parameters have `main_grad`."""
    for parameter in model.parameters():
        parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
    return model


@contextlib.contextmanager
def without_sums(parallel: Any) -> Iterator[None]:
    """Gradients stay with their process."""
    if isinstance(parallel, DistributedDataParallel):
        with parallel.no_sync():
            yield
        return
    parallel.set_requires_gradient_sync(False)
    yield
    parallel.set_requires_gradient_sync(True)


def float32_gradients(op: str, mesh: DeviceMesh, device: str) -> None:
    """Gradients of 16-bit operands are float32, and summed in float32."""
    if not HAS_GRAD_DTYPE:
        return
    page, world = recipes(), dist.get_world_size()
    wide, half = torch.float32, torch.bfloat16

    def sharded(model: nn.Module, recipe: str = "shard") -> nn.Module:
        page[recipe](model, (), *([mesh] if recipe == "shard" else [device, world]))
        return model

    def by_policy(model: nn.Module, reduce_dtype: torch.dtype | None = wide) -> nn.Module:
        fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(half, reduce_dtype))
        return model

    def by_grad_dtype(model: nn.Module) -> nn.Module:
        fully_shard(asking(model), mesh=mesh)
        return model

    def by_itself(model: nn.Module) -> nn.Module:
        fully_shard(model, mesh=mesh)
        return model

    ways: list[tuple[torch.dtype, Callable[[nn.Module], nn.Module]]] = [
        (wide, sharded),
        (wide, lambda model: sharded(model, "replicate")),
        (wide, lambda model: sharded(Again(model, reentrant=True))),
    ]
    if FOLLOWS_GRAD_DTYPE:
        ways += [
            (wide, by_policy),
            (wide, lambda model: by_policy(model, None)),
            (wide, lambda model: by_policy(Again(model))),
            (wide, lambda model: by_policy(Again(model, reentrant=True))),
            (half, by_grad_dtype),
            (half, lambda model: by_grad_dtype(Again(model, reentrant=True))),
            (wide, lambda model: DistributedDataParallel(page["In16Bits"](model))),
            (wide, lambda model: DistributedDataParallel(Again(page["In16Bits"](model)))),
        ]
    if op in adapters.ADAPTED.values():
        ways = [(wide, DistributedDataParallel), (wide, by_itself), (wide, lambda model: by_itself(Again(model)))]
    for dtype, spread in ways:
        exact = Exact(op, device, dtype)
        parallel = spread(exact.model)
        with without_sums(parallel):
            exact.backward(parallel)
        exact.backward(parallel)
        exact.check(2)
    if op not in adapters.ADAPTED.values():
        main_grads(op, mesh, device)


def main_grads(op: str, mesh: DeviceMesh, device: str) -> None:
    """Sums over batches in float32 by the loop itself, in `grad` and in `main_grad`; by FSDP2."""
    average, keep = recipes()["average"], recipes()["keep_main_grad"]
    for name in ("grad", "main_grad"):
        exact = Exact(op, device, torch.bfloat16)
        parameters = list(exact.model.parameters())
        if name == "grad":
            asking(exact.model)
        else:
            with_main_grads(exact.model)
            handle = epigrad.accumulate_main_grad(exact.model)
        for _ in range(2):
            exact.backward(exact.model)
        assert all((parameter.grad is None) == (name == "main_grad") for parameter in parameters)
        average([getattr(parameter, name) for parameter in parameters])
        exact.check(2, operator.attrgetter(name))
    handle.remove()
    exact = Exact(op, device, torch.float32)
    recipes()["shard"](exact.model, (), mesh)
    keep(exact.model)
    for _ in range(2):
        exact.backward(exact.model)
        assert all(parameter.grad is None for parameter in exact.model.parameters())
    exact.check(2, operator.attrgetter("main_grad"))


def float32_refused(op: str, mesh: DeviceMesh, device: str) -> None:
    """Where a parameter's gradient has to come to `.grad` and have its dtype, or is a shard."""
    exact = Exact(op, device, torch.bfloat16)
    with pytest.raises(RuntimeError, match="Expected BFloat16, got Float"):
        exact.backward(DistributedDataParallel(asking(exact.model)))
    model = with_main_grads(Exact(op, device, torch.bfloat16).model)
    handle = epigrad.accumulate_main_grad(model)
    with pytest.raises(errors.UnsupportedError, match="under DistributedDataParallel"):
        exact.backward(DistributedDataParallel(model))
    fully_shard(model, mesh=mesh)
    with pytest.raises(errors.UnsupportedError, match="a sharded parameter"):
        epigrad.accumulate_main_grad(model)
    with pytest.raises(errors.UnsupportedError, match="FSDP was applied to the module afterwards"):
        exact.backward(model)
    handle.remove()


ALL = (*NAMES, *adapters.ADAPTED.values())
CHECKS: dict[str, tuple[Callable[[str, DeviceMesh, str], None], Iterable[str]]] = {
    "DDP": (ddp, ALL),
    "FSDP2": (fsdp2, ALL),
    "TP": (tensor_parallel, ALL),
    "FSDP2 x TP": (fsdp2_and_tensor_parallel, [op for op in ALL if GATED_COLUMNS or op not in TWO_HALVES]),
    "float32 gradients": (float32_gradients, WHOLE),
    "refused": (refused, ("linear", "gated_mlp", "experts")),
}
"""What is checked, and of which functions."""


def main(rank: int, world: int, port: int, device: str, *names: str) -> None:
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    mesh = init_device_mesh(device, (world,))
    for name in names or CHECKS:
        check, ops = CHECKS[name]
        for op in ops:
            try:
                check(op, mesh, device)
            except Exception as error:
                raise AssertionError(f"{name} {op}") from error
            print(f"ok {name}: {op}", flush=True)
    dist.destroy_process_group()
    # Gloo's threads may hold tensors still, and end the process with SIGABRT if the interpreter
    # ends under them (pytorch/pytorch#179291).
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
