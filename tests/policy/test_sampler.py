"""Choosing tokens: the law, the recorded probability, top-p, and that only the row's own counts."""

import math
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenhand.errors import EvenhandError, UserError
from evenhand.policy.decoder import decoder_for
from evenhand.policy.general import GeneralDecoder
from evenhand.policy.native import NativeDecoder
from evenhand.policy.sampler import Batch, Row, Sampling, choose

from .tiny import model, plain_logits

# A range in which float32 still holds the least likely token: beyond it none is ever drawn.
LOGITS = st.lists(st.floats(-12, 12, width=32), min_size=1, max_size=12)


def law(logits: list[float], sampling: Sampling) -> list[float]:
    """Probabilities by the definition, in Python."""
    weights = [math.exp((x - max(logits)) / sampling.temperature) for x in logits]
    p = [w / sum(weights) for w in weights]
    kept, mass = set(), 0.0
    for i in sorted(range(len(p)), key=lambda i: (-p[i], i)):
        if sampling.top_p < 1 and mass >= sampling.top_p:
            break
        kept.add(i)
        mass += p[i]
    total = sum(p[i] for i in kept)
    return [p[i] / total if i in kept else 0.0 for i in range(len(p))]


@given(LOGITS, st.floats(0, 1, exclude_max=True), st.floats(0.3, 3))
def test_inverse_cdf(logits: list[float], uniform: float, temperature: float) -> None:
    sampling = Sampling(temperature)
    p = law(logits, sampling)
    (token,), (logprob,) = choose(torch.tensor([logits]), [uniform], sampling)
    below = sum(p[:token])
    assert below - 1e-5 <= uniform <= below + p[token] + 1e-5
    assert math.isclose(logprob, math.log(p[token]), rel_tol=1e-4, abs_tol=1e-4)


@given(st.lists(st.integers(-40, 40), min_size=2, max_size=9, unique=True), st.floats(0.01, 1))
def test_nucleus_is_the_smallest_set(tenths: list[int], top_p: float) -> None:
    logits = [t / 10 for t in tenths]
    sampling = Sampling(1.0, top_p)
    p = law(logits, sampling)
    near_edge = law(logits, Sampling(1.0, min(1.0, top_p + 1e-5))) != p
    if near_edge:
        return
    grid = np.linspace(0, 1, 300, endpoint=False).tolist()
    tokens, logprobs = choose(torch.tensor([logits] * len(grid)), grid, sampling)
    assert all(p[t] > 0 for t in tokens)
    for t, lp in zip(tokens, logprobs, strict=True):
        assert math.isclose(lp, math.log(p[t]), abs_tol=1e-4)
    share = np.bincount(tokens, minlength=len(p)) / len(grid)
    assert np.abs(share - np.array(p)).max() <= 2 / 300


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_edges_fall_on_possible_tokens(uniform: float) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -200.0, 1.0, -torch.inf]])
    (token,), (logprob,) = choose(logits, [uniform], Sampling())
    assert token == (1 if uniform == 0 else 3)
    assert math.isfinite(logprob)


def test_greedy() -> None:
    assert choose(torch.tensor([[0.0, 2.0, 1.0]]), [0.9], Sampling(0.0)) == ([1], [0.0])


def test_diverged_policy_is_said_so() -> None:
    for temperature in (0.0, 1.0):
        with pytest.raises(EvenhandError, match="not finite"):
            choose(torch.tensor([[0.0, float("nan")]]), [0.5], Sampling(temperature))


@pytest.mark.parametrize("bad", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_settings(bad: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(bad))):
        Sampling(**bad)


def rows(keys: list[int]) -> list[Row]:
    return [Row(np.random.Generator(np.random.Philox(key)).random(200)) for key in keys]


@pytest.mark.parametrize("decoder_type", [NativeDecoder, GeneralDecoder])
def test_a_row_alone_draws_what_it_draws_among_others(
    decoder_type: type[NativeDecoder] | type[GeneralDecoder],
) -> None:
    reference = model()

    def sample(
        prompts: list[list[int]], keys: list[list[int]], shrink: bool
    ) -> dict[int, list[int]]:
        batch = Batch(decoder_type(reference), Sampling(1.1, 0.95))
        drawn: dict[int, list[int]] = {}
        with torch.inference_mode():
            batch.decoder.begin()
            made = [rows(k) for k in keys]
            pairs = zip(chain(*made), chain(*keys), strict=True)
            names = dict(pairs)
            batch.open(prompts, made)
            for step in range(40):
                for row, token in zip(list(batch.rows), batch.draw()[0], strict=True):
                    drawn.setdefault(names[row], []).append(token)
                if shrink and step % 7 == 3 and len(batch.rows) > 1:
                    batch.leave(batch.rows[step % len(batch.rows)])
                reads = [row for row in batch.rows if names[row] == 2 and step == 9]
                batch.advance({row: [5, 6] for row in reads})
        return drawn

    prompts = [[1, 2, 3, 4, 5], [9, 8, 7]]
    together = sample(prompts, [[0, 1, 2, 3], [4, 5]], shrink=True)
    for key, drawn in together.items():
        alone = sample([prompts[key // 4]], [[key]], shrink=False)
        assert alone[key][: len(drawn)] == drawn


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7), Sampling(1.3, 0.8)])
def test_logprobs_are_the_behaviours(sampling: Sampling) -> None:
    """Recorded log-probabilities against one whole Hugging Face forward of what was sampled."""
    reference = model()
    batch = Batch(decoder_for(reference), sampling)
    prompt = [3, 1, 4, 1, 5]
    with torch.inference_mode():
        batch.decoder.begin()
        batch.open([prompt], [rows([0, 1, 2])])
        taken: list[tuple[list[int], list[float]]] = []
        for _ in range(25):
            taken.append(batch.draw())
            batch.advance({})
    for b in range(3):
        tokens = [*prompt, *(step[0][b] for step in taken)]
        logits = plain_logits(reference, tokens)
        for k, (drawn, logprobs) in enumerate(taken):
            p = law(logits[len(prompt) - 1 + k].tolist(), sampling)
            assert math.isclose(logprobs[b], math.log(p[drawn[b]]), abs_tol=1e-4)
