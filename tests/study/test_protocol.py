"""Protocols: what a good one yields, and one sentence for each way of being bad."""

import copy
from pathlib import Path

import pytest
import yaml

from evenhand.errors import UserError
from evenhand.study.protocol import fingerprint, load, merged, parse
from evenhand.training.configs import read_yaml
from evenhand.training.recipe import make_recipe

from .synthetic import SMALL, write_protocol

STUDIES = Path(__file__).parents[2] / "studies"


def small(**changes):
    data = copy.deepcopy(SMALL)
    for path, value in changes.items():
        *parents, last = path.split("__")
        here = data
        for parent in parents:
            here = here[int(parent) if parent.isdigit() else parent]
        if value is KeyError:
            del here[last]
        else:
            here[int(last) if last.isdigit() else last] = value
    return data


def test_runs_pair_by_seed():
    protocol = parse(SMALL, "small")
    assert protocol.runs() == [
        ("independent", 0),
        ("paired", 0),
        ("independent", 1),
        ("paired", 1),
    ]


def test_recipes_of_a_pair_differ_in_the_arm_alone():
    protocol = parse(SMALL, "small")
    one, other = protocol.recipe_of("independent", 1), protocol.recipe_of("paired", 1)
    assert one.pop("sharing") == "independent" and other.pop("sharing") == "paired"
    assert one == other
    assert one["seed"] == 1 and one["steps"] == 4
    names = [entry["name"] for entry in one["evaluations"]]
    assert names == ["validation", "test", "luck"]
    assert one["evaluations"][0]["every"] == 2
    luck = one["evaluations"][2]
    assert (luck["tasks"], luck["schedules"], luck["samples"]) == (3, 3, 4)


def test_arms_merge_into_the_recipe_key_by_key():
    base = {"noise": {"tools": {"rate": 0.25}}, "steps": 3}
    changes = {"noise": {"grader": {"false_negative": 0.1}}}
    both = merged(base, changes)
    assert both["noise"] == {"tools": {"rate": 0.25}, "grader": {"false_negative": 0.1}}
    assert base == {"noise": {"tools": {"rate": 0.25}}, "steps": 3}


def test_evaluations_of_some_arms_only():
    data = small(evaluations__1__arms=["paired"], rules__0__not_reversed=None)
    protocol = parse(data, "small")
    names = [e.name for e in protocol.evaluations_of("independent")]
    assert names == ["validation", "luck"]
    assert "test_final" not in protocol.metrics("paired") and "test_final" in protocol.metrics()


def test_expected_steps():
    data = small(evaluations__1__at=[3, "last"])
    protocol = parse(data, "small")
    assert [protocol.expected_steps(e) for e in protocol.all_evaluations()] == [
        [0, 2, 4],
        [3, 4],
        [0, 4],
    ]


@pytest.mark.parametrize(
    "timing", [{"every": 1}, {"every": 3}, {"every": 9}, {"at": [3, "last"]}, {"at": [1]}, {}]
)
def test_the_trainer_evaluates_at_the_expected_steps(timing):
    data = small(evaluations__0__every=KeyError)
    data["evaluations"][0] |= timing
    protocol = parse(data, "small")
    recipe = make_recipe(protocol.recipe_of("paired", 0), "small")
    for own, theirs in zip(protocol.all_evaluations(), recipe.evaluations, strict=True):
        asked = [step for step in range(protocol.steps + 1) if recipe.due(theirs, step)]
        assert own.name == theirs.name and asked == protocol.expected_steps(own)


def test_fingerprint_sees_values_only():
    assert fingerprint(SMALL) == fingerprint(dict(reversed(SMALL.items())))
    assert fingerprint(SMALL) == fingerprint({**SMALL, "workers": 3})
    assert fingerprint(SMALL) != fingerprint(small(rules__0__minimum=0.02))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sedes": [1]}, ["sedes", "unknown key", "seeds"]),
        ({"rules__0__minimun": 1}, ["rules[0].minimun", "unknown key", "minimum"]),
        ({"title": KeyError}, ["title", "missing"]),
        ({"pilot": KeyError}, ["pilot", "missing"]),
        ({"seeds": "zero"}, ["seeds", "zero"]),
        ({"seeds": [1, 1]}, ["seed 1", "twice"]),
        ({"comparisons__0__control": "unpaired"}, ["unknown arm 'unpaired'", "independent"]),
        ({"comparisons__0__control": "paired"}, ["with itself"]),
        ({"rules__0__metric": "test_auc"}, ["unknown metric 'test_auc'", "validation_auc"]),
        ({"rules__0__comparison": "x"}, ["unknown comparison 'x'"]),
        ({"arms__paired": {"seed": 3}}, ["'paired'", "may not change 'seed'"]),
        ({"arms__paired": {"steps": 3}}, ["may not change 'steps'"]),
        ({"recipe__seed": 3}, ["recipe", "seeds"]),
        ({"recipe__steps": KeyError}, ["recipe", "steps"]),
        ({"evaluations__0__at": [0]}, ["either `every` or `at`"]),
        ({"evaluations__1__at": [9]}, ["step 9", "0..4"]),
        ({"evaluations__1__name": "luck"}, ["luck table"]),
        ({"evaluations__1__name": "validation"}, ["twice"]),
        ({"evaluations__1__arms": ["other"]}, ["unknown arm 'other'"]),
        ({"evaluations__1__role": "exam"}, ["role", "exam"]),
        ({"luck_table__samples": 1}, ["luck_table.samples"]),
    ],
)
def test_one_sentence_names_file_field_and_mend(tmp_path, changes, words):
    path = write_protocol(tmp_path / "bad.yaml", small(**changes))
    with pytest.raises(UserError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("text", ["", "- 1", "a: [", "title: a\ntitle: b\n", "\udcff"])
def test_not_a_mapping(tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=r"bad\.yaml"):
        load(path)


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"none\.yaml.*no such file"):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_protocols_are_good_to_the_trainer(path):
    protocol = load(path)
    for arm in protocol.arms:
        recipe = make_recipe(protocol.recipe_of(arm, protocol.seeds[0]), str(path))
        assert recipe.steps == protocol.steps
    # What is frozen is what was read: a dump that lost a number would change the hash.
    data = read_yaml(path)
    assert fingerprint(yaml.safe_load(yaml.safe_dump(data))) == fingerprint(data)
