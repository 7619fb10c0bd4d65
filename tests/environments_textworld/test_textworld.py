"""Real games: gold, forks, effects, what a command may be; and faults that the checks must find."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import Any

import pytest

from tests.environments_textworld import NEEDED

pytest.importorskip("textworld", reason=NEEDED)

import jericho

from evenhand.environments import suite
from evenhand.environments.check import check
from evenhand.environments.gold import replay, run
from evenhand.environments.textworld import TextworldSuite
from evenhand.environments.textworld.environment import TextworldEnvironment
from evenhand.environments.textworld.games import Spec, folder
from evenhand.environments.textworld.machine import Machine, Moment, machine
from evenhand.environments.textworld.suite import direct
from evenhand.records import Call, Result, Task

SUITE = TextworldSuite()
LEVELS = {
    level: next(t for t in SUITE.tasks("test") if t.family == level)
    for level in ("short", "medium", "long")
}
SHORT, LONG = LEVELS["short"], LEVELS["long"]


def spec(task: Task) -> Spec:
    return Spec(task.data["level"], task.data["number"], task.data["split"])


def do(command: str) -> Call:
    return Call("do", {"command": command})


def playing(task: Task, calls: Sequence[Call] = ()) -> TextworldEnvironment:
    environment = SUITE.make()
    environment.reset(task)
    for call in calls:
        environment.call(call)
    return environment


@pytest.mark.parametrize("level", LEVELS)
def test_gold_wins_and_no_part_of_it_does(level: str) -> None:
    done = replay(suite("textworld"), LEVELS[level], forks=True)
    assert done is not None and done.whole and done.refused and done.forks_agree
    assert done.unwritten is not None and done.unwritten < 1 and not done.unfit
    low, high = {"short": (6, 12), "medium": (12, 20), "long": (20, 45)}[level]
    assert low <= done.calls <= high
    for call in (environment := playing(LEVELS[level])) and SUITE.gold(LEVELS[level]):
        assert environment.call(call).error is None, call


def test_the_grade_is_the_share_of_the_points_and_grows_on_the_way() -> None:
    environment, grades = playing(LONG), []
    for call in SUITE.gold(LONG):
        environment.call(call)
        grades.append(environment.grade())
    assert grades == sorted(grades) and grades[0] == 0 and grades[-1] == 1
    points = machine(spec(LONG)).max_score
    assert {round(grade * points, 9) for grade in grades} == set(range(points + 1))


def test_what_is_spoilt_ends_the_game_and_keeps_its_points() -> None:
    gold = list(SUITE.gold(SHORT))
    cooking = next(n for n, call in enumerate(gold) if str(call.arguments).find("cook ") > 0)
    command = gold[cooking].arguments["command"]
    wrong = (
        command.replace("stove", "oven")
        if "stove" in command
        else (command.replace("oven", "stove"))
    )
    environment = playing(SHORT, gold[:cooking])
    before = environment.grade()
    said = environment.call(do(wrong))
    assert said.error is None and "*** You lost! ***" in said.value
    assert environment.finished and 0 < before == environment.grade() < 1


def test_the_checker_is_content() -> None:
    report = check(SUITE, tasks=[SHORT, LONG], groups=40)
    assert report.sound and len(report.findings) == 16, report.text()


# -- planted faults ----------------------------------------------------------------------------


class Looks(TextworldEnvironment):
    """Its reads take a turn."""

    def call(self, call: Call, *, stale: bool = False) -> Result:
        if call.tool in ("look", "inventory"):
            game, now = self._open
            self._now, text, _ = game.act(now, call.tool)
            return Result(text)
        return super().call(call, stale=stale)


class Forgets(TextworldEnvironment):
    """Its forks begin anew."""

    def fork(self) -> TextworldEnvironment:
        other = Forgets()
        assert self._task is not None
        other.reset(self._task)
        return other


class Blind(TextworldEnvironment):
    """Its state leaves out the game."""

    def state(self) -> str:
        return "a kitchen"


class Shared(TextworldEnvironment):
    """Its moments are of the class."""

    now: dict[str, Any] = {}  # noqa: RUF012 - the fault

    def reset(self, task: Task) -> None:
        super().reset(task)
        self.now[task.id] = self._now

    def call(self, call: Call, *, stale: bool = False) -> Result:
        assert self._task is not None
        self._now = self.now[self._task.id]
        result = super().call(call, stale=stale)
        self.now[self._task.id] = self._now
        return result


@pytest.mark.parametrize(
    ("kind", "rule"),
    [(Looks, "honest_reads"), (Forgets, "forks"), (Blind, "whole_state"), (Shared, "private")],
)
def test_the_checker_finds_a_planted_fault(kind: type[TextworldEnvironment], rule: str) -> None:
    class Planted(TextworldSuite):
        def make(self) -> TextworldEnvironment:
            return kind()

    report = check(Planted(), tasks=[SHORT, LONG], length=20, groups=4)
    assert rule in [finding.rule for finding in report.findings if finding.breaches]


def test_gold_replay_finds_a_step_that_is_left_out() -> None:
    gold = list(SUITE.gold(LONG))
    for at, call in enumerate(gold):
        if call.tool != "do":
            continue
        path = run(SUITE, LONG, gold[:at] + gold[at + 1 :], fork=False, states=False)
        assert path.reward < 1, call


# -- the machine -------------------------------------------------------------------------------


def differences(game: Machine, task: Task, seed: int, steps: int) -> int:
    """Steps in which the shared interpreter, with others' moments in between, says or keeps another
    thing than an interpreter that plays this game alone from its start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jericho.UnsupportedGameWarning)
        alone = jericho.FrotzEnv(str(folder(spec(task)) / "game.z8"), seed=1)
    alone.step("tw-trace-actions")
    alone.step("tw-extra-infos score")
    chosen, commands = random.Random(seed), sorted(game.commands.values())
    walkthrough, kept, unlike = list(game.walkthrough), game.start.kept, 0
    for _ in range(steps):
        game.see(game.start, chosen.choice(commands))
        follows = walkthrough and chosen.random() < 0.5
        command = walkthrough.pop(0) if follows else chosen.choice(commands)
        said = alone.step(command)[0]
        kept, text, _, _ = game._run(Moment(kept, game.start.progress), command)
        own = alone.get_state()
        memory = all((a == b).all() for a, b in zip(kept[:2], own[:2], strict=True))
        unlike += not memory or kept[2:8] != own[2:8] or text.split("\n")[0] not in said
        if any(end in text for end in ("The End", "You lost")):
            break
    return unlike


def test_one_interpreter_for_all_is_as_good_as_one_for_each() -> None:
    game = machine(spec(LONG))
    assert [differences(game, LONG, seed, 60) for seed in range(8)] == [0] * 8


class Careless(Machine):
    """Plays on from wherever the interpreter is."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._frotz.set_state = lambda state: None


def test_and_the_comparison_finds_an_interpreter_that_was_not_set_back() -> None:
    assert differences(Careless(spec(LONG)), LONG, 0, 60) > 0


def test_what_commands_lists_is_done_and_the_way_to_the_meal_is_among_it() -> None:
    game, seen = machine(spec(LONG)), 0
    for seed in range(4):
        chosen, moment, way = random.Random(seed), game.start, direct(game.walkthrough)
        while not moment.over:
            listed = game.admissible(moment)
            assert all(game.act(moment, command)[2] for command in listed)
            seen += len(listed)
            strays = seed > 0 and chosen.random() < 0.2
            command = chosen.choice(listed) if strays or not way else way.pop(0)
            assert seed > 0 or command in [*listed, "examine cookbook"]
            moment = game.act(moment, command)[0]
    assert seen > 400


def test_commands_asks_the_game_where_its_facts_promise_too_much() -> None:
    calls = [c for c in SUITE.gold(LONG) if not str(c.arguments).count("cook ")]
    taken = next(n for n, call in enumerate(calls) if "take " in str(call.arguments))
    environment = playing(LONG, calls[: taken + 1])
    game, now = environment._open
    said = game._inform.gen_commands_from_actions(now.progress.valid_actions)
    assert "prepare meal" in said
    assert environment.call(do("prepare meal")).error == "REFUSED"
    assert "prepare meal" not in environment.call(Call("commands")).value["commands"]


# -- calls -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "save",
        "quit",
        "undo",
        "restart",
        "script",
        "tw-print",
        "again",
        "open fridge. quit",
        "look",
        "open fridge then open oven",
        "take all",
        "",
    ],
)
def test_nothing_but_a_command_of_the_game_reaches_it(command: str) -> None:
    environment = playing(SHORT)
    before = environment.state()
    assert environment.call(do(command)).error == "UNKNOWN_COMMAND"
    assert environment.resources(do(command)) == () and environment.state() == before


def test_a_refused_command_is_an_error_and_takes_no_turn() -> None:
    environment = playing(SHORT)
    before = environment.state()
    result = environment.call(do("eat meal"))
    assert result.error == "REFUSED" and result.value["message"]
    unseen = environment.call(Call("examine", {"thing": "unicorn"}))
    assert unseen.error == "REFUSED" and environment.state() == before
    assert not environment.can_be_stale
    assert environment.call(Call("fly")).error == "UNKNOWN_TOOL"


def test_wording_does_not_matter_to_game_or_resource() -> None:
    one, other = playing(SHORT), playing(SHORT)
    taking = next(c for c in one.call(Call("commands")).value["commands"] if " from " in c)
    odd = do("  " + taking.upper().replace(" ", "  "))
    assert one.resources(do(taking)) == other.resources(odd) != ()
    taken = taking.removeprefix("take ").partition(" from ")[0]
    assert one.resources(do(taking)) == one.resources(do(f"take {taken}")) == (taken,)
    assert one.call(do(taking)).text == other.call(odd).text and one.state() == other.state()
    assert one.resources(Call("examine", {"thing": "The  Cookbook"})) == ()
    assert one.resources(Call("examine", {"thing": " Cookbook"})) == ("cookbook",)
    assert one.resources(Call("look")) == ()


def test_a_stale_read_sees_the_world_before_the_last_deed() -> None:
    environment = playing(SHORT)
    first = environment.call(Call("commands"))
    opened = next(c for c in first.value["commands"] if c.startswith("open "))
    assert environment.call(do(opened)).error is None and environment.can_be_stale
    assert environment.call(Call("commands"), stale=True) == first
    assert environment.call(Call("commands")) != first
