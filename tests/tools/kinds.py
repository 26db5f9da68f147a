"""Writes docs/kinds.md: every activation and gated kind, and a picture of values and slopes.

    python -m tests.tools.kinds

Names, formulas and kinks come from the table (go/activation), values and slopes at special points
from a run on the CPU, and errors from the pages that tests/tools/accuracy.py writes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import epigrad
import torch
from epigrad import Activation, Gated
from epigrad._core.tables import ACTIVATIONS, GATED_KINDS, PRESETS, ActivationRow, GatedRow
from epigrad.cli.picture import pyplot
from torch import Tensor

from tests.support.repository import ROOT
from tests.tools import records
from tests.tools.exact_page import largest, worst_cases

PAGE = ROOT / "docs" / "kinds.md"
PICTURE = records.RESULTS / "kinds.png"
GATED_PICTURE = records.RESULTS / "gated.png"
SHARED = ("limit", "limit_after", "offset")
"""Parameters of all gated kinds but one."""

ACCURACY = {"CPU": "accuracy.md", "CUDA": "accuracy-cuda.md", "WebGPU": "accuracy-webgpu.md"}

# Who uses a kind, and the attribute of a configuration in transformers that has its name by default
# (tests/docs/test_kinds.py looks); "" where a model's code or another library has it.
USERS: dict[str, dict[str, str]] = {
    "relu": {
        "OPT": "OPTConfig.activation_function",
        "T5": "T5Config.dense_act_fn",
        "DETR": "DetrConfig.activation_function",
        "ResNet": "ResNetConfig.hidden_act",
    },
    "gelu": {
        "BERT": "BertConfig.hidden_act",
        "ViT": "ViTConfig.hidden_act",
        "Whisper": "WhisperConfig.activation_function",
        "Falcon": "FalconConfig.activation",
    },
    "gelu_tanh": {
        "GPT-2": "GPT2Config.activation_function",
        "GPT-J": "GPTJConfig.activation_function",
        "Phi": "PhiConfig.hidden_act",
        "ALBERT": "AlbertConfig.hidden_act",
        "SigLIP": "SiglipVisionConfig.hidden_act",
    },
    "silu": {
        "EfficientNet": "EfficientNetConfig.hidden_act",
        "MobileViT": "MobileViTConfig.hidden_act",
        "Mamba": "MambaConfig.hidden_act",
    },
    "sigmoid": {"the router of DeepSeek-V3": ""},
    "tanh": {"the poolers of BERT": "", "ViT": "ViTConfig.pooler_act"},
    "leaky_relu": {
        "EfficientLoFTR": "EfficientLoFTRConfig.mlp_activation_function",
        "the vocoders of VITS and SpeechT5 (slope 0.1)": "",
    },
    "relu2": {
        "Nemotron": "NemotronConfig.hidden_act",
        "Arcee": "ArceeConfig.hidden_act",
        "Persimmon": "PersimmonConfig.hidden_act",
        "BitNet": "BitNetConfig.hidden_act",
        "nanochat": "NanoChatConfig.hidden_act",
    },
    "quick_gelu": {
        "CLIP": "CLIPVisionConfig.hidden_act",
        "OWL-ViT": "OwlViTVisionConfig.hidden_act",
        "Kosmos-2 (vision)": "Kosmos2VisionConfig.hidden_act",
        "Qwen2-VL (vision)": "Qwen2VLVisionConfig.hidden_act",
    },
    "elu": {"EnCodec": "", "Mimi": ""},
    "softplus": {"the time steps of Mamba": ""},
    "mish": {"YOLOv4": ""},
    "hardswish": {"MobileNetV3": "", "LeViT": "", "PP-LCNet": "PPLCNetConfig.hidden_act"},
    "hardsigmoid": {"squeeze and excitation of MobileNetV3 and GhostNet": ""},
    "relu6": {"MobileNetV1": "MobileNetV1Config.hidden_act", "MobileNetV2": "MobileNetV2Config.hidden_act"},
    "softcap": {"Gemma 2, for logits and attention": ""},
    "glu": {"convolutions of Conformer: Wav2Vec2-BERT, Parakeet": ""},
    "swiglu": {
        "Llama": "LlamaConfig.hidden_act",
        "Mistral": "MistralConfig.hidden_act",
        "Qwen3": "Qwen3Config.hidden_act",
        "Phi-3": "Phi3Config.hidden_act",
        "DeepSeek-V4 (`limit`)": "DeepseekV4Config.hidden_act",
        "GLM-5-Next (`limit`)": "Glm5NextTextConfig.hidden_act",
        "Step-3.7 (`limit_after`)": "Step3p7TextConfig.hidden_act",
    },
    "geglu": {"ModernBERT": "ModernBertConfig.hidden_activation", "GTE": "GteConfig.hidden_act"},
    "geglu_tanh": {
        "Gemma": "GemmaConfig.hidden_act",
        "Gemma 3": "Gemma3TextConfig.hidden_activation",
        "T5 1.1": "",
        "mT5": "MT5Config.dense_act_fn",
    },
    "sreglu": {"`sreglu` of Transformer Engine": ""},
    "quick_geglu": {"`qgeglu` of Transformer Engine": ""},
    "situ_glu": {"Inkling 2": "", "Kimi K3": ""},
    "swiglu_oai": {"gpt-oss": "", "MiniMax-M3": ""},
    "prelu": {"DAB-DETR": "DabDetrConfig.activation_function", "UVDoc": "UVDocConfig.hidden_act"},
    "xielu": {"Apertus": "ApertusConfig.hidden_act"},
}


def users(name: str) -> str:
    return ", ".join(USERS.get(name, ()))


def row(*cells: str) -> str:
    return records.line(cells)


def number(value: float) -> str:
    if math.isinf(value):
        return "+inf" if value > 0 else "-inf"
    if math.isnan(value):
        return "NaN"
    short = f"{value + 0.0:.4g}"
    # just below 1 is not 1
    return f"{value:.10g}" if float(short).is_integer() and float(short) != value else short


def called(kind: ActivationRow | GatedRow) -> str:
    """A kind's name with its parameters' defaults, but those that most gated kinds have."""
    own = [p for p in kind.parameters if p.name not in SHARED]
    defaults = ", ".join(f"{p.name}={number(p.default)}" for p in own)
    return f"`{kind.name}({defaults})`" if defaults else f"`{kind.name}`"


def at(name: str | Activation, x: Tensor) -> tuple[Tensor, Tensor]:
    """Value and slope at some points."""
    x = x.clone().requires_grad_()
    y = epigrad.activation(x, name)
    (slope,) = torch.autograd.grad(y, x, torch.ones_like(x))
    return y.detach(), slope


def formula(kind: ActivationRow) -> str:
    """An activation's formula, and which activation it is with the defaults if that has a name."""
    if not kind.default_is:
        return kind.formula
    defaults = " and ".join(f"{p.name} is {number(p.default)}" for p in kind.parameters)
    return f"{kind.formula}; `{kind.default_is}` where {defaults}"


def kinks(kind: ActivationRow) -> str:
    """The slope at each kink, for the default parameters."""
    parameters = {p.name: p.default for p in kind.parameters}

    def place(text: str) -> float:
        words = text.split("/")
        above, below = (parameters[word] if word in parameters else float(word) for word in (*words, "1")[:2])
        return above / below

    places = torch.tensor([place(text) for text in kind.kinks], dtype=torch.float64)
    slopes = at(kind.name, places)[1].tolist()
    return ", ".join(f"{number(slope)} at {text}" for slope, text in zip(slopes, kind.kinks, strict=True))


def special(name: str) -> list[str]:
    """Value and slope at infinities and NaN."""
    y, slope = at(name, torch.tensor([-math.inf, math.inf, math.nan]))
    return [f"{number(value)}, {number(s)}" for value, s in zip(y.tolist(), slope.tolist(), strict=True)]


def special_learnable() -> str:
    """The slope at 0 of the activations with weights, and value and slope at infinities and NaN."""
    weight, alpha = torch.tensor([0.25]), torch.zeros(1)
    shown: dict[str, Callable[[Tensor], Tensor]] = {
        "`prelu`, weight 0.25": lambda x: epigrad.prelu(x, weight),
        "`xielu`, both alphas 0, beta 0.5": lambda x: epigrad.xielu(x, alpha, alpha),
    }
    rows = ""
    for name, function in shown.items():
        x = torch.tensor([0.0, -math.inf, math.inf, math.nan], requires_grad=True)
        y = function(x)
        (slopes,) = torch.autograd.grad(y, x, torch.ones_like(x))
        cells = [f"{number(value)}, {number(s)}" for value, s in zip(y.tolist(), slopes.tolist(), strict=True)]
        rows += row(name, number(slopes[0].item()), *cells[1:])
    return rows


def measured(page: str) -> dict[tuple[str, str], tuple[float, float]]:
    """By activation and dtype the largest errors of value and slope that a page has, in ULP, with
    the default parameters and others."""
    largest: dict[tuple[str, str], tuple[float, float]] = {}
    for line in (ROOT / "docs" / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 8 and cells[2].isdigit():
            key = cells[0].split("(")[0], cells[1]
            errors = [math.inf if cell.startswith("not") else float(cell.split(" at ")[0]) for cell in cells[3:5]]
            before = largest.get(key, (0.0, 0.0))
            largest[key] = max(errors[0], before[0]), max(errors[1], before[1])
    return largest


def errors(name: str) -> list[str]:
    """Errors of value and slope on each backend, in those dtypes that it computes in."""
    pages = {page: measured(page) for page in ACCURACY.values()}
    columns = [(page, dtype) for page in pages for dtype in ("float32", "float64")]
    columns.remove((ACCURACY["WebGPU"], "float64"))
    return [", ".join(f"{error:.2f}" for error in pages[page].get((name, dtype), ())) for page, dtype in columns]


def halves() -> str:
    """The largest error of a half type on any backend, of the points of the accuracy pages."""
    pages = [measured(page).items() for page in ACCURACY.values()]
    worst = max(max(pair) for page in pages for (_, dtype), pair in page if dtype in ("bfloat16", "float16"))
    return f"{worst:.2f}"


TEXT = """# Activations and gated kinds

`python -m tests.tools.kinds` wrote this page. Every function, module, plan and operator takes all kinds, in every dtype
of every backend. A name has the default parameters; for others use `epigrad.Activation(name, **parameters)` or
`epigrad.Gated(name, **parameters)`. New parameter values need no new kernel.

You can also write the parameters in the name, as in `"leaky_relu(slope=0.2)"`, for example in configuration files.
`str(kind)` returns this form. Or pass a module or function of PyTorch, transformers or timm, such as
`torch.nn.GELU(approximate="tanh")`, `torch.tanh` or a module of `ACT2FN`. epigrad reads its parameters and never calls
it, so subclasses and modules with hooks are errors. [An activation that epigrad
lacks](https://epigrad.github.io/epigrad/howto/own-activation.html) shows how to compute others.

![Value and slope of each activation](results/kinds.png)

## Activations

`s` is the logistic function, 1 / (1 + exp(-x)). The last column has examples of models that use the activation by
default, in transformers, timm or their authors' code.

| activation | value | slope | used by |
|---|---|---|---|
{formulas}
epigrad also accepts these names of PyTorch, transformers and timm:

| name | is |
|---|---|
{aliases}
### At kinks, infinities and NaN

At a kink a derivative jumps. The last three columns have value and slope, with default parameters. All agree with
PyTorch's own function, or with a composition of PyTorch's functions. The slope of softplus is s(threshold) at its kink,
and 1 beyond it.

| activation | slope at kinks | at -inf | at +inf | at NaN |
|---|---|---|---|---|
{facts}
### Errors

A cell has the largest measured error of value and slope, in units in the last place (ULP), with the defaults and other
parameters. A correctly rounded result is off by at most 0.5 ULP. In bfloat16 and float16 the largest error is {halves},
or {walked} over [all numbers](#worst-cases). [accuracy.md](accuracy.md), [-cuda](accuracy-cuda.md) and
[-webgpu](accuracy-webgpu.md) have the points and devices.

| activation | CPU, float32 | CPU, float64 | CUDA, float32 | CUDA, float64 | WebGPU, float32 |
|---|---|---|---|---|---|
{errors}
### Worst cases

`python -m tests.tools.exact` tests all numbers of a dtype at default parameters. In float64 it draws points, and
searches around the worst of them in ever smaller steps. So its errors may exceed those of the last table, and in
float64 also the tests' bound. All NaNs must give the same result. On a GPU the largest finite result of `selu`
overflows, as in PyTorch.

{worst_cases}
## Activations with weights

`epigrad.prelu` and `epigrad.xielu` also have gradients to their weights. The same pass computes these sums.

| function | value | slope | gradients of weights | used by |
|---|---|---|---|---|
{learnable}
`weight` of `prelu` has one element, or one for each channel, as in PyTorch. In `xielu`, `a_p` is
`softplus(alpha_p)` and `a_n` is `beta + softplus(alpha_n)`; both alphas have one element. For `x` between -1e-6 and 0,
transformers computes `exp(x) - 1` at -1e-6. epigrad computes it at `x`, which differs by at most 1e-6 `a_n`.

| function | slope at 0 | at -inf | at +inf | at NaN |
|---|---|---|---|---|
{special_learnable}
`tests/parity/test_learnable.py` holds their errors to at most 1.5 times PyTorch's and one rounding.

## Gated kinds

A gated kind has two inputs, `value` and `gate`. Without limits it is

```
out = (psi(value) + offset) phi(gate)
```

Each kind has its own function `phi`. `psi` is the identity in all kinds but `situ_glu`. Limits apply before and after
`phi`; the offset comes last:

```
g, v = min(gate, limit), clip(value, -limit, limit)
a, b = min(phi(g), limit_after), clip(psi(v), -limit_after, limit_after)
out  = (b + offset) a
```

All kinds but `situ_glu` have the parameters `limit` and `limit_after` (default `None`: no limit) and `offset` (default
0). The table has `out` without them.

| kind | out | used by |
|---|---|---|
{gated}
| name | is | used by |
|---|---|---|
{presets}
![Gated kinds with limits](results/gated.png)

If one tensor has values and gates, `gate` is the place of the gates:

| `gate` | gates are | as in |
|---|---|---|
| `"second"` (default) | the second half | `torch.nn.functional.glu` |
| `"first"` | the first half | Phi-3, GLM, ModernBERT |
| `"odd"` | elements 1, 3, 5 and so on | |
| `"even"` | elements 0, 2, 4 and so on | gpt-oss |

## Limits and infinities

- The gradient of a clamped number is 0: also at the limit, with any version of PyTorch, and at a gate of +inf, where
  the slope of `phi` may be NaN.
- NaN passes every limit.
- `xielu` at +inf is +inf for any `beta`.
- `torch.func.grad` composes PyTorch operations, which have other slopes at infinities:
  - `gelu_tanh`: 0 at -inf and 1 at +inf, where `backward` gives NaN;
  - `swiglu` with `limit_after`: NaN at a gate of +inf, where `backward` gives 0.
"""

LEARNABLE = (
    ("prelu(input, weight)", "x if x > 0 else weight x", "1 if x > 0 else weight", "0 if x > 0 else x"),
    (
        "xielu(input, alpha_p, alpha_n, beta=0.5)",
        "a_p x^2 + beta x if x > 0 else a_n (exp(x) - 1 - x) + beta x",
        "2 a_p x + beta if x > 0 else a_n (exp(x) - 1) + beta",
        "alpha_p: s(alpha_p) x^2 if x > 0 else 0; alpha_n: 0 if x > 0 else s(alpha_n) (exp(x) - 1 - x)",
    ),
)


def text() -> str:
    """The page."""
    presets = ""
    for preset in PRESETS.values():
        given = ", ".join(f"{name}={number(value)}" for name, value in preset.parameters.items())
        presets += row(f"`{preset.name}`", f"`{preset.kind}({given})`", users(preset.name))
    activations = ACTIVATIONS.values()
    aliases = {", ".join(f"`{alias}`" for alias in kind.aliases): kind.name for kind in activations if kind.aliases}
    return TEXT.format(
        formulas="".join(row(called(kind), formula(kind), kind.slope, users(kind.name)) for kind in activations),
        aliases="".join(row(names, f"`{name}`") for names, name in aliases.items()),
        facts="".join(row(f"`{kind.name}`", kinks(kind), *special(kind.name)) for kind in activations),
        halves=halves(),
        walked=f"{max(largest(dtype) for dtype in ('bfloat16', 'float16')):.3f}",
        errors="".join(row(f"`{name}`", *errors(name)) for name in ACTIVATIONS if name != "none"),
        worst_cases=worst_cases(),
        learnable="".join(row(f"`{call}`", *cells, users(call.split("(")[0])) for call, *cells in LEARNABLE),
        special_learnable=special_learnable(),
        gated="".join(row(called(kind), kind.formula, users(kind.name)) for kind in GATED_KINDS.values()),
        presets=presets,
    )


def description() -> str:
    """What the files of the pictures say that they show."""
    activations, gated = ACTIVATIONS.values(), GATED_KINDS.values()
    return json.dumps({kind.name: kind.formula for kind in activations} | {kind.name: kind.formula for kind in gated})


def draw() -> None:
    """A panel for each activation, and a picture of what limits and the offset do."""
    # with the defaults they look like another one, or their kink lies outside
    others = {
        "swish": Activation("swish", beta=3),
        "celu": Activation("celu", alpha=2),
        "softplus": Activation("softplus", threshold=1),
        "softcap": Activation("softcap", cap=2),
    }
    columns, shown = 5, [others.get(name, Activation(name)) for name in ACTIVATIONS if name != "none"]
    figure, axes = pyplot().subplots(
        math.ceil(len(shown) / columns), columns, figsize=(12, 8), sharex=True, sharey=True, layout="constrained"
    )
    x = torch.linspace(-5, 7, 1201, dtype=torch.float64)
    for axis, activation in zip(axes.flat, shown, strict=False):
        value, slope = at(activation, x)
        axis.plot(x, value, label="value")
        axis.plot(x, slope, label="slope", linewidth=1.2)
        axis.set_title(str(activation), fontsize=11)
        axis.set_ylim(-1.8, 3.5)
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    axes.flat[0].legend(fontsize=9)
    save(figure, PICTURE)

    figure, (left, right) = pyplot().subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    one = torch.ones_like(x)
    given: tuple[dict[str, float], ...] = (
        {},
        {"limit": 3},
        {"limit_after": 2},
        {"offset": 1},
        {"limit": 3, "offset": 1},
    )
    for kind in (Gated("swiglu", **parameters) for parameters in given):
        left.plot(x, epigrad.gated_product(one, x, kind), label=str(kind))
        right.plot(x, epigrad.gated_product(x, one, kind), label=str(kind))
    left.set_xlabel("gate, beside a value of 1")
    right.set_xlabel("value, beside a gate of 1")
    for axis in (left, right):
        axis.grid(alpha=0.3)
    left.legend(fontsize=9)
    save(figure, GATED_PICTURE)


def save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=90, metadata={"Software": None, "Description": description()})
    records.pack_picture(path)


def main() -> None:
    PAGE.write_text(text())
    draw()


if __name__ == "__main__":
    main()
