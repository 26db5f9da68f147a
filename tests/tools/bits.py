"""The bits of a fixed set of results, to prove that a change of the inside changes none of them.

    python tests/tools/bits.py record BEFORE.json   a hash for each engine, op, kind and dtype
    python tests/tools/bits.py compare BEFORE.json   the same now; exits with 1 where one differs

Every engine that this machine's processor has is recorded, WebGPU and CUDA where they are here.
Only the names of the interface of 0.2 are called, so that one script runs before and after.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

ENGINES = ("go", "avx2", "avx512", "avx512bf16", "amx", "neon")
KINDS = ("none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
GATED = ("glu", "reglu", "swiglu", "geglu", "geglu_tanh", "bilinear")
DTYPES = ("float32", "float64", "bfloat16", "float16")
SIZES = ((1, 1, 1), (5, 17, 33), (37, 131, 67), (128, 256, 320))
SAVE = ("auto", "recompute")


def results(device: str, dtype_name: str) -> Iterator[tuple[str, list[object]]]:
    """Name and tensors of every problem, in one dtype."""
    import epigrad
    import torch

    dtype = getattr(torch, dtype_name)

    def drawn(*shape: int, seed: int, scale: float = 1.0) -> torch.Tensor:
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
        return values.to(dtype).to(device)

    for kind, (m, n, k), transposed in itertools.product(KINDS, SIZES, (False, True)):
        a, weight = drawn(m, k, seed=1), drawn(n, k, seed=2, scale=3 * k**-0.5)
        bias, grad = drawn(n, seed=3), drawn(m, n, seed=4)
        if transposed:
            weight, grad = weight.T.contiguous().T, grad.T.contiguous().T
        out, pre = epigrad.forward.linear(a, weight, bias, kind, return_preactivation=True)
        gradients = epigrad.backward.linear_backward(grad, a, weight, bias, kind, preactivation=pre)
        again = epigrad.backward.linear_backward(grad, a, weight, bias, kind)
        alone = epigrad.backward.linear_backward(grad, a, weight, bias, kind, needs=(False, False, True))
        saved = ()
        if kind in ("relu", "sigmoid", "tanh"):
            saved = epigrad.backward.linear_backward(grad, a, weight, bias, kind, output=out)
        yield f"linear {kind}", [out, pre, *gradients, *again, alone[2], *saved]
    for kind in KINDS:
        a, b, grad = drawn(3, 19, 45, seed=5), drawn(3, 45, 23, seed=6, scale=0.3), drawn(3, 19, 23, seed=7)
        out = epigrad.forward.matmul_bias_activation(a, b, None, kind)
        yield f"matmul {kind}", [out, *epigrad.backward.matmul_bias_activation_backward(grad, a, b, None, kind)[:2]]
        x, grad = drawn(63, 129, seed=8, scale=4), drawn(63, 129, seed=9)
        yield (
            f"activation {kind}",
            [
                epigrad.forward.activation(x, kind),
                epigrad.forward.activation(x.T, kind),
                epigrad.backward.activation_backward(grad, x, kind),
                epigrad.backward.activation_backward(grad, x.T.contiguous().T, kind),
            ],
        )
    for kind in GATED:
        x, grad = drawn(61, 2 * 127, seed=10, scale=4), drawn(61, 127, seed=11)
        yield (
            f"gated {kind}",
            [
                epigrad.forward.gated_activation(x, kind),
                epigrad.backward.gated_activation_backward(grad, x, kind),
                epigrad.forward.gated_activation(x, kind, gate="first"),
                epigrad.forward.gated_product(x[:, :127], x[:, 127:], kind),
                *epigrad.backward.gated_product_backward(grad, x[:, :127], x[:, 127:], kind),
            ],
        )
    start, end, grad = drawn(47, 133, seed=12), drawn(47, 133, seed=13), drawn(47, 133, seed=14)
    weights = (0.3, drawn(47, 133, seed=15), drawn(133, seed=15), drawn(47, 1, seed=15))
    for name, weight in zip(("number", "full", "row", "column"), weights, strict=True):
        gradients = epigrad.backward.lerp_backward(grad, start, end, weight)
        yield f"lerp {name}", [epigrad.forward.lerp(start, end, weight), *(g for g in gradients if g is not None)]
    for kind, save in itertools.product((*KINDS, *GATED), SAVE):
        rows = 2 if kind in GATED else 1
        operands = [
            drawn(3, 29, 53, seed=16),
            drawn(rows * 71, 53, seed=17, scale=0.4),
            drawn(rows * 71, seed=18),
            drawn(53, 71, seed=19, scale=0.2),
            drawn(53, seed=20),
        ]
        operands = [operand.requires_grad_() for operand in operands]
        block = epigrad.gated_mlp if kind in GATED else epigrad.mlp
        out = block(*operands, kind, save=save)
        gradients = torch.autograd.grad(out, operands, drawn(3, 29, 53, seed=21))
        yield f"{block.__name__} {kind} {save}", [out, *gradients]
    for kind in GATED:
        operands = [drawn(3, 37, 53, seed=22), *(drawn(71, 53, seed=23 + i, scale=0.4) for i in range(2))]
        operands = [operand.requires_grad_() for operand in (*operands, drawn(71, seed=25), drawn(71, seed=26))]
        out = epigrad.gated_linear(*operands, kind)
        yield f"gated_linear {kind}", [out, *torch.autograd.grad(out, operands, drawn(3, 37, 71, seed=27))]
    learned = {
        epigrad.prelu: (drawn(61, 127, seed=28, scale=2), drawn(127, seed=29)),
        epigrad.xielu: (drawn(61, 127, seed=28, scale=2), drawn(1, seed=30), drawn(1, seed=31)),
    }
    for function, operands in learned.items():
        operands = [operand.requires_grad_() for operand in operands]
        out = function(*operands)
        yield function.__name__, [out, *torch.autograd.grad(out, operands, drawn(61, 127, seed=32))]
    if os.environ.get("EPIGRAD_BACKEND") == "webgpu":  # which had no groups in 0.2
        return
    offsets, index = (
        torch.tensor([0, 7, 7, 40, 58]).to(device),
        (torch.arange(3 * 41).reshape(41, 3) * 7 % 6).to(device),
    )
    for kind, save in itertools.product((*KINDS, *GATED), SAVE):
        rows = 2 if kind in GATED else 1
        if rows == 1:
            operands = [drawn(61, 53, seed=33), drawn(5, 71, 53, seed=34, scale=0.4), drawn(5, 71, seed=35)]
            operands = [operand.requires_grad_() for operand in operands]
            out = epigrad.grouped_linear(*operands, kind, offsets=offsets, save=save)
            gradients = torch.autograd.grad(out, operands, drawn(61, 71, seed=36))
            yield f"grouped_linear {kind} {save}", [out, *gradients]
        operands = [
            drawn(41, 53, seed=37),
            drawn(41, 3, seed=38),
            drawn(5, rows * 71, 53, seed=39, scale=0.4),
            drawn(5, rows * 71, seed=40),
            drawn(5, 53, 71, seed=41, scale=0.2),
            drawn(5, 53, seed=42),
        ]
        tokens, *rest = [operand.requires_grad_() for operand in operands]
        out = epigrad.experts(tokens, index, *rest, kind, save=save)
        yield f"experts {kind} {save}", [out, *torch.autograd.grad(out, operands, drawn(41, 53, seed=43))]


def hashes(device: str) -> dict[str, str]:
    """Each problem's hash, under its dtype and name."""
    import epigrad
    import torch

    found: dict[str, hashlib.blake2b] = {}
    for dtype in DTYPES:
        if os.environ.get("EPIGRAD_BACKEND") == "webgpu" and dtype == "float64":
            continue
        for name, tensors in results(device, dtype):
            digest = found.setdefault(f"{dtype} {name}", hashlib.blake2b(digest_size=12))
            for tensor in tensors:
                assert isinstance(tensor, torch.Tensor)
                digest.update(tensor.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes())
    assert epigrad.backends()
    return {name: digest.hexdigest() for name, digest in found.items()}


def everywhere() -> dict[str, dict[str, str]]:
    """The hashes of every engine and backend that runs here, each in a process of its own."""
    settings = {engine: {"EPIGRAD_CPU_ENGINE": engine} for engine in ENGINES}
    settings |= {"webgpu": {"EPIGRAD_BACKEND": "webgpu"}, "cuda": {}}
    found = {}
    for name, environment in settings.items():
        device = "cuda" if name == "cuda" else "cpu"
        command = [sys.executable, __file__, "hash", device]
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name}: not here: {done.stderr.strip().splitlines()[-1][:160]}", file=sys.stderr)
            continue
        found[name] = json.loads(done.stdout)
        print(f"{name}: {len(found[name])} problems", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("record", "compare", "hash"))
    parser.add_argument("file", help="where the record is; for hash, the device")
    arguments = parser.parse_args()
    if arguments.command == "hash":
        print(json.dumps(hashes(arguments.file)))
        return 0
    path, now = pathlib.Path(arguments.file), everywhere()
    if arguments.command == "record":
        path.write_text(json.dumps(now, indent=1) + "\n")
        return 0
    before = json.loads(path.read_text())
    compared = [(place, name) for place in before if place in now for name in before[place]]
    different = [(place, name) for place, name in compared if before[place][name] != now[place].get(name)]
    for place, name in different:
        print(f"differs: {place}: {name}")
    absent = sorted(set(before) - set(now))
    print(f"{len(compared)} problems compared, {len(different)} differ" + (f"; not here: {absent}" if absent else ""))
    return 1 if different or not compared else 0


if __name__ == "__main__":
    raise SystemExit(main())
