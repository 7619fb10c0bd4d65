"""Episode: one rollout under way, its world, its noise, and the record it leaves.

Two threads take turns with an episode and never share a moment of it. The collecting thread owns
the tokens and the record; a worker runs `begin` and `act`, which touch the environment and the
fault session alone and hand back an `Outcome`. So a tool that never returns can be given up at any
time: what its thread does later reaches no record.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from torch import Tensor

from evenhand.draws import Schedule, policy_stream
from evenhand.environments.base import Environment, Suite
from evenhand.errors import UserError
from evenhand.noise import FaultSession
from evenhand.policy.chat import ChatFormat, Parsed
from evenhand.policy.sampler import Row, Sampling
from evenhand.records import Call, Draw, Result, Rollout, Turn, worst_tier
from evenhand.rollout.reuse import Reuse
from evenhand.rollout.settings import Fork, Limits, Request
from evenhand.rollout.trunk import Stand, Trunk
from evenhand.rollout.workers import Job
from evenhand.tools import Tool

MESSAGE_CHARS = 200
"""Longest message of a refused call; a policy's own garbage must not fill its context."""


DRAWN = ("schedule", "tool", "resource", "repeat", "fault", "applied")
"""What was drawn, of a `Draw`; the rest says what served the result."""


class Broken(Exception):
    """The environment failed, not the policy; the message is the rollout's failure reason."""


@dataclass
class Outcome:
    """What a turn came to: either `reply` tokens to go on with, or a `stop`."""

    turn: Turn
    reply: list[int] | None = None
    stop: str = ""
    reward_true: float | None = None
    reward: float | None = None
    grader_flip: bool = False
    failure: str | None = None


class Episode:
    """See the module. `context`: most tokens; `opening`: the prompt's tokens."""

    def __init__(
        self,
        request: Request,
        suite: Suite,
        chat: ChatFormat,
        opening: Sequence[int],
        *,
        place: int = 0,
        seed: int,
        sampling: Sampling,
        limits: Limits,
        context: int,
        measured: bool = False,
        trunk: Trunk | None = None,
        reuse: Reuse | None = None,
    ) -> None:
        self.request, self.suite, self.chat = request, suite, chat
        self.seed, self.limits, self.context, self.reuse = seed, limits, context, reuse
        self.place, self.trunk = place, trunk
        """Of its request, among those collected together."""
        self.job: Job | None = None
        """What a worker does, or did last, for it."""
        self.environment: Environment | None = None
        self.session = FaultSession(request.noise, request.schedule)
        uniforms = policy_stream(seed, *request.sampling_key).random(context)
        sampling = request.sampling or sampling
        # A fork in mid-turn counts on from its parent's tokens, so this is right for it, too.
        self.row = Row(
            uniforms,
            sampling=sampling,
            forbidden=chat.end_of_turn,
            until=min(limits.first_turn_tokens, limits.turn_tokens),
        )
        self.turn_start = len(opening)
        self.started = time.perf_counter()
        self.acting: Turn | None = None
        task = request.task
        self.rollout = Rollout(
            task_id=task.id,
            group_id=request.group_id,
            index=request.index,
            step=request.step,
            split=request.split,
            family=task.family,
            environment=task.environment or suite.name,
            sharing=request.sharing,
            schedule=request.schedule.id,
            tokens=list(opening),
            mask=[0] * len(opening),
            logprobs=[0.0] * len(opening),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
        )
        self.states: dict[int, Tensor] = {}
        """By index of the tokens drawn: what the row's `state` was, where the batch sets it."""
        self.measured = measured
        if measured:
            self.rollout.entropies = [0.0] * len(opening)
        if request.fork is not None:
            self._descend(request.fork)

    def _descend(self, fork: Fork) -> None:
        """Take over what the parent was at the fork, and the place in one's own stream: a fork that
        has its parent's key draws its parent's tokens."""
        mine, parent, at = self.rollout, fork.rollout, fork.at
        mine.parent, mine.fork_at = parent.index, at
        mine.tokens, mine.mask = parent.tokens[:at], parent.mask[:at]
        mine.logprobs, mine.entropies = parent.logprobs[:at], parent.entropies[:at]
        self.measured = self.measured and len(parent.entropies) > 0
        mine.turns = [replace(turn) for turn in parent.turns[: fork.turns]]
        mine.tier = worst_tier(t.draw.tier for t in mine.turns if t.draw)
        self.turn_start = fork.turn_start
        self.row.drawn, self.row.last = sum(mine.mask), mine.tokens[-1]

    @property
    def place_in_group(self) -> tuple[str, int]:
        """The group's id, and the index in it."""
        return self.request.group_id, self.request.index

    # -- the collecting thread's part -----------------------------------------------------------

    def take(self, token: int, logprob: float) -> bool:
        """Record a sampled token; True when it ends the turn."""
        rollout = self.rollout
        if self.row.state is not None:
            self.states[len(rollout.tokens)] = self.row.state
        rollout.tokens.append(token)
        rollout.mask.append(1)
        rollout.logprobs.append(logprob)
        if self.measured:
            rollout.entropies.append(self.row.entropy)
        length = len(rollout.tokens)
        return (
            token == self.chat.end_of_turn
            or length - self.turn_start >= self.limits.turn_tokens
            or length >= self.context
        )

    def apply(self, outcome: Outcome) -> list[int] | None:
        """Take an outcome into the record; returns the reply to read, or None when it is over."""
        rollout = self.rollout
        rollout.turns.append(outcome.turn)
        draw = outcome.turn.draw
        rollout.tier = worst_tier((rollout.tier, draw.tier if draw else None))
        self.acting = None
        if outcome.reply is not None:
            rollout.tokens += outcome.reply
            rollout.mask += [0] * len(outcome.reply)
            rollout.logprobs += [0.0] * len(outcome.reply)
            if self.measured:
                rollout.entropies += [0.0] * len(outcome.reply)
            self.turn_start = len(rollout.tokens)
            return outcome.reply
        rollout.stop = outcome.stop
        rollout.reward_true, rollout.reward = outcome.reward_true, outcome.reward
        rollout.grader_flip = outcome.grader_flip
        rollout.failure = outcome.failure
        rollout.wall_s = time.perf_counter() - self.started
        return None

    def lose(self, reason: str) -> None:
        """The environment broke or never came back: record why, and the turn as far as known."""
        turn = self.acting
        if turn is not None:
            self.apply(Outcome(replace(turn), stop="lost", failure=reason))
            return
        self.rollout.stop, self.rollout.failure = "lost", reason
        self.rollout.wall_s = time.perf_counter() - self.started

    def act_job(self) -> Job:
        """The work that the turn just ended asks for."""
        rollout = self.rollout
        start, end = self.turn_start, len(rollout.tokens)
        whole = rollout.tokens[end - 1] == self.chat.end_of_turn
        turn = self.acting = Turn(text="", start=start, end=end)
        written = rollout.tokens[start : end - 1 if whole else end]
        last = len(rollout.turns) + 1 >= self.limits.turns
        return Job(lambda job: self._act(job, turn, written, whole, last), self.close)

    def begin_job(self) -> Job:
        """Make and reset the environment."""
        return Job(self._begin, self.close)

    def close(self) -> None:
        """Free the environment; never raises, for the rollout's outcome is known by now."""
        environment, self.environment = self.environment, None
        if environment is not None:
            with contextlib.suppress(Exception):
                environment.close()

    # -- the worker's part ----------------------------------------------------------------------

    def _begin(self, job: Job) -> str | None:
        """None, or why the rollout is lost before its first turn."""
        try:
            if self.trunk is None:
                self._reset(job)
            else:
                with self._outside(job, "fork", self.limits.environment_timeout_s):
                    taken = self.trunk.take(partial(self._replayed, job))
                if isinstance(taken, str):
                    return taken
                self.environment, self.session = taken
                self._draw_by(self.request.schedule)
        except Broken as error:
            self.close()
            return str(error)
        return None

    def _reset(self, job: Job) -> None:
        with self._outside(job, "reset", self.limits.environment_timeout_s):
            self.environment = self.suite.make()
            if self.reuse is not None:
                self.environment = self.reuse.around(self.environment, self.request)
            self.environment.reset(self.request.task)

    def _draw_by(self, schedule: Schedule) -> None:
        self.session.schedule = schedule
        if self.reuse is not None and self.environment is not None:
            self.reuse.draw_by(self.environment, schedule)

    def _replayed(self, job: Job) -> Stand | str:
        """Where the parent's finished turns lead; or why they do not lead there."""
        try:
            self._reset(job)
            fork = self.request.fork
            assert fork is not None
            tokens = self.rollout.tokens
            for number, turn in enumerate(self.rollout.turns):
                whole = tokens[turn.end - 1] == self.chat.end_of_turn
                written = tokens[turn.start : turn.end - 1 if whole else turn.end]
                self._draw_by(self.request.schedule_of(number))
                again = Outcome(Turn("", start=turn.start, end=turn.end))
                self._run(job, again, written, whole, last=False)
                reply = tokens[turn.end : fork.rollout.turns[number + 1].start]
                if again.reply != reply or _plain(again.turn) != _plain(turn):
                    raise Broken(f"replay: turn {number + 1} of the parent came out differently")
        except Broken as error:
            self.close()
            return str(error)
        environment, self.environment = self.environment, None
        assert environment is not None
        return environment, self.session

    def _act(
        self, job: Job, turn: Turn, written: Sequence[int], whole: bool, last: bool
    ) -> Outcome:
        outcome = Outcome(turn)
        try:
            self._run(job, outcome, written, whole, last)
            if outcome.reply is None:
                self._grade(job, outcome)
        except Broken as error:
            outcome = Outcome(turn, stop="lost", failure=str(error))
        except BaseException:
            self.close()
            raise
        if outcome.reply is None:
            self.close()
        return outcome

    def _run(
        self, job: Job, outcome: Outcome, written: Sequence[int], whole: bool, last: bool
    ) -> None:
        """Parse, check, refuse or run, and encode the reply."""
        chat, turn = self.chat, outcome.turn
        turn.text = chat.decode(written)
        assert self.environment is not None
        parsed = chat.parse(turn.text)
        if parsed.call is None and parsed.problem is None:
            heard = next((tool for tool in self.environment.tools.values() if tool.speech), None)
            if heard is None:
                outcome.stop = "no_call"
                return
            parsed = Parsed(Call(heard.name, {"text": turn.text}))
        # Reasoning left open is closed before anything is heard, or the policy would go on in it;
        # a turn cut short lacks its end: the template's own is put there. Both are masked.
        closing = chat.closing(turn.text) + ([] if whole else [chat.end_of_turn])
        room = self.context - turn.end - len(closing) - self.limits.turn_reserve
        turn.call = parsed.call
        tool, refused = self._checked(parsed.call, parsed.problem)
        if refused is not None:
            turn.problem, turn.result = str(refused.value["message"]), refused
        else:
            assert tool is not None and parsed.call is not None
            if room < self.limits.result_tokens and not last and not tool.control:
                turn.problem = "not run: its result might not fit into the context"
                outcome.stop = "context"
                return
            turn.result, turn.draw = self._call(job, tool, parsed.call)
            with self._outside(job, "finished", self.limits.environment_timeout_s):
                finished = self.environment.finished
            if finished:
                outcome.stop = "answered"
                return
        if last:
            outcome.stop = "turns"
            return
        with self._outside(job, "result", self.limits.environment_timeout_s):
            text = turn.result.text
        said = tool is not None and tool.speech and isinstance(turn.result.value, str)
        reply = chat.user(turn.result.value) if said else chat.result(text)
        if len(reply) > self.limits.result_tokens:
            turn.result, reply = self._shortened(turn.result, len(reply))
        if len(reply) > room:
            outcome.stop = "context"
            return
        outcome.reply = closing + reply

    def _checked(self, call: Call | None, problem: str | None) -> tuple[Tool | None, Result | None]:
        """The tool that is called, or the error that the policy is told instead."""
        if call is None:
            return None, _refusal("BAD_CALL", problem or "no call was understood")
        assert self.environment is not None
        tool = self.environment.tools.get(call.tool)
        if tool is None:
            known = ", ".join(self.environment.tools)
            return None, _refusal("UNKNOWN_TOOL", f"no such tool; there are {known}")
        problem = tool.problem(call.arguments)
        return tool, None if problem is None else _refusal("BAD_ARGUMENTS", problem)

    def _call(self, job: Job, tool: Tool, call: Call) -> tuple[Result, Draw]:
        """Run the call under the rollout's faults."""
        environment = self.environment
        assert environment is not None
        limit, ran = tool.timeout_s, False

        def execute(stale: bool) -> Result:
            nonlocal ran
            with self._outside(job, tool.name, limit):
                result = environment.call(call, stale=stale)
            ran = True
            return result

        with self._outside(job, tool.name, limit):
            resources = environment.resources(call)
            can_be_stale = environment.can_be_stale
        result, draw = self.session.call(
            tool, resources, call.arguments, execute, can_be_stale=can_be_stale
        )
        return result, self.reuse.noted(draw, environment) if self.reuse and ran else draw

    def _shortened(self, result: Result, tokens: int) -> tuple[Result, list[int]]:
        """What is said in place of a result that is too long: an error keeps its code."""
        most = self.limits.result_tokens
        told = Result({}, error=result.error)
        if result.error is None:
            message = f"{tokens} tokens, over the limit of {most}: ask for less"
            told = Result({"message": message}, error="RESULT_TOO_LONG")
            if len(self.chat.result(told.text)) > most:
                told = Result({}, error=told.error)
        return told, self.chat.result(told.text)

    def _grade(self, job: Job, outcome: Outcome) -> None:
        assert self.environment is not None
        with self._outside(job, "grade", self.limits.environment_timeout_s):
            true = float(self.environment.grade())
        grader = self.request.noise.grader
        reward, outcome.grader_flip = grader.observe(true, self.request.schedule)
        outcome.reward_true, outcome.reward = true, reward

    @contextlib.contextmanager
    def _outside(self, job: Job, what: str, limit_s: float) -> Iterator[None]:
        """Around the environment's own code: what breaks in it, or is late, is infrastructure."""
        late = f"timeout: {what} took longer than {limit_s:g} s"
        job.watch(limit_s, late)
        try:
            yield
        except UserError:
            raise  # a mistake in the set-up, such as a missing data file: nobody's luck
        except Exception as error:
            raise Broken(f"{what}: {type(error).__name__}: {error}"[:500]) from error
        else:
            if job.overdue is not None:
                raise Broken(late)
        finally:
            job.unwatch()


def _plain(turn: Turn) -> str:
    """What a record keeps of a turn, but for where its result came from: a cache may hold now what
    ran for the parent. A parent may have been read from a file."""
    draw = turn.draw and Draw(**{name: getattr(turn.draw, name) for name in DRAWN})
    return json.dumps(asdict(replace(turn, draw=draw)), sort_keys=True, default=str)


def _refusal(code: str, message: str) -> Result:
    if len(message) > MESSAGE_CHARS:
        message = message[: MESSAGE_CHARS - 1] + "…"
    return Result({"message": message}, error=code)
