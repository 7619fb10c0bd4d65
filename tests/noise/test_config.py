from __future__ import annotations

import json
import math
import re
import sys
import types

import pytest

from evenhand.errors import UserError
from evenhand.noise import Fault, GraderFlips, Noise, Outcome, ToolFaults
from evenhand.records import Result

OWN = Fault("own", 0.3, lambda event: Outcome(Result("own")))


@pytest.fixture
def module():
    made = types.ModuleType("evenhand_test_faults")
    made.own, made.other = OWN, 3
    sys.modules[made.__name__] = made
    yield made.__name__
    del sys.modules[made.__name__]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"tool": {}}, "noise.tool: unknown key; use tools, grader, first_write_fails"),
        ({"tools": {"rates": 0.1}}, "noise.tools.rates: unknown key"),
        ({"tools": {"rate": 1.5}}, "noise.tools.rate: 1.5 is outside [0, 1]"),
        ({"tools": {"rate": -0.1}}, "noise.tools.rate: -0.1 is outside"),
        ({"tools": {"rate": "0.1"}}, "noise.tools.rate: '0.1' is not a number"),
        ({"tools": {"rate": True}}, "noise.tools.rate: True is not a number"),
        ({"tools": {"rate": math.nan}}, "noise.tools.rate: nan is not a number"),
        ({"tools": {"rate": None}}, "noise.tools.rate: None is not a number"),
        ({"tools": [1]}, "noise.tools: [1] is not a mapping"),
        ({"tools": {"weights": {"outtage": 1}}}, "noise.tools.weights.outtage: unknown fault"),
        ({"tools": {"weights": {"outage": -1}}}, "noise.tools.weights.outage: -1 is negative"),
        ({"tools": {"weights": {"outage": "x"}}}, "noise.tools.weights.outage: 'x' is not"),
        ({"tools": {"weights": [1]}}, "noise.tools.weights: [1] is not a mapping"),
        ({"tools": {"rate": 0.1, "weights": {"outage": 0}}}, "noise.tools.weights: all are 0"),
        (
            {"tools": {"weights": {"field_dropout": 1}}},
            "noise.tools.weights.field_dropout: not drawn here; use transient",
        ),
        (
            {"tools": {"held_out": True, "weights": {"transient": 1}}},
            "noise.tools.weights.transient: not drawn here; use timeout_after_commit",
        ),
        ({"tools": {"held_out": 1}}, "noise.tools.held_out: 1 is not true or false"),
        ({"tools": {"faults": "a:b"}}, "noise.tools.faults: 'a:b' is not a list"),
        ({"tools": {"faults": ["no_such_module:b"]}}, "noise.tools.faults: 'no_such_module:b'"),
        ({"tools": {"faults": ["math:nothing"]}}, "noise.tools.faults: 'math:nothing' cannot"),
        ({"tools": {"faults": [7]}}, "noise.tools.faults: 7 cannot be loaded"),
        ({"tools": {"faults": ["math:pi"]}}, "noise.tools.faults: 'math:pi' is not an evenhand"),
        ({"grader": {"rate": 0.1}}, "noise.grader.rate: unknown key"),
        ({"grader": {"false_negative": 2}}, "noise.grader.false_negative: 2 is outside"),
        ({"grader": {"false_positive": "x"}}, "noise.grader.false_positive: 'x' is not a number"),
        ({"first_write_fails": "yes"}, "noise.first_write_fails: 'yes' is not true or false"),
        ("loud", "noise: 'loud' is not a mapping"),
    ],
)
def test_bad_input_is_one_sentence_that_names_the_field(config, sentence):
    with pytest.raises(UserError, match="^" + re.escape(sentence)) as caught:
        Noise.from_config(config)
    assert "\n" not in str(caught.value)


def test_the_place_can_be_named():
    with pytest.raises(UserError, match=r"^evaluations\.0\.noise\.tools\.weights\.x: unknown"):
        Noise.from_config({"tools": {"weights": {"x": 1}}}, "evaluations.0.noise")


@pytest.mark.parametrize("config", [None, {}, {"tools": None, "grader": None}])
def test_nothing_is_clean(config):
    assert Noise.from_config(config) == Noise.clean()


def test_the_constructor_checks_too():
    for make in (
        lambda: ToolFaults(2.0),
        lambda: ToolFaults(0.1, {"nope": 1}),
        lambda: GraderFlips(-1),
        lambda: ToolFaults(0.1, faults=(OWN, OWN)),
        lambda: ToolFaults(0.1, faults=(Fault("first_write", 1, OWN.act),)),
        lambda: ToolFaults(0.1, faults=(Fault("own", -1, OWN.act),)),
    ):
        with pytest.raises(UserError):
            make()


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"tools": {"rate": 0.25}},
        {"tools": {"rate": 0.25, "weights": {"transient": 1, "outage": 0.5}}},
        {"tools": {"rate": 1, "held_out": True}, "grader": {"false_negative": 0.1}},
        {"grader": {"false_negative": 0.1, "false_positive": 0.2}, "first_write_fails": True},
    ],
)
def test_round_trip_through_json(config):
    noise = Noise.from_config(config)
    assert Noise.from_config(json.loads(json.dumps(noise.to_config()))) == noise
    assert hash(noise) == hash(Noise.from_config(config))


def test_given_weights_are_the_whole_table():
    tools = ToolFaults(0.2, {"transient": 2})
    assert dict(tools.weights) == {
        "transient": 2.0,
        "rate_limit": 0.0,
        "outage": 0.0,
        "stale": 0.0,
        "truncate": 0.0,
    }


def test_a_fault_of_ones_own_from_a_file(module):
    config = {"tools": {"rate": 0.5, "faults": [f"{module}:own"]}}
    noise = Noise.from_config(config)
    assert noise.tools.faults[0].name == "own"
    assert noise.tools.weights["own"] == 0.3
    assert noise.to_config()["tools"]["faults"] == [f"{module}:own"]
    assert Noise.from_config(noise.to_config()) == noise


def test_a_fault_registered_in_python_has_no_file_form():
    with pytest.raises(UserError, match="'own' was registered in Python"):
        Noise(ToolFaults(0.5, faults=(OWN,))).to_config()
