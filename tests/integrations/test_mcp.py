"""Real MCP servers as environments: mcp-server-git over stdio, and one over streamable HTTP."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evenhand.cache import Cache, open_store
from evenhand.draws import Sharing
from evenhand.errors import InfrastructureError, UserError
from evenhand.integrations.desk import Desk, Seat, cached
from evenhand.integrations.mcp import Connection, McpSuite, stdio
from evenhand.noise import Noise
from evenhand.records import Call, Task
from evenhand.rollout.workers import Workers
from evenhand.tools import Effect

TASKS = [
    Task(f"commits-{n}", "git", f"Who wrote the commit {n}?", data={"author": f"author{n}"})
    for n in (1, 2)
]
GIT = ["-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]


def serve(task, folder):
    """A repository of the task's own, and a server over it."""
    author = task.data["author"]
    (folder / "a.txt").write_text("one\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run(["git", *GIT, "-c", f"user.name={author}", *command], cwd=folder, check=True)
    return stdio(sys.executable, ["-m", "mcp_server_git", "--repository", str(folder)])


def grade(episode):
    return float(episode.answer == episode.task.data["author"])


@pytest.fixture(scope="module")
def suite():
    made = McpSuite(
        serve,
        TASKS,
        grade,
        bound=lambda task, folder: {"repo_path": str(folder)},
        only=["git_log", "git_status", "git_add", "git_commit", "git_branch"],
        name="git",
    )
    yield made
    made.close()


def test_hints_are_effects_and_bound_arguments_are_the_environments(suite):
    effects = {name: tool.effect for name, tool in suite.tools.items()}
    assert effects["git_log"] is effects["git_status"] is Effect.READS
    assert effects["git_add"] is effects["git_commit"] is Effect.WRITES
    assert suite.tools["git_add"].metadata["mcp"]["idempotent_hint"] is True
    assert "repo_path" not in suite.tools["git_log"].parameters["properties"]
    assert suite.tools["git_log"].problem({"repo_path": "/etc"}) is not None
    assert [t.id for t in suite.tasks("train")] == ["commits-1", "commits-2"]


def test_an_episode_under_faults_reads_writes_and_is_graded(suite):
    noise = Noise.from_config({"tools": {"rate": 0.6, "weights": {"transient": 1.0}}})
    workers = Workers(4)
    desks = [
        Desk(suite.make(), Seat.training(Sharing("paired"), 1, 1, 0, index), noise, workers)
        for index in range(2)
    ]
    for desk in desks:
        desk.reset(TASKS[0])
        (desk.environment.folder / "a.txt").write_text("two\n")
    calls = [
        Call("git_log", {}),
        Call("git_log", {}),
        Call("git_add", {"files": ["a.txt"]}),
        Call("git_commit", {"message": "second"}),
        Call("git_log", {"max_count": 1}),
        Call("git_branch", {"branch_type": "nonsense"}),
    ]
    seen = [[desk.call(call) for call in calls] for desk in desks]
    faults = [[event.draw.fault for event in desk.events] for desk in desks]
    assert faults[0] == faults[1] and "transient" in faults[0] and None in faults[0]
    for result, fault, call in zip(seen[0], faults[0], calls, strict=True):
        assert (result.error == "SERVICE_UNAVAILABLE") == (fault is not None)
        if fault is None and call.tool == "git_log":
            assert "author1" in result.value
    desks[0].call(Call("answer", {"text": "author1"}))
    desks[1].call(Call("answer", {"text": "author2"}))
    assert [desk.grade() for desk in desks] == [1.0, 0.0]
    assert desks[0].finished and desks[0].call(calls[0]).error == "FINISHED"
    folders = [desk.environment.folder for desk in desks]
    assert folders[0] != folders[1]
    for desk in desks:
        desk.close()
    assert not any(folder.exists() for folder in folders)


def test_a_cache_serves_siblings_and_never_across_tasks(suite):
    cache, workers = Cache(open_store("memory:")), Workers(4)

    def asked(task, index):
        seat = Seat.training(Sharing("paired"), 0, 1, 0, index)
        one = Desk(cached(suite.make(), cache, seat), seat, Noise.clean(), workers)
        one.reset(task)
        text = one.call(Call("git_log", {"max_count": 1})).text
        one.close()
        return text, one.events[0].draw.tier

    (first, live), (second, served) = asked(TASKS[0], 0), asked(TASKS[0], 1)
    other, anew = asked(TASKS[1], 0)
    # Every episode has a repository of its own, whose commits differ in time and so in hash.
    assert (live, served, anew) == (None, "exact", None)
    assert first == second and "author1" in first and "author2" in other


def test_a_server_that_is_gone_is_infrastructure(suite):
    def dead(task, folder):
        return stdio(sys.executable, ["-c", "raise SystemExit(3)"])

    with pytest.raises(InfrastructureError, match="does not answer"):
        McpSuite(dead, TASKS, grade)
    with pytest.raises(UserError, match="no tool 'git_push'"):
        McpSuite(serve, TASKS, grade, only=["git_push"])


@pytest.fixture(scope="module")
def url():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("mcp_server.py")
    child = subprocess.Popen(
        [sys.executable, str(script), str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        assert child.poll() is None, child.stderr.read()
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}/mcp"
    child.terminate()
    child.wait(10)


def test_a_server_over_http_is_shared_and_its_errors_can_be_read(url):
    suite = McpSuite(
        url,
        [Task("t", "ledger", "Add.")],
        lambda episode: 1.0,
        effects={"add": {"resource_arguments": ("account",)}},
    )
    effects = {name: tool.effect for name, tool in suite.tools.items() if name != "answer"}
    assert effects == {
        "total": Effect.READS,
        "add": Effect.WRITES,
        "rate": Effect.VOLATILE,
        "unknown": None,
    }
    one, other = suite.make(), suite.make()
    for environment in (one, other):
        environment.reset(suite.tasks("train")[0])
    call = Call("add", {"account": "a", "amount": 3})
    assert one.resources(call) == ('{"account":"a"}',)
    before = one.state()
    one.call(call)
    assert one.state() != before
    assert "3" in other.call(Call("total", {"account": "a"})).text
    refused = one.call(Call("add", {"account": "a", "amount": -1}))
    assert refused.error == "TOOL_ERROR" and "add" in refused.value["message"]
    one.close()
    other.call(Call("rate", {}))  # the shared session is still there
    suite.close()


def test_nobody_there_is_said_in_a_sentence():
    with pytest.raises(InfrastructureError, match="does not answer"):
        _ = Connection("http://127.0.0.1:9/mcp").tools
