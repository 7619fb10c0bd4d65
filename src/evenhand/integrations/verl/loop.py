"""EvenhandLoop: verl's own tool agent loop, with a desk before each rollout's tools.

    - name: evenhand
      _target_: evenhand.integrations.verl.loop.EvenhandLoop
      evenhand: {tools: database, sharing: paired, noise: {tools: {rate: 0.25}}}

in the file that `actor_rollout_ref.rollout.agent.agent_loop_config_path` names. verl parses calls,
renders results and samples; the desk runs what is called. V1 only: see `seats`.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, ToolListWrap
from verl.experimental.agent_loop.tool_agent_loop import AgentState, ToolAgentLoop
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from evenhand.integrations.desk import Desk, Seat, cached
from evenhand.integrations.functions import Functions
from evenhand.integrations.told import control_spellings, told
from evenhand.integrations.transcript import rollout_of, spans, spoken, stop
from evenhand.integrations.verl.contract import check
from evenhand.integrations.verl.here import CURRENT, carried
from evenhand.integrations.verl.seats import seat_of
from evenhand.integrations.verl.settings import Settings, Shop, shop
from evenhand.records import Call, Rollout, Task, write_jsonl
from evenhand.tools import Tool

_checked = functools.cache(check)


class _Shown:
    """A tool as verl's loop lists it."""

    def __init__(self, tool: Tool) -> None:
        self.name = tool.name
        self.tool_schema = OpenAIFunctionToolSchema.model_validate(tool.schema())


class EvenhandLoop(ToolAgentLoop):  # type: ignore[misc]
    """One rollout; verl makes one a trajectory."""

    tools: dict[str, Any]

    def __init__(
        self, *args: Any, evenhand: Any = None, tools: ToolListWrap | None = None, **kwargs: Any
    ) -> None:
        """`evenhand`: the fields of `Settings`. UserError when the installed verl lacks a seam."""
        _checked()
        said = OmegaConf.to_container(evenhand) if isinstance(evenhand, DictConfig) else evenhand
        settings = Settings.model_validate(said or {})
        self.shop: Shop = shop(settings, tools.tools if tools is not None else ())
        known = [tool for tool in self.shop.source.tools.values() if not tool.speech]
        super().__init__(*args, tools=ToolListWrap([_Shown(tool) for tool in known]), **kwargs)
        # verl's schema classes leave out what they do not know (items, nested objects).
        self.tool_schemas = [tool.schema() for tool in known]
        self._control = control_spellings(self.tokenizer)
        self._desk: Desk
        self._data: Any = None

    async def run(
        self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """The rollout of a row; an empty list when infrastructure lost it, so that V1 trains on the
        others of its group alone."""
        task = self._task(kwargs)
        settings = self.shop.settings
        seat = seat_of(kwargs, self.shop.sharing, settings.seed, task.id)
        environment = self.shop.source.make()
        inner = environment
        if self.shop.cache is not None:
            environment = cached(environment, self.shop.cache, seat)
        desk = self._desk = Desk(environment, seat, self.shop.noise, self.shop.workers)
        CURRENT.set(desk)
        if task.tools:
            self.tools = {name: self.tools[name] for name in task.tools if name in self.tools}
            self.tool_schemas = [self.shop.source.tools[name].schema() for name in self.tools]
        if isinstance(inner, Functions):
            # Tools run on the desk's threads: they see this rollout's context all the same.
            here = contextvars.copy_context()
            inner.functions = {k: carried(f, here) for k, f in inner.functions.items()}
        try:
            await asyncio.to_thread(desk.reset, task)
            if desk.lost:
                return self._lost(seat)
            output = await super().run(sampling_params, priority, **kwargs)
            if self.shop.source.grades:
                output.reward_score = await asyncio.to_thread(desk.grade)
            if self._desk.lost:
                return self._lost(seat)
            output.extra_fields["evenhand"] = {
                "group_id": seat.group_id,
                "index": seat.index,
                "schedule": seat.schedule.id,
                "sharing": seat.sharing,
                "faults": sum(1 for e in desk.events if e.draw is not None and e.draw.fault),
            }
            self._keep(self._record(output, sampling_params))
            return output
        finally:
            desk.close()

    # -- verl's loop, where it meets tools ------------------------------------------------------

    async def _handle_pending_state(self, agent_data: Any, sampling_params: Any) -> Any:
        self._data, self._prompt_messages = agent_data, len(agent_data.messages)
        return await super()._handle_pending_state(agent_data, sampling_params)

    async def _handle_processing_tools_state(self, agent_data: Any) -> Any:
        state = await super()._handle_processing_tools_state(agent_data)
        return AgentState.TERMINATED if self._desk.finished or self._desk.lost else state

    async def _call_tool(
        self, tool_call: Any, tools_kwargs: Any, agent_data: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Ask the desk at once, so that calls of a turn keep their order, and wait on a thread."""
        if tool_call.name not in self.tools:
            return ToolResponse(text=f"there is no tool {tool_call.name}"), 0.0, {}
        try:
            arguments = json.loads(tool_call.arguments)
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            return ToolResponse(text="arguments must be a JSON object"), 0.0, {}
        asked = self._desk.ask(Call(tool_call.name, arguments))
        result = await asyncio.to_thread(asked.result)
        text = told(result, self.shop.source.plain, self._control)
        text = text if isinstance(text, str) else json.dumps(text, default=str)
        return ToolResponse(text=text), 0.0, {}

    # -- record ---------------------------------------------------------------------------------

    def _task(self, row: Mapping[str, Any]) -> Task:
        source = self.shop.source
        name = str(row.get("task_id") or row.get("id") or row.get("index") or "")
        known = source.known.get(name)
        if known is not None:
            return known
        prompt = row["raw_prompt"][-1]["content"] if len(row["raw_prompt"]) else ""
        return Task(name, source.name, str(prompt), data=dict(row))

    def _record(self, output: AgentLoopOutput, sampling_params: Mapping[str, Any]) -> Rollout:
        desk = self._desk
        reward = output.reward_score
        rollout = rollout_of(desk.seat, desk, math.nan if reward is None else reward)
        if reward is None:  # verl scores it later, outside of this process
            rollout.failure = None
        rollout.tokens = [*output.prompt_ids, *output.response_ids]
        rollout.mask = [0] * len(output.prompt_ids) + list(output.response_mask)
        if output.response_logprobs is not None:
            zeros = [0.0] * len(output.prompt_ids)
            rollout.logprobs = [*zeros, *output.response_logprobs]
        rollout.temperature = float(sampling_params.get("temperature", 1.0))
        rollout.top_p = float(sampling_params.get("top_p", 1.0))
        messages = spoken(self._data.messages[self._prompt_messages :], desk)
        spans(rollout, messages, self.tokenizer)
        rollout.turns = [turn for message in messages for turn in message]
        rollout.stop = stop(rollout, desk)
        return rollout

    def _lost(self, seat: Seat) -> list[AgentLoopOutput]:
        rollout = rollout_of(seat, self._desk, math.nan)
        if self._data is not None:
            messages = spoken(self._data.messages[self._prompt_messages :], self._desk)
            rollout.turns = [turn for message in messages for turn in message]
        rollout.stop = "lost"
        self._keep(rollout)
        return []

    def _keep(self, rollout: Rollout) -> None:
        folder = self.shop.settings.record
        if folder is None:
            return
        name = rollout.group_id.replace("/", "-")
        path = Path(folder) / f"step_{rollout.step:05d}" / f"{name}-{rollout.index}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        write_jsonl(part, [rollout])
        part.replace(path)
