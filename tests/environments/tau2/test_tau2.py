"""tau2: gold, the package's own verdicts, worlds as values, and the customer that answers."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.draws import keyed_stream
from evenhand.environments import suite
from evenhand.environments.base import POOLS
from evenhand.environments.check import check
from evenhand.environments.gold import replay
from evenhand.environments.legal import Caller
from evenhand.environments.tau2 import Tau2Suite, domains
from evenhand.environments.tau2.arithmetic import calculated
from evenhand.environments.tau2.environment import Tau2Environment
from evenhand.environments.tau2.users import ENDS, NOISE, Played
from evenhand.errors import InfrastructureError, UserError
from evenhand.records import Call, Task
from evenhand.tools import Effect

SUITES = {name: Tau2Suite(name) for name in domains.NAMES}
TASKS = {
    name: {task.data["id"]: task for pool in POOLS for task in each.tasks(pool)}
    for name, each in SUITES.items()
}
DONE = Call("respond", {"text": "Done."})
SAMPLES = {"airline": 12, "mock": 99, "retail": 16, "telecom": 12}


def sample(name: str) -> list[Task]:
    held = [task for task in TASKS[name].values() if SUITES[name].gold(task) is not None]
    return held[:: max(1, len(held) // SAMPLES[name])]


def begun(name: str, task: Task) -> Tau2Environment:
    made = SUITES[name].make()
    made.reset(task)
    return made


@pytest.mark.parametrize("name", domains.NAMES)
def test_gold_of_a_sample(name: str) -> None:
    for task in sample(name):
        done = replay(SUITES[name], task, forks=True)
        assert done is not None and done.whole and done.forks_agree and not done.unfit, task.id


def test_all_tasks_and_which_have_gold() -> None:
    assert {name: len(held) for name, held in TASKS.items()} == {
        "airline": 50,
        "mock": 7,
        "retail": 114,
        "telecom": 114,
    }
    gold = {
        n: sum(SUITES[n].gold(t) is not None for t in held.values()) for n, held in TASKS.items()
    }
    assert gold == {"airline": 43, "mock": 6, "retail": 112, "telecom": 114}


@pytest.mark.parametrize("name", ["airline", "retail"])
def test_no_customer_is_in_two_pools(name: str) -> None:
    held: dict[str, set[str]] = {}
    for pool in POOLS:
        for task in SUITES[name].tasks(pool):
            who = task.prompt.partition("Known info:")[2].partition("Task instructions")[0]
            held.setdefault(" ".join(who.split()), set()).add(pool)
    assert len(held) > 30 and all(len(pools) == 1 for pools in held.values())
    assert all(SUITES[name].tasks(pool) for pool in POOLS)


def test_effects_are_the_packages_tags() -> None:
    from tau2.domains.airline.tools import AirlineTools
    from tau2.environment.toolkit import ToolType

    tools = SUITES["airline"].tools
    kinds = {each: getattr(AirlineTools, each).__tool_type__ for each in tools if each != "respond"}
    assert kinds["book_reservation"] is ToolType.WRITE
    assert {e for e in kinds if kinds[e] is ToolType.WRITE} == {
        e for e in kinds if tools[e].effect is Effect.WRITES
    }
    assert {e for e in kinds if kinds[e] is ToolType.READ} == {
        e for e in kinds if tools[e].effect is Effect.READS
    }


# -- the package's own verdicts ------------------------------------------------------------------


def _theirs(name: str, environment: Tau2Environment, calls: list[Call], texts: list[str]) -> bool:
    """The package's environment evaluator, on a conversation it replays itself."""
    messages = domains.messages()
    trajectory: list[Any] = []
    for number, call in enumerate(calls):
        made = messages.ToolCall(id=str(number), name=call.tool, arguments=dict(call.arguments))
        trajectory.append(messages.AssistantMessage(role="assistant", tool_calls=[made]))
        trajectory.append(messages.ToolMessage(id=str(number), role="tool", content=texts[number]))
    constructor = domains._module("environment", name).get_environment
    task = domains.tasks(name, "base")[environment._id]
    solo = {"solo_mode": True} if name == "telecom" else {}
    judge = domains.evaluator("EnvironmentEvaluator")
    try:
        return bool(judge.calculate_reward(constructor, task, trajectory, **solo).reward == 1.0)
    except ValueError:
        return False  # an assertion of a thing that is not there


@pytest.mark.parametrize("name", ["airline", "retail", "mock"])
def test_the_package_itself_says_the_same(name: str) -> None:
    """Whole, cut, and with random legal calls between, replayed and judged by its evaluator."""
    seen = set()
    for number, task in enumerate(sample(name)[:: 1 if name == "mock" else 9]):
        gold = [c for c in SUITES[name].gold(task) or () if c.tool != "respond"]
        for kind in ("whole", "cut", "wild"):
            environment, theirs = begun(name, task), _package_environment(name, task)
            caller = Caller(keyed_stream(4, "verdicts", task.id, kind))
            caller.learn(gold)
            calls = [c for n, c in enumerate(gold) if kind != "cut" or n != number % len(gold)]
            if kind == "wild":
                for _ in range(6):
                    call = caller.call(environment)
                    if call is not None and call.tool != "calculate":
                        calls.insert(int(caller.rng.integers(len(calls) + 1)), call)
            texts = []
            for call in calls:
                result = environment.call(call)
                said = theirs.get_response(
                    domains.messages().ToolCall(name=call.tool, arguments=dict(call.arguments))
                )
                texts.append(said.content)
                assert said.error == (result.error is not None)
                if result.error is None:
                    value = result.value
                    assert value == said.content or value == json.loads(said.content)
            expected = _theirs(name, environment, calls, texts)
            assert ({"DB", "ENV_ASSERTION"}.isdisjoint(environment.unmet)) == expected, task.id
            seen.add(expected)
    assert seen == {True, False}


def _package_environment(name: str, task: Task) -> Any:
    """The package's environment where a task begins, from freshly read files."""
    made = domains._module("environment", name).get_environment()
    start = domains.tasks(name, "base")[task.data["id"]].initial_state
    made.set_state(start and start.initialization_data, start and start.initialization_actions, [])
    return made


@pytest.mark.parametrize("name", ["airline", "retail", "telecom"])
def test_nothing_reaches_the_shared_databases(name: str) -> None:
    """Reads look at them in place, so whatever a tool did there would stay for every episode."""
    held = domains.domain(name)
    before = held.database.get_hash(), held.device and held.device.get_hash()
    for number, task in enumerate(sample(name)[:6]):
        environment = begun(name, task)
        caller = Caller(keyed_stream(5, "shared", number))
        caller.learn(SUITES[name].gold(task) or ())
        for gold in SUITES[name].gold(task) or ():
            if gold.tool != "respond":
                caller.learn(result=environment.call(gold))
            for _ in range(8):
                call = caller.call(environment)
                if call is not None and call.tool != "respond":
                    caller.learn(result=environment.call(call))
    assert (held.database.get_hash(), held.device and held.device.get_hash()) == before


def test_the_hash_tells_what_the_packages_hash_tells() -> None:
    """Over worlds of random writes: equal here if and only if equal there."""
    for name in ("airline", "retail", "telecom"):
        pairs = set()
        for number, task in enumerate(sample(name)[:2]):
            environment = begun(name, task)
            caller = Caller(keyed_stream(6, "hash", number), fresh=0.05)
            caller.learn(SUITES[name].gold(task) or ())
            for gold in SUITES[name].gold(task) or ():
                if gold.tool == "respond":
                    continue
                for call in (gold, caller.call(environment)):
                    if call is not None and call.tool != "respond":
                        environment.call(call)
                        world = environment._world
                        assert world is not None
                        device = world.device.get_hash() if world.device else None
                        pairs.add((world.hash, (world.database.get_hash(), device)))
        ours, theirs = {a for a, _ in pairs}, {b for _, b in pairs}
        assert len(pairs) == len(ours) == len(theirs) >= 2


# -- worlds --------------------------------------------------------------------------------------


def test_a_charge_opens_a_bill_of_the_same_name_everywhere() -> None:
    task = next(t for t in TASKS["telecom"].values() if "data_usage_exceeded" in t.id)
    refuel = next(c for c in SUITES["telecom"].gold(task) or () if c.tool == "refuel_data")
    states = []
    for _ in range(2):
        environment = begun("telecom", task)
        environment.call(refuel)
        states.append(environment.state())
        environment.call(refuel)
        states.append(environment.state())
    assert states[:2] == states[2:] and states[0] != states[1]


def test_a_stale_read_sees_the_world_before_the_last_write() -> None:
    task = next(t for t in TASKS["retail"].values() if t.family == "cancel_pending_order")
    write = next(c for c in SUITES["retail"].gold(task) or () if c.tool == "cancel_pending_order")
    look = Call("get_order_details", {"order_id": write.arguments["order_id"]})
    environment = begun("retail", task)
    assert not environment.can_be_stale
    before = environment.call(look).text
    assert environment.call(write).error is None and environment.can_be_stale
    assert environment.call(look, stale=True).text == before
    assert '"cancelled"' in environment.call(look).text


def test_words_end_it_and_are_graded() -> None:
    """What must be said counts, and an episode without an end earns nothing."""
    wanted = domains.tasks("retail", "base")
    task = next(
        t for t in sample("retail") if wanted[t.data["id"]].evaluation_criteria.communicate_info
    )
    gold = list(SUITES["retail"].gold(task) or ())
    environment = begun("retail", task)
    for call in gold[:-1]:
        environment.call(call)
    assert environment.grade() == 0.0 and environment.unmet == ["COMMUNICATE"]
    silent = environment.fork()
    silent.call(Call("respond", {"text": "Done."}))
    assert silent.finished and silent.grade() == 0.0
    environment.call(gold[-1])
    assert environment.finished and environment.grade() == 1.0


def test_to_do_nothing_is_right_where_nothing_may_be_done() -> None:
    task = TASKS["airline"]["0"]
    assert SUITES["airline"].gold(task) is None
    environment = begun("airline", task)
    environment.call(Call("respond", {"text": "I cannot do that."}))
    assert environment.grade() == 1.0


# -- sums ----------------------------------------------------------------------------------------


@given(st.text("0123456789+-*/(). ", max_size=14))
def test_sums_are_the_packages(expression: str) -> None:
    from tau2.environment.toolkit import GenericToolKit

    if "**" in expression.replace(" ", "") or any(len(n) > 9 for n in expression.split("*")):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            theirs = GenericToolKit().calculate(expression)
    except Exception:
        with pytest.raises(ValueError, match=r"."):
            calculated(expression)
        return
    assert calculated(expression) == theirs


@pytest.mark.parametrize("expression", ["9**9**9**9", "2 ** 3", "1(2)", "()", "", "(" * 300, "1/0"])
def test_sums_that_are_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        calculated(expression)
    task = TASKS["retail"]["0"]
    said = begun("retail", task).call(Call("calculate", {"expression": expression}))
    assert said.error == "TOOL_ERROR"


# -- the import, and the network -----------------------------------------------------------------


def test_the_import_reads_no_env_file_and_brings_no_model_client(tmp_path: Any) -> None:
    code = (
        "import os, socket, sys\n"
        "socket.socket.connect = None\n"
        "import dotenv; dotenv.main.find_dotenv = None\n"
        "from evenhand.environments import suite\n"
        "s = suite('tau2-mock'); s.tasks('train'); s.make().reset(s.tasks('train')[0])\n"
        "assert 'litellm' not in sys.modules and 'torch' not in sys.modules\n"
        "assert 'PYTHON_DOTENV_DISABLED' not in os.environ\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_unknown_names_are_told() -> None:
    with pytest.raises(UserError, match="use one of airline, mock, retail, telecom"):
        Tau2Suite("bank")
    with pytest.raises(UserError, match="give it no user"):
        Tau2Suite("telecom", Played("http://localhost", "m"))
    with pytest.raises(UserError, match="no user noise 'loud': use one of ambiguous"):
        Played("http://localhost", "m", noise="loud")
    with pytest.raises(UserError, match="begins with http://"):
        Played("file:///etc/passwd", "m")


# -- a customer that answers ---------------------------------------------------------------------


class Server(HTTPServer):
    """Answers chat completions by a fixed list, and keeps what it was asked."""

    def __init__(self, answers: list[Any]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.asked = answers, list[dict[str, Any]]()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append({"path": self.path, **body})
        said = self.server.answers.pop(0)
        self.send_response(200 if said is not None else 503)
        self.end_headers()
        if said is not None:
            choice = {"message": {"role": "assistant", "content": said}}
            self.wfile.write(json.dumps({"choices": [choice]}).encode())

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server([])
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def _played(server: Server, **settings: Any) -> Tau2Suite:
    return Tau2Suite("mock", Played(f"http://127.0.0.1:{server.server_port}/v1", "m", **settings))


def test_a_served_model_plays_the_customer(server: Server) -> None:
    server.answers += ["Add a task, please.", f"Thanks! {ENDS[0]}", ENDS[0]]
    it = _played(server, noise="redundant", seed=7)
    task = next(t for p in POOLS for t in it.tasks(p) if t.data["id"] == "create_task_1")
    assert "Important Meeting" not in task.prompt and it.gold(task) is None
    environment = it.make()
    environment.reset(task)
    assert environment.call(Call("respond", {"text": "Hello?"})).value == "Add a task, please."
    gold = SUITES["mock"].gold(task)
    assert gold is not None
    environment.call(gold[0])
    fork = environment.fork()
    assert environment.call(Call("respond", {"text": "Done."})).value == "Thanks!"
    assert not environment.finished and fork.said != environment.said
    assert environment.call(Call("respond", {"text": "Bye."})).value == ""
    assert environment.finished and environment.grade() == 1.0
    first, second, _ = server.asked
    assert first["path"] == "/v1/chat/completions" and first["seed"] == 8 and second["seed"] == 9
    brief = first["messages"][0]["content"]
    assert "Important Meeting" in brief and NOISE["redundant"] in brief
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "user"]


def test_a_customer_that_breaks_is_no_policys_fault(server: Server) -> None:
    server.answers += [None, 3]
    it = _played(server, tries=1)
    environment = it.make()
    environment.reset(it.tasks("train")[0])
    for message in ("503", "without words"):
        with pytest.raises(InfrastructureError, match=message):
            environment.call(Call("respond", {"text": "Hello?"}))


def test_a_customer_that_is_busy_is_asked_again(server: Server) -> None:
    server.answers += [None, "Hello."]
    environment = _played(server).make()
    environment.reset(_played(server).tasks("train")[0])
    assert environment.call(Call("respond", {"text": "Hello?"})).value == "Hello."


def test_a_conversation_has_an_end(server: Server) -> None:
    server.answers += ["More."] * 2
    it = _played(server, most_turns=2)
    environment = it.make()
    environment.reset(it.tasks("train")[0])
    ends = [environment.call(Call("respond", {"text": "?"})).value for _ in range(3)]
    assert ends == ["More.", "More.", ""] and environment.finished


# -- the checker ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["airline", "retail", "telecom"])
def test_the_checker_is_content(name: str) -> None:
    report = check(suite(f"tau2-{name}"), count=4, length=10, groups=12, seed=3)
    assert report.sound, report.text()


def test_pools_do_not_meet() -> None:
    for each in SUITES.values():
        ids = {pool: {task.id for task in each.tasks(pool)} for pool in POOLS}
        assert all(not ids[a] & ids[b] for a, b in itertools.combinations(POOLS, 2))
