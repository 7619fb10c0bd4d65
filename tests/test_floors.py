"""The floors' contracts find a planted breach, and pass without one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINT = Path(sys.executable).with_name("lint-imports")


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(
        ROOT / "src" / "evenhand",
        tmp_path / "evenhand",
        ignore=shutil.ignore_patterns("*.safetensors", "__pycache__"),
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(folder):
    return subprocess.run(
        [str(LINT), "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_tree_as_it_is_keeps_the_floors(copy):
    done = lint(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("records.py", "import evenhand.draws, evenhand.noise"),  # upwards
        ("noise/noise.py", "import evenhand.advantages"),  # floor 2's rooms know each other
        ("environments/base.py", "import evenhand.rollout"),
        ("training/__init__.py", "import evenhand.study"),
        ("advantages/__init__.py", "import torch"),
        ("report/__init__.py", "import transformers"),
        ("records.py", "def f():\n    import torch"),  # lazily too
        ("weather.py", "import evenhand.draws"),  # a room with no floor
    ],
)
def test_a_planted_breach_is_found(copy, file, line):
    with (copy / "evenhand" / file).open("a") as source:
        source.write(f"\n\n{line}\n")
    done = lint(copy)
    assert done.returncode == 1, done.stdout
    assert "BROKEN" in done.stdout
