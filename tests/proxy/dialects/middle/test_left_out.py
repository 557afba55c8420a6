"""Members that a translation leaves out are named once each, in header-safe characters, and in bounded number."""

from proxy.dialects.middle.left_out import MAX_NAMED, LeftOut, header_value, stream_comment


def test_names_come_once_and_in_order() -> None:
    left_out = LeftOut()
    for path in ("content.1", "content.0.citations", "content.1"):
        left_out.add(path, "server_tool_use" if path == "content.1" else "")
    assert left_out.names == ["content.1 (server_tool_use)", "content.0.citations"]


def test_paths_and_kinds_are_cut_to_what_a_header_holds() -> None:
    left_out = LeftOut()
    left_out.add("output.0", "x\r\nset-cookie: a" + "b" * 100)
    left_out.add("message.y\r\nset-cookie: a\u00fc" + "b" * 100)
    kind, path = left_out.names
    assert kind.startswith("output.0 (x__set-cookie__a")
    assert path.startswith("message.y__set-cookie__a_")
    assert max(map(len, (kind, path))) < 120


def test_of_many_only_the_first_are_named() -> None:
    names = [f"output.{number}" for number in range(MAX_NAMED + 3)]
    assert header_value(names) == ", ".join(names[:MAX_NAMED]) + " and 3 more"
    assert stream_comment(names) == f": x-tollgate-left-out: {header_value(names)}\n\n".encode()
    assert stream_comment([]) == b""


def test_names_are_bounded_whatever_an_upstream_sends() -> None:
    left_out = LeftOut()
    for number in range(5_000):
        left_out.add(f"output.{number}")
    assert len(left_out.names) == 1_000
