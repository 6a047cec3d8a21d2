"""Messages between the processes of a replica, over a real socket pair."""

import socket

import pytest

from services.serving.wire.channel import ChannelClosed, JsonChannel


def test_what_is_offered_to_a_side_that_does_not_read_waits_for_it_and_comes_whole() -> None:
    ours, theirs = socket.socketpair()
    offering, reading = JsonChannel(ours), JsonChannel(theirs)
    offering.offer_line(b'{"state":"' + b"x" * 4_000_000 + b'"}\n')
    assert not offering.flush()
    read: list[dict[str, str]] = []
    while not read:
        read += reading.receive()
        offering.flush()
    assert len(read[0]["state"]) == 4_000_000
    assert offering.flush()
    offering.offer_line(b'{"state":"newer"}\n')
    assert reading.receive() == [{"state": "newer"}]


def test_offering_to_a_side_that_has_left_says_so() -> None:
    ours, theirs = socket.socketpair()
    offering = JsonChannel(ours)
    theirs.close()
    with pytest.raises(ChannelClosed):
        offering.offer_line(b"{}\n")
