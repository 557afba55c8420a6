"""The reasoning in Chat Completions messages, for which OpenAI has no member: the form that other vendors agree on.

Pure. `reasoning_content` (or `reasoning`) is the text. `reasoning_details` is a list of what the vendor wants back;
another dialect's block is sealed in an entry of type `reasoning.encrypted`. `extra_content` is opaque.
"""

from collections.abc import Iterable

from proxy.dialects.middle.answer_reading import object_in, objects_in, text_in
from proxy.dialects.middle.reading import Json, objects_at, require_object, require_text
from proxy.dialects.middle.request import Reasoning
from proxy.dialects.middle.sealing import MARK, Seals

DIALECT_NAME = "chat_completions"
BLOCK_SEPARATOR = "\n\n"
"""Separator of the texts of two blocks, which are one text here."""
CALL_EXTRA = "tool_call_extra"
"""Member of a sealed block: the `extra_content` of the calls after it, by the id of the call."""
_TEXTS = ("reasoning_content", "reasoning")


def read_reasoning(message: Json, field: str) -> list[Reasoning]:
    """The reasoning of a caller's assistant message. Raises `UntranslatableError` for a member of the wrong type."""
    text = ""
    native = Json()
    for name in _TEXTS:
        if message.get(name):
            native[name] = require_text(message[name], f"{field}.{name}")
            text = text or native[name]
    sealed: list[Reasoning] = []
    for entry, entry_field in objects_at(message, "reasoning_details", f"{field}.reasoning_details"):
        data = text_in(entry, "data")
        if data.startswith(MARK):
            sealed.append(Reasoning("", sealed=data, field=entry_field))
        else:
            native.setdefault("reasoning_details", []).append(entry)
    if message.get("extra_content") is not None:
        native["extra_content"] = require_object(message["extra_content"], f"{field}.extra_content")
    if sealed and not native.keys() - set(_TEXTS):  # the text is that of the sealed blocks
        sealed[0].text = text
        return sealed
    return [*sealed, *([Reasoning(text, DIALECT_NAME, native, field=field)] if native else [])]


def answered_reasoning(message: Json) -> Reasoning | None:
    """Return the reasoning of a target's message; None if it has none."""
    details = objects_in(message, "reasoning_details")
    text = next((value for name in _TEXTS if (value := text_in(message, name))), "") or details_text(details)
    extra = message.get("extra_content")
    native = native_members(text, details, extra if isinstance(extra, dict) else None)
    if native:
        return Reasoning(text, DIALECT_NAME, native)
    thinking = thinking_text(message)
    return Reasoning(thinking) if thinking else None


def thinking_text(message: Json) -> str:
    """The reasoning that Mistral has in parts of a content. It is shown; what the vendor wants back of it is not known
    of servers of this dialect."""
    texts: list[str] = []
    for part in objects_in(message, "content"):
        thinking = part.get("thinking")
        pieces = objects_in(part, "thinking")
        texts += [thinking] if isinstance(thinking, str) else [text_in(piece, "text") for piece in pieces]
    return "".join(texts)


def details_text(details: Iterable[Json]) -> str:
    """The readable text of `reasoning_details`."""
    return "".join(text_in(entry, "text") or text_in(entry, "summary") for entry in details)


def native_members(text: str, details: list[Json], extra: Json | None) -> Json:
    """Return what the vendor wants back of its reasoning; empty if there is nothing."""
    native: Json = {}
    if details:
        native["reasoning_details"] = details
    elif text:
        native["reasoning_content"] = text
    if extra:
        native["extra_content"] = extra
    return native


def written_members(blocks: list[Reasoning], seals: Seals) -> Json:
    """The members of an answer's message that hold its reasoning; empty for none."""
    members: Json = {}
    text = BLOCK_SEPARATOR.join(block.text for block in blocks if block.text)
    if text:
        members["reasoning_content"] = text
    details = [entry for block in blocks for entry in written_details(block, seals)]
    if details:
        members["reasoning_details"] = [entry | {"index": number} for number, entry in enumerate(details)]
    return members


def written_details(block: Reasoning, seals: Seals) -> list[Json]:
    """The entries of `reasoning_details` by which the caller returns the block."""
    if block.native is None:
        return []
    if block.dialect == DIALECT_NAME:
        return objects_in(block.native, "reasoning_details")
    return [{"type": "reasoning.encrypted", "data": seals.seal(block.dialect, block.native)}]


def returned_members(blocks: list[Reasoning]) -> tuple[Json, Json]:
    """The members of a past message that give the target its own reasoning back, and the `extra_content` of its calls.

    Blocks of other dialects are dropped: no vendor can verify another's. Members of a wrong type are, too.
    """
    members = Json()
    extras = Json()
    natives = [block.native for block in blocks if block.dialect == DIALECT_NAME and block.native is not None]
    for name in _TEXTS:
        if texts := [text for native in natives if (text := text_in(native, name))]:
            members[name] = BLOCK_SEPARATOR.join(texts)
    if details := [entry for native in natives for entry in objects_in(native, "reasoning_details")]:
        members["reasoning_details"] = details
    for native in natives:
        if extra := object_in(native, "extra_content"):
            members["extra_content"] = extra
        extras |= object_in(native, CALL_EXTRA)
    return members, extras


def native_reasoning(native: Json) -> Json | None:
    """Return the members of an opened block that a vendor of this dialect may get back; None if it has none."""
    members: Json = {name: native[name] for name in _TEXTS if isinstance(native.get(name), str)}
    if details := objects_in(native, "reasoning_details"):
        members["reasoning_details"] = details
    members |= {name: native[name] for name in ("extra_content", CALL_EXTRA) if isinstance(native.get(name), dict)}
    return members or None


def without_sealed(body: Json, seals: Seals) -> Json:
    """Return `body` with this dialect's own entries unsealed and the sealed entries of others removed.

    A conversation has such entries if its slug had a target of another dialect before. Changes nothing in place.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    turns = [_without_sealed_entries(message, f"messages.{place}", seals) for place, message in enumerate(messages)]
    return body | {"messages": turns}


def _without_sealed_entries(message: object, field: str, seals: Seals) -> object:
    details = message.get("reasoning_details") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(details, list):
        return message
    entries: list[object] = []
    for place, entry in enumerate(details):
        data = text_in(entry, "data")
        if not data.startswith(MARK):
            entries.append(entry)
        elif (native := seals.native(DIALECT_NAME, data, f"{field}.reasoning_details.{place}.data")) is not None:
            entries += objects_in(native, "reasoning_details")
    if entries == details:
        return message
    others = {name: value for name, value in message.items() if name != "reasoning_details"}
    return others | {"reasoning_details": entries} if entries else others
