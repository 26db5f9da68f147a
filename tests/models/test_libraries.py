"""Blocks of timm and torchvision, and T5's that keeps a layer in float32."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import timm
import torch
import torchvision
from epigrad.integrations.timm import patch, unpatch
from epigrad.integrations.transformers import patch as patch_transformers
from timm.layers import mlp
from torch import Tensor, nn
from torchvision.ops.misc import MLP
from transformers import T5Config
from transformers.models.t5 import modeling_t5

from tests.models.handmade import results

pytestmark = pytest.mark.usefixtures("_one_thread")
SIZE = 8

BLOCKS: dict[str, tuple[nn.Module, str]] = {
    "Mlp": (mlp.Mlp(SIZE, 12, drop=0.2), "linear gelu, since drop1 is at work"),
    "Mlp with a norm": (mlp.Mlp(SIZE, 12, norm_layer=nn.LayerNorm), "linear gelu, since norm is at work"),
    "GluMlp": (mlp.GluMlp(SIZE, 12), "gated_mlp glu"),
    "GluMlp, gate first": (mlp.GluMlp(SIZE, 12, gate_last=False), "gated_mlp glu"),
    "SwiGLUPacked": (mlp.SwiGLUPacked(SIZE, 12), "gated_mlp swiglu"),
    "SwiGLU": (mlp.SwiGLU(SIZE, 12, norm_layer=nn.LayerNorm), "gated_linear swiglu"),
    "GatedMlp": (mlp.GatedMlp(SIZE, 12), "mlp gelu"),
    "GlobalResponseNormMlp": (
        mlp.GlobalResponseNormMlp(SIZE, 12, act_layer=nn.ReLU),
        "linear relu, since grn is at work",
    ),
    "torchvision's MLP": (MLP(SIZE, [12, SIZE], activation_layer=nn.GELU), "mlp gelu"),
    "an activation in place": (nn.Sequential(nn.Linear(SIZE, 12), nn.ReLU(True), nn.Linear(12, SIZE)), "mlp relu"),
    "dropout in place": (
        nn.Sequential(nn.Linear(SIZE, 12), nn.GELU(), nn.Dropout(0.3, inplace=True), nn.Linear(12, SIZE)),
        "linear gelu, since 2 is at work",
    ),
    "torchvision's MLPBlock": (torchvision.models.vision_transformer.MLPBlock(SIZE, 12, 0.0), "mlp gelu"),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_compute_the_same(name: str) -> None:
    block = copy.deepcopy(BLOCKS[name][0]).double().train()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    # Global response norm takes images, with channels last.
    want = results(block, shape=(4, 2, 2, SIZE))
    assert patch(block).patched == {"": f"{type(BLOCKS[name][0]).__name__} by {BLOCKS[name][1]}"}
    for key, value in results(block, shape=(4, 2, 2, SIZE)).items():
        torch.testing.assert_close(value, want[key], rtol=1e-11, atol=1e-12)
    assert unpatch(block) == ("",)


CONVOLUTIONS: dict[str, nn.Module] = {
    "ConvMlp": mlp.ConvMlp(SIZE, 12),
    "Mlp": mlp.Mlp(SIZE, 12, use_conv=True),
    "GluMlp": mlp.GluMlp(SIZE, 12, use_conv=True),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_left_alone(name: str) -> None:
    report = patch(CONVOLUTIONS[name])
    assert not report.patched and list(report.left) == [""], report


@pytest.mark.parametrize("name", ["vit_b_16", "swin_t"])
def test_vision_transformers_of_torchvision(name: str) -> None:
    with torch.device("meta"):
        model = getattr(torchvision.models, name)()
    report = patch(model)
    assert len(report.patched) == 12 and not report.left
    assert {text.partition(" by ")[2] for text in report.patched.values()} == {"mlp gelu"}


def test_a_model_of_timm_with_packed_gates() -> None:
    model = timm.create_model("eva02_tiny_patch14_224", pretrained=False)
    report = patch(model)
    assert len(report.patched) == 12 and not report.left


def test_t5_in_half_precision_keeps_its_layer_in_float32() -> None:
    """Its forward casts before that layer, and so does epigrad."""

    def block(kind: str) -> Any:
        torch.manual_seed(0)
        made = getattr(modeling_t5, kind)(T5Config(d_model=SIZE, d_ff=12, dropout_rate=0.0))
        made.bfloat16()
        made.wo.float()
        return made

    for kind in ("T5DenseActDense", "T5DenseGatedActDense"):
        own, ours = block(kind), block(kind)
        (text,) = patch_transformers(ours).patched.values()
        assert ("a cast to the dtype of wo is at work" in text) == (kind == "T5DenseActDense")
        x = torch.randn(2, 3, SIZE, dtype=torch.bfloat16)
        want, got = own(x), ours(x)
        assert got.dtype == want.dtype == torch.float32
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
        plain: Tensor = block(kind).float()(x.float())
        assert (got - plain).abs().max() <= 1.5 * (want - plain).abs().max() + 2e-3


def test_t5_in_one_dtype_is_one_product() -> None:
    made = modeling_t5.T5DenseActDense(T5Config(d_model=SIZE, d_ff=12))
    assert "since dropout is at work" in patch_transformers(made).patched[""]
    assert patch_transformers(made.eval()).patched[""] == "T5DenseActDense by mlp relu"
