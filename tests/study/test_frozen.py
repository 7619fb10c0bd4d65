"""Freezing: an edit is refused, or leaves a mark; runs that it changes start again."""

import json

import pytest
import yaml

from evenhand.errors import UserError
from evenhand.study.frozen import (
    differences,
    freeze,
    joint_fingerprint,
    open_study,
    policy_fingerprint,
    read_frozen,
)
from evenhand.study.layout import locked, policy_folders, run_at, write_recipes
from evenhand.study.protocol import fingerprint, load

from .synthetic import SMALL, write_protocol

POLICY = "a" * 64


@pytest.fixture
def study(tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    return folder


@pytest.fixture
def protocol(tmp_path):
    return write_protocol(tmp_path / "p.yaml", SMALL)


def edited(protocol, **changes):
    return write_protocol(protocol, {**SMALL, **changes})


def test_freeze_then_the_same_again(study, protocol):
    first = freeze(protocol, study, POLICY)
    assert first.sha256 == fingerprint(SMALL) and first.policy_sha256 == POLICY
    assert freeze(protocol, study, POLICY) == first
    assert (study / "protocol.yaml").read_text() == protocol.read_text()


def test_comments_and_workers_are_no_edit(study, protocol):
    first = freeze(protocol, study, POLICY)
    edited(protocol, workers=5)
    protocol.write_text("# a thought\n" + protocol.read_text())
    assert freeze(protocol, study, POLICY) == first


def test_an_edit_is_refused_and_nothing_changes(study, protocol):
    first = freeze(protocol, study, POLICY)
    edited(protocol, seeds=[0, 1, 2])
    with pytest.raises(UserError, match=r"differs from the protocol frozen.*--amend"):
        freeze(protocol, study, POLICY)
    assert read_frozen(study) == first


def test_another_policy_is_refused(study, protocol):
    freeze(protocol, study, POLICY)
    with pytest.raises(UserError, match="'warmstart' is not the one frozen"):
        freeze(protocol, study, "b" * 64)


def test_an_amendment_is_recorded_with_reason_and_changes(study, protocol):
    first = freeze(protocol, study, POLICY)
    edited(protocol, seeds=[0, 1, 2])
    after = freeze(protocol, study, POLICY, amend="a third seed was affordable")
    assert after.sha256 == first.sha256
    (edit,) = after.amendments
    assert edit.reason == "a third seed was affordable"
    assert edit.changes == ("seeds: [0, 1] -> [0, 1, 2]",)
    assert edit.sha256 == after.current == fingerprint({**SMALL, "seeds": [0, 1, 2]})
    assert freeze(protocol, study, POLICY) == after
    loaded, frozen = open_study(study)
    assert loaded.seeds == [0, 1, 2] and frozen == after
    # Going back is an edit too.
    edited(protocol)
    with pytest.raises(UserError, match="--amend"):
        freeze(protocol, study, POLICY)


@pytest.mark.parametrize("reason", ["", "  "])
def test_an_amendment_needs_a_reason(study, protocol, reason):
    freeze(protocol, study, POLICY)
    edited(protocol, seeds=[0])
    with pytest.raises(UserError, match="needs a reason"):
        freeze(protocol, study, POLICY, amend=reason)


def test_amend_without_an_edit(study, protocol):
    with pytest.raises(UserError, match="nothing is frozen"):
        freeze(protocol, study, POLICY, amend="why not")
    freeze(protocol, study, POLICY)
    with pytest.raises(UserError, match="unchanged"):
        freeze(protocol, study, POLICY, amend="why not")


def test_an_edit_of_the_frozen_copy_is_seen(study, protocol):
    freeze(protocol, study, POLICY)
    copy = study / "protocol.yaml"
    copy.write_text(copy.read_text().replace("0.03", "0.01"))
    with pytest.raises(UserError, match="does not have the hash"):
        open_study(study)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "x": 0}'])
def test_a_broken_freeze(study, protocol, text):
    freeze(protocol, study, POLICY)
    (study / "frozen.json").write_text(text)
    with pytest.raises(UserError, match=r"frozen\.json: broken"):
        open_study(study)


def test_not_a_study(tmp_path):
    with pytest.raises(UserError, match="not a study folder"):
        open_study(tmp_path)


def test_differences_name_places():
    before = {"a": [{"b": 1}, {"b": 2}], "c": {"d": 1}, "workers": 1}
    after = {"a": [{"b": 1}, {"b": 3}], "c": {}, "e": "new"}
    assert list(differences(before, after)) == [
        "a.1.b: 2 -> 3",
        "c.d: 1 -> nothing",
        'e: nothing -> "new"',
    ]


def test_policy_fingerprint_sees_names_and_contents(tmp_path):
    folder = tmp_path / "policy"
    (folder / "inner").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    first = policy_fingerprint(folder)
    (folder / "inner" / "x").write_text("1")
    second = policy_fingerprint(folder)
    (folder / "inner" / "x").rename(folder / "inner" / "y")
    third = policy_fingerprint(folder)
    assert len({first, second, third}) == 3
    with pytest.raises(UserError, match="no policy folder"):
        policy_fingerprint(tmp_path / "none")


def test_an_amendment_sets_aside_the_runs_it_changes_and_no_others(study, protocol, tmp_path):
    def write(folder, sha256):
        known = load(protocol)
        return write_recipes(study, known, dict.fromkeys(known.arms, (folder, sha256)))

    freeze(protocol, study, POLICY)
    assert write(tmp_path, POLICY) == []
    for arm in ("independent", "paired"):
        folder = run_at(study, arm, 0).folder
        folder.mkdir(parents=True)
        (folder / "status.json").write_text(json.dumps({"state": "done", "step": 4}))
    edited(protocol, arms={**SMALL["arms"], "paired": {"sharing": "blocks(2)"}})
    freeze(protocol, study, POLICY, amend="blocks")
    moved = write(tmp_path, POLICY)
    assert [run.name for run in moved] == ["paired seed 0"]
    assert run_at(study, "independent", 0).folder.exists()
    assert not run_at(study, "paired", 0).folder.exists()
    assert (study / "superseded" / "paired-seed0-1" / "status.json").exists()
    # Where the policy lies does not matter; what it is does.
    assert write(tmp_path / "elsewhere", POLICY) == []
    assert len(write(tmp_path, "b" * 64)) == 1


def test_arms_may_start_from_policies_of_their_own(study, protocol, tmp_path):
    """A relative folder is taken from the protocol's, and each run's recipe names its arm's."""
    own = {**SMALL["arms"], "paired": {"sharing": "paired", "policy": "other"}}
    edited(protocol, arms=own)
    known = load(protocol)
    folders = policy_folders(known, tmp_path)
    assert folders["paired"] == (tmp_path / "other").resolve() != folders["independent"]
    freeze(protocol, study, joint_fingerprint(["a" * 64, "b" * 64]))
    write_recipes(study, known, {arm: (folder, "a" * 64) for arm, folder in folders.items()})
    recipe = yaml.safe_load(run_at(study, "paired", known.seeds[0]).recipe.read_text())
    assert recipe["policy"] == str(folders["paired"])
    assert joint_fingerprint(["a" * 64] * 2) == "a" * 64
    assert joint_fingerprint(["a" * 64, "b" * 64]) not in ("a" * 64, "b" * 64)


def test_a_foreign_folder_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"holds something else \(thesis\.tex\)"), locked(tmp_path):
        pass
    with pytest.raises(UserError, match="is a file"), locked(tmp_path / "thesis.tex"):
        pass


def test_one_runner_at_a_time(tmp_path):
    folder = tmp_path / "study"
    with locked(folder), pytest.raises(UserError, match="another process"), locked(folder):
        pass
    with locked(folder):
        pass
