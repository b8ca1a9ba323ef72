"""The data of offline runs of W&B."""

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

BLOCK = 32768
HEADER = struct.Struct("<IHB")


class Run:
    """The data of an offline run of W&B."""

    def __init__(self, path: Path) -> None:
        stored = defaultdict(list)
        for record in read_records(path):
            kind = record.WhichOneof("record_type")
            stored[kind].append(getattr(record, kind))
        first = stored["run"][0]
        self.id = first.run_id
        self.project = first.project
        self.tags = list(first.tags)
        self.rows = [decode_items(row.item) for row in stored["history"]]
        updates = [first.config.update, *(config.update for config in stored["config"])]
        self.config = decode_items(chain.from_iterable(updates))
        self.summary = decode_items(chain.from_iterable(each.update for each in stored["summary"]))
        self.metrics = {metric.name or metric.glob_name: metric for metric in stored["metric"]}
        self.artifacts = stored["artifact"]


def read_records(path: Path) -> Iterator:
    """Read the messages of a .wandb file, which is in LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    parts = b""
    for start in range(0, len(data), BLOCK):
        block = data[start : start + BLOCK]
        start_of_next = 0 if start else 7
        while start_of_next + HEADER.size <= len(block):
            _, count, kind = HEADER.unpack_from(block, start_of_next)
            start_of_next += HEADER.size + count
            parts += block[start_of_next - count : start_of_next]
            # A complete record, or the last part of one.
            if kind in (1, 4):
                yield Record.FromString(parts)
                parts = b""


def decode_items(entries) -> dict:
    return {e.key or "/".join(e.nested_key): json.loads(e.value_json) for e in entries}
