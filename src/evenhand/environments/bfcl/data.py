"""What `bfcl_eval` holds, read where it is installed: entries, function docs, gold calls."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenhand.environments.bfcl.effects import LATENCY, effect_of
from evenhand.environments.parts import respond
from evenhand.errors import EvenhandError
from evenhand.records import Call, Task
from evenhand.tools import Tool

CATEGORIES = ("base", "long_context", "miss_func", "miss_param")
RESPOND = respond("Say something to the user, who then says the next thing.")
_TYPES = {"dict": "object", "float": "number", "any": "string", "tuple": "array"}
# Arguments that say which thing is touched; a message's text, for one, does not.
_RESOURCES = """
    file_name file_name1 file_name2 dir_name folder source destination path symbol stock
    order_id ticket_id tweet_id booking_id card_id user_id receiver_id username user_name
    username_to_follow username_to_unfollow user travel_from travel_to cityA cityB location
"""


@dataclass(frozen=True)
class Entry:
    """One dialogue."""

    id: str
    """As the package names it: multi_turn_base_0."""
    category: str
    number: int
    """The same number is the same scenario in all categories."""
    questions: tuple[str, ...]
    """What the user says, turn by turn; "" where functions are handed over instead."""
    config: Mapping[str, Any]
    classes: tuple[str, ...]
    missed: Mapping[int, tuple[str, ...]]
    """Functions that are held back until the turn."""
    gold: tuple[tuple[str, ...], ...]
    """Calls of each turn, as the package writes them. They are parsed, never run as text."""

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def long_context(self) -> bool:
        """The package then stuffs files and answers."""
        return self.category == "long_context"


def folder() -> Path:
    """Where the package lies."""
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or spec.origin is None:
        raise EvenhandError("bfcl_eval is not installed")
    return Path(spec.origin).parent


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


@functools.cache
def entries() -> Mapping[str, Entry]:
    """All 800 dialogues by id."""
    made: dict[str, Entry] = {}
    for category in CATEGORIES:
        name = f"BFCL_v4_multi_turn_{category}.json"
        answers = {
            each["id"]: each["ground_truth"]
            for each in _lines(folder() / "data" / "possible_answer" / name)
        }
        for each in _lines(folder() / "data" / name):
            made[each["id"]] = Entry(
                each["id"],
                category,
                int(each["id"].rsplit("_", 1)[1]),
                tuple(turn[0]["content"] if turn else "" for turn in each["question"]),
                each["initial_config"],
                tuple(each["involved_classes"]),
                {int(k): tuple(v) for k, v in each.get("missed_function", {}).items()},
                tuple(tuple(turn) for turn in answers[each["id"]]),
            )
    return made


def entry(task: Task) -> Entry:
    """A task's dialogue: one of the package's by id, or the one that the task's data spells out."""
    held = task.data
    if "id" in held:
        return entries()[held["id"]]
    return Entry(
        task.id,
        "base",
        0,
        tuple(held["questions"]),
        held["config"],
        tuple(held["classes"]),
        {},
        tuple(tuple(turn) for turn in held["gold"]),
    )


@functools.cache
def docs() -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    """Function name -> (class, the package's own description of it)."""
    from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING

    made: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for class_name in LATENCY:
        file = (
            folder() / "data" / "multi_turn_func_doc" / MULTI_TURN_FUNC_DOC_FILE_MAPPING[class_name]
        )
        for each in _lines(file):
            if each["name"] in made:
                raise EvenhandError(f"bfcl_eval describes {each['name']} twice")
            made[each["name"]] = (class_name, each)
    return made


@functools.cache
def tools() -> Mapping[str, Tool]:
    """Every function as a tool, and `respond`."""
    made = {}
    for name, (class_name, doc) in docs().items():
        parameters = _schema(doc["parameters"])
        parameters["additionalProperties"] = False
        made[name] = Tool(
            name,
            doc["description"],
            parameters,
            effect_of(name),
            tuple(each for each in _RESOURCES.split() if each in parameters["properties"]),
            latency=LATENCY[class_name],
        )
    made["respond"] = RESPOND
    return made


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    made = {k: v for k, v in schema.items() if k in ("type", "description", "required", "default")}
    if schema.get("enum"):
        made["enum"] = schema["enum"]
    made["type"] = _TYPES.get(schema["type"], schema["type"])
    if made["type"] == "object":
        made["properties"] = {k: _schema(v) for k, v in (schema.get("properties") or {}).items()}
    if "items" in schema:
        made["items"] = _schema(schema["items"])
    return made


def class_of(name: str) -> str:
    """The class a function belongs to."""
    return docs()[name][0]


@functools.cache
def backend(class_name: str) -> type[Any]:
    """The package's class of that name."""
    from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING

    found: type[Any] = getattr(
        importlib.import_module(CLASS_FILE_PATH_MAPPING[class_name]), class_name
    )
    return found


def parsed(text: str) -> Call:
    """A gold call such as "sort('a.txt')": a name and literals, arguments bound by name.

    EvenhandError when it is anything else. Nothing is evaluated.
    """
    try:
        node = ast.parse(text, mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise ValueError("not a call by name")
        name = node.func.id
        names = list(inspect.signature(getattr(backend(class_of(name)), name)).parameters)[1:]
        arguments = {
            key: ast.literal_eval(value) for key, value in zip(names, node.args, strict=False)
        }
        for keyword in node.keywords:
            if keyword.arg is None:
                raise ValueError("** is not a name")
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
    except (SyntaxError, ValueError, KeyError, TypeError) as error:
        raise EvenhandError(f"gold call {text!r} is not a name and literals: {error}") from error
    return Call(name, _plain(arguments))


def _plain(value: Any) -> Any:
    """Tuples as the lists that JSON has."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def gold(entry: Entry) -> Sequence[Call]:
    """The gold calls of all turns, each turn ended by plain words."""
    calls: list[Call] = []
    for turn in entry.gold:
        calls += [parsed(text) for text in turn]
        calls.append(Call("respond", {"text": "Done."}))
    return calls
