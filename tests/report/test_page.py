"""The page: whole, without a network, honest, and deaf to what tools say."""

import base64
import copy
import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from evenhand.errors import UserError
from evenhand.report.page import render, write_page
from evenhand.report.rollouts import TEXT, inline_json, viewer_groups
from evenhand.study.command import report
from evenhand.study.frozen import freeze
from evenhand.study.results import gather
from tests.study.synthetic import HOSTILE, SMALL, made_up_rollouts, write_protocol, write_study

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def success(run, name, step, task, schedule, sample):
    return float((task + schedule + sample + step + (run.arm == "paired")) % 3 > 0)


def rollouts(run, step):
    return made_up_rollouts(run, step, sharing=run.arm)


class Reader(HTMLParser):
    """Tags, ids, and the text of scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.scripts, self.attributes = [], [], [], []
        self._script = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag == "script":
            self._script = ""

    def handle_data(self, data):
        if self._script is not None:
            self._script += data

    def handle_endtag(self, tag):
        if tag == "script":
            self.scripts.append(self._script)
            self._script = None


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies") / "study"
    data = copy.deepcopy(SMALL)
    data["title"] = f"A study {HOSTILE}"
    data["pilot"] = f"a pilot {HOSTILE}"
    data["evaluations"][1]["title"] = f"noisy {HOSTILE}"
    data["recipe"]["noise"] = {"grader": {"false_negative": 0.1}}
    lost = {"lost": 1, "failures": {f"gone {HOSTILE}": 1}}
    write_study(
        folder, data, success, lambda run, step: lost if step == 2 else {}, rollouts=rollouts
    )
    return folder


@pytest.fixture(scope="module")
def results(study):
    return gather(study)


@pytest.fixture(scope="module")
def page(results):
    return render(results)


def test_it_loads_nothing(page):
    reader = Reader(page)
    loading = {"src", "href", "srcset", "action", "poster", "data", "xlink:href", "background"}
    assert [a for a in reader.attributes if a[1] in loading and not a[2].startswith("#")] == []
    assert not {"link", "iframe", "object", "embed", "base", "img"} & set(reader.tags)
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style and "@import" not in style
    assert not re.search(r"https?://|//[a-z]+\.", page.replace(str(escape(HOSTILE)), ""))


def test_hostile_text_is_text(page):
    reader = Reader(page)
    # The data and the viewer, and nothing that a tool slipped in.
    assert len(reader.scripts) == 2 and "img" not in reader.tags
    assert [name for _, name, _ in reader.attributes if name.startswith("on")] == []
    assert "<!--" not in page
    # Neither evaluated as a template nor changed.
    title = re.search("<title>(.*?)</title>", page, re.DOTALL).group(1)
    assert html.unescape(title) == f"A study {HOSTILE}"
    told = [t for g in json.loads(reader.scripts[0]) for r in g["rollouts"] for t in r["turns"]]
    assert any(json.dumps(HOSTILE, ensure_ascii=False) in t.get("result", "") for t in told)


def test_the_policy_allows_the_one_script(page):
    script = Reader(page).scripts[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert (
        f"script-src &#39;sha256-{digest}&#39;" in page or f"script-src 'sha256-{digest}'" in page
    )
    assert "default-src 'none'" in page


def test_ids_are_unique_and_links_land(page):
    reader = Reader(page)
    assert len(reader.ids) == len(set(reader.ids))
    targets = [value[1:] for _, name, value in reader.attributes if name == "href"]
    assert set(targets) <= set(reader.ids)


def test_it_says_what_a_reader_needs(page, results):
    text = html.unescape(page)
    assert results.verdict.sentence in text
    assert results.frozen.sha256 in text and results.protocol.pilot in text
    assert "spurious groups" in text and "4: gone" in text
    for arm, found in results.arms.items():
        assert arm in text and f"{100 * found['validation_auc'].mean:.1f}" in text
    charts = re.findall(r'<svg class="chart"[^>]*role="img"[^>]*aria-label="([^"]+)"', page)
    assert len(charts) >= 4 and all("training step" in told for told in charts)
    rows = re.findall(r'<div class="row[^"]*" role="img" aria-label="([^"]+)"', page)
    assert any("difference" in told and "seed 1" in told for told in rows)
    assert "57 % expected" in page


@given(st.text())
def test_inlined_json_is_the_same_json_and_no_markup(text):
    inlined = str(inline_json([text]))
    assert json.loads(inlined) == [text]
    assert not re.search("[<>&\u2028\u2029]", inlined)


def test_viewer_groups_are_whole_and_say_who_shared(results):
    groups = viewer_groups(results)
    by_arm = {
        arm: [g for g in groups if g["name"].startswith(f"{arm}, ")]
        for arm in results.protocol.arms
    }
    for g in by_arm["paired"]:
        assert {r["draw"] for r in g["rollouts"]} == {0}
    for g in by_arm["independent"]:
        assert [r["draw"] for r in g["rollouts"]] == [0, 1, 2, 3]
    assert {g["name"].split("step ")[1][0] for g in groups} == {"1", "3", "4"}
    assert all(len(g["rollouts"]) == 4 for g in groups)
    first = groups[0]["rollouts"][1]["turns"][0]
    assert first["tool"] == "query" and first["fault"] == "transient"
    assert first["event"] == "draw 1 of query · stocks.aapl"
    assert groups[0]["prompt"]  # of the real environment's task of that name


def test_prompts_of_somebody_elses_environment_are_not_fetched(study, tmp_path):
    data = copy.deepcopy(SMALL)
    data["recipe"]["environment"] = "os:getcwd"
    write_study(tmp_path / "study", data, success, rollouts=rollouts)
    groups = viewer_groups(gather(tmp_path / "study"))
    assert groups and all("not on this machine" in g["prompt"] for g in groups)


def test_long_texts_are_cut(tmp_path):
    def long(run, step):
        made = rollouts(run, step)
        made[0].turns[0].text = made[0].turns[0].problem = "x" * 10_000
        made[0].turns[0].call = None
        return made

    write_study(tmp_path / "study", SMALL, success, rollouts=long)
    turn = next(
        t
        for g in viewer_groups(gather(tmp_path / "study"))
        for r in g["rollouts"]
        for t in r["turns"]
        if "problem" in t
    )
    assert len(turn["text"]) < TEXT + 40 and turn["text"].endswith("(10000 characters)")


def test_a_study_without_rollouts_or_with_half_its_runs(tmp_path):
    write_study(tmp_path / "half", SMALL, success, only=lambda run: run.seed == 0)
    page = render(gather(tmp_path / "half"))
    assert "2 of 4 runs are finished" in page and "Undecided" in page
    assert "No run kept its training rollouts" in page and len(Reader(page).scripts) == 1
    write_study(tmp_path / "none", SMALL, success, only=lambda run: False)
    assert "0 of 4 runs are finished" in render(gather(tmp_path / "none"))


def test_amendments_are_marked(tmp_path):
    folder = tmp_path / "study"
    write_study(folder, SMALL, success)
    data = copy.deepcopy(SMALL)
    data["rules"][0]["minimum"] = 0.01
    freeze(write_protocol(tmp_path / "p.yaml", data), folder, "0" * 64, amend="it was too strict")
    page = html.unescape(render(gather(folder)))
    assert "Amended after it was frozen." in page and "it was too strict" in page
    assert "rules.0.minimum: 0.03 -> 0.01" in page
    assert "The protocol was amended once" in page


def test_reports_need_no_torch(study):
    code = (
        "import sys; from pathlib import Path; from evenhand.study.command import report;"
        f"report(Path({str(study)!r}));"
        "print([m for m in ('torch', 'transformers', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_report_prints_verdict_and_path(study, tmp_path, capsys):
    report(study, tmp_path / "page.html")
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == str(tmp_path / "page.html") and "its registered rule" in said[0]
    assert (study / "results.json").exists() and (study / "results.md").exists()
    report(study)
    assert (study / "report.html").exists()


def test_a_page_that_cannot_be_written(results, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        write_page(results, tmp_path / "file" / "page.html")


def test_not_a_study(tmp_path):
    with pytest.raises(UserError, match="not a study folder"):
        report(tmp_path)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_chromium_shows_it_and_runs_nothing_else(page, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page, encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]
    command += ["--no-first-run", "--disable-background-networking", "--disable-sync"]
    command += ["--disable-component-update", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*command, "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    shown = done.stdout
    title = re.search("<title>(.*?)</title>", shown, re.DOTALL).group(1)
    assert title.startswith("A study")  # and not "owned"
    # The viewer ran: siblings stand there, with the hostile result as text.
    assert shown.count('<article class="sibling"') == 4
    assert "<option" in shown and "fault: transient" in shown
    assert "&lt;/script&gt;&lt;img src=x" in shown
    assert "img" not in Reader(shown).tags
