"""The shipped policy's own tokenizer: byte-level BPE whose seams suit calls and copying.

Seams are chosen so that (a) the head of a call, `{"name": "query", "arguments": {"sql": "`, can
become one token, and (b) a quoted entity is the same tokens in a request and in SQL: quotes and
spaces never join it, and numbers go by two digits.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

END, START = "<|im_end|>", "<|im_start|>"
CONTROL = (
    "<|endoftext|>",
    START,
    END,
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)

PATTERN = "|".join(
    (
        r'\n\{"name": "[a-z_]+", "arguments": \{(?:"[a-z_]+": (?:\["?|"|\[)?)?',
        r'\{"(?:rows|error|changed|tables|columns|waited|done)": (?:\[\[?)?"?',
        r'"\], \["|\], \[|", "(?:truncated|message|retry_after)": "?'
        r'|\], "truncated": true, "next_offset": ',
        r'"?[\]}]+\n?',
        r" ?[A-Za-z_]+",
        r"[0-9]{1,2}",
        r" ?'",
        r" ?[^\sA-Za-z0-9']+?(?=[\sA-Za-z0-9']|$)",
        r"\s+",
    )
)

TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content -}}
{{- '\\n</tool_response><|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') -}}
{%- for call in message.tool_calls or [] -%}
{%- set call = call.function or call -%}
{{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' -}}
{{- (call.arguments | tojson) + '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
"""Qwen's format without a system message: this policy was taught its tools, which keeps prompts
near 100 tokens. A policy that was not needs a template that prints them."""


def build(texts: Iterable[str], size: int) -> Any:
    """A Hugging Face tokenizer trained on `texts`, with `size` tokens, control tokens included."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=CONTROL[0], model_max_length=1024
    )
    fast.chat_template = TEMPLATE
    return fast


def save(tokenizer: Any, folder: Path) -> None:
    """Write tokenizer files into a policy folder."""
    tokenizer.save_pretrained(str(folder))
