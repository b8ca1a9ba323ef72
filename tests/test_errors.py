"""A message that gets a prefix keeps the exit code of its error."""

import pytest

from txl_lightning.errors import CheckpointError, DataError, prefix_errors


@pytest.mark.parametrize("kind", [ValueError, DataError, CheckpointError])
def test_a_prefixed_message_keeps_the_class_of_its_error(kind):
    with pytest.raises(kind, match=r"^data\.path: missing$") as caught, prefix_errors("data"):
        raise kind("path: missing")
    assert caught.type is kind


def test_an_error_whose_class_takes_more_than_a_message_becomes_a_plain_one():
    with pytest.raises(ValueError, match=r"^data\.") as caught, prefix_errors("data"):
        raise UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "in net.path")
    assert caught.type is ValueError
