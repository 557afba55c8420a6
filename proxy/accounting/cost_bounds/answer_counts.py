"""Counts the answers that a call may generate, each up to its cap, by all names that servers have for that. Pure."""

from collections.abc import Mapping
from typing import Any

from proxy.accounting.call_bound import ANSWER_COUNTS, COMPLETIONS_PATH, OUTPUT_CAPS

Json = Mapping[str, Any]

_OTHER_COUNTS = ("num_return_sequences", "num_generations", "num_completions", "candidate_count", "candidateCount")
_OTHER_COUNT_MEMBERS = frozenset(_OTHER_COUNTS)
_OTHER_CAPS = ("max_length", "max_gen_toks", "max_gen_len", "max_decode_steps")


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


_COUNTED = frozenset(map(_folded, (*ANSWER_COUNTS, *_OTHER_COUNTS, *OUTPUT_CAPS, *_OTHER_CAPS)))
"""Names, in any spelling, that say how much is generated where they are not members of the body itself."""
_OF_OTHER_MEANING = frozenset(
    (
        *(
            "metadata",
            "response_format",
            "stream_options",
            "reasoning",
            "thinking",
            "logit_bias",
            "tool_choice",
            "text",
        ),
        *("text", "function_call", "prediction", "audio", "output_config", "output_format", "context_management"),
        *("input", "prompt", "documents", "instructions", "conversation", "container", "thread", "nvext"),
        *("web_search_options",),
    )
)
"""Members that are objects, in which such names mean something else."""


def most_answers(body: Json, path: str, answers: int) -> int | str:
    """Return how many answers a call may generate; the member that may say another number, if it cannot be read.

    `answers`: what `call_bound.answers` says of it.
    """
    if not _OTHER_COUNT_MEMBERS.isdisjoint(body):
        for name in _OTHER_COUNTS:
            number = body.get(name)
            if type(number) not in (int, type(None)):
                return name
            if number is not None and number > 1:
                answers *= number
    if path == COMPLETIONS_PATH:
        answers *= _prompts(body)
    if dict in map(type, body.values()):
        for name, value in body.items():
            if type(value) is dict and name not in _OF_OTHER_MEANING and (inner := _inner_count(value)):
                return f"{name}.{inner}"
    return answers


def _prompts(body: Json) -> int:
    """A factor for prompts that `call_bound.answers` does not count: behind a number in a list, or as embeddings."""
    prompts = body.get("prompt")
    count = 1
    if type(prompts) is list and prompts and type(prompts[0]) is int and set(map(type, prompts)) != {int}:
        count = len(prompts)
    embedded = body.get("prompt_embeds")
    return count * (1 + len(embedded)) if type(embedded) is list else count


def _inner_count(holder: Json) -> str:
    """The first member, of the holder or of an object in it, that says how much is generated; "" if none does."""
    for name, value in holder.items():
        if _folded(name) in _COUNTED:
            return name
        if type(value) is dict:
            for inner in value:
                if _folded(inner) in _COUNTED:
                    return f"{name}.{inner}"
    return ""
