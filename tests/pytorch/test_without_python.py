"""Operators whose kernels are C (cbridge/torch): in the code of torch.compile, and in a process
without Python."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import epigrad
import pytest
import torch
from epigrad import errors, ops
from epigrad._core import loader
from epigrad._core.tables import ACTIVATIONS
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor import config as inductor

from tests.api.test_c_abi import LIBRARY, require_library
from tests.support.cases import FULL
from tests.support.devices import on_devices
from tests.support.layouts import assert_same_bits
from tests.support.operators import FUNCTIONS, NAMES, each_function
from tests.support.processes import run_script
from tests.support.tiers import nightly, thorough

PACKAGE = str(Path(epigrad.__file__).parent)
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]

# Of Inductor's and Triton's own while they are imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_the_loaded_core_has_given_every_operator_its_kernels() -> None:
    loader.core()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for operator in ops.OPERATORS:
        assert has(f"epigrad::_{operator.name}", "CPU") and has(f"epigrad::_{operator.name}", "CUDA")


def calls_of(op: str, device: str, dtype: torch.dtype) -> list[tuple[ops.Operator, tuple[Any, ...], dict[str, Any]]]:
    """The calls of operators that a forward and its backward make."""
    found = []
    by_name = {operator.name: operator for operator in ops.OPERATORS}

    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "epigrad":
                found.append((by_name[func._schema.name.removeprefix("epigrad::")], args, kwargs or {}))
            return func(*args, **(kwargs or {}))

    with Seen():
        FUNCTIONS[op].function(*FUNCTIONS[op].tensors(device, dtype)).sum().backward()
    return found


@on_devices
@each_function
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_operator_in_c_gives_the_bits_of_the_one_in_python(op: str, dtype: torch.dtype, device: str) -> None:
    for operator, args, kwargs in calls_of(op, device, dtype):
        args = tuple([value.detach() if isinstance(value, Tensor) else value for value in args])
        for _ in range(4):  # the third call of a geometry goes another way
            got, want = operator.bare(*args, **kwargs), operator.overload(*args, **kwargs)
            pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
            for one, other in pairs:
                assert (one is None) == (other is None)
                if one is not None:
                    assert one.stride() == other.stride()
                    assert_same_bits(one, other)
        torch.library.opcheck(operator.bare, args, kwargs, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("needs", [(True, False, True), (False, True, False), (False, False, False)])
def test_gradients_that_are_not_needed_are_none(needs: tuple[bool, ...]) -> None:
    grad, x, weight, bias = torch.randn(3, 5), torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    got = torch.ops.epigrad._linear_backward(grad, x, weight, bias, "gelu", needs=needs)
    assert [gradient is not None for gradient in got] == list(needs)


@pytest.mark.parametrize(
    ("kind", "save"),
    [(kind, save) for kind in ACTIVATIONS for save in ("auto", "preactivation", "recompute")],
)
@pytest.mark.parametrize("op", ["linear", "mlp"])
def test_an_operator_keeps_what_save_says(op: str, kind: str, save: str) -> None:
    tensors = FUNCTIONS[op].tensors()
    with torch.no_grad():
        bare, own = (getattr(torch.ops.epigrad, name)(*tensors, kind, save=save)[1] for name in (f"_{op}", op))
    assert bare.shape == own.shape


X, WEIGHT = torch.ones(3, 4), torch.ones(5, 4)
MISTAKES: dict[str, tuple[type[Exception], Callable[..., Any], Callable[[Any], Any]]] = {
    "shape": (errors.InvalidProblemError, ValueError, lambda o: o("linear")(X, torch.ones(5, 3))),
    "dtype": (errors.DTypeError, TypeError, lambda o: o("linear")(X, WEIGHT.double())),
    "kind": (errors.InvalidProblemError, ValueError, lambda o: o("linear")(X, WEIGHT, None, "gleu")),
    "save": (errors.InvalidProblemError, ValueError, lambda o: o("linear")(X, WEIGHT, save="all")),
    "parameters": (errors.InvalidProblemError, ValueError, lambda o: o("activation")(X, "gelu", parameters=[1.0] * 40)),
    "dim": (errors.InvalidProblemError, ValueError, lambda o: o("gated_activation")(X, "swiglu", 2**40)),
    "gate": (errors.InvalidProblemError, ValueError, lambda o: o("gated_activation")(X, gate="third")),
    "weight": (errors.InvalidProblemError, ValueError, lambda o: o("lerp")(X, X)),
    "weights": (errors.InvalidProblemError, ValueError, lambda o: o("lerp")(X, X, X, factor=0.5)),
    "beta": (errors.InvalidProblemError, ValueError, lambda o: o("xielu")(X, X[0, :1], X[0, :1], float("inf"))),
    "backend": (errors.InvalidProblemError, ValueError, lambda o: o("activation")(X, "gelu", backend="abacus")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_have_their_class_in_python_and_its_name_in_c(mistake: str) -> None:
    """PyTorch's C interface throws but one class, which Python sees as RuntimeError."""
    known, builtin, call = MISTAKES[mistake]
    with pytest.raises(known) as own:
        call(lambda name: getattr(torch.ops.epigrad, name))
    assert isinstance(own.value, builtin)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=f"^{known.__name__}: "):
        call(lambda name: getattr(torch.ops.epigrad, f"_{name}"))


def test_many_threads_call_at_once() -> None:
    """Python's lock is not held while operators run: another guards what is remembered."""
    weights = {width: torch.randn(7, width) for width in range(1, 40)}

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for width, weight in weights.items():
            x = torch.randn(3, width, generator=generator)
            for _ in range(4):
                out, _ = torch.ops.epigrad._linear(x, weight, None, "relu", save="recompute")
                torch.testing.assert_close(out, torch.relu(x @ weight.T))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))


@contextmanager
def frames_of_epigrad() -> Iterator[list[str]]:
    """The names of this package's functions that run meanwhile, on any thread."""
    seen: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            seen.append(frame.f_code.co_name)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


@on_devices
@thorough
def test_compiled_training_runs_no_python_of_epigrad(device: str) -> None:
    """Every function at once, forward and backward, as Inductor compiles them; some of them, unless
    all cases are asked for."""
    names = NAMES if FULL else NAMES[::5]
    tensors = {op: FUNCTIONS[op].tensors(device) for op in names}

    def all_of_them(tensors: dict[str, list[Tensor]]) -> Tensor:
        total = torch.zeros((), device=device)
        for op in names:
            total = total + FUNCTIONS[op].function(*tensors[op]).sin().sum()
        return total

    leaves = [tensor for op in names for tensor in tensors[op]]
    want = torch.autograd.grad(all_of_them(tensors), leaves)
    with inductor.patch(force_disable_caches=True):  # what an older epigrad compiled may lie there
        compiled = torch.compile(all_of_them, fullgraph=True)
        torch.autograd.grad(compiled(tensors), leaves)
    with frames_of_epigrad() as seen:
        grads = torch.autograd.grad(compiled(tensors), leaves)
    assert not seen
    for got, expected in zip(grads, want, strict=True):
        torch.testing.assert_close(got, expected)
    with frames_of_epigrad() as seen:
        all_of_them(tensors)
    assert set(names) <= set(seen)


def test_the_environment_may_change_after_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(lambda x: epigrad.activation(x, "gelu"), fullgraph=True, backend=counter)
    x = torch.randn(3)
    for value in "123":
        monkeypatch.setenv("SOMETHING_ELSE", value)
        monkeypatch.setenv(f"SOMETHING_{value}", value)
        compiled(x)
    assert counter.frame_count == 1


def test_a_choice_of_backend_is_still_seen_by_compiled_code() -> None:
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(lambda x: epigrad.activation(x, "gelu"), fullgraph=True, backend=counter)
    compiled(torch.randn(3))
    with epigrad.use_backend("cpu"):
        compiled(torch.randn(3))
    assert counter.frame_count == 2


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = epigrad.nn.Linear(8, 16, activation="gelu")
        self.second = epigrad.nn.MLP(16, 24)
        self.third = epigrad.nn.GatedMLP(16, 24, "swiglu", gate="first")

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        out = epigrad.lerp(self.third(self.second(hidden)), hidden, 0.25)
        return epigrad.activation(epigrad.gated_activation(out), epigrad.Activation("leaky_relu", slope=0.2))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled run_package.cpp."""
    compiler = shutil.which("g++")
    if compiler is None:
        if os.environ.get("CI"):
            pytest.fail("g++ is not there")
        pytest.skip("g++ is not there")
    root, out = Path(torch.__file__).parent, tmp_path_factory.mktemp("run") / "run_package"
    source = Path(__file__).with_name("run_package.cpp")
    libraries = ["-Wl,--no-as-needed", "-ltorch_cpu", "-ltorch", "-lc10", "-ldl", f"-Wl,-rpath,{root / 'lib'}"]
    if torch.version.cuda:
        libraries[1:1] = ["-ltorch_cuda", "-lc10_cuda"]
    subprocess.run(
        [compiler, "-std=c++20", f"-I{root / 'include'}", "-o", out, source, f"-L{root / 'lib'}", *libraries],
        check=True,
    )
    return out


@on_devices
@nightly
def test_aotinductors_runner_runs_a_package_without_python(device: str, program: Path, tmp_path: Path) -> None:
    require_library()
    model, x = Model().eval().to(device), (torch.arange(32.0) / 16).reshape(4, 8).to(device)
    exported = torch.export.export(model, (x,))
    package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "model.pt2"))

    def run(library: Path | str) -> subprocess.CompletedProcess[str]:
        command = [str(program), str(package), str(library), device, "4", "8"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    done = run(LIBRARY)
    assert done.returncode == 0, done.stderr
    got = torch.tensor([float(line) for line in done.stdout.split()])
    with torch.no_grad():
        torch.testing.assert_close(got, model(x).flatten().cpu(), rtol=1e-6, atol=1e-6)
    without = run("libm.so.6")
    assert without.returncode == 2 and "epigrad::" in without.stderr


def test_the_library_tells_that_there_is_no_pytorch() -> None:
    require_library()
    script = f"""
import ctypes
library = ctypes.CDLL({str(LIBRARY)!r})
library.epg_last_error.restype = ctypes.c_char_p
print(library.epg_torch_register(), library.epg_last_error().decode())
"""
    assert re.fullmatch(r"8 torch: \w+: not found in this process, want PyTorch 2.10 or newer.*", run_script(script))


@pytest.mark.parametrize("first", ["library", "package"])
@thorough
def test_who_comes_second_leaves_the_operators_alone(first: str) -> None:
    require_library()
    library = f"import ctypes, torch; print(ctypes.CDLL({str(LIBRARY)!r}).epg_torch_register())"
    package = "import epigrad, torch; epigrad.linear(torch.ones(2, 3), torch.ones(4, 3))"
    script = f"""
{library if first == "library" else package}
{package if first == "library" else library}
x, weight = torch.randn(2, 3), torch.randn(4, 3, requires_grad=True)
for call in (torch.ops.epigrad.linear, torch.compile(torch.ops.epigrad.linear, backend="aot_eager")):
    weight.grad = None
    out, _ = call(x, weight, None, "relu")
    out.sum().backward()
    torch.testing.assert_close(out, torch.relu(x @ weight.T))
    torch.testing.assert_close(weight.grad, (out > 0).float().T @ x)
with torch.no_grad():
    torch.testing.assert_close(torch.ops.epigrad._linear(x, weight, None, "relu")[0], out)
"""
    assert run_script(script, timeout=120) == "0"


def test_nothing_is_kept_after_a_call() -> None:
    """Arguments belong to the kernel, which gives them back after a failure too."""
    x, weight = torch.ones(256, 4), torch.ones(256, 4)

    def memory() -> int:
        ctypes.CDLL(None).malloc_trim(0)
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def many() -> None:
        for _ in range(400):
            torch.ops.epigrad._linear(x, weight, None, "gelu", parameters=[], backend="cpu")
            torch.ops.epigrad._linear_backward(torch.ones(256, 256), x, weight, needs=[True, False, False])
            with pytest.raises(RuntimeError):
                torch.ops.epigrad._linear(x.clone(), torch.ones(65536, 3), None, "gelu")

    many()
    before = memory()
    many()
    assert memory() - before < 64 << 20  # one tensor in each of 400 calls would be 100 MiB and more
