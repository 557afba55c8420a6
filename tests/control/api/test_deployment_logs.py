"""Deployments' logs: append, read, bounds, on both databases.

See docs/reference/management-api.md#deployment-logs.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from control.edges.sql import log_rows
from control.edges.sql.log_rows import OF_DEPLOYMENTS
from control.edges.sql.tables import deployment_logs
from control.records.logs import NS_PER_MS, LogFilter, LogLine
from control.resources.logs import (
    MAX_MESSAGE_CHARS,
    LogBounds,
    Logs,
    now_ns,
    printable,
)
from tests.control.log_lines import log_lines
from tests.control.plane import ControlPlane, running_plane

Json = dict[str, Any]


async def deployment(plane: ControlPlane) -> str:
    """The path of a new deployment."""
    model = (await plane.post("/v1/models", {"name": "mine"})).ok()["id"]
    deployment_id = (await plane.post(f"/v1/models/{model}/deployments", {"name": "first"})).ok()["id"]
    return f"/v1/models/{model}/deployments/{deployment_id}"


def id_of(path: str) -> str:
    return path.rpartition("/")[2]


def line(message: str, at_ms: int = 1_000, **more: Any) -> Json:
    return {"timestamp": str(at_ms * NS_PER_MS), "message": message, **more}


async def append(plane: ControlPlane, path: str, *lines: Json) -> None:
    assert (await plane.post(f"{path}/logs/append", {"logs": list(lines)})).ok() == {"appended": len(lines)}


async def messages(plane: ControlPlane, path: str, **filters: Any) -> list[str]:
    return [one["message"] for one in await log_lines(plane, path, **filters)]


async def stored(plane: ControlPlane) -> int:
    async with plane.store.read() as conn:
        count: int = (await conn.execute(select(func.count()).select_from(deployment_logs))).scalar_one()
        return count


async def test_appended_line_is_read_with_all_its_members(plane: ControlPlane) -> None:
    path = await deployment(plane)
    full = {
        "timestamp": "1767225600123456789",
        "message": "ready é 🙂",
        "replica": "http://10.0.0.5:8000",
        "request_id": "req_1",
        "level": "WARNING",
    }
    await append(plane, path, full)
    assert (await plane.post(f"{path}/logs", {})).ok() == {"logs": [full]}


async def test_environment_has_the_log_of_its_deployment(sqlite_plane: ControlPlane) -> None:
    path = await deployment(sqlite_plane)
    await append(sqlite_plane, path, line("one"), line("two", level="ERROR"))
    model = path.partition("/deployments/")[0]
    (await sqlite_plane.get(f"{model}/environments/staging/logs")).refused(404, "NOT_FOUND")
    (await sqlite_plane.post(f"{model}/environments", {"name": "staging"})).ok()
    (await sqlite_plane.get(f"{model}/environments/staging/logs")).refused(404, "NOT_FOUND")
    (await sqlite_plane.put(f"{model}/environments/staging", {"deployment_id": id_of(path)})).ok()
    errors = (await sqlite_plane.get(f"{model}/environments/staging/logs", params={"min_level": "error"})).ok()
    assert [one["message"] for one in errors["logs"]] == ["two"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("limit", "0"), ("limit", "1.0"), ("limit", "many"), ("start_epoch_millis", "-1"), ("component", "x")],
)
async def test_query_that_cannot_be_read_is_refused(sqlite_plane: ControlPlane, name: str, value: str) -> None:
    path = await deployment(sqlite_plane)
    (await sqlite_plane.get(f"{path}/logs", params={name: value})).refused(400, field=name)
    window = {"start_epoch_millis": "2", "end_epoch_millis": "1"}
    (await sqlite_plane.get(f"{path}/logs", params=window)).refused(400, field="start_epoch_millis")


async def test_line_without_timestamp_and_level_is_of_now_and_info(plane: ControlPlane) -> None:
    path = await deployment(plane)
    before = now_ns()
    await append(plane, path, {"message": "hello", "timestamp": None, "level": None, "replica": None})
    (stored_line,) = (await plane.post(f"{path}/logs", {})).ok()["logs"]
    assert before <= int(stored_line.pop("timestamp")) <= now_ns()
    assert stored_line == {"message": "hello", "replica": None, "request_id": None, "level": "INFO"}


async def test_newest_lines_come_first_and_lines_of_one_moment_stay_in_order(plane: ControlPlane) -> None:
    path = await deployment(plane)
    await append(plane, path, line("late", 3_000), line("first"), line("second"))
    await append(plane, path, line("third"), line("early", 500))
    oldest_first = ["early", "first", "second", "third", "late"]
    for direction in (None, "desc"):
        assert await messages(plane, path, direction=direction) == oldest_first[::-1]
    assert await messages(plane, path, direction="asc") == oldest_first
    assert await messages(plane, path, limit=2) == oldest_first[:0:-1]
    assert await messages(plane, path, limit=2, direction="asc") == oldest_first[:-1]


async def test_window_holds_its_first_and_last_millisecond(plane: ControlPlane) -> None:
    path = await deployment(plane)
    at = [1_999_999_999, 2_000_000_000, 2_000_999_999, 2_001_000_000]
    await append(plane, path, *({"timestamp": str(ns), "message": str(ns)} for ns in at))
    window = {"start_epoch_millis": 2_000, "end_epoch_millis": 2_000, "direction": "asc"}
    assert await messages(plane, path, **window) == ["2000000000", "2000999999"]
    assert len(await messages(plane, path, start_epoch_millis=2_000)) == 3
    assert len(await messages(plane, path, end_epoch_millis=2_000)) == 3
    assert await messages(plane, path, start_epoch_millis=2**53 - 1) == []
    assert len(await messages(plane, path, end_epoch_millis=2**53 - 1)) == 4
    (await plane.post(f"{path}/logs", {"start_epoch_millis": 2, "end_epoch_millis": 1})).refused(400)


@pytest.mark.parametrize(
    ("level", "expected"), [("debug", 4), ("INFO", 3), ("Warning", 2), ("warning", 2), ("ERROR", 1), (None, 4)]
)
async def test_min_level_takes_either_case(sqlite_plane: ControlPlane, level: str | None, expected: int) -> None:
    path = await deployment(sqlite_plane)
    await append(sqlite_plane, path, *(line("x", level=one) for one in ("DEBUG", "info", "Warning", "ERROR")))
    lines = (await sqlite_plane.post(f"{path}/logs", {"min_level": level, "direction": "asc"})).ok()["logs"]
    assert [one["level"] for one in lines] == ["DEBUG", "INFO", "WARNING", "ERROR"][-expected:]


async def test_texts_are_plain_substrings_and_case_counts(plane: ControlPlane) -> None:
    path = await deployment(plane)
    all_lines = ["100% sure", "a_b", "axb", "Error", "error", "back\\slash", "it's", "ÄRGER", "ärger", "[a-z]*"]
    await append(plane, path, *(line(text, n) for n, text in enumerate(all_lines)))
    for pattern, expected in {
        "%": ["100% sure"],
        "_": ["a_b"],
        "error": ["error"],
        "rror": ["Error", "error"],
        "\\": ["back\\slash"],
        "'": ["it's"],
        "' OR 1=1 --": [],
        "är": ["ärger"],
        "[a-z]": ["[a-z]*"],
        ".": [],
    }.items():
        lines = await logs_of(plane).read(id_of(path), LogFilter(includes=(pattern,), newest_first=False))
        assert [one.message for one in lines] == expected, pattern
        rest = await logs_of(plane).read(id_of(path), LogFilter(excludes=(pattern,), newest_first=False))
        assert [one.message for one in rest] == [text for text in all_lines if text not in expected], pattern
    assert await messages(plane, path, search_pattern="rror") == ["error", "Error"]
    assert await messages(plane, path, includes=["rror", "E"], excludes=["x"], search_pattern="Err") == ["Error"]
    assert await messages(plane, path, includes=["a", "b"], excludes=["k", "_"]) == ["axb"]


async def test_request_and_replica_are_matched_whole(plane: ControlPlane) -> None:
    path = await deployment(plane)
    await append(plane, path, line("a", request_id="req_1"), line("b", request_id="req_12", replica="http://r:1"))
    assert await messages(plane, path, request_id="req_1") == ["a"]
    assert await messages(plane, path, replica="http://r:1") == ["b"]
    assert await messages(plane, path, replica="http://r:") == []


async def test_all_members_of_the_query_may_be_null(sqlite_plane: ControlPlane) -> None:
    path = await deployment(sqlite_plane)
    await append(sqlite_plane, path, *(line(str(n), n) for n in range(501)))
    names = ["start_epoch_millis", "end_epoch_millis", "direction", "limit", "min_level", "request_id", "replica"]
    nulls = dict.fromkeys([*names, "includes", "excludes", "search_pattern"])
    assert len(await messages(sqlite_plane, path, **nulls)) == 501


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"direction": "up"}, "direction"),
        ({"min_level": "loud"}, "min_level"),
        ({"min_level": "\N{LATIN SMALL LETTER DOTLESS I}nfo"}, "min_level"),
        ({"min_level": 3}, "min_level"),
        ({"start_epoch_millis": -1}, "start_epoch_millis"),
        ({"start_epoch_millis": "1"}, "start_epoch_millis"),
        ({"end_epoch_millis": 2**53}, "end_epoch_millis"),
        ({"includes": "text"}, "includes"),
        ({"search_pattern": ["x"]}, "search_pattern"),
        ({"cursor": "x"}, "cursor"),
    ],
)
async def test_malformed_query_is_400_and_names_the_member(sqlite_plane: ControlPlane, body: Json, field: str) -> None:
    path = await deployment(sqlite_plane)
    refused = (await sqlite_plane.post(f"{path}/logs", body)).refused(400, "INVALID_REQUEST")
    assert refused["details"][0]["field"] == field


@pytest.mark.parametrize(
    ("logs", "field"),
    [
        (None, "logs"),
        ([{"message": 1}], "logs.0.message"),
        ([{"message": "a"}, {}], "logs.1.message"),
        ([{"message": "a", "timestamp": 5}], "logs.0.timestamp"),
        ([{"message": "a", "timestamp": "-5"}], "logs.0.timestamp"),
        ([{"message": "a", "timestamp": "9" * 19}], "logs.0.timestamp"),
        ([{"message": "a", "timestamp": "1\n"}], "logs.0.timestamp"),
        ([{"message": "a", "level": "TRACE"}], "logs.0.level"),
        ([{"message": "a", "request_id": "r" * 129}], "logs.0.request_id"),
        ([{"message": "a", "more": 1}], "logs.0.more"),
        ([{"message": "a"}] * 1001, "logs"),
    ],
)
async def test_malformed_line_is_400_and_nothing_is_stored(sqlite_plane: ControlPlane, logs: Any, field: str) -> None:
    path = await deployment(sqlite_plane)
    refused = (await sqlite_plane.post(f"{path}/logs/append", {"logs": logs})).refused(400, "INVALID_REQUEST")
    assert refused["details"][0]["field"] == field
    assert await stored(sqlite_plane) == 0


async def test_logs_of_another_workspace_are_404(plane: ControlPlane) -> None:
    path = await deployment(plane)
    await append(plane, path, line("secret"))
    key = (await plane.another_workspace())["api_key"]
    theirs = await deployment(plane)
    for where in (path, f"{path.rpartition('/')[0]}/dep_nope", f"/v1/models/mdl_no/deployments/{id_of(path)}"):
        (await plane.post(f"{where}/logs", {}, key=key)).refused(404)
        (await plane.post(f"{where}/logs/append", {"logs": [line("x")]}, key=key)).refused(404)
    assert await messages(plane, theirs) == []
    assert await messages(plane, path) == ["secret"]


def test_control_characters_are_made_visible() -> None:
    assert printable("\x1b[31mred\x1b[0m\ttab\r\n") == "\\x1b[31mred\\x1b[0m\ttab"
    assert printable("one\r\ntwo\rthree\n\n") == "one\ntwo\\x0dthree"
    assert printable("\x7f\x9b2J") == "\\x7f\\x9b2J"


@pytest.mark.parametrize("character", ["x", "\x00", "é"])
def test_long_message_is_cut(character: str) -> None:
    cut = printable(character * 1_000_000)
    assert len(cut) == MAX_MESSAGE_CHARS
    assert cut.endswith(" … (cut)")
    assert printable("x" * MAX_MESSAGE_CHARS) == "x" * MAX_MESSAGE_CHARS


def logs_of(plane: ControlPlane, **bounds: Any) -> Logs:
    return Logs(plane.store, OF_DEPLOYMENTS, LogBounds(**bounds))


async def write(logs: Logs, path: str, *texts: str, at_ns: int | None = None) -> None:
    await logs.write([(id_of(path), LogLine(at_ns or now_ns(), "INFO", text)) for text in texts])


async def test_log_is_cut_back_to_its_newest_lines_while_it_grows(plane: ControlPlane) -> None:
    flooded = await deployment(plane)
    other = await deployment(plane)
    logs = logs_of(plane, max_lines=100)
    await write(logs, other, *("x" for _ in range(90)))
    for start in range(0, 400, 7):
        await write(logs, flooded, *(str(n) for n in range(start, start + 7)))
        assert await stored(plane) <= 90 + 100 + 100 / 10 + 7
    lines = await logs.read(id_of(flooded), LogFilter(limit=1000))
    assert [line.message for line in lines] == [str(n) for n in range(405, 405 - len(lines), -1)]
    assert len(lines) >= 100
    assert len(await logs.read(id_of(other), LogFilter())) == 90


async def test_log_is_bounded_in_bytes_of_utf8(plane: ControlPlane) -> None:
    path = await deployment(plane)
    logs = logs_of(plane, max_bytes=10_000)
    for n in range(40):
        await write(logs, path, f"{n:04}" + "é" * 498)
    lines = await logs.read(id_of(path), LogFilter(limit=1000))
    assert 10 <= len(lines) <= 11 + 1
    assert lines[0].message.startswith("0039")


async def test_pruning_deletes_what_is_too_old_and_what_is_of_deleted_deployments(plane: ControlPlane) -> None:
    path = await deployment(plane)
    deleted_path = await deployment(plane)
    logs = logs_of(plane, retention_days=1.0)
    day_ns = 86_400_000 * NS_PER_MS
    await write(logs, path, "old", at_ns=now_ns() - day_ns - NS_PER_MS)
    await write(logs, path, "new", at_ns=now_ns() - day_ns + 60_000 * NS_PER_MS)
    await write(logs, deleted_path, *("x" for _ in range(30)))
    async with plane.store.write() as tx:
        await tx.conn.execute(
            deployment_logs.update().where(deployment_logs.c.message == "x").values(deployment_id="zz")
        )
    assert await logs.prune() == 31
    assert await logs.prune() == 0
    assert [line.message for line in await logs.read(id_of(path), LogFilter())] == ["new"]


async def test_lines_of_unknown_deployments_are_dropped(plane: ControlPlane) -> None:
    path = await deployment(plane)
    logs = logs_of(plane)
    await logs.write([("dep_unknown", LogLine(1, "INFO", "a")), (id_of(path), LogLine(1, "INFO", "b"))])
    assert await stored(plane) == 1


async def test_large_batches_are_written_in_small_transactions(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await deployment(sqlite_plane)
    sizes = list[int]()
    insert = log_rows.insert_lines

    async def recorded(tx: Any, log: Any, lines: Any) -> None:
        sizes.append(len(lines))
        await insert(tx, log, lines)

    monkeypatch.setattr(log_rows, "insert_lines", recorded)
    await write(logs_of(sqlite_plane), path, *("x" for _ in range(2500)))
    assert sum(sizes) == 2500
    assert max(sizes) <= 200


async def test_bounds_are_the_settings(sqlite_plane: ControlPlane, tmp_path: Path) -> None:
    bounds: Json = {"deployment_log_max_lines": 10, "deployment_log_max_bytes": 1e6}
    async with running_plane(f"sqlite+aiosqlite:///{tmp_path}/control.db", prefix="b", **bounds) as plane:
        path = await deployment(plane)
        for n in range(20):
            await append(plane, path, {"message": str(n)}, {"message": str(n)})
        assert 10 <= await stored(plane) <= 10 + 10 / 10 + 2
        assert (await messages(plane, path))[:3] == ["19", "19", "18"]


async def test_two_control_processes_append_to_one_log(database_url: str) -> None:
    async with running_plane(database_url) as one, running_plane(database_url, prefix="b") as two:
        path = await deployment(one)
        texts = [str(n) for n in range(20)]
        logs = [Logs(plane.store, OF_DEPLOYMENTS, LogBounds(max_lines=15)) for plane in (one, two)]
        await asyncio.gather(*(write(logs[n % 2], path, text) for n, text in enumerate(texts)))
        await logs[0].prune()
        assert len(await messages(one, path)) == 15
