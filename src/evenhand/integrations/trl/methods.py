"""Methods by whose signature and docstring an engine prints a tool."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_type_hints

from evenhand.tools import Tool


def method_of(tool: Tool, original: Callable[..., Any] | None) -> Callable[..., Any]:
    """A method that passes its arguments to `self._called`; `original`'s looks, where there is one,
    else what the tool's schema says."""
    name = tool.name

    def method(self: Any, /, **arguments: Any) -> Any:
        return self._called(name, arguments)

    if original is not None:
        function = getattr(original, "__func__", original)
        hints = get_type_hints(function)
        parameters = [
            p.replace(annotation=hints.get(p.name, p.annotation), kind=p.KEYWORD_ONLY)
            for p in inspect.signature(original).parameters.values()
        ]
        method.__doc__ = inspect.getdoc(original)
    else:
        hints, parameters = _signature(tool)
        lines = [f"    {p.name}: {_describe(tool, p.name)}" for p in parameters]
        method.__doc__ = "\n".join([tool.description, "", *(["Args:", *lines] if lines else [])])
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = inspect.Signature([own, *parameters])  # type: ignore[attr-defined]
    method.__annotations__ = {p.name: p.annotation for p in parameters}
    method.__name__ = method.__qualname__ = name
    return method


_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": None,
}


def _hint(schema: Mapping[str, Any]) -> Any:
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return Literal[tuple(schema["enum"])]
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return functools.reduce(operator.or_, (_hint({**schema, "type": k}) for k in kinds))
    if kinds == "array" and isinstance(schema.get("items"), Mapping):
        return list[_hint(schema["items"])]  # type: ignore[misc]
    return _TYPES.get(str(kinds), str)


def _signature(tool: Tool) -> tuple[dict[str, Any], list[inspect.Parameter]]:
    required = set(tool.parameters.get("required", ()))
    properties = tool.parameters.get("properties", {})
    hints = {key: _hint(schema) for key, schema in properties.items()}
    empty = inspect.Parameter.empty
    return hints, [
        inspect.Parameter(
            key,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hint,
            default=empty if key in required else None,
        )
        for key, hint in sorted(hints.items(), key=lambda item: item[0] not in required)
    ]


def _describe(tool: Tool, argument: str) -> str:
    text = tool.parameters.get("properties", {}).get(argument, {}).get("description")
    return " ".join(str(text).split()) if text else f"The {argument}."
