"""The rules, one function each: it yields a sentence for each breach, and nothing when sound."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jsonschema
import numpy as np

from evenhand.draws import Schedule, Sharing
from evenhand.environments.base import POOLS, Environment, Suite
from evenhand.environments.check import law
from evenhand.environments.check.walks import Broken, Trace, Walk, ask, differ, follow
from evenhand.environments.gold import run
from evenhand.records import Call, Task
from evenhand.tools import Effect

STILL = (Effect.PURE, Effect.READS)
REPEATABLE = (*STILL, Effect.WRITES)


@dataclass(frozen=True)
class Bench:
    """What the rules work on."""

    suite: Suite
    walks: Sequence[Walk]
    groups: int

    def fresh(self, task: Task) -> Environment:
        """A new environment at the start of a task."""
        made = self.suite.make()
        made.reset(task)
        return made


def declared(bench: Bench) -> Iterator[str]:
    """Tools, tasks and pools are well declared."""
    for name, tool in bench.suite.tools.items():
        if name != tool.name:
            yield f"tools[{name!r}] is named {tool.name!r}: key tools by their own names"
        try:
            jsonschema.Draft202012Validator.check_schema(dict(tool.parameters))
        except jsonschema.SchemaError as error:
            yield f"{name}: its parameters are no JSON schema ({error.message}); mend the schema"
        if tool.effect is None:
            yield f"{name}: declares no effect, so nothing it returns may be cached; give it one"
    for needed in ("licence", "arrives"):
        if not getattr(bench.suite, needed, ""):
            yield f"the suite says nothing under `{needed}`: say it in one line"
    held: dict[str, str] = {}
    for pool in POOLS:
        for task in bench.suite.tasks(pool):
            if task.id in held:
                yield f"task {task.id} is in {held[task.id]} and again in {pool}: ids are unique"
                break
            held[task.id] = pool
            if task.pool != pool:
                yield f"task {task.id} is in {pool} but says pool {task.pool!r}: let them agree"
                break
            unknown = [name for name in task.tools if name not in bench.suite.tools]
            if unknown:
                yield f"task {task.id} names tools that the suite lacks: {', '.join(unknown)}"
                break
            try:
                json.dumps(dict(task.data), allow_nan=False)
            except (TypeError, ValueError) as error:
                yield f"task {task.id}: its data is not JSON ({error}); keep plain data there"
                break


def deterministic(bench: Bench) -> Iterator[str]:
    """The same calls under the same schedule come to the same results, states and grade."""
    volatile = any(t.effect in (Effect.VOLATILE, None) for t in bench.suite.tools.values())
    for walk in bench.walks:
        for schedule in (None, Schedule(7, "check/one"), Schedule(7, "check/two")):
            one, other = (follow(bench.suite, walk, schedule=schedule) for _ in range(2))
            at = differ(one.texts, other.texts)
            if at is not None and not (volatile and _volatile(bench, walk, at)):
                yield (
                    f"{_said(walk, at)} said two things on two runs of the same calls under one"
                    " schedule: draw from what the task and the calls decide, from no clock and no"
                    " global random state"
                )
            elif one.resources != other.resources:
                yield (
                    f"resources() of {_said(walk, differ(one.resources, other.resources))} differ"
                    " between two runs: name what is touched by the task's own names"
                )
            elif at is None and (one.states != other.states or one.reward != other.reward):
                yield (
                    f"task {walk.task.id}: equal results but unequal states or grades on two runs:"
                    " keep clocks and identities out of state() and grade()"
                )
            else:
                continue
            return


def _volatile(bench: Bench, walk: Walk, at: int) -> bool:
    tool = bench.suite.tools.get(walk.calls[at].tool)
    return tool is not None and tool.effect not in REPEATABLE


def global_random(bench: Bench) -> Iterator[str]:
    """No global random state is moved."""
    kept = random.getstate()
    try:
        for number, walk in enumerate(bench.walks[:2]):
            random.setstate(random.Random(f"check {number}").getstate())  # no seed leads here
            before = random.getstate(), _numpy_state()
            follow(bench.suite, walk, states=False)
            if (random.getstate(), _numpy_state()) != before:
                yield (
                    f"task {walk.task.id} moved a global random state: all other random streams of"
                    " the process then depend on it; use draws.keyed_stream or a random.Random"
                )
                return
    finally:
        random.setstate(kept)


def _numpy_state() -> str:
    return str(np.random.get_state())  # noqa: NPY002 - looked at, not drawn from


def forks(bench: Bench) -> Iterator[str]:
    """A fork goes on as a replay does, and neither side disturbs the other."""
    for number, walk in enumerate(bench.walks):
        cut = len(walk.calls) // 2
        whole = follow(bench.suite, walk)
        others = bench.walks[number - 1].calls + bench.walks[number].calls[::-1]
        for told in ("fork", "original"):
            environment = bench.fresh(walk.task)
            for call in walk.calls[:cut]:
                ask(environment, call)
            try:
                forked = environment.fork()
            except NotImplementedError:
                environment.close()
                return
            side, disturber = (forked, environment) if told == "fork" else (environment, forked)
            try:
                for call in others:
                    tool = disturber.tools.get(call.tool)
                    if tool and tool.problem(call.arguments) is None and not disturber.finished:
                        ask(disturber, call)
                texts = [ask(side, call) for call in walk.calls[cut:] if not side.finished]
                same = texts == whole.texts[cut:] and side.state() == whole.states[-1]
                if not same or side.grade() != whole.reward:
                    yield (
                        f"task {walk.task.id}: after a fork at call {cut} the {told} went another"
                        " way than a replay of the same calls: copy all state in fork(), hidden"
                        " parts and generators included, and share none that changes"
                    )
                    return
            finally:
                forked.close()
                environment.close()


def same_law(bench: Bench) -> Iterator[str]:
    """A rollout's law is the same alone, among independent and among paired siblings."""
    walk = max(bench.walks, key=lambda each: len(each.calls))
    drawn = law.samples(bench.suite, Walk(walk.task, walk.calls[:6]), bench.groups)
    for kind in ("independent", "paired"):
        p = law.p_value(drawn["alone"], drawn[kind])
        if p < law.LEVEL / 2:
            yield (
                f"task {walk.task.id}: a rollout among {kind} siblings has another law than alone"
                f" (permutation p {p:.4f}, {bench.groups} groups, level {law.LEVEL}): let no"
                " rollout see or slow another"
            )


def same_fates(bench: Bench) -> Iterator[str]:
    """Paired siblings that act alike meet the same fates."""
    sharing = Sharing.parse("paired")
    for number, walk in enumerate(bench.walks):
        schedules = [sharing.schedule(5, 0, number, index) for index in range(law.SIBLINGS)]
        outcomes = law.group(bench.suite, walk, schedules)
        if len(set(outcomes)) > 1:
            yield (
                f"task {walk.task.id}: paired siblings that made the same calls met different"
                " fates: resources() must depend on the call and the task alone, and rollouts must"
                " not share what they change"
            )
            return


def clean_reset(bench: Bench) -> Iterator[str]:
    """reset() leaves nothing of the episode before it, on this instance or any other."""
    for walk in bench.walks:
        clean = follow(bench.suite, walk)
        used = bench.suite.make()
        try:
            for other in bench.walks[:3]:
                used.reset(other.task)
                for call in other.calls:
                    if used.finished:
                        break
                    ask(used, call)
            again = follow(bench.suite, walk, environment=used)
        finally:
            used.close()
        if _unlike(clean, again):
            yield (
                f"task {walk.task.id}: after another episode on the same instance it went another"
                " way: reset() must build all state anew"
            )
            return


def private(bench: Bench) -> Iterator[str]:
    """What one episode does reaches no other one that is alive."""
    for walk in bench.walks:
        alone = follow(bench.suite, walk)
        other, trace = bench.fresh(walk.task), bench.fresh(walk.task)
        try:
            for call in walk.calls:
                if not other.finished:
                    ask(other, call)
            told = [ask(trace, call) for call in walk.calls if not trace.finished]
            if told != alone.texts or trace.state() != alone.states[-1]:
                yield (
                    f"task {walk.task.id}: it went another way while another episode of the task"
                    " was alive: keep state on the instance, in no module, class or file"
                )
                return
        finally:
            other.close()
            trace.close()


def honest_reads(bench: Bench) -> Iterator[str]:
    """A call of a tool that declares reads or pure changes no state, and nothing later."""
    for walk in bench.walks:
        whole = follow(bench.suite, walk)
        for place, call in enumerate(walk.calls[: len(whole.states) - 1]):
            tool = bench.suite.tools[call.tool]
            if tool.effect in STILL and whole.states[place] != whole.states[place + 1]:
                yield (
                    f"{call.tool} declares {tool.effect} but changed the state in"
                    f" {_said(walk, place)}: declare it writes"
                )
                return
        kept = [
            place
            for place, call in enumerate(walk.calls)
            if bench.suite.tools[call.tool].effect not in STILL
        ]
        if kept and len(kept) < len(walk.calls):
            bare = follow(bench.suite, Walk(walk.task, tuple(walk.calls[p] for p in kept)))
            told = [whole.texts[place] for place in kept if place < len(whole.texts)]
            at = differ(told, bare.texts)
            if at is not None:
                yield (
                    f"task {walk.task.id}: without its reading calls the others came to other"
                    " results: one that declares reads or pure changes something that state()"
                    " leaves out; declare it writes, and put it into state()"
                )
                return


def honest_pure(bench: Bench) -> Iterator[str]:
    """A call of a tool that declares pure gives one result in any state."""
    for walk in bench.walks:
        whole = follow(bench.suite, walk, states=False)
        for place, call in enumerate(walk.calls[: len(whole.texts)]):
            tool = bench.suite.tools[call.tool]
            if tool.effect is not Effect.PURE or tool.control:
                continue
            start = bench.fresh(walk.task)
            try:
                if ask(start, call) != whole.texts[place]:
                    yield (
                        f"{call.tool} declares pure but {_said(walk, place)} said another thing at"
                        " the start of the task: declare it reads"
                    )
                    return
            finally:
                start.close()


def whole_state(bench: Bench) -> Iterator[str]:
    """In equal states an equal call gives an equal result."""
    seen: dict[tuple[str, str, str], str] = {}
    for walk in bench.walks:
        trace = follow(bench.suite, walk)
        probes = [c for c in walk.calls if _repeatable(bench, c)][-4:]
        ends = [(trace.states[p], c, trace.texts[p]) for p, c in enumerate(walk.calls)]
        ends = [e for e in ends[: len(trace.texts)] if _repeatable(bench, e[1])]
        for cut in range(0, len(walk.calls), max(1, len(walk.calls) // 4)):
            for probe in probes:
                environment = bench.fresh(walk.task)
                try:
                    for call in walk.calls[:cut]:
                        if not environment.finished:
                            ask(environment, call)
                    if not environment.finished and probe.tool in environment.tools:
                        ends.append((environment.state(), probe, ask(environment, probe)))
                finally:
                    environment.close()
        for state, call, text in ends:
            key = (walk.task.id, state, f"{call.tool}{dict(call.arguments)}")
            if seen.setdefault(key, text) != text:
                yield (
                    f"task {walk.task.id}: {call.tool} said two things in two states of one digest:"
                    " put all that results depend on into state(), private parts included"
                )
                return


def _repeatable(bench: Bench, call: Call) -> bool:
    return bench.suite.tools[call.tool].effect in REPEATABLE


def harmless_grade(bench: Bench) -> Iterator[str]:
    """Grading changes nothing, may be asked twice, and lies in [0, 1]."""
    for walk in bench.walks:
        environment = bench.fresh(walk.task)
        try:
            for call in walk.calls[:-1]:
                ask(environment, call)
            before = environment.state()
            grades = [environment.grade(), environment.grade()]
            if environment.state() != before or grades[0] != grades[1]:
                yield f"task {walk.task.id}: grade() changes what is graded: grade a copy"
                return
            if not 0 <= grades[0] <= 1:
                yield f"task {walk.task.id}: grade {grades[0]} is outside [0, 1]: scale it"
                return
            if walk.calls and _repeatable(bench, walk.calls[-1]):
                whole = follow(bench.suite, walk, states=False)
                if ask(environment, walk.calls[-1]) != whole.texts[-1]:
                    yield (
                        f"task {walk.task.id}: a call after grade() went another way than without"
                        " it: grade a copy"
                    )
                    return
        finally:
            environment.close()


def gold_earns(bench: Bench) -> Iterator[str]:
    """Gold calls fit their schemas and earn the full reward."""
    for task in {walk.task.id: walk.task for walk in bench.walks}.values():
        gold = bench.suite.gold(task)
        if gold is None:
            continue
        path = run(bench.suite, task, list(gold), fork=False, states=False)
        if path.unfit:
            yield f"task {task.id}: gold {path.unfit[0]}: mend gold() or the schema"
            return
        if path.reward != 1.0 or not path.finished:
            yield (
                f"task {task.id}: gold earns {path.reward:g} and finished is {path.finished}: mend"
                " gold() or grade()"
            )
            return


def any_thread(bench: Bench) -> Iterator[str]:
    """An instance made in one thread works in another, and closes twice."""
    walk = bench.walks[0]
    plain = follow(bench.suite, walk)
    environment, told, broken = bench.fresh(walk.task), Trace(), list[str]()

    def elsewhere() -> None:
        try:
            told.texts = [ask(environment, call) for call in walk.calls if not environment.finished]
        except Exception as error:
            broken.append(repr(error))

    worker = threading.Thread(target=elsewhere)
    worker.start()
    worker.join()
    try:
        environment.close()
        environment.close()
    except Exception as error:
        yield f"close() twice raised {error!r}: let the second do nothing"
    if broken or told.texts != plain.texts:
        why = f" ({broken[0]})" if broken else ""
        yield f"task {walk.task.id}: it went another way in another thread{why}: bind to no thread"


def fresh_is_not_stale(bench: Bench) -> Iterator[str]:
    """Before any write a stale read reads the world as it is."""
    for walk in bench.walks:
        environment = bench.fresh(walk.task)
        try:
            if environment.can_be_stale:
                yield f"task {walk.task.id}: can_be_stale before anything was written: say False"
                return
            for call in walk.calls:
                tool = bench.suite.tools[call.tool]
                if tool.effect is Effect.READS and not tool.control:
                    one, other = (ask(environment, call, stale=s) for s in (False, True))
                    if one != other:
                        yield (
                            f"{call.tool}: a stale read before any write said another thing: read"
                            " the world as it is"
                        )
                        return
        finally:
            environment.close()


def _said(walk: Walk, at: int | None) -> str:
    place = min(at or 0, len(walk.calls) - 1)
    return f"call {place} of task {walk.task.id} ({walk.calls[place].tool})"


def _unlike(one: Trace, other: Trace) -> bool:
    return (one.texts, one.states, one.reward) != (other.texts, other.states, other.reward)


Rule = Callable[[Bench], Iterator[str]]
RULES: tuple[Rule, ...] = (
    declared,
    deterministic,
    global_random,
    forks,
    same_fates,
    same_law,
    clean_reset,
    private,
    honest_reads,
    honest_pure,
    whole_state,
    harmless_grade,
    gold_earns,
    any_thread,
    fresh_is_not_stale,
)


def title(rule: Rule) -> str:
    """What the rule demands, in a sentence."""
    return (rule.__doc__ or rule.__name__).strip().splitlines()[0]


def breaches(rule: Rule, bench: Bench) -> list[str]:
    """A rule's sentences; what an environment raises is one of them."""
    try:
        return list(rule(bench))
    except Broken as broken:
        return [f"{broken}: a policy's mistake must come back as a Result with an error code"]
    except Exception as error:
        return [
            f"{type(error).__name__}: {error}: the environment broke where a rule used it"[:400]
        ]
