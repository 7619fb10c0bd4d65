"""The audit's page: whole, escaped, without network."""

import json
import re

from typer.testing import CliRunner

from evenhand.cli import app


def test_the_page_holds_everything_and_loads_nothing(tmp_path):
    nasty = "</script><script>alert(1)</script>"
    rows = [
        {
            "group_id": g,
            "prompt_id": f"task {g % 3}",
            "step": g,
            "reward": (g + i) % 2,
            "calls": [{"tool": nasty, "arguments": {}, "result": nasty, "fault": i == 0}],
            "schedule": f"{g}/{i // 4}",
        }
        for g in range(24)
        for i in range(8)
    ]
    log, page = tmp_path / "log.jsonl", tmp_path / "page.html"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = CliRunner().invoke(app, ["audit", str(log), "--html", str(page)])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "alert(1)</script>" not in text
    assert not re.search('(src|href)="http', text)
    for part in ("Luck share", "Where updates point", "coupled with whom", "Over steps"):
        assert part in text
    groups = json.loads(text.split('id="rollout-data">')[1].split("</script>")[0])
    assert len(groups) == 24
    assert {r["draw"] for r in groups[0]["rollouts"]} == {0, 1}
    assert groups[0]["rollouts"][0]["turns"][0]["fault"]


def page_of(tmp_path, pay):
    """A page on two long actions that differ in their last letter only."""
    told = "SELECT total FROM orders WHERE customer = 4711 AND status = 'open' ORDER BY day LIMIT "
    rows = [
        {
            "group_id": g,
            "prompt_id": "task",
            "step": g,
            "reward": pay(i, g),
            "calls": [{"tool": "query", "arguments": {"sql": f"{told}{i % 2}"}, "result": "x"}],
        }
        for g in range(40)
        for i in range(8)
    ]
    log, page = tmp_path / "log.jsonl", tmp_path / "page.html"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert CliRunner().invoke(app, ["audit", str(log), "--html", str(page)]).exit_code == 0
    return page.read_text()


def test_actions_are_told_apart_by_their_whole_text(tmp_path):
    text = page_of(tmp_path, lambda i, g: float(i % 2 or i == g % 8))
    assert "cosine, all tasks" in text
    for end in "01":
        assert f"ORDER BY day LIMIT {end}&#34;}}</code>" in text


def test_no_direction_is_shown_where_none_is_known(tmp_path):
    text = page_of(tmp_path, lambda i, g: float((i // 2 + g) % 2))
    assert "no action pays measurably more" in text.lower()
    assert "cosine, all tasks" not in text and 'class="chart bars"' not in text
