"""Metrics from run folders against values worked out by hand."""

import copy
import json

import numpy as np
import pytest

from evenhand.errors import RecordError, UserError
from evenhand.statistics import luck_share
from evenhand.study.layout import run_at
from evenhand.study.metrics import difference, estimate, label, luck_at, luck_estimate
from evenhand.study.results import gather
from evenhand.study.rundata import read_run
from evenhand.study.summary import signed, to_json, to_markdown

from .synthetic import SMALL, write_study


def ladder(run, name, step, task, schedule, sample):
    """Success by hand: on validation the number of solved (task, schedule) cells grows with the
    step; the paired arm solves one more after step 2, two more after step 4."""
    if name == "luck":
        return float(schedule == 0)
    if name == "test":
        return float(task < step // 2 + (run.arm == "paired" and step > 0))
    cell = task * 2 + schedule
    extra = {0: 0, 2: 1, 4: 2}[step] if run.arm == "paired" else 0
    return float(cell < 1 + step // 2 + extra)


def groups(run, step):
    return {"contrast": 0.25 * step / 2, "all_correct_groups": step, "spurious_groups": step // 2}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies") / "study"
    write_study(folder, SMALL, ladder, groups)
    return gather(folder)


def test_auc_is_the_trapezoid_mean(results):
    # independent: 1, 2, 3 of 6 cells at steps 0, 2, 4; paired: 1, 3, 5.
    independent, paired = (results.arms[a]["validation_auc"] for a in ("independent", "paired"))
    assert independent.mean == pytest.approx((1 / 6 + 2 * 2 / 6 + 3 / 6) / 4)
    assert paired.mean == pytest.approx((1 / 6 + 2 * 3 / 6 + 5 / 6) / 4)
    found = results.differences["paired"]["validation_auc"]
    assert found.mean == pytest.approx(1 / 6)
    assert found.seeds == {0: pytest.approx(1 / 6), 1: pytest.approx(1 / 6)}


def test_uneven_steps_weigh_by_their_distance(tmp_path):
    data = copy.deepcopy(SMALL)
    del data["evaluations"][0]["every"]
    data["evaluations"][0]["at"] = [0, 1, "last"]
    data["rules"][0]["not_reversed"] = None

    def success(run, name, step, *cell):
        return {0: 0.0, 1: 1.0, 4: 0.0}[step]

    write_study(tmp_path / "study", data, success)
    found = gather(tmp_path / "study").arms["paired"]["validation_auc"]
    assert found.mean == pytest.approx((0.5 * 1 + 0.5 * 3) / 4)


def test_final_success(results):
    assert results.arms["independent"]["test_final"].mean == 2 / 4
    assert results.arms["paired"]["test_final"].mean == 3 / 4
    assert results.arms["paired"]["validation_final"].mean == pytest.approx(5 / 6)


def test_rises(results):
    found = {(r.set, r.arm, r.seed): (r.start, r.end) for r in results.rises}
    assert found["test", "paired", 1] == (0.0, 0.75)
    assert found["validation", "independent", 0] == (pytest.approx(1 / 6), pytest.approx(0.5))
    assert len(found) == 8


def test_dead_and_spurious_rates(results):
    arm = results.arms["paired"]
    # contrast 1/8, 2/8, 3/8, 4/8; all-correct 1+2+3+4 = 10, spurious 0+1+1+2 = 4.
    assert arm["dead_rate"].mean == pytest.approx(1 - 10 / 32)
    assert arm["spurious_rate"].mean == pytest.approx(0.4)


def test_luck_share_of_a_table_that_schedules_decide_is_one(results):
    assert results.luck["paired"][0].mean == results.luck["paired"][4].mean == 1.0


def test_luck_share_equals_the_pooled_estimator(tmp_path):
    stream = np.random.default_rng(0)
    tables = {
        (arm, seed): (stream.random((3, 3, 4)) < stream.random((3, 3, 1))).astype(float)
        for arm in SMALL["arms"]
        for seed in SMALL["seeds"]
    }

    def success(run, name, step, task, schedule, sample):
        return tables[run.arm, run.seed][task, schedule, sample] if name == "luck" else 0.0

    protocol = write_study(tmp_path / "study", SMALL, success)
    runs = {key: read_run(run_at(tmp_path / "study", *key), protocol) for key in tables}
    own = {key: luck_share(table).clipped for key, table in tables.items()}
    found = luck_at([runs["paired", 0], runs["paired", 1]], 4)
    assert found.seeds == {s: pytest.approx(own["paired", s]) for s in (0, 1)}
    both = difference(
        [runs["paired", 0], runs["paired", 1]],
        [runs["independent", 0], runs["independent", 1]],
        protocol,
        "luck_share",
    )
    assert both.seeds[1] == pytest.approx(own["paired", 1] - own["independent", 1])
    assert both.low <= both.mean <= both.high


def test_luck_interval_covers_and_shrinks():
    stream = np.random.default_rng(1)

    def width(tasks):
        parts = {s: (stream.random(tasks), stream.random(tasks)) for s in range(3)}
        found = luck_estimate([parts], 2000)
        assert found.low < found.mean < found.high
        return found.high - found.low

    assert width(400) < 0.5 * width(20)


def test_interval_on_known_data():
    # One seed, tasks 0 and 1 only: a resample's mean is 0, 1/2 or 1 with probability 1/4, 1/2, 1/4.
    found = estimate({0: np.array([0.0, 1.0])})
    assert (found.mean, found.low, found.high) == (0.5, 0.0, 1.0)
    same = estimate({0: np.full(5, 0.2), 1: np.full(5, 0.2)})
    assert (same.mean, same.low, same.high) == pytest.approx((0.2, 0.2, 0.2))
    # Large and independent: the interval is that of the normal law.
    values = np.random.default_rng(2).normal(size=4000)
    wide = estimate({0: values})
    assert wide.high - wide.low == pytest.approx(2 * 1.96 / 4000**0.5, rel=0.05)


def test_a_tasks_schedules_stay_together(tmp_path):
    """Schedules of a task are no further evidence when they always agree."""
    data = copy.deepcopy(SMALL)
    data["evaluations"][1] |= {"tasks": 30, "schedules": 1}

    def success(run, name, step, task, schedule, sample):
        return float(task % 3 == 0 or (run.arm == "paired" and task % 2 == 0))

    write_study(tmp_path / "one", data, success)
    data["evaluations"][1]["schedules"] = 6
    write_study(tmp_path / "six", data, success)
    one, six = (
        gather(tmp_path / name).differences["paired"]["test_final"] for name in ("one", "six")
    )
    assert (one.low, one.high) == pytest.approx((six.low, six.high))


def test_lost_rollouts_vote_nowhere(tmp_path):
    def success(run, name, step, task, schedule, sample):
        lost = name == "test" and (task == 0 or (task == 1 and run.arm == "paired"))
        return None if lost else float(task >= 2)

    write_study(tmp_path / "study", SMALL, success)
    results = gather(tmp_path / "study")
    assert results.arms["independent"]["test_final"].mean == pytest.approx(2 / 3)
    assert results.arms["paired"]["test_final"].mean == 1.0
    # Task 1 is known of one arm only, so that its difference is not.
    assert results.differences["paired"]["test_final"].mean == 0.0
    assert results.runs[0].sets["test"].lost == 2


def test_lost_training_rollouts_by_reason(tmp_path):
    def step(run, at):
        return {"lost": 3, "failures": {"timeout": 2}} if (run.arm, at) == ("paired", 2) else {}

    write_study(tmp_path / "study", SMALL, ladder, step)
    assert gather(tmp_path / "study").lost == {"": 2, "timeout": 4}


def test_an_unfinished_study(tmp_path):
    folder = tmp_path / "study"
    protocol = write_study(folder, SMALL, ladder, only=lambda run: run.seed == 0)
    run = run_at(folder, "paired", 0)
    # As a killed writer leaves it: the last evaluation is half there, and its last line torn.
    path = run.folder / "evaluations.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] < 4 or '"luck"' not in line]
    path.write_text("".join(kept) + lines[-1][:20])
    data = read_run(run, protocol)
    assert data.sets["luck"].steps_E == (0,) and data.sets["test"].steps_E == (0, 4)
    results = gather(folder)
    assert results.finished == 2 and results.verdict.passed is None
    assert results.differences["paired"]["luck_share"] is None
    assert results.differences["paired"]["validation_auc"].seeds.keys() == {0}
    assert json.loads(json.dumps(to_json(results), allow_nan=False))["passed"] is None
    assert "Undecided" in to_markdown(results)


def test_steps_done_again_count_once(tmp_path):
    folder = tmp_path / "study"
    protocol = write_study(folder, SMALL, ladder, groups)
    run = run_at(folder, "paired", 0)
    before = read_run(run, protocol)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        path = run.folder / name
        path.write_text(path.read_text() + "".join(path.read_text().splitlines(True)[-2:]))
    after = read_run(run, protocol)
    assert after.training == before.training
    for name, table in before.sets.items():
        np.testing.assert_array_equal(after.sets[name].success_ETSR, table.success_ETSR)


def test_a_broken_record_names_file_and_line(tmp_path):
    folder = tmp_path / "study"
    write_study(folder, SMALL, ladder)
    path = run_at(folder, "paired", 1).folder / "evaluations.jsonl"
    lines = path.read_text().splitlines(True)
    for broken in ("{\n", '{"step": 0}\n', '{"set": "test"}\n'):
        path.write_text("".join([*lines[:2], broken, *lines[3:]]))
        with pytest.raises(RecordError, match=r"evaluations\.jsonl, line 3"):
            gather(folder)


def test_other_tasks_are_not_subtracted(tmp_path):
    folder = tmp_path / "study"
    write_study(folder, SMALL, ladder)
    path = run_at(folder, "paired", 1).folder / "evaluations.jsonl"
    path.write_text(path.read_text().replace("database/test/0", "database/test/9"))
    with pytest.raises(UserError, match="other tasks"):
        gather(folder)


def test_summaries(results):
    text = to_markdown(results)
    assert text.startswith("# A small study\n\nPaired passed its registered rule")
    assert "| noisy test | paired | 1 | 0.0 % | 75.0 % | +75.0 |" in text
    assert "| final noisy test success | +25.0 |" in text
    plain = to_json(results)
    assert plain["passed"] is True and plain["verdict"] == results.verdict.sentence
    assert plain["curves"]["validation"]["paired"]["steps"] == [0, 2, 4]
    assert label(results.protocol, "test_final") == "final noisy test success"
    assert [signed(v) for v in (0.0, -0.0004, 0.031, -0.5)] == ["0.0", "0.0", "+3.1", "−50.0"]
