"""The shell environment: gold, refusals, limits as results, stale reads, forks, the checker."""

from __future__ import annotations

import itertools

import pytest

from evenhand.environments.base import POOLS
from evenhand.environments.check import check
from evenhand.environments.gold import replay, run
from evenhand.environments.shell import families, intercode, sandbox
from evenhand.environments.shell.environment import SHOWN, ShellEnvironment, scene_of
from evenhand.environments.shell.scenes import same
from evenhand.environments.shell.suite import ShellSuite
from evenhand.records import Call, Task

pytestmark = pytest.mark.skipif(
    sandbox.unavailable() is not None, reason=sandbox.unavailable() or "there is a jail"
)
SUITE = ShellSuite() if sandbox.unavailable() is None else None
TASKS = {task.id: task for pool in POOLS for task in SUITE.tasks(pool)} if SUITE else {}


def begun(task: Task | str = "shell/csv_sum/0") -> ShellEnvironment:
    made = ShellEnvironment()
    made.reset(TASKS[task] if isinstance(task, str) else task)
    return made


def asking(environment: ShellEnvironment, tool: str, command: str, **more: bool) -> str:
    return environment.call(Call(tool, {"command": command}), **more).text


@pytest.mark.parametrize("family", [*families.FAMILIES, "intercode"])
def test_gold_earns_and_its_last_change_is_needed(family: str) -> None:
    assert SUITE is not None
    tasks = [task for task in TASKS.values() if task.family == family]
    if family == "intercode" and not tasks:
        pytest.skip("intercode-bench is not installed")
    for task in tasks[:1]:
        done = replay(SUITE, task, forks=True)
        assert done is not None and done.whole and done.refused and done.forks_agree, task.id
        assert not done.unfit
        gold = list(SUITE.gold(task))
        scene = scene_of(task)
        # Without the last command: a change is then missing, and so is an output that was asked.
        if scene.after != scene.folder or scene.output is not None:
            short = run(SUITE, task, [*gold[:-2], gold[-1]], fork=False, states=False)
            assert short.finished and short.reward == 0.0, task.id
        if scene.answer is not None:
            wrong = [*gold[:-1], Call("answer", {"text": scene.answer + "0"})]
            assert run(SUITE, task, wrong, fork=False, states=False).reward == 0.0, task.id
        else:
            mess = [*gold[:-1], Call("run", {"command": "echo x > stray.txt"}), gold[-1]]
            if scene.home == scene.start:
                assert run(SUITE, task, mess, fork=False, states=False).reward == 0.0, task.id


def test_no_generated_task_is_solved_by_doing_nothing() -> None:
    suite, free = ShellSuite(), []
    for task in (task for pool in POOLS for task in suite.tasks(pool)):
        if task.family != "intercode" and scene_of(task).answer is None:
            environment = suite.make()
            environment.reset(task)
            environment.call(Call("answer", {"text": "done"}))
            free += [task.id] * int(environment.grade())
            environment.close()
    assert not free


def test_enough_tasks_in_pools_that_share_nothing() -> None:
    assert SUITE is not None
    made = [task for task in TASKS.values() if task.family != "intercode"]
    assert len(made) >= 500 and len(families.FAMILIES) == 22
    held = {pool: {(t.prompt, scene_of(t).folder) for t in SUITE.tasks(pool)} for pool in POOLS}
    for one, other in itertools.combinations(POOLS, 2):
        assert held[one] and not held[one] & held[other]
    assert families.scene("csv_sum", 3) == families.scene("csv_sum", 3)


@pytest.mark.skipif(not intercode.queries(), reason="intercode-bench is not installed")
def test_intercode_tasks_that_are_left_out_are_those_that_say_nothing() -> None:
    start = intercode.scene(0).folder
    for number, (_, command) in enumerate(intercode.queries()):
        ran = sandbox.run(command, start, home=intercode.HOME, start="/")
        means = ran.code == 0 and not ran.cut and (ran.output or ran.folder != start)
        if number not in intercode.LEFT_OUT:
            assert means, number
        elif number != 1:  # ends well, but only for the pipe after it
            assert not means or number in intercode.LEFT_OUT


def test_answers_compare_as_numbers_or_trimmed_text() -> None:
    assert same(" 12\n", "12") and same("12.0", "12") and same("a b", "a b ")
    assert not same("13", "12") and not same("A", "a") and not same("", "0")


def test_limits_come_back_as_results_and_undo_the_command() -> None:
    environment = begun()
    before = environment.state()
    for command, code in (("yes", "OUTPUT_LIMIT"), ("truncate -s 7M a b c d", "FOLDER_LIMIT")):
        result = environment.call(Call("run", {"command": f"touch trace; {command}"}))
        assert result.error == code and environment.state() == before
    result = environment.call(Call("look", {"command": "echo \0"}))
    assert result.error == "BAD_COMMAND"
    long = environment.call(Call("look", {"command": "seq 9999"})).value
    assert len(long["output"]) == SHOWN and long["truncated"]
    odd = environment.call(Call("look", {"command": "printf 'a\\xff'"})).value
    assert odd == {"exit_code": 0, "output": "a\\xff"}


def test_stale_reads_and_forks() -> None:
    environment = begun()
    asking(environment, "run", "cat sales.csv")
    assert not environment.can_be_stale
    asking(environment, "run", "echo 1 > n")
    other = environment.fork()
    asking(environment, "run", "echo 2 > n")
    assert '"1' in asking(environment, "look", "cat n", stale=True)
    assert '"2' in asking(environment, "look", "cat n")
    assert '"1' in asking(other, "look", "cat n") and other.state() != environment.state()
    assert "No such" in asking(other, "look", "cat n", stale=True)


def test_any_wording_of_a_command_is_one_resource() -> None:
    environment = begun()
    calls = [Call(t, {"command": c}) for t in ("look", "run") for c in ("ls", "ls   -l")]
    assert {environment.resources(call) for call in calls} == {("folder",)}
    assert environment.resources(Call("wait", {"seconds": 1})) == ()


def test_checker_finds_it_sound() -> None:
    assert SUITE is not None
    report = check(SUITE, count=2, length=5, groups=6)
    assert report.sound, report.text()
