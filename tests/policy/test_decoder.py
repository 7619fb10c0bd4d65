"""Both decoders against one whole Hugging Face forward of each row's tokens."""

import random

import pytest
import torch
from peft import LoraConfig, get_peft_model

from evenhand.policy import cache
from evenhand.policy.decoder import Decoder, Parked, decoder_for
from evenhand.policy.general import GeneralDecoder
from evenhand.policy.native import NativeDecoder, unsupported
from evenhand.training.forward import body

from .tiny import VOCAB, model, plain_logits

SHAPES = {
    "qwen3, grouped, tied": ("qwen3", {}),
    "qwen3, one KV head, untied": (
        "qwen3",
        {"num_key_value_heads": 1, "tie_word_embeddings": False},
    ),
    "qwen3, biases": ("qwen3", {"attention_bias": True}),
    "llama, grouped, tied": ("llama", {}),
    "llama, a KV head each, untied": (
        "llama",
        {"num_key_value_heads": 4, "tie_word_embeddings": False},
    ),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, rope scaled": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
}


def drive(decoder: Decoder, reference: object, tolerance: float, seed: int = 0) -> int:
    """A random life of a batch: ragged prompts, turns, chunks, leaving, parking, coming in."""
    rng = random.Random(seed)

    def some(n: int) -> list[int]:
        return [rng.randrange(VOCAB) for _ in range(n)]

    def check(logits: torch.Tensor, rows: list[list[int]]) -> None:
        assert logits.shape == (len(rows), VOCAB)
        for found, row in zip(logits, rows, strict=True):
            wanted = plain_logits(reference, row)[-1].to(found.dtype)
            assert (found - wanted).abs().max().item() <= tolerance
        assert len(decoder.hidden) == len(rows)
        for found, row in zip(decoder.hidden, rows, strict=True):
            wanted = body(reference)(input_ids=torch.tensor([row]))[0][0, -1].to(found.dtype)
            assert (found - wanted).abs().max().item() <= tolerance

    with torch.inference_mode():
        decoder.begin()
        # Long prompts with many siblings are shared in the native decoder's cache, others copied.
        prompts = [some(23), some(9), some(71), some(31), some(66)]
        copies = [3, 1, 4, 2, 3]
        check(decoder.open(prompts, copies), prompts)
        assert decoder.computed == 23 + 9 + 71 + 31 + 66
        rows = [list(p) for p, n in zip(prompts, copies, strict=True) for _ in range(n)]
        parked: list[tuple[Parked, list[int]]] = []
        for step in range(24):
            tokens = some(len(rows))
            joining = [b for b in range(len(rows)) if step % 2 and rng.random() < 0.4]
            if step == 11:
                joining = list(range(len(rows)))
            more = {b: some(rng.randrange(1, 12)) for b in joining}
            logits = decoder.advance(tokens, more)
            for b, row in enumerate(rows):
                row += [tokens[b], *more.get(b, ())]
            check(logits, rows)
            if step in (3, 7, 9, 13, 15, 16, 19, 20, 21):
                leaver = rng.randrange(len(rows))
                decoder.remove(leaver)
                rows[leaver] = rows[-1]
                rows.pop()
            if step == 5:
                parked = [(decoder.park(b), list(rows[b])) for b in (1, 5)]
            if step == 8:
                decoder.restore([cache for cache, _ in parked * 2])
                rows += [list(row) for _, row in parked * 2]
            if step == 17:
                late = [some(6), some(80)]
                check(decoder.open(late, [2, 3]), late)
                rows += [list(late[row]) for row in (0, 0, 1, 1, 1)]
        assert decoder.rows == len(rows)
    return decoder.computed


@pytest.mark.parametrize("name", SHAPES)
def test_native_float32(name: str) -> None:
    kind, changes = SHAPES[name]
    reference = model(kind, **changes)
    assert unsupported(reference) is None
    drive(NativeDecoder(reference), reference, 1e-4)


@pytest.mark.parametrize("width", [0, 48, 70, 90])
def test_either_product_and_both(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numpy's products up to a width and torch's beyond, which rows pass while they grow."""
    monkeypatch.setattr(cache, "NUMPY_WIDTH", width)
    reference = model("llama", num_key_value_heads=4)
    drive(NativeDecoder(reference), reference, 1e-4)


class WideNorm(torch.nn.Module):
    """RMSNorm in the type of its input; Hugging Face's goes through float32 even in float64."""

    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        self.weight = norm.weight
        self.eps = norm.variance_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


@pytest.mark.parametrize("name", SHAPES)
def test_native_float64(name: str) -> None:
    """To 1e-9, so that an error that float32 could hide (an eps, a scale) cannot."""
    kind, changes = SHAPES[name]
    reference = model(kind, dtype=torch.float64, **changes)
    decoder = NativeDecoder(reference)
    for module in list(reference.modules()):
        for child_name, child in list(module.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                setattr(module, child_name, WideNorm(child))
    drive(decoder, reference, 1e-9)


@pytest.mark.parametrize("kind", ["qwen3", "llama", "gpt2"])
def test_general(kind: str) -> None:
    reference = model(kind)
    drive(GeneralDecoder(reference), reference, 1e-4)


def test_choice_of_decoder() -> None:
    assert isinstance(decoder_for(model("llama")), NativeDecoder)
    assert isinstance(decoder_for(model("gpt2")), GeneralDecoder)
    sliding = model("qwen3", use_sliding_window=True, sliding_window=8, max_window_layers=1)
    assert unsupported(sliding) == "sliding attention"
    assert isinstance(decoder_for(sliding), GeneralDecoder)
    drive(GeneralDecoder(sliding), sliding, 1e-4)


def test_weights_are_read_anew() -> None:
    reference = model()
    decoder = NativeDecoder(reference)
    drive(decoder, reference, 1e-4)
    for parameter in reference.parameters():
        parameter.data.mul_(1.1)
    drive(decoder, reference, 1e-4)


@pytest.mark.parametrize("decoder_type", [NativeDecoder, GeneralDecoder])
def test_lora(decoder_type: type[NativeDecoder] | type[GeneralDecoder]) -> None:
    base = model()
    before = plain_logits(base, [1, 2, 3])
    wrapped = get_peft_model(
        base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    ).eval()
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1, generator=torch.Generator().manual_seed(3))
    assert (plain_logits(wrapped, [1, 2, 3]) - before).abs().max() > 0.1
    assert unsupported(wrapped) is None
    decoder = decoder_type(wrapped)
    drive(decoder, wrapped, 1e-4)
    wrapped.merge_adapter()  # merged weights must not be added twice
    drive(decoder, wrapped, 1e-4)


def test_half_precision_runs_near() -> None:
    reference = model("qwen3", dtype=torch.bfloat16, initializer_range=0.05)
    drive(NativeDecoder(reference), reference, 0.15)


def test_a_shared_prefix_comes_back_with_a_parked_row() -> None:
    """Also when everyone else who shared it has left meanwhile."""
    reference = model()
    decoder = NativeDecoder(reference)
    with torch.inference_mode():
        decoder.begin()
        prompt = [i % 50 for i in range(70)]
        decoder.open([prompt, [3, 4]], [3, 1])
        parked = decoder.park(0)
        for row in (2, 1, 0):
            decoder.remove(row)
        decoder.advance([9], {})
        decoder.restore([parked])
        logits = decoder.advance([8, 7], {1: [6, 5]})
    for found, row in zip(logits, ([3, 4, 9, 8], [*prompt, 7, 6, 5]), strict=True):
        assert (found - plain_logits(reference, row)[-1]).abs().max() <= 1e-4


def test_work_is_only_new_tokens() -> None:
    """Nothing is computed twice: the count is the prompts and what the rows took in."""
    reference = model()
    for decoder in (NativeDecoder(reference), GeneralDecoder(reference)):
        with torch.inference_mode():
            decoder.begin()
            decoder.open([[1, 2, 3, 4], [5, 6]], [5, 3])
            assert decoder.computed == 6
            decoder.advance([7] * 8, {})
            assert decoder.computed == 6 + 8
            decoder.advance([7] * 8, {2: [1] * 10})
            assert decoder.computed == 6 + 8 + 18
            decoder.remove(0)
            decoder.advance([7] * 7, {})
            assert decoder.computed == 6 + 8 + 18 + 7
