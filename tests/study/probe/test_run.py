"""A probe from the command, resumed after what a kill leaves, and its page."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from evenhand.cli import main
from evenhand.errors import UserError
from evenhand.study.probe.run import Size, probe

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))
from training_toys import make_policy

SIZE = Size(flip_tasks=2, fault_tasks=2, schedules=2, resamples=8, group_size=4)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """(policy, recipe, finished probe)"""
    folder = tmp_path_factory.mktemp("probe")
    policy = make_policy(folder / "policy", steps=40)
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        "steps: 1\nenvironment: training_toys:Colours\nnoise: {tools: {rate: 0.5}}\n"
        "limits: {context: 128, turns: 3, turn_tokens: 24, result_tokens: 40}\n"
    )
    probe(policy, recipe, folder / "out", SIZE)
    return policy, recipe, folder / "out"


def test_the_record_and_the_page(made: tuple[Path, Path, Path]) -> None:
    record = json.loads((made[2] / "probe.json").read_text())
    assert record["version"] == 1 and record["fault_noise"]["tools"]["rate"] == 0.5
    for kind, rollouts in (("flips", 8), ("faults", 16)):
        assert record[kind]["rollouts"] == rollouts
        assert record[kind]["ratio"].keys() == {"centred", "group_std"}
    assert (
        record["flips"]["sign"]["centred"]["right"] == record["flips"]["sign"]["centred"]["groups"]
    )
    page = (made[2] / "probe.html").read_text()
    assert "http" not in page.replace("http-equiv", "") and "<script" not in page
    assert "lhs/rhs" in page


def test_a_killed_probe_goes_on_to_the_same_record(
    made: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, recipe, out = made
    whole = (out / "probe.json").read_bytes()
    for name in ("probe.json", "probe.html", "faults.gram.npy", "faults/0000.parquet"):
        (out / name).unlink()
    (out / "faults.gram.npy.part").write_bytes(b"torn")
    before = (out / "flips.gram.npy").stat().st_mtime_ns
    probe(policy, recipe, out, SIZE)
    assert (out / "probe.json").read_bytes() == whole
    assert (out / "flips.gram.npy").stat().st_mtime_ns == before, "what was done is not redone"
    with pytest.raises(UserError, match="another policy or settings"):
        probe(policy, recipe, out, Size(2, 2, 2, 9, 4))
    arguments = [str(policy), "--study", str(recipe), "--out", str(out / "new"), "-G", "17"]
    monkeypatch.setattr(sys, "argv", ["evenhand", "probe", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
