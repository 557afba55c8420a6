"""The way of a command to the management API."""

from commands.connection import Access, Client, Connection


class Untold:
    """A result that nobody may make a text of: one of 20 000 groups takes a second."""

    def __repr__(self) -> str:
        raise AssertionError("a text of the result was made")


def test_result_of_a_command_is_not_made_a_text() -> None:
    result = Untold()

    async def work(_client: Client) -> Untold:
        return result

    assert Connection(Access("http://127.0.0.1:9", "tg_x"), as_json=False).run(work) is result
