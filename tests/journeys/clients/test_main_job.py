"""The main job: a stock OpenAI SDK calls a slug; the call is routed, metered, limited, counted and billed."""

from tests.journeys.conftest import Stage


async def test_unstreamed_call_is_answered_metered_and_billed(stage: Stage) -> None:
    key = await stage.key_without_limits()
    answer = await stage.ask(key)
    assert answer.choices[0].message.content == "This is upstream."
    assert answer.model == stage.slug
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (20, 10)

    (received,) = stage.upstream.received
    assert received.json["model"] == "upstream-name"
    assert key.encode() not in received.head + received.body, "the caller's key went upstream"

    (event,) = await stage.events_of(stage.name, 1)
    assert event["type"] == "API_BILLING_USAGE"
    assert event["modelSlug"] == stage.slug
    assert event["apiKeyPrefix"] == key.split(".")[0]
    assert event["tokens"] == {"inputTokens": 20, "outputTokens": 10, "cachedInputTokens": 5}
    assert "requestMetadata" not in event


async def test_stream_is_passed_on_unbuffered_and_metered_without_requested_usage(stage: Stage) -> None:
    key = await stage.key_without_limits()
    stage.upstream.gate.close()
    pieces = []
    async with stage.client(key) as client:
        stream = await client.chat.completions.create(
            model=stage.slug, messages=[{"role": "user", "content": "Hello"}], stream=True
        )
        async for chunk in stream:
            stage.upstream.gate.open()  # the first piece has arrived while the upstream waits, so nothing buffered it
            assert chunk.model == stage.slug
            assert chunk.choices, "the usage chunk that the caller had not asked for"
            assert chunk.usage is None
            assert "usage" not in chunk.model_fields_set
            pieces.append(chunk.choices[0].delta.content or "")
    assert "".join(pieces) == "This is upstream."
    assert stage.upstream.received[0].json["stream_options"] == {"include_usage": True}
    (event,) = await stage.events_of(stage.name, 1)
    assert event["tokens"] == {"inputTokens": 20, "outputTokens": 10, "cachedInputTokens": 5}


async def test_stream_with_requested_usage_contains_it(stage: Stage) -> None:
    key = await stage.key_without_limits()
    async with stage.client(key) as client:
        stream = await client.chat.completions.create(
            model=stage.slug,
            messages=[{"role": "user", "content": "Hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert not chunks[-1].choices
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 30


async def test_model_list_shows_the_slugs_that_the_key_may_call(stage: Stage) -> None:
    key = await stage.key_without_limits()
    async with stage.client(key) as client:
        assert [model.id async for model in client.models.list()] == [stage.slug]


async def test_metrics_are_summed_over_the_workers(stage: Stage) -> None:
    key = await stage.key_without_limits()
    for _ in range(8):  # each on a connection of its own: both workers get some
        await stage.ask(key)
    labels = (f'external_entity_id="{stage.name}"', f'model_slug="{stage.slug}"', 'status_code="200"')

    async def look() -> bool:
        async with stage.session.get(stage.product.admin + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        counted = [line for line in lines if line.startswith("platform_model_api_inference_requests_total{")]
        ours = [float(line.split()[-1]) for line in counted if all(label in line for label in labels)]
        return ours == [8.0]

    await stage.until(look, "eight requests in the metrics")


async def test_paged_event_list_has_one_event_per_call(stage: Stage) -> None:
    key = await stage.key_without_limits()
    for number in range(5):
        await stage.ask(key, metadata={"number": str(number)})
    events = await stage.events_of(stage.name, 5)
    assert len({event["idempotencyKey"] for event in events}) == len(events) == 5
    assert len({event["requestId"] for event in events}) == 5
    order = [(event["timestamp"], event["idempotencyKey"]) for event in events]
    assert order == sorted(order)
