"""A message that is changed on its way keeps the exit code of its error."""

import pytest

from txl_lightning.errors import CheckpointError, DataError, prefix_errors, strip_prefix

CHANGES = [
    (lambda: prefix_errors("data"), "data.path: missing"),
    (lambda: strip_prefix("net.", ["path"]), "path: missing"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=["prefixed", "stripped"])
@pytest.mark.parametrize("kind", [ValueError, DataError, CheckpointError])
def test_a_changed_message_keeps_the_class_of_its_error(change, message, kind):
    text = "path: missing" if message.startswith("data") else "net.path: missing"
    with pytest.raises(kind, match=f"^{message}$") as caught, change():
        raise kind(text)
    assert caught.type is kind


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=["prefixed", "stripped"])
def test_an_error_whose_class_takes_more_than_a_message_becomes_a_plain_one(change, message):
    with pytest.raises(ValueError, match="path") as caught, change():
        raise UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "in net.path")
    assert caught.type is ValueError
