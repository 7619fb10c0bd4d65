"""Strict YAML in, one clear sentence out: shared by recipes and whatever else is configured so."""

from __future__ import annotations

import difflib
import re
import typing
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from evenhand.errors import UserError

STRICT = ConfigDict(extra="forbid", frozen=True, strict=True)
"""Frozen, without unknown keys, and 3 is never taken for "3"."""


class Loader(yaml.SafeLoader):
    """YAML 1.1 without two traps: 1e-4 is a number, and a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping; raises ConstructorError on a repeated key."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and isinstance(key.value, str):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is given twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; UserError names file and line."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file; check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as text ({error})") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise UserError(f"{path}{line}: not good YAML: {problem}") from error
    if not isinstance(data, dict):
        raise UserError(f"{path}: must hold keys and values at its top, such as `steps: 100`")
    return data


def read_yaml_text(text: str, where: str) -> Any:
    """One YAML value; UserError names `where`."""
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{where}: the value is not YAML") from error


def sentence(error: ValidationError, where: str, model: type[BaseModel]) -> str:
    """The first problem of a validation as one sentence: file, field, what, and the mend."""
    # An unknown key is the likeliest cause of the others, such as a required key misspelt.
    problems = sorted(error.errors(), key=lambda p: p["type"] != "extra_forbidden")
    problem = problems[0]
    path = [part for part in problem["loc"] if not (isinstance(part, str) and _is_tag(part))]
    field = _dotted(path)
    place = f"{where}: {field}" if field else where
    kind = problem["type"]
    if kind == "extra_forbidden":
        keys = sorted(_model_at(model, path[:-1]))
        near = difflib.get_close_matches(str(path[-1]), keys, n=1)
        mend = f"did you mean {near[0]}?" if near else f"use one of {', '.join(keys)}"
        return f"{place}: unknown key; {mend}"
    if kind == "missing":
        return f"{place}: is missing; add it"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if kind == "value_error":
        # A checker of a nested mapping names the field itself: noise.tools.rate.
        if path and message.startswith(f"{path[-1]}."):
            return f"{where}: {_dotted([*path[:-1], message])}"
        return f"{place}: {message}"
    return f"{place}: {message}, but it is {_short(problem['input'])}"


def _dotted(path: list[Any]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_tag(part: str) -> bool:
    """Pydantic puts the branch of a union into the path, as in `noise.dict[str,any]`."""
    return bool(re.search(r"[\[\(]|^constrained-", part)) or part in ("int", "float", "str", "bool")


def _model_at(model: type[BaseModel], path: list[Any]) -> set[str]:
    """The keys that the model at this path knows."""
    here: type[BaseModel] = model
    for part in path:
        if isinstance(part, str) and part in here.model_fields:
            here = _inner_model(here.model_fields[part].annotation) or here
    return set(here.model_fields)


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    """The model inside `Model | None`, `list[Model]` and the like."""
    inner = typing.get_args(annotation)
    if inner:
        return next(filter(None, map(_inner_model, inner)), None)
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_model else None


def as_value_error(make: Any) -> Any:
    """Pydantic names the field of a ValueError; ours say only what is wrong."""
    try:
        return make()
    except UserError as error:
        raise ValueError(str(error)) from error
