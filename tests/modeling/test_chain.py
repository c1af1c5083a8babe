"""Pooling and the modules around it: by hand, and against sentence-transformers' own."""

from __future__ import annotations

import pytest
import torch
from sentence_transformers.models import Dense as TheirDense
from sentence_transformers.models import LayerNorm as TheirLayerNorm
from sentence_transformers.models import Normalize as TheirNormalize
from sentence_transformers.models import Pooling as TheirPooling
from torch import nn

from sentport.modeling.chain import Dense, LayerMean, LayerNorm, Normalize, Truncate
from sentport.modeling.pooling import Pooling, PoolingMode

MODES = [mode.value for mode in PoolingMode]


def theirs(module: nn.Module, **features: object) -> torch.Tensor:
    with torch.inference_mode():
        return module.eval()(features)["sentence_embedding"]


@pytest.fixture
def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Token vectors ``[4, 9, 5]`` of rows with 9, 6, 1 and 4 tokens; what stands under the pads is large."""
    tokens = torch.randn(4, 9, 5, generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(9) < torch.tensor([[9], [6], [1], [4]])).long()
    return torch.where(mask[:, :, None] == 1, tokens, 1e6), mask


def test_poolings_by_hand() -> None:
    tokens = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [99.0, 99.0]], [[7.0, 7.0], [8.0, 8.0], [9.0, 9.0]]])
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    expected = {
        "cls": [1.0, -4.0],
        "max": [3.0, -2.0],
        "mean": [2.0, -3.0],
        "mean_sqrt_len_tokens": [4 / 2**0.5, -6 / 2**0.5],
        "weightedmean": [7 / 3, -8 / 3],
        "lasttoken": [3.0, -2.0],
    }
    assert list(expected) == MODES
    for include_prompt in (True, False):
        pooled = Pooling(2, tuple(map(PoolingMode, MODES)), include_prompt)(tokens, mask)
        assert pooled[0].tolist() == pytest.approx([value for pair in expected.values() for value in pair])
        assert pooled[1].tolist() == [0.0] * 12, "a row without tokens pools to zeros"


@pytest.mark.parametrize("modes", [*MODES, "lasttoken+cls+mean", "mean+mean_sqrt_len_tokens"])
def test_pooling_equals_sentence_transformers(modes: str, rows: tuple[torch.Tensor, torch.Tensor]) -> None:
    tokens, mask = rows
    names = modes.split("+")
    found = Pooling(5, tuple(map(PoolingMode, names)))(tokens, mask)
    torch.testing.assert_close(found, theirs(TheirPooling(5, names), token_embeddings=tokens, attention_mask=mask))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prompt", [0, 3])
def test_pooling_without_the_prompt_equals_sentence_transformers(
    mode: str, prompt: int, rows: tuple[torch.Tensor, torch.Tensor]
) -> None:
    tokens, mask = (table[[0, 1, 3]] for table in rows)  # theirs is minus infinity for a row that is all prompt
    pooled = mask * (torch.arange(9) >= prompt)
    found = Pooling(5, (PoolingMode(mode),), include_prompt=False)(tokens, pooled)
    wanted = theirs(
        TheirPooling(5, mode, include_prompt=False), token_embeddings=tokens, attention_mask=mask, prompt_length=prompt
    )
    torch.testing.assert_close(found, wanted)


def test_pooling_mask_may_have_holes() -> None:
    tokens = torch.arange(1.0, 6).reshape(1, 5, 1)
    mask = torch.tensor([[0, 1, 0, 1, 0]])
    for mode, value in zip(MODES, (2.0, 4.0, 3.0, 6 / 2**0.5, (2 * 2 + 4 * 4) / 6, 4.0), strict=True):
        assert Pooling(1, (PoolingMode(mode),), include_prompt=False)(tokens, mask).item() == pytest.approx(value)


@pytest.mark.parametrize("out_dim", [6, 4])
@pytest.mark.parametrize("residual", [True, False])
def test_dense_equals_sentence_transformers(out_dim: int, residual: bool) -> None:
    own = TheirDense(6, out_dim, activation_function=nn.GELU(), use_residual=residual)
    dense = Dense(6, out_dim, True, nn.GELU(), residual=residual)
    dense.load_state_dict(own.state_dict())
    vectors = torch.randn(3, 6)
    torch.testing.assert_close(dense(vectors), theirs(own, sentence_embedding=vectors))
    assert dense.describe().get("residual", False) == residual


def test_layer_norm_and_normalize_equal_sentence_transformers() -> None:
    own = TheirLayerNorm(6)
    nn.init.normal_(own.norm.weight)
    norm = LayerNorm(6)
    norm.load_state_dict(own.state_dict())
    vectors = torch.randn(3, 6)
    torch.testing.assert_close(norm(vectors), theirs(own, sentence_embedding=vectors))
    torch.testing.assert_close(Normalize()(vectors), theirs(TheirNormalize(), sentence_embedding=vectors))


def test_normalize_cut_and_layer_mean_by_hand() -> None:
    vectors = Normalize()(torch.tensor([[3.0, 4.0], [0.0, 0.0], [6e-7, 8e-7]]))
    assert torch.allclose(vectors, torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.6, 0.8]]))
    assert Truncate(1)(vectors).tolist() == vectors[:, :1].tolist()
    hidden = (torch.ones(1, 2, 3), torch.full((1, 2, 3), 4.0))
    assert LayerMean((1, -1))(hidden).unique().tolist() == [2.5]
