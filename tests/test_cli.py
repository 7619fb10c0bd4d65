"""The command: instant help, one sentence and exit 2 on bad input, extras named when missing."""

import json
import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "pandas", "pyarrow", "matplotlib", "numpy")


def run(*arguments, missing=(), tracebacks="", cwd=None):
    """`evenhand ARGUMENTS` in a process of its own, as if the modules `missing` were not there."""
    hidden = "".join(f"sys.modules[{name!r}] = None; " for name in missing)
    code = (
        f"import sys; {hidden}sys.argv = ['evenhand', *sys.argv[1:]]; "
        "from evenhand.cli import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "EVENHAND_TRACEBACK": tracebacks},
        timeout=120,
        check=False,
    )


def refused(done):
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("evenhand: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["study", "--help"], ["version"]])
def test_help_loads_no_room(arguments):
    code = (
        f"import sys; sys.argv = ['evenhand', *{arguments!r}]\n"
        "from evenhand.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as stop:\n    assert not stop.code\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_python_m_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "evenhand", "version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split(".")[0].isdigit()


def test_environments():
    assert "database" in run("environments", "list").stdout.split()
    assert "(environment database needs" in run("environments", "list", missing=["pandas"]).stdout
    shown = run("environments", "show", "database", "--tasks", "1").stdout
    for word in ("query(sql, offset)", "train: ", "challenge: ", "database/test/0: "):
        assert word in shown


def test_gold_and_play():
    done = run("environments", "gold", "database", "--limit", "3", "--forks")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "database: 3/3 earn the full reward" in done.stdout
    one = run("environments", "gold", "database", "--pool", "test", "--limit", "1", "--json")
    assert json.loads(one.stdout)["task_id"] == "database/test/0"
    assert "has no task 'x'" in refused(run("environments", "play", "database", "--task", "x"))
    assert "database has no pool 'moon'" in refused(
        run("environments", "gold", "database", "--pool", "moon")
    )


def test_bad_input_is_one_sentence(tmp_path):
    assert "unknown environment 'nowhere'" in refused(run("environments", "show", "nowhere"))
    for arguments in (
        ("train", tmp_path / "none.yaml", "--out", tmp_path / "run"),
        ("study", "run", tmp_path / "none.yaml", "--out", tmp_path / "study"),
        ("study", "report", tmp_path / "nothing"),
    ):
        assert str(tmp_path) in refused(run(*arguments))


def test_usage_mistakes_exit_with_two():
    assert run("train").returncode == 2
    assert run("fly").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "missing", "extra"),
    [
        (("train", "r.yaml", "--out", "o"), "torch", "evenhand[train]"),
        (("environments", "show", "database"), "bokeh_sampledata", "evenhand[environments]"),
    ],
)
def test_a_missing_extra_is_named(arguments, missing, extra, tmp_path):
    (tmp_path / "r.yaml").write_text("policy: policy\nsteps: 1\n")
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text("{}")
    assert extra in refused(run(*arguments, missing=[missing], cwd=tmp_path))


def test_a_broken_install_is_not_called_a_missing_extra():
    done = run("environments", "show", "database", missing=["sqlite3"])
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_traceback_on_request():
    done = run("environments", "show", "nowhere", tracebacks="1")
    assert "Traceback" in done.stderr
    assert done.returncode != 0
