"""Model servers as they document themselves, as targets: callers of each dialect get answers, or the server's error."""

import pytest

from policy.endpoints import CHAT_COMPLETIONS, RESPONSES
from tests.contracts.http.asking import ask, ask_on, asked_paths, replica
from tests.fakes.directory import SLUG
from tests.upstream.model_servers import MODEL_SERVERS, ModelServer
from tests.upstream.oddities.reading import PATHS
from tests.upstream.oddities.row import CALLERS

BOTH_LOOPS = True
SERVERS = pytest.mark.parametrize("server", MODEL_SERVERS, ids=lambda server: server.name)
CALLER = pytest.mark.parametrize("caller", CALLERS)


@SERVERS
@CALLER
async def test_newest_release_is_asked_in_the_callers_dialect_where_it_speaks_it(
    server: ModelServer, caller: str
) -> None:
    async with replica(server.speaking(server.speaks)) as wire:
        status, _, answer = await ask(wire, caller)
        assert (status, answer.text, answer.ended) == (200, "Hello", "complete")
        assert (asked_paths(wire) == [PATHS[caller]]) == (caller in server.speaks)


@SERVERS
@CALLER
@pytest.mark.parametrize("target_dialect", [CHAT_COMPLETIONS, RESPONSES])
async def test_release_with_one_dialect_is_found_and_remembered(
    server: ModelServer, caller: str, target_dialect: str
) -> None:
    async with replica(server.speaking((target_dialect,))) as wire:
        for _ in range(2):
            status, _, answer = await ask(wire, caller)
            assert (status, answer.text, answer.ended) == (200, "Hello", "complete")
        paths = asked_paths(wire)
        assert paths[-2:] == [PATHS[target_dialect]] * 2
        assert len(set(paths[:-1])) == len(paths[:-1]), "each path was tried once"


@CALLER
@pytest.mark.parametrize("target_dialect", CALLERS)
async def test_stated_dialect_is_asked_at_once(caller: str, target_dialect: str) -> None:
    """Any server is asked in a stated dialect: none is asked for what it lacks."""
    server = MODEL_SERVERS[0]
    async with replica(server.speaking((target_dialect,)), (target_dialect,)) as wire:
        status, _, answer = await ask(wire, caller)
        assert (status, answer.text, answer.ended) == (200, "Hello", "complete")
        assert asked_paths(wire) == [PATHS[target_dialect]]


@SERVERS
@CALLER
async def test_missing_path_of_a_stated_dialect_is_the_answer(server: ModelServer, caller: str) -> None:
    async with replica(server.speaking(()), CALLERS) as wire:
        status, _, answer = await ask(wire, caller)
        assert status in (404, 502)
        assert answer.failed
        assert asked_paths(wire) == [PATHS[caller]]


@SERVERS
@CALLER
async def test_missing_model_is_the_answer(server: ModelServer, caller: str) -> None:
    async with replica(server.speaking(CALLERS, server.refuses_model())) as wire:
        status, body, answer = await ask(wire, caller)
        assert status == server.missing_model[0]
        assert answer.failed
        assert b"model" in body
        assert asked_paths(wire) == [PATHS[caller]]


@SERVERS
async def test_tokens_are_estimated_where_the_path_is_missing(server: ModelServer) -> None:
    body = {"model": SLUG, "messages": [{"role": "user", "content": "hi"}]}
    async with replica(server.speaking(())) as wire:
        for _ in range(2):
            status, counted, _ = await ask_on(wire, "/v1/messages/count_tokens", body, "messages")
            assert status == 200
            assert counted.startswith(b'{"input_tokens":')
        assert asked_paths(wire) == ["/v1/messages/count_tokens"]
