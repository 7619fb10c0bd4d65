"""What the package holds of a domain: databases, tools, policy and tasks, read where it lies.

Three things its modules do on import are kept from happening: they read any `.env` file above them
into the environment, warn when there is none, and log every call. Nothing here imports its model
clients or reaches for a network.
"""

from __future__ import annotations

import functools
import importlib
import os
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evenhand.environments.digest import digest
from evenhand.environments.parts import respond
from evenhand.tools import Effect, Latency, Tool

NAMES = ("airline", "mock", "retail", "telecom")
RESPOND = respond("Say something to the customer.")
# Arguments that say which thing is touched; a summary's text, for one, does not.
_RESOURCES = """
    user_id order_id product_id email first_name last_name zip reservation_id flight_number date
    origin destination customer_id line_id bill_id phone_number full_name id app_name task_id
"""
_EFFECTS = {"read": Effect.READS, "write": Effect.WRITES}
# Seconds that the services these tools stand for would take; declared, not measured.
_LATENCY = {
    Effect.READS: Latency(0.2, 0.5),
    Effect.WRITES: Latency(0.5, 0.6),
    Effect.PURE: Latency(0.005, 0.2),
}


@dataclass(frozen=True)
class Domain:
    """One domain. The databases are nobody's own: they are looked at, never called on."""

    name: str
    database: Any
    device: Any
    """The customer's own database, which telecom alone has; else None."""
    policy: str
    tools: Mapping[str, Tool]

    def environment(self, database: Any, device: Any) -> Any:
        """The package's environment around two databases: cheap."""
        if self.name == "telecom":
            tools = _module("tools").TelecomTools(database)
            # A bill that a charge opens is named by uuid4: here, by what the database holds.
            charge = type(tools)._apply_one_time_charge
            names = {**charge.__globals__, "uuid": _Names(database)}
            tools._apply_one_time_charge = types.FunctionType(charge.__code__, names).__get__(tools)
            phone = _module("user_tools").TelecomUserTools(device)
            made = _module("environment").TelecomEnvironment("telecom", "", tools, phone)
            # Alone the agent has the customer's tools, too; set_solo_mode() would build schemas.
            made.solo_mode = True
            return made
        kit = _module("tools", self.name)
        tools = getattr(kit, f"{self.name.capitalize()}Tools")(database)
        return _package("environment.environment").Environment(self.name, "", tools)


@dataclass(frozen=True)
class _Names:
    """In place of the module `uuid`."""

    database: Any

    def uuid4(self) -> types.SimpleNamespace:
        """Names that are the same in every process, and new whenever a bill was added."""
        held = [bill.bill_id for bill in self.database.bills]
        return types.SimpleNamespace(hex=digest(["evenhand bill", held]))


def _package(name: str) -> Any:
    """A module of the package's."""
    from loguru import logger

    logger.disable("tau2")
    before = os.environ.get("PYTHON_DOTENV_DISABLED")
    os.environ["PYTHON_DOTENV_DISABLED"] = "1"
    try:
        return importlib.import_module(f"tau2.{name}")
    finally:
        if before is None:
            del os.environ["PYTHON_DOTENV_DISABLED"]
        else:
            os.environ["PYTHON_DOTENV_DISABLED"] = before


@functools.cache
def _module(name: str, domain: str = "telecom") -> Any:
    return _package(f"domains.{domain}.{name}")


@functools.cache
def evaluator(name: str) -> Any:
    """ActionEvaluator, CommunicateEvaluator or EnvironmentEvaluator."""
    short = {"EnvironmentEvaluator": "env"}.get(name, name.removesuffix("Evaluator").lower())
    return getattr(_package(f"evaluator.evaluator_{short}"), name)


@functools.cache
def messages() -> Any:
    """The package's message types."""
    return _package("data_model.message")


@functools.cache
def domain(name: str) -> Domain:
    """A domain by name."""
    solo = {"solo_mode": True} if name == "telecom" else {}
    loaded = _module("environment", name).get_environment(**solo)
    kits = [kit for kit in (loaded.tools, loaded.user_tools) if kit is not None]
    tools = {
        each.name: _tool(each, kit.tool_type(each.name).value)
        for kit in kits
        for each in kit.get_tools().values()
    }
    device = loaded.user_tools.db if len(kits) > 1 else None
    return Domain(name, loaded.tools.db, device, loaded.policy, {**tools, RESPOND.name: RESPOND})


@functools.cache
def tasks(name: str, split: str) -> Mapping[str, Any]:
    """The package's tasks of one of its splits, by id; without those that only a judging model
    grades, or that begin in mid-conversation."""
    every = _module("environment", name).get_tasks(split)
    return {
        task.id: task
        for task in every
        if "NL_ASSERTION" not in basis(task)
        and not (task.initial_state and task.initial_state.message_history)
    }


@functools.cache
def splits(name: str) -> Mapping[str, str]:
    """The package's own train or test by task id; empty for mock."""
    held = _module("environment", name).get_tasks_split()
    return {task: split for split in ("train", "test") for task in held.get(split, ())}


def basis(task: Any) -> frozenset[str]:
    """What a task's reward rests on: DB, ENV_ASSERTION, ACTION, COMMUNICATE, NL_ASSERTION."""
    return frozenset(each.value for each in task.evaluation_criteria.reward_basis)


def _tool(each: Any, kind: str) -> Tool:
    """A tool of the package's; its READ and WRITE tags are the effects, and the rest (sums, and
    words of handing over) touch nothing."""
    schema = each.params.model_json_schema()
    parameters = _plain(schema, schema.get("$defs", {}))
    parameters["additionalProperties"] = False
    effect = _EFFECTS.get(kind, Effect.PURE)
    return Tool(
        each.name,
        each._get_description(),
        parameters,
        effect,
        tuple(name for name in _RESOURCES.split() if name in parameters.get("properties", {})),
        latency=_LATENCY[effect],
    )


def _plain(schema: Mapping[str, Any], defined: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with its references filled in and without titles."""
    if "$ref" in schema:
        return _plain(defined[schema["$ref"].rpartition("/")[2]], defined)
    if options := schema.get("anyOf"):
        # "A thing of this shape, or any object or text": the shape is what a policy should know.
        named = [each for each in options if "$ref" in each]
        options = [_plain(each, defined) for each in named or options]
        rest = {k: v for k, v in schema.items() if k in ("description", "default")}
        return {**options[0], **rest} if len(options) == 1 else {"anyOf": options, **rest}
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            made[key] = {name: _plain(inner, defined) for name, inner in value.items()}
        elif key == "items":
            made[key] = _plain(value, defined)
        elif key not in ("title", "$defs"):
            made[key] = value
    return made
