"""Batches and log-probabilities: padding invariance, budgets, models whose head is not all."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from evenhand.training.batches import pack, pick_BT
from evenhand.training.forward import token_logprobs

SIZES = dict(
    vocab_size=19,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=64,
)
SEQUENCES = [
    ([1, 2, 3, 4, 5, 6, 7], [0, 0, 1, 1, 0, 1, 0]),
    ([3, 4, 5], [0, 1, 1]),
    ([9] * 12, [0] * 6 + [1] * 6),
    ([5, 6], [0, 0]),
    ([8], [1]),
]


def models() -> list[torch.nn.Module]:
    small = {**SIZES, "num_key_value_heads": 1, "head_dim": 8}
    gemma = Gemma2Config(**small)
    gemma.final_logit_softcapping = 0.2
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [
            Qwen3ForCausalLM(Qwen3Config(**small, initializer_range=0.4)).double().eval(),
            Gemma2ForCausalLM(gemma).double().eval(),
            GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES)).double().eval(),
        ]


@pytest.mark.parametrize("model", models(), ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("budget", [1, 14, 10_000])
def test_batches_give_the_numbers_of_single_sequences(model, budget: int) -> None:  # type: ignore[no-untyped-def]
    seen = {}
    for batch in pack(SEQUENCES, budget, pad=11):
        logprobs_BT = token_logprobs(model, batch.tokens_BT, batch.mask_BT, 0.6)
        assert logprobs_BT.shape == batch.tokens_BT.shape
        assert (logprobs_BT[~batch.mask_BT] == 0).all()
        for b, number in enumerate(batch.rows):
            seen[number] = logprobs_BT[b]
    assert sorted(seen) == [0, 1, 2], "sequences without learned tokens are left out"
    for number, row in seen.items():
        tokens, mask = SEQUENCES[number]
        logits = model(torch.tensor([tokens])).logits[0].double() / 0.6
        for t, wanted in enumerate(mask):
            if wanted:
                expected = logits[t - 1].log_softmax(-1)[tokens[t]]
                torch.testing.assert_close(row[t], expected, rtol=1e-6, atol=1e-8)


def test_a_model_that_caps_its_logits_is_noticed() -> None:
    """The planted fault: head times hidden state is not the logits of this model."""
    from evenhand.training.forward import _head_is_all

    plain, capped, other_body = models()
    assert _head_is_all(plain) and _head_is_all(other_body)
    assert not _head_is_all(capped)


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), max_size=12),
    st.integers(1, 40),
)
def test_pack_keeps_every_learned_token_once(masks: list[list[int]], budget: int) -> None:
    sequences = [(list(range(100 * n, 100 * n + len(m))), m) for n, m in enumerate(masks)]
    values = [[float(t) for t in tokens] for tokens, _ in sequences]
    batches = pack(sequences, budget)
    learned = []
    for batch in batches:
        rows, width = batch.tokens_BT.shape
        assert rows == 1 or rows * width <= budget
        learned += batch.tokens_BT[batch.mask_BT].tolist()
        picked_BT = pick_BT(batch, values, torch.float64)
        assert torch.equal(picked_BT, (batch.tokens_BT * batch.mask_BT).double())
    # The first token of a sequence is predicted by nothing.
    expected = [t for tokens, m in sequences for t, k in zip(tokens[1:], m[1:], strict=True) if k]
    assert sorted(learned) == expected
    again = pack(sequences, budget)
    assert [b.rows for b in again] == [b.rows for b in batches]
