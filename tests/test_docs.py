"""Every ```python block of the README and docs/ runs; links between the pages hold."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ELSEWHERE = {"textworld.md": "textworld", "verl.md": "verl"}
"""Pages whose blocks need what an environment of its own has: `make test-NAME` runs them there."""
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\((?!https?:|mailto:|#)([^)#\s]+)[^)]*\)")


def blocks():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for number, match in enumerate(BLOCK.finditer(text), start=1):
            line = text.count("\n", 0, match.start()) + 1
            name = f"{page.relative_to(ROOT)}:{line}"
            yield pytest.param(page, line, match.group(1), id=f"{name}-{number}")


@pytest.mark.parametrize(("page", "line", "code"), list(blocks()))
def test_block_runs(page, line, code, tmp_path):
    needed = ELSEWHERE.get(page.name)
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not in this environment: run `make test-{needed}`")
    # Padded with blank lines, so that a traceback names the line of the page.
    script = tmp_path / page.name
    script.write_text("\n" * line + code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_hold(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_there_are_blocks_to_run():
    pages = {param.values[0].name for param in blocks()}
    assert {"README.md", "sharing.md", "records.md"} <= pages
