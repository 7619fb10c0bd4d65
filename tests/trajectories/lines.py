"""One conversation in each of the three foreign formats, made here."""

from __future__ import annotations

import json
from typing import Any

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of a town.",
            "parameters": {
                "type": "object",
                "properties": {"town": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["town"],
                "additionalProperties": False,
            },
        },
    }
]
ARGUMENTS = '{"town":  "Köln", "days": 2}'
RESULT = '{"sky": "grey",  "wind": 3.10}'
ASK, ANSWER = "How is Köln?", "Grey, with some wind."


def openai(arguments: str = ARGUMENTS, tool: str = "weather", **more: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": tool, "arguments": arguments}}
    return {
        "messages": [
            {"role": "user", "content": ASK},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": RESULT},
            {"role": "assistant", "content": ANSWER},
        ],
        "tools": TOOLS,
        **more,
    }


def hermes(arguments: str = ARGUMENTS, tool: str = "weather") -> dict[str, Any]:
    shown = json.dumps(TOOLS)
    block = f'<tool_call>\n{{"arguments": {arguments}, "name": "{tool}"}}\n</tool_call>'
    return {
        "conversations": [
            {"from": "system", "value": f"You may call: <tools>{shown}</tools>"},
            {"from": "human", "value": ASK},
            {"from": "gpt", "value": block},
            {"from": "tool", "value": f"<tool_response>\n{RESULT}\n</tool_response>"},
            {"from": "gpt", "value": ANSWER},
        ]
    }


def sharegpt(arguments: str = ARGUMENTS, tool: str = "weather") -> dict[str, Any]:
    return {
        "conversations": [
            {"from": "human", "value": ASK},
            {"from": "function_call", "value": f'{{"name": "{tool}", "arguments": {arguments}}}'},
            {"from": "observation", "value": RESULT},
            {"from": "gpt", "value": ANSWER},
        ],
        "tools": json.dumps([TOOLS[0]["function"]]),
    }


FORMATS = {"openai": openai, "hermes": hermes, "sharegpt": sharegpt}
