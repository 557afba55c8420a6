"""`tollgate webhooks`: receivers of billing events and alerts (docs/reference/command-line.md#resources)."""

from typing import Any, TextIO

import click

from commands.connection import Client, Connection, over_api
from commands.editing import known_names, names
from commands.editing.bodies import body_of, check_something, file_option, only
from commands.editing.deletion import ask_before, yes_option
from commands.editing.group_option import group_option
from commands.editing.paths import path
from commands.editing.shown import call_and_print, print_answer
from commands.lists import items_of, print_items, print_list
from commands.output import Column
from policy.billing import EVENT_TYPE
from policy.limits.alerts import LIMIT_ALERT

_DETAILS = "Whether the events of messages have details and costs."
_webhook = click.argument("webhook", metavar="ID|URL", shell_complete=known_names.webhooks)
_event_type_option = click.option(
    "--event-type",
    "event_types",
    multiple=True,
    type=click.Choice([EVENT_TYPE, LIMIT_ALERT], case_sensitive=False),
    help="Messages that it is sent; billing events by default. May be repeated.",
)


@click.group()
def webhooks() -> None:
    """Receivers of billing events and of alerts on limits."""


@webhooks.command("list")
@over_api
def list_webhooks(connection: Connection) -> None:
    """Print all webhooks."""
    print_list(connection, names.WEBHOOKS, _COLUMNS)


@webhooks.command()
@_webhook
@over_api
def get(webhook: str, connection: Connection) -> None:
    """Print one webhook."""
    print_answer(connection, connection.run(lambda client: names.webhook(client, webhook)))


@webhooks.command()
@click.argument("receiver", metavar="URL", required=False)
@click.option("--description", help="What it is for.")
@click.option("--include-details", is_flag=True, default=None, help=_DETAILS)
@_event_type_option
@group_option("group", "Tell it of this group, by id or external id, and of those below it alone.")
@file_option
@over_api
def create(receiver: str | None, connection: Connection, file: TextIO | None, **flags: Any) -> None:
    """Create a webhook and print it with its secret. The secret is shown only here."""
    event_types = list(flags.pop("event_types")) or None
    group = flags.pop("group")
    body = body_of(file, only(url=receiver, event_types=event_types, **flags))

    async def work(client: Client) -> Any:
        if group is not None:
            body["group_id"] = await names.group_id(client, group)
        return await client.call("POST", names.WEBHOOKS, body)

    print_answer(connection, connection.run(work))


@webhooks.command("set")
@_webhook
@click.option("--receiver", metavar="URL", help="Another receiver. Nothing is sent to the old one any more.")
@click.option("--description", help="What it is for; an empty text removes it.")
@click.option("--enable/--disable", "enabled", default=None, help="Events that come in while disabled are never sent.")
@click.option("--include-details/--no-include-details", default=None, help=_DETAILS)
@_event_type_option
@file_option
@over_api
def set_webhook(webhook: str, connection: Connection, file: TextIO | None, **flags: Any) -> None:
    """Change a webhook."""
    event_types = list(flags.pop("event_types")) or None
    members = only(url=flags.pop("receiver"), event_types=event_types, **flags)
    if members.get("description") == "":
        members["description"] = None
    body = body_of(file, members)
    check_something(body)
    _patch(connection, webhook, body)


@webhooks.command()
@_webhook
@click.option("--overlap-s", type=click.IntRange(0), help="How long the old secret signs as well; a day by default.")
@over_api
def rotate(webhook: str, overlap_s: int | None, connection: Connection) -> None:
    """Make a new secret and print it. It is shown only here."""
    _patch(connection, webhook, {"rotate_secret": True} | only(secret_overlap_seconds=overlap_s))


@webhooks.command()
@_webhook
@yes_option
@over_api
def delete(webhook: str, is_sure: bool, connection: Connection) -> None:
    """Delete a webhook, and what waits to be sent to it."""
    item = connection.run(lambda client: names.webhook(client, webhook))
    ask_before(f"webhook {item['id']} ({item['url']})", is_sure)
    call_and_print(connection, "DELETE", path("gateway", "webhooks", item["id"]))


@webhooks.command()
@_webhook
@over_api
def test(webhook: str, connection: Connection) -> None:
    """Send a message of type TEST."""
    _post(connection, webhook, "test")


@webhooks.command()
@_webhook
@click.argument("delivery")
@over_api
def redeliver(webhook: str, delivery: str, connection: Connection) -> None:
    """Send the message DELIVERY again."""
    _post(connection, webhook, "deliveries", delivery, "redeliver")


@webhooks.command()
@_webhook
@click.option("--status", type=click.Choice(["PENDING", "DELIVERED", "DEAD"], case_sensitive=False))
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
@over_api
def deliveries(webhook: str, status: str | None, limit: int, connection: Connection) -> None:
    """Print the latest messages to a webhook, the newest first."""

    async def work(client: Client) -> Any:
        receiver = await names.webhook(client, webhook)
        items: list[Any] = []
        async for item in items_of(client, path("gateway", "webhooks", receiver["id"], "deliveries"), status=status):
            items.append(item)
            if len(items) == limit:
                break
        return items

    print_items(connection, connection.run(work), _DELIVERY_COLUMNS)


def _patch(connection: Connection, webhook: str, body: Any) -> None:
    async def work(client: Client) -> Any:
        item = await names.webhook(client, webhook)
        return await client.call("PATCH", path("gateway", "webhooks", item["id"]), body)

    print_answer(connection, connection.run(work))


def _post(connection: Connection, webhook: str, *below: str) -> None:
    async def work(client: Client) -> Any:
        item = await names.webhook(client, webhook)
        return await client.call("POST", path("gateway", "webhooks", item["id"], *below))

    print_answer(connection, connection.run(work))


def _last_error(delivery: Any) -> Any:
    attempts = delivery["attempts"]
    return attempts[-1]["error"] if attempts else None


_COLUMNS = (
    Column("ID", lambda webhook: webhook["id"]),
    Column("URL", lambda webhook: webhook["url"]),
    Column("ENABLED", lambda webhook: "yes" if webhook["enabled"] else "no"),
    Column("EVENT TYPES", lambda webhook: ", ".join(webhook.get("event_types", ()))),
    Column("GROUP", lambda webhook: webhook.get("group_id")),
    Column("DESCRIPTION", lambda webhook: webhook["description"]),
    Column("UPDATED", lambda webhook: webhook["updated_at"]),
)
_DELIVERY_COLUMNS = (
    Column("ID", lambda delivery: delivery["id"]),
    Column("TYPE", lambda delivery: delivery["type"]),
    Column("STATUS", lambda delivery: delivery["status"]),
    Column("EVENTS", lambda delivery: delivery["event_count"]),
    Column("ATTEMPTS", lambda delivery: delivery["attempt_count"]),
    Column("CREATED", lambda delivery: delivery["created_at"]),
    Column("LAST ERROR", _last_error),
)
