"""Supervised fine-tuning: learns, resumes to the bit after kill -9, tells losses rightly."""

import json
import random
import signal
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_runner import started
from training_toys import Colours, make_policy

from evenhand.errors import UserError
from evenhand.policy.model import Policy
from evenhand.training.finetune import finetune, losses, sequences
from evenhand.training.finetune_command import report
from evenhand.training.finetune_recipe import load_sft_recipe, make_sft_recipe
from evenhand.training.forward import token_logprobs
from evenhand.training.render import render
from evenhand.trajectories.record import write
from evenhand.trajectories.runs import recorded


def peeks_then_blue(suite):
    from evenhand.records import Call

    for task in suite.tasks("train"):
        calls = [Call("peek"), Call("answer", {"colour": "blue"})]

        def play(act, calls=calls):
            for call in calls:
                act(call)

        yield recorded(suite, task, play, "gold", task.id)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sft")
    make_policy(folder / "policy")
    write(folder / "data.jsonl", peeks_then_blue(Colours()))
    return folder


def recipe(folder, **changes):
    return {
        "policy": str(folder / "policy"),
        "data": [str(folder / "data.jsonl")],
        "validation": [str(folder / "data.jsonl")],
        "steps": 6,
        "batch": 4,
        "learning_rate": 1e-2,
        "warmup_steps": 1,
        "validate_every": 3,
        "checkpoint_every": 2,
        "environment": "training_toys:Colours",
        "evaluations": [{"name": "v", "pool": "validation", "at": [0, "last"], "samples": 4}],
        "limits": {"context": 128, "turns": 3, "turn_tokens": 24, "result_tokens": 40},
        **changes,
    }


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_learns_and_tells_success_and_losses(folder, tmp_path):
    made = finetune(make_sft_recipe(recipe(folder, steps=20)), tmp_path / "run")
    metrics = lines(tmp_path / "run" / "metrics.jsonl")
    told = [line["validation"] for line in metrics if "validation" in line]
    assert told[-1]["loss"] < 0.3 * told[0]["loss"]
    assert set(told[0]["by_tool"]) == {"peek", "answer"} and set(told[0]["by_turn"]) == {"1", "2"}
    asked = lines(tmp_path / "run" / "evaluations.jsonl")
    before = [line["success"] for line in asked if line["step"] == 0]
    after = [line["success"] for line in asked if line["step"] == 20]
    assert sum(after) / len(after) > 0.8 > sum(before) / len(before)
    text = report(tmp_path / "run")
    assert "| tool answer |" in text and "| v | 20 |" in text
    Policy.load(made)


def test_losses_are_those_of_each_turn_alone(folder):
    policy = Policy.load(folder / "policy")
    made = [render(policy.chat, each) for each in peeks_then_blue(Colours())]
    told = losses(policy, made, token_budget=100)
    by_hand = {"peek": [0.0, 0], "answer": [0.0, 0]}
    for each in made:
        tokens = torch.tensor([each.tokens])
        every = torch.ones_like(tokens)
        logprobs = token_logprobs(policy.model, tokens, every)[0].detach().double()
        for span in each.turns:
            by_hand[span.tool][0] -= float(logprobs[span.start : span.end].sum())
            by_hand[span.tool][1] += span.end - span.start
    for tool, (total, count) in by_hand.items():
        assert told["by_tool"][tool]["tokens"] == count
        assert told["by_tool"][tool]["loss"] == pytest.approx(total / count, rel=1e-4)
    everything = [sum(column) for column in zip(*by_hand.values(), strict=True)]
    assert told["loss"] == pytest.approx(everything[0] / everything[1], rel=1e-4)


def test_sequences_begin_anywhere_as_if_from_the_start(folder):
    chat = Policy.load(folder / "policy").chat
    made = [render(chat, each) for each in peeks_then_blue(Colours())]
    whole = list(islice(sequences(made, 3, 0), 30))
    for start in (0, 1, 3, 4, 5, 17):
        assert list(islice(sequences(made, 3, start), 10)) == whole[start : start + 10]
    assert sorted(map(str, whole[:4])) == sorted(map(str, whole[4:8]))


def test_lora_leaves_a_folder_of_whole_weights(folder, tmp_path):
    made = finetune(
        make_sft_recipe(recipe(folder, steps=2, lora={"rank": 2, "alpha": 4}, evaluations=[])),
        tmp_path / "run",
    )
    changed = load_file(str(made / "model.safetensors"))
    first = load_file(str(folder / "policy" / "model.safetensors"))
    assert changed.keys() == first.keys()
    assert any(not torch.equal(changed[name], first[name]) for name in first)


def files(out: Path):
    times = {"seconds"}
    metrics = lines(out / "metrics.jsonl")
    return (
        (out / "policy" / "model.safetensors").read_bytes(),
        (out / "evaluations.jsonl").read_bytes(),
        [{k: v for k, v in line.items() if k not in times} for line in metrics],
    )


def test_killed_at_random_points_it_resumes_to_the_same_numbers(folder, tmp_path):
    (tmp_path / "scratch").mkdir()
    with started(folder / "policy", recipe(folder), tmp_path / "scratch") as run:
        events = run(tmp_path / "whole")["events"]
        whole = files(tmp_path / "whole")
        for n, kill in enumerate(random.Random(1).sample(range(2, events), 5)):
            out = tmp_path / f"killed{n}"
            assert run(out, kill)["status"] == signal.SIGKILL
            assert run(out)["status"] == 0
            assert files(out) == whole, f"killed at {kill} of {events}"


def test_what_has_changed_is_refused(folder, tmp_path):
    asked = recipe(folder, data=[str(tmp_path / "d.jsonl")], evaluations=[])
    write(tmp_path / "d.jsonl", peeks_then_blue(Colours()))
    finetune(make_sft_recipe({**asked, "steps": 2}), tmp_path / "run")
    (tmp_path / "run" / "status.json").unlink()
    write(tmp_path / "d.jsonl", list(peeks_then_blue(Colours()))[:3])
    with pytest.raises(UserError, match="the data have changed"):
        finetune(make_sft_recipe({**asked, "steps": 2}), tmp_path / "run")
    with pytest.raises(UserError, match="whose batch differs"):
        finetune(make_sft_recipe({**asked, "steps": 2, "batch": 5}), tmp_path / "run")
    with pytest.raises(UserError, match="4 are too long"):
        finetune(make_sft_recipe(recipe(folder, context=10, evaluations=[])), tmp_path / "x")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data": []}, "data"),
        ({"epochs": 3}, "epochs: unknown key"),
        ({"environment": None}, "evaluations need an environment"),
        ({"noise": {"tools": {"rate": 2}}}, "rate"),
        ({"steps": None}, "steps"),
    ],
)
def test_a_bad_recipe_is_one_sentence(change, says, folder):
    with pytest.raises(UserError, match="recipe: ") as error:
        make_sft_recipe(recipe(folder, **change))
    assert says in str(error.value) and "\n" not in str(error.value)


def test_paths_are_taken_from_the_recipes_folder(tmp_path):
    (tmp_path / "r.yaml").write_text("policy: p\ndata: [a.jsonl]\nsteps: 3\n")
    loaded = load_sft_recipe(tmp_path / "r.yaml", ["batch=7"])
    assert loaded.policy == str(tmp_path / "p") and loaded.data == [str(tmp_path / "a.jsonl")]
    assert loaded.batch == 7
