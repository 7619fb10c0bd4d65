"""Offline build from recorded trajectories, and a store out to a file and back."""

import json

import pytest

from evenhand.cache import Cache, Mode, Policy, Session, Tier, lane
from evenhand.cache.environment import CachedEnvironment
from evenhand.cache.memory import MemoryStore
from evenhand.cache.recorded import export_lines, import_file, tools_from_config
from evenhand.draws import Sharing
from evenhand.errors import RecordError, UserError
from evenhand.records import Call, Draw, Result, Rollout, Turn, write_jsonl
from evenhand.tools import Effect

from .toys import CLOCK, GET_IT, PURE, ROLL, TOOLS, Ledger, put, task, tool


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def asked(name, id="1", **arguments):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(content, id="1"):
    return {"role": "tool", "tool_call_id": id, "content": content}


def conversation(*pairs, **more):
    messages = [{"role": "user", "content": "go"}]
    for call, result in pairs:
        messages += [{"role": "assistant", "content": None, "tool_calls": [call]}, said(result)]
    return {"messages": messages, **more}


def replay(store, **more):
    return Cache(store, Policy(Mode.REPLAY, **more))


def never():
    raise AssertionError("a live call")


def test_conversations(tmp_path):
    rome = asked("weather", city="Rome")
    file = write(
        tmp_path / "a.jsonl",
        conversation(
            (asked("weather", city="Rome"), "sunny"), (asked("weather", city="Oslo"), "wet")
        ),
        conversation((rome, "sunny"), (asked("who", q="x"), "nobody")),
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [
                        asked("weather", "b", city="A"),
                        asked("weather", "a", city="B"),
                    ],
                },
                said([{"type": "text", "text": "for "}, {"type": "text", "text": "B"}], "a"),
                said("for A", "b"),
                {"role": "assistant", "tool_calls": [asked("weather", city="Unanswered")]},
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "weather", "arguments": '{"city": "C"}'}}],
                },
                {"role": "tool", "content": "for C"},
            ]
        },
    )
    store = MemoryStore()
    found = import_file(store, file, tools_from_config({"weather": "pure"}, "here"))
    assert (found.lines, found.calls, found.stored, found.duplicates) == (3, 8, 5, 1)
    assert found.undeclared == {"who": 1} and found.unusable == 1 and found.conflicts == 0
    weather = tool("weather", Effect.PURE)
    session = Session(replay(store))
    for city, text in (("Rome", "sunny"), ("A", "for A"), ("B", "for B"), ("C", "for C")):
        served = session.call(weather, {"city": city}, never)
        assert (served.value, served.tier, served.origin) == (text, "exact", "recorded")
    assert session.call(weather, {"city": "Unanswered"}, never).value.error == "NOT_RECORDED"
    who = session.call(tool("who", Effect.PURE), {"q": "x"}, never)
    assert who.value.error == "UNKNOWN_TOOL"


def test_numbers_are_joined_by_the_conversations_own_schemas(tmp_path):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    file = write(tmp_path / "a.jsonl", conversation((asked("f", n="3"), "three"), tools=tools))
    store = MemoryStore()
    assert import_file(store, file, {}, assume=Effect.PURE).stored == 1
    f = tool("f", Effect.PURE, n={"type": "integer"})
    assert Session(replay(store)).call(f, {"n": 3}, never).value == "three"


def test_conflicts_are_counted_and_the_first_stays(tmp_path):
    line = [conversation((asked("f"), text)) for text in ("one", "two", "one")]
    store = MemoryStore()
    found = import_file(store, write(tmp_path / "a.jsonl", *line), {}, assume=Effect.PURE)
    assert (found.stored, found.conflicts, found.duplicates) == (1, 1, 1)
    stochastic = MemoryStore()
    found = import_file(stochastic, tmp_path / "a.jsonl", {}, assume=Effect.STOCHASTIC)
    assert found.stored == 3  # then they are three draws
    cache, f = replay(stochastic), tool("f", Effect.STOCHASTIC)
    seen = [
        Session(cache, schedule=lane(Sharing("independent"), 0, i)).call(f, {}, never).value
        for i in range(4)
    ]
    assert seen[:3] == ["one", "two", "one"] and seen[3].error == "NOT_RECORDED"


def turn(call, result, draw=None, **more):
    return Turn("", call, result=result, draw=draw, **more)


def rollout(*turns):
    return Rollout("t", "g", 0, environment="ledger", turns=list(turns))


def test_rollouts_are_replayed_in_their_states(tmp_path):
    path = tmp_path / "r.jsonl"
    play = Ledger()
    calls = [put("a"), GET_IT, put("b"), GET_IT]
    write_jsonl(path, [rollout(*(turn(call, play.call(call)) for call in calls))])
    store = MemoryStore()
    assert import_file(store, path, TOOLS).stored == 4
    log = []
    env = CachedEnvironment(Ledger(log), replay(store))
    env.reset(task())
    for call, result in zip(calls, rollout_results(path), strict=True):
        assert env.call(call) == result
    assert env.call(Call("get", {"q": 1})).error == "NOT_RECORDED" and log == []
    assert env.can_be_stale


def rollout_results(path):
    data = json.loads(path.read_text())
    return [Result(t["result"]["value"], t["result"]["error"]) for t in data["turns"]]


def test_what_noise_made_is_not_imported(tmp_path):
    path = tmp_path / "r.jsonl"
    call, fine = Call("pure", {"a": 1}), Result({"double": 2})
    write_jsonl(
        path,
        [
            rollout(
                turn(call, Result({}, error="DOWN"), Draw("s", "pure", "", 0, "transient")),
                turn(call, fine, Draw("s", "pure", "", 1, tier="fuzzy")),
                turn(call, fine, problem="bad arguments"),
                turn(call, Result({"message": "long"}, error="RESULT_TOO_LONG")),
                turn(put("a"), Result({}, error="DOWN"), Draw("s", "put", "", 0, "transient")),
                turn(GET_IT, Result({"state": []})),  # was anything written? nobody knows
                turn(Call("clock"), Result(5)),
                turn(call, fine, Draw("s", "pure", "", 2, tier="exact")),
            )
        ],
    )
    store = MemoryStore()
    found = import_file(store, path, TOOLS)
    assert found.stored == 1 and found.unusable == 6
    (only,) = store.entries()
    assert only.described["tool"] == "pure" and not only.failed


def test_export_and_import_are_inverse(make_store, tmp_path):
    store = make_store()
    cache = Cache(store)
    session = Session(cache, schedule=Sharing("paired").schedule(1, 0, 0, 0))
    for i, value in enumerate([b"\xff\x00", "\ud800", {"a": [1]}, Result({"m": 1}, "BAD")]):
        session.call(PURE, {"a": i}, lambda value=value: value)
        session.call(ROLL, {}, lambda value=value: value)
    file = tmp_path / "out.jsonl"
    file.write_text("".join(line + "\n" for line in export_lines(store)))
    other = make_store(name="other")
    assert import_file(other, file, {}).stored == 8
    by_key = {e.key: e for e in store.entries()}
    assert {e.key: e for e in other.entries()} == by_key and len(by_key) == 8


@pytest.mark.parametrize(
    "line",
    [
        {"something": "else"},
        {"messages": "text"},
        {"evenhand_cache": 1, "key": "00"},
        {"evenhand_cache": 2},
        {"turns": [], "version": 99},
    ],
    ids=str,
)
def test_a_bad_line_is_named(tmp_path, line):
    file = write(tmp_path / "a.jsonl", conversation((asked("f"), "x")), line)
    with pytest.raises(RecordError, match="line 2"):
        import_file(MemoryStore(), file, {}, assume=Effect.PURE)


@pytest.mark.parametrize("config", [{"f": "sometimes"}, {"f": 3}, {"f": {"effects": "pure"}}])
def test_bad_effects_are_named(config):
    with pytest.raises(UserError, match=r"effects.yaml: f"):
        tools_from_config(config, "effects.yaml")


# -- tiers -------------------------------------------------------------------------------------

ALL = (Tier.EXACT, Tier.FUZZY, Tier.TOOL)


def weather_store(tmp_path, origin="recorded"):
    rows = {
        "what will the weather be like in Rome over the next 3 days": "sunny",
        "what will the weather be like in Oslo over the next 3 days": "wet",
        "San Jose": "dry",
    }
    pairs = [(asked("weather", q=q), text) for q, text in rows.items()]
    store = MemoryStore()
    file = write(tmp_path / "w.jsonl", conversation(*pairs))
    import_file(store, file, {}, assume=Effect.PURE, origin=origin, now=1.0)
    return store


WEATHER = tool("weather", Effect.PURE)


@pytest.mark.parametrize(
    ("q", "tier", "value"),
    [
        ("what will the weather be like in Rome over the next 3 days", "exact", "sunny"),
        ("how will the weather be like in Rome over the next 3 days", "fuzzy", "sunny"),
        ("what will the weather be like in Oslo over the coming 3 days", "fuzzy", "wet"),
        ("what will the weather be like in Rome over the next 4 days", "tool", "sunny"),
        ("what will the weather not be like in Rome over the next 3 days", "tool", "sunny"),
        ("San Francisco", "tool", None),
        ("san jose", "fuzzy", "dry"),
    ],
)
def test_tiers_carry_their_provenance(tmp_path, q, tier, value):
    policy = Policy(Mode.REPLAY, ALL, fuzzy_threshold=0.7)
    session = Session(Cache(weather_store(tmp_path), policy, clock=lambda: 11.0))
    served = session.call(WEATHER, {"q": q}, never)
    assert served.tier == tier and (value is None or served.value == value)
    assert served.origin == "recorded" and served.age_s == 10.0
    assert (served.similarity == 1.0) == (tier == "exact")
    assert session.worst == tier
    session.call(WEATHER, {"q": "San Jose"}, never)
    assert session.worst == tier  # the worst, not the last
    session.close()
    assert session.cache.store.tallies()["total"][f"rollouts_{tier}"] == 1


def test_exact_only_refuses_what_is_near(tmp_path):
    session = Session(replay(weather_store(tmp_path)))
    assert session.call(WEATHER, {"q": "San Francisco"}, never).value.error == "NOT_RECORDED"


def test_simulated_values_are_never_exact_nor_fuzzy(tmp_path):
    store = weather_store(tmp_path, "simulated")
    session = Session(Cache(store, Policy(Mode.REPLAY, ALL, fuzzy_threshold=0.0)))
    same = session.call(WEATHER, {"q": "San Jose"}, never)
    assert (same.tier, same.origin, same.value) == ("tool", "simulated", "dry")
    assert session.call(WEATHER, {"q": "san jose"}, never).tier == "tool"
    only = Session(Cache(store, Policy(Mode.REPLAY)))
    assert only.call(WEATHER, {"q": "San Jose"}, never).value.error == "NOT_RECORDED"
    live = Session(Cache(store)).call(WEATHER, {"q": "San Jose"}, lambda: "live")
    assert (live.value, live.outcome) == ("live", "miss")  # and takes the simulated one's place
    assert only.call(WEATHER, {"q": "San Jose"}, never).value == "live"


def test_refresh_finds_what_has_changed(tmp_path):
    cache = Cache(MemoryStore(), Policy(Mode.REFRESH, refresh_rate=1.0))
    session = Session(cache)
    assert session.call(PURE, {}, lambda: 1).outcome == "miss"
    assert session.call(PURE, {}, lambda: 1).outcome == "refreshed"
    assert session.call(PURE, {}, lambda: 2).value == 2
    assert (cache.refreshed, cache.differed) == (2, 1)
    assert Session(Cache(cache.store)).call(PURE, {}, never).value == 2


def test_bypass_stands_aside():
    store = MemoryStore()
    session = Session(Cache(store, Policy(Mode.BYPASS)))
    assert [session.call(PURE, {}, lambda n=n: n).value for n in range(3)] == [0, 1, 2]
    assert store.size() == (0, 0) and session.counts["uncached"] == 3


def test_values_of_a_later_version_are_misses(tmp_path):
    store = MemoryStore()
    cache = Cache(store)
    Session(cache).call(PURE, {}, lambda: 1)
    (e,) = store.entries()
    store.put(e._replace(kind=99), replace=True)
    assert Session(cache).call(PURE, {}, lambda: 2).value == 2
    assert store.counters.corrupt == 1


def test_time_to_live():
    now = [1000.0]
    cache = Cache(MemoryStore(), Policy(ttl_s=10), clock=lambda: now[0])
    session = Session(cache, schedule=Sharing("paired").schedule(1, 0, 0, 0))
    twin = Session(cache, schedule=Sharing("paired").schedule(1, 0, 0, 1))
    assert session.call(PURE, {}, lambda: 1).value == 1
    assert session.call(ROLL, {}, lambda: "draw").value == "draw"
    now[0] += 9
    assert session.call(PURE, {}, never).age_s == 9
    now[0] += 2
    assert session.call(PURE, {}, lambda: 2).value == 2
    assert twin.call(ROLL, {}, never).value == "draw"  # a draw never expires
    assert session.call(CLOCK, {}, lambda: 7).outcome == "uncached"
