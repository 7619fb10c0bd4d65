"""The command: outputs, and exit codes 0, 1 and 2."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from evenhand.audit import audit
from evenhand.cli import app
from evenhand.errors import UserError

KINDS = {
    *("luck-share", "tool-luck", "coupling", "reversal-risk"),
    *("cross-talk", "dead-groups", "drift"),
}


@pytest.fixture
def dull(tmp_path):
    path = tmp_path / "dull.jsonl"
    path.write_text('{"prompt_id": "p", "rewards": [1, 1, 1, 1]}\n' * 60)
    return path


def test_json_has_every_kind_and_every_field(dull):
    done = CliRunner().invoke(app, ["audit", str(dull), "--json"])
    assert done.exit_code == 0
    findings = json.loads(done.stdout)["findings"]
    assert {f["kind"] for f in findings} == KINDS
    for f in findings:
        assert set(f) == {"kind", "verdict", "estimate", "low", "high", "evidence", "mend"}
        assert f["verdict"] == "ok" or f["mend"]
    (dead,) = [f for f in findings if f["kind"] == "dead-groups"]
    assert (dead["verdict"], dead["estimate"]) == ("critical", 1.0)


def test_text_and_markdown(dull):
    report = audit(dull)
    assert "critical: dead-groups" in report.text()
    assert "| critical | dead-groups | 1 [" in report.markdown()


def test_fail_on_decides_the_exit_code(dull):
    run = CliRunner().invoke
    assert run(app, ["audit", str(dull), "--fail-on", "critical"]).exit_code == 1
    dull.write_text('{"prompt_id": "p", "rewards": [1, 0, 1, 0]}\n' * 60)
    assert run(app, ["audit", str(dull), "--fail-on", "critical"]).exit_code == 0
    assert isinstance(run(app, ["audit", str(dull), "--fail-on", "ok"]).exception, UserError)


def test_no_torch_is_imported_and_bad_input_exits_with_2(tmp_path):
    code = (
        "import sys; from evenhand.audit import audit; from evenhand.cli import main;"
        "assert not {'torch', 'scipy', 'pyarrow'} & set(sys.modules);"
        f"sys.argv = ['evenhand', 'audit', {str(tmp_path / 'no')!r}]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "no such file" in done.stderr
