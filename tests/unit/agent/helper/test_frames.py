"""Frames between the agent and its helper."""

import pytest

from rallypoint.agent.helper.frames import MAX_FRAME_BYTES, Decoder, FrameTooLarge, encode


def test_frames_survive_any_cut() -> None:
    """Messages are decoded as sent, however the stream is split, surrogate escapes included."""
    messages: list[dict[str, object]] = [
        {"type": "spawn", "env": {"A": "\udcff\u00e4"}},
        {"type": "clean", "token": 1},
    ]
    stream = b"".join(encode(message) for message in messages)
    decoder = Decoder()
    decoded = [m for i in range(len(stream)) for m in decoder.feed(stream[i : i + 1])]

    assert decoded == messages
    assert list(Decoder().feed(stream)) == messages


def test_frame_over_the_limit_is_refused_on_both_sides() -> None:
    """Neither side sends, nor waits for, a frame over the limit."""
    with pytest.raises(FrameTooLarge):
        encode({"type": "x" * MAX_FRAME_BYTES})
    with pytest.raises(FrameTooLarge):
        list(Decoder().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big")))
