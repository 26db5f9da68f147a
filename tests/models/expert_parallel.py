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

import torch
import torch.distributed as dist
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
]
"""Tokens go to the processes that have their experts; all go to all, with sentinels; tokens go by
epigrad's transport; each process has a part of every expert; `epigrad.parallel.ExpertParallel`."""


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


def main(rank: int, world: int, port: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    register_experts()
    for name, way in CHECKS:
        if way == "style":
            check_style(name)
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
