"""The Gram matrix of one backward pass against a gradient a rollout, by autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from evenhand.errors import EvenhandError
from evenhand.geometry import factors
from evenhand.geometry.capture import HEAD, Capture
from evenhand.geometry.projection import Projection
from evenhand.policy.model import LoraSettings, _with_lora
from evenhand.training.batches import Batch, pack
from evenhand.training.forward import token_logprobs
from tests.policy import tiny

Tokens = list[tuple[list[int], list[int]]]


def sequences(count: int = 7) -> Tokens:
    """Ragged, tool tokens between, a tail read but not learned, and one learned nowhere."""
    rng = np.random.default_rng(0)
    made = []
    for n in range(count):
        length = int(rng.integers(5, 25))
        mask = [0, 0, *rng.integers(0, 2, length - 3).tolist(), 1, 0, 0]
        made.append((rng.integers(0, tiny.VOCAB, length + 2).tolist(), mask))
        if n == 3:
            made[-1] = (made[-1][0], [0] * len(mask))
    return made


def loss(model: Any, batch: Batch) -> torch.Tensor:
    return token_logprobs(model, batch.tokens_BT, batch.mask_BT, 0.8).sum()


def by_loop(model: Any, several: Tokens, wanted: list[torch.nn.Parameter]) -> np.ndarray:
    rows = []
    for each in several:
        found: Any = [torch.zeros_like(p) for p in wanted]
        for batch in pack([each], 1):
            found = torch.autograd.grad(loss(model, batch), wanted, materialize_grads=True)
        rows.append(torch.cat([g.flatten() for g in found]).double())
    return (torch.stack(rows) @ torch.stack(rows).T).numpy()


def by_capture(model: Any, several: Tokens, budget: int, **more: Any) -> Capture:
    capture = Capture(model, [len(tokens) for tokens, _ in several], **more)
    with capture:
        for batch in pack(several, budget):
            total = loss(model, batch)
            flat_N = batch.mask_BT[:, 1:].nonzero(as_tuple=True)[0]
            capture.add(total, batch.rows, flat_N)
    return capture


def make(kind: str, dtype: torch.dtype) -> Any:
    """gpt2 has LayerNorm, Conv1D and biases; in `untied` the head is a matrix apart."""
    if kind.endswith("lora"):
        model = _with_lora(tiny.model("qwen3", dtype=dtype), LoraSettings(rank=3, alpha=8)).to(
            dtype
        )
        with torch.random.fork_rng():
            torch.manual_seed(1)  # B begins at 0, where the gradient of A is 0 as well
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.data.normal_(0, 0.1)
        return model.eval()
    if kind == "untied":
        return tiny.model("llama", dtype=dtype, tie_word_embeddings=False)
    model = tiny.model(kind, dtype=dtype)
    if kind == "gpt2":  # one row of positions serves all rollouts
        model.transformer.wpe.weight.requires_grad_(False)
    return model


def relative(found: np.ndarray, exact: np.ndarray) -> float:
    """Worst error of an entry, over the lengths of the two gradients that it is of."""
    length = np.sqrt(np.diag(exact))
    scale = np.outer(length, length)
    return float((np.abs(found - exact)[scale > 0] / scale[scale > 0]).max())


@pytest.mark.parametrize("form", ["gradients", "pairs", None])
@pytest.mark.parametrize("kind", ["qwen3", "llama", "untied", "gpt2", "lora"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["f32", "f64"]
)
def test_the_loop_agrees(
    kind: str, form: str | None, dtype: torch.dtype, tolerance: float, monkeypatch: Any
) -> None:
    """Tied embeddings, norms, biases, LoRA; masks, padding, and entries across micro-batches."""
    if form is not None:
        monkeypatch.setattr("evenhand.geometry.capture.cheaper", lambda *_: form)
    model, several = make(kind, dtype), sequences()
    wanted = [p for p in model.parameters() if p.requires_grad]
    exact = by_loop(model, several, wanted)
    assert exact[3].max() == 0 < exact[0, 0]
    for budget in (40, 10_000):
        assert len(pack(several, budget)) > 1 or budget == 10_000
        capture = by_capture(model, several, budget)
        found = capture.gram()
        assert found.dtype == np.float64 and relative(found, exact) < tolerance
        assert np.abs(found - found.T).max() <= 1e-6 * np.abs(found).max()
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize("kind", ["llama", "untied", "lora"])
def test_the_head_alone(kind: str) -> None:
    """A head's features are those of an untied copy, trained or not."""
    model, several = make(kind, torch.float64), sequences()
    found = by_capture(model, several, 60, all_parameters=False, head=True).gram(HEAD)
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    exact = by_loop(model, several, [head.weight])
    assert relative(found, exact) < 1e-10
    both = by_capture(model, several, 60, head=True)
    np.testing.assert_allclose(both.gram(HEAD), exact, rtol=1e-9)


def test_rows_of_one_rollout_add_up() -> None:
    model, several = make("llama", torch.float64), sequences(4)
    wanted = list(model.parameters())
    fine = by_loop(model, several, wanted)
    (batch,) = pack(several, 10_000)
    with Capture(model, [30, 30]) as capture:
        flat_N = batch.mask_BT[:, 1:].nonzero(as_tuple=True)[0]
        capture.add(loss(model, batch), [row // 2 for row in batch.rows], flat_N)
    summed = fine.reshape(2, 2, 2, 2).sum((1, 3))
    np.testing.assert_allclose(capture.gram(), summed, rtol=1e-9)


def test_the_cheaper_form() -> None:
    """Pairs for short sequences before wide layers, gradients for long ones, by the count."""
    assert factors.cheaper([4] * 8, 1024, 1024) == "pairs"
    assert factors.cheaper([400] * 8, 160, 160) == "gradients"
    for lengths, left, right in (([16] * 64, 512, 512), ([40] * 4, 96, 4096)):
        count, total = len(lengths), sum(lengths)
        gradients = 2 * total * left * right + 2 * count**2 * left * right
        pairs = sum(a * b for a in lengths for b in lengths) * (left + right)
        assert factors.cheaper(lengths, left, right) == (
            "pairs" if pairs < gradients else "gradients"
        )


def test_what_cannot_be_told_apart_is_refused() -> None:
    """Learned positions are looked up once for all rows: their gradient is summed already."""
    with pytest.raises(EvenhandError, match="neither 6 rows nor the positions"):
        by_capture(tiny.model("gpt2"), sequences(), 10_000)


def products(use: factors.Factors, height: int) -> np.ndarray:
    matrix = factors.Matrix(height, use.right_BTR.shape[-1], 2, "gradients")
    matrix.add([use], [0, 1])
    return matrix.gram().numpy()


def test_the_projection_is_unbiased_and_within_its_bound() -> None:
    """1500 draws for matrices of rank one, where the bound is reached, and of full rank."""
    rng = np.random.default_rng(3)
    left = torch.from_numpy(rng.normal(size=(2, 9, 12)))
    right = torch.from_numpy(rng.normal(size=(2, 9, 10)))
    left[0, 1:] = 0  # rank one
    use = factors.Factors(left, right)
    exact = products(use, 12)
    draws = [products(Projection(4, seed).project("w", use, 12), 4) for seed in range(1500)]
    mean, std = np.mean(draws, 0), np.std(draws, 0)
    scale = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
    bound = Projection(4).error
    assert (np.abs(mean - exact) < 5 * std / np.sqrt(1500)).all()
    assert (std < 1.15 * bound * scale).all()
    assert std[0, 0] > 0.85 * bound * scale[0, 0], "reached by a gradient of rank one"
    assert std[1, 1] < 0.85 * bound * scale[1, 1], "and not by others"
    wide = Projection(32).project("w", use, 12)
    assert wide.left is left and wide.right_BTR is right, "a short side is left as it is"


def test_projected_features_of_a_model() -> None:
    """The whole model, tied embeddings too, within four standard deviations of the exact Gram."""
    model, several = make("qwen3", torch.float64), sequences()
    exact = by_capture(model, several, 60).gram()
    projection = Projection(32)
    found = by_capture(model, several, 60, projection=projection).gram()
    assert 1e-6 < relative(found, exact) < 4 * projection.error
