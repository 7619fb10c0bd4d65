"""`evenhand exact`: the JSON, the words, and one sentence with exit 2."""

from __future__ import annotations

import json
import sys

import pytest

from evenhand import cli

REVERSAL = "exact reversal --weights 0.1,0.9 --success 0,1;0.1,0 --policy 0.5,0.5 --group-size 6"


@pytest.fixture
def exact(monkeypatch, capsys):
    def run(line):
        monkeypatch.setattr(sys, "argv", ["evenhand", *line.split()])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_reversal(exact):
    code, out, _ = exact(f"{REVERSAL} --sharing paired --scale std --json")
    got = json.loads(out)
    assert code == 0
    assert got["expected_update"][1] == pytest.approx(-0.003616495945165485, rel=1e-9)
    assert got["true_gradient"] == pytest.approx([-0.0025, 0.0025])
    assert got["cosine"] == pytest.approx(-1)
    assert got["verdict"] == "reversed"
    assert got["wrong_logits"] == [0, 1]


@pytest.mark.parametrize("scale", ["none", "loo", "batch"])
def test_the_cures_are_aligned(exact, scale):
    _, out, _ = exact(f"{REVERSAL} --scale {scale} --json")
    assert json.loads(out)["verdict"] == "aligned"


def test_reversal_in_words(exact):
    _, out, _ = exact(f"{REVERSAL} --sharing paired")
    assert "REVERSED" in out and "-0.0036165" in out
    _, out, _ = exact(f"{REVERSAL} --sharing independent")
    assert "points where the gradient points" in out and "0.00519365" in out


def test_any_rewards_and_logits(exact):
    line = "exact reversal --weights 0.8,0.2 --rewards 0.9,1;0.9,0 --logits 0,0 -G 16 --json"
    got = json.loads(exact(line)[1])
    assert got["expected_update"][1] == pytest.approx(0.29011839073176726, rel=1e-9)
    assert got["verdict"] == "reversed"
    flat = json.loads(exact("exact reversal --weights 1 --rewards 1,1 --logits 0,0 -G 4 --json")[1])
    assert flat["cosine"] is None and flat["luck_share"] is None
    assert flat["verdict"] == "no-gradient"


def test_slope(exact):
    got = json.loads(exact("exact slope --group-size 4,8 --success 0,0.5 --json")[1])
    assert got["slope"]["8"] == pytest.approx([2.6457513110645907, 1.8556559496093328])
    assert got["slope_limit"] == [None, pytest.approx(2.0)]
    assert "c_8" in exact("exact slope")[1]


def test_flips(exact):
    line = "exact flips --policy 0.8,0.2 --success 1,0 --false-negative 0.3 -G 4"
    got = json.loads(exact(f"{line} --json")[1])
    assert got["trace_paired"] == pytest.approx(0.020748)
    assert got["gap"] == pytest.approx(got["gap_formula"])
    assert got["verdict"] == "hurts"
    assert "pairing hurts" in exact(line)[1]
    assert "a tie" in exact(line.replace("-G 4", "-G 2"))[1]
    assert json.loads(exact(f"{line} --scale std --json")[1])["gap_formula"] is None


def test_constant(exact):
    line = "exact constant --p 0.5 --c 0.9 --q 0.8 -G 8 --blocks 1,8"
    got = json.loads(exact(f"{line} --json")[1])
    assert got["independent_std"] == pytest.approx(0.11152569859553448, rel=1e-9)
    assert got["blocks_std"]["1"] == pytest.approx(0.27834839244139997, rel=1e-9)
    assert got["blocks_std"]["8"] == pytest.approx(got["independent_std"])
    assert got["shared_limit"] == pytest.approx(0.3)
    assert "blocks(8), std" in exact(line)[1]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (f"{REVERSAL} --scale sample", "unknown --scale 'sample'"),
        (f"{REVERSAL} --sharing shared", "unknown sharing 'shared'"),
        (f"{REVERSAL} --sharing blocks(0)", "K must be at least 1"),
        (f"{REVERSAL} --logits 0,0", "give the policy once"),
        (f"{REVERSAL} --rewards 0,1;1,0", "give one table"),
        (f"{REVERSAL} --eps -1", "--eps is -1"),
        (f"{REVERSAL} --eps nan", "--eps is nan"),
        (f"{REVERSAL.replace('0.1,0.9', '0.1;0.9')}", "--weights '0.1;0.9' is not a list"),
        (f"{REVERSAL.replace('0.1,0.9', '0.2,0.9')}", "weights sum to 1.1"),
        (f"{REVERSAL.replace('0,1;0.1,0', '0,1;0.1')}", "unequal length"),
        (f"{REVERSAL.replace('0,1;0.1,0', '0,1')}", "success is 1 x 2"),
        (f"{REVERSAL.replace('0,1;0.1,0', '0,2;0,1')}", "outside"),
        (f"{REVERSAL.replace('6', '1')}", "group size 1"),
        (f"{REVERSAL.replace('6', '1000000')}", "too large to enumerate"),
        ("exact slope --group-size four", "--group-size 'four'"),
        ("exact slope --success 1.5", "outside [0, 1]"),
        ("exact flips --policy 1 --success 1 --false-negative 2 -G 4", "false_negative is 2"),
        ("exact flips --policy 1 --success 1,0 --false-negative 0 -G 4", "names 2 actions"),
        ("exact flips --success 1 --false-negative 0 -G 4", "give the policy once"),
        ("exact constant --p 2 --c 0.5 --q 0.5 -G 4", "p is 2"),
        ("exact constant --p 0.5 --c inf --q 0.5 -G 4", "--c is inf"),
        ("exact constant --p 0.5 --c 0.5 --q 0.5 -G 4 --blocks 0", "K must be at least 1"),
    ],
)
def test_bad_input(exact, line, sentence):
    code, out, err = exact(line)
    assert code == 2
    assert sentence in err and err.startswith("evenhand: ") and err.count("\n") == 1
    assert not out


def test_sweep(exact):
    code, out, _ = exact("exact sweep --json")
    got = json.loads(out)
    counts = [value for name, value in got.items() if name != "rows"]
    assert code == 0 and counts == [540, 54, 54, 108, 0] and len(got["rows"]) == 540
