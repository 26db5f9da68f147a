"""One of the processes of test_experts.py: the experts of tiny models split between them, by
transformers' own expert and tensor parallelism, beside one process that has them all.

    python -m tests.models.expert_parallel RANK WORLD PORT

Prints a line ``ok EXPERTS WAY`` for each check that passed, and ends with the first failure's
traceback.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any
from unittest import mock

import peft
import pytest
import torch
import torch.distributed as dist
from epigrad import errors
from epigrad._core.wide import DECLARES
from epigrad.integrations.transformers import patch, register_experts
from epigrad.parallel import ExpertParallel
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from transformers.distributed.expert_parallel import apply_expert_parallelism
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from tests.models import mixtures

CHECKS = [
    ("Qwen3MoeExperts", "all_to_all"),
    ("Qwen3MoeExperts", "all_reduce"),
    ("Qwen3MoeExperts", "epigrad"),
    *([("Qwen3MoeExperts", "tensor")] if torch.__version__ >= "2.12" else []),  # columns of two halves
    ("GptOssExperts", "all_to_all"),
    ("GptOssExperts", "all_reduce"),
    ("GptOssExperts", "epigrad"),
    ("Qwen3MoeExperts", "style"),
    ("GptOssExperts", "style"),
    *([("Qwen3MoeExperts", "float32 gradients"), ("GptOssExperts", "float32 gradients")] if DECLARES else []),
    ("Qwen3MoeExperts", "epigrad, adapters"),
    ("GptOssExperts", "epigrad, adapters"),
    ("Qwen3MoeExperts", "style, adapters"),
    ("GptOssExperts", "style, adapters"),
    ("Qwen3MoeExperts", "adapters refused"),
]
"""Tokens go to the processes that have their experts; all go to all, with sentinels; tokens go by
epigrad's transport; each process has a part of every expert; `epigrad.parallel.ExpertParallel`,
and its gradients in float32; the two of epigrad with PEFT's adapters of experts; and where these
are refused."""


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def split(model: nn.Module, name: str, way: str) -> None:
    """Give each process its part of the experts."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    paths = [path for path, module in model.named_modules() if type(module).__name__ == name]
    plan = {}
    if way == "tensor":
        for path in paths:
            plan |= {f"{path}.gate_up_proj": "packed_colwise", f"{path}.down_proj": "rowwise", path: "moe_tp_experts"}
        apply_tensor_parallelism(model, mesh, plan)
        return
    for path in paths:
        plan |= {f"{path}.{part}": "grouped_gemm" for part, _ in model.get_submodule(path).named_parameters()}
        plan[path] = "ep_dispatch_experts"
    apply_expert_parallelism(model, mesh, mesh, plan, way)


def check(name: str, way: str) -> None:
    alone = mixtures.make(name)
    want = mixtures.results(alone, mixtures.inputs())
    model = mixtures.make(name)
    model.set_experts_implementation("epigrad")
    split(model, name, way)
    for experts in mixtures.experts_of(model, name):
        parameters = list(experts.parameters())
        assert all(isinstance(parameter, DTensor) for parameter in parameters)
        local = sum(parameter.to_local().numel() for parameter in parameters)  # type: ignore[attr-defined]
        assert local * dist.get_world_size() == sum(parameter.numel() for parameter in parameters)
        assert experts._is_expert_parallel == (way != "tensor")
    got = {key: whole(value) for key, value in mixtures.results(model, mixtures.inputs()).items()}
    worst = mixtures.error(got, want)
    assert worst < 1e-12, worst


def check_style(name: str) -> None:
    """Each process has a sequence of its own."""
    alone, model = mixtures.make(name), mixtures.make(name)
    patch(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    paths = [path for path, module in model.named_modules() if type(module).__name__ == name]
    parallelize_module(model, mesh, dict.fromkeys(paths, ExpertParallel()))
    want = mixtures.results(alone, mixtures.inputs())
    rank = dist.get_rank()
    embeddings = mixtures.inputs()[rank : rank + 1].detach().requires_grad_()
    out = mixtures.output(model, embeddings)
    generator = torch.Generator().manual_seed(3)
    grad = torch.randn(want["output"].shape, generator=generator, dtype=torch.float64)[rank : rank + 1]
    experts = {f"{path}.{part}": p for path in paths for part, p in model.get_submodule(path).named_parameters()}
    of_embeddings, *grads = torch.autograd.grad(out, [embeddings, *experts.values()], grad)
    got = {"output": out.detach(), "embeddings": of_embeddings}
    got |= {key: whole(gradient) for key, gradient in zip(experts, grads, strict=True)}
    own = {key: want[key][rank : rank + 1] for key in ("output", "embeddings")}
    worst = mixtures.error(got, own | {key: want[key] for key in experts})
    assert worst < 1e-12, worst


def check_float32_gradients(name: str) -> None:
    """Parameters of 16 bits that ask for them by grad_dtype."""
    model: Any = mixtures.make(name, torch.bfloat16)
    patch(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    paths = [path for path, module in model.named_modules() if type(module).__name__ == name]
    parallelize_module(model, mesh, dict.fromkeys(paths, ExpertParallel()))
    parameters = [parameter for experts in mixtures.experts_of(model, name) for parameter in experts.parameters()]
    for parameter in parameters:
        parameter.grad_dtype = torch.float32
    mixtures.output(model, mixtures.inputs(dtype=torch.bfloat16)).square().sum().backward()
    for parameter in parameters:
        grad = parameter.grad.to_local()
        assert grad.dtype == torch.float32 and not torch.equal(grad, grad.bfloat16().float())


def adapted(model: nn.Module, names: tuple[str, ...] = ("default",)) -> Any:
    """The model with PEFT's adapters of its experts, which alone learn; the same each time."""
    torch.manual_seed(2)
    parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    config = peft.LoraConfig(
        r=2, lora_alpha=3, init_lora_weights=False, target_modules=[], target_parameters=parameters
    )
    made = peft.get_peft_model(model, config, names[0])  # type: ignore[arg-type]
    for name in names[1:]:
        made.add_adapter(name, config)
    return made


def check_transport_of_adapters(name: str) -> None:
    """The processes have the same tokens, and each the whole gradient."""
    want = mixtures.results(adapted(mixtures.make(name)), mixtures.inputs())
    model = mixtures.make(name)
    model.set_experts_implementation("epigrad")
    split(model, name, "epigrad")
    worst = mixtures.error(mixtures.results(adapted(model), mixtures.inputs()), want)
    assert worst < 1e-12, worst


def check_style_of_adapters(name: str) -> None:
    """Each process has a sequence of its own, and a part of the gradient. Experts are spread before
    PEFT wraps them, or afterwards."""
    alone = adapted(mixtures.make(name))
    want = mixtures.results(alone, mixtures.inputs())
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))
    for before in (True, False):
        model: Any = mixtures.make(name)
        patch(model)
        paths = [path for path, module in model.named_modules() if type(module).__name__ == name]
        if before:
            parallelize_module(model, mesh, dict.fromkeys(paths, ExpertParallel()))
        model = adapted(model)
        if not before:
            parallelize_module(model.base_model.model, mesh, dict.fromkeys(paths, ExpertParallel()))
        for experts in mixtures.experts_of(model, name):
            assert all(isinstance(parameter, DTensor) for parameter in experts.parameters())
        embeddings = mixtures.inputs()[rank : rank + 1].detach().requires_grad_()
        out = mixtures.output(model, embeddings)
        generator = torch.Generator().manual_seed(3)
        grad = torch.randn(want["output"].shape, generator=generator, dtype=torch.float64)[rank : rank + 1]
        wanted = {key: parameter for key, parameter in model.named_parameters() if parameter.requires_grad}
        of_embeddings, *grads = torch.autograd.grad(out, [embeddings, *wanted.values()], grad)
        for gradient in grads:
            dist.all_reduce(gradient)
        got = {"output": out.detach(), "embeddings": of_embeddings} | dict(zip(wanted, grads, strict=True))
        own = {key: want[key][rank : rank + 1] for key in ("output", "embeddings")}
        worst = mixtures.error(got, want | own)
        assert worst < 1e-12, worst
        saved, other = peft.get_peft_model_state_dict(model), peft.get_peft_model_state_dict(alone)
        assert list(saved) == list(other) and all(torch.equal(saved[key], other[key]) for key in other)


def check_refused_adapters(name: str) -> None:
    """Before anything is sent: adapters by another transport, and those that PEFT computes."""
    model: Any = mixtures.make(name)
    model.set_experts_implementation("epigrad")
    split(model, name, "all_to_all")
    other = mixtures.make(name)
    patch(other)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    paths = [path for path, module in other.named_modules() if type(module).__name__ == name]
    parallelize_module(other, mesh, dict.fromkeys(paths, ExpertParallel()))
    several = adapted(other, ("default", "second"))
    with several.disable_adapter():
        mixtures.output(several, mixtures.inputs())
    want = mixtures.output(several, mixtures.inputs())
    several.base_model.set_adapter(["default", "second"])
    theirs = sys.modules[apply_expert_parallelism.__module__]
    sent = {"side_effect": AssertionError("sent")}
    with mock.patch.object(theirs, "all_to_all_single", **sent), mock.patch.object(dist, "all_to_all_single", **sent):
        with pytest.raises(errors.UnsupportedError, match=r"down_proj has an adapter, .*want ep_implementation="):
            mixtures.output(adapted(model), mixtures.inputs())
        with pytest.raises(errors.UnsupportedError, match=r"down_proj has several active adapters, default, second,"):
            mixtures.output(several, mixtures.inputs())
    several.base_model.set_adapter("default")
    assert torch.equal(mixtures.output(several, mixtures.inputs()), want)


def main(rank: int, world: int, port: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    register_experts()
    checks = {
        "style": check_style,
        "float32 gradients": check_float32_gradients,
        "epigrad, adapters": check_transport_of_adapters,
        "style, adapters": check_style_of_adapters,
        "adapters refused": check_refused_adapters,
    }
    for name, way in CHECKS:
        if way in checks:
            checks[way](name)
        else:
            check(name, way)
        print(f"ok {name} {way}", flush=True)
    dist.destroy_process_group()
    # As tests/pytorch/distributed.py: Gloo's threads may hold tensors still.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
