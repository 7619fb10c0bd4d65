"""The recorder: findings while a run goes on, and how often."""

import itertools
import logging
import warnings

from evenhand.integrations.trl import Recorder

from .runs import paired_run

warnings.filterwarnings("ignore")


def test_findings_are_raised_while_the_run_goes_on(caplog):
    _, rollouts, _ = paired_run()
    recorder = Recorder(None, every=2, stop=True)
    recorder.take(rollouts)

    class Control:
        should_training_stop = False

    with caplog.at_level(logging.WARNING):
        recorder.on_step_end(None, None, Control)
        assert recorder.report is None
        for _ in range(3):
            recorder.on_step_end(None, None, Control)
    said = [r.message for r in caplog.records if "coupling" in r.message and "audit:" in r.message]
    assert len(said) == 1  # once, not at every audit
    assert recorder.told()["evenhand/audit/coupling"] == 2.0
    assert recorder.told() == {}
    assert Control.should_training_stop is recorder.report.reaches("critical")


def test_the_longer_the_run_the_longer_between_its_audits(monkeypatch):
    recorder, at = Recorder(None, every=10), []
    for step in range(1, 201):
        monkeypatch.setattr(recorder, "audit", lambda step=step: at.append(step))
        recorder.on_step_end(None, None, None)
    assert at[:5] == [10, 20, 30, 40, 50]
    # So each step is audited at most six times, in the mean.
    assert all(b - a == max(10, a // 5) for a, b in itertools.pairwise(at))
    assert sum(at) < 6 * at[-1]
    still = Recorder(None, every=0)
    monkeypatch.setattr(still, "audit", lambda: at.append(-1))
    still.on_step_end(None, None, None)
    assert at[-1] > 0
