"""Which numbers a stream can have."""

from .lengths import Varied


def check_numbers(
    tgt_len: int,
    batch_size: int,
    ext_len: int,
    eval_tgt_len: int | None,
    eval_batch_size: int | None,
    eval_ext_len: int | None,
    eval_warmup_len: int,
    segments: str,
    batch_chunks: int,
) -> None:
    """Refuse numbers that no stream can have, before anything is read.

    Raises:
        ValueError: it starts with the setting's name.
    """
    shortest = Varied.SHORTEST if segments == "varied" else 1
    least = {
        "tgt_len": (tgt_len, shortest),
        "batch_size": (batch_size, 1),
        "ext_len": (ext_len, 0),
        "eval_tgt_len": (eval_tgt_len, 1),
        "eval_batch_size": (eval_batch_size, 1),
        "eval_ext_len": (eval_ext_len, 0),
        "eval_warmup_len": (eval_warmup_len, 0),
        "batch_chunks": (batch_chunks, 1),
    }
    for name, (value, minimum) in least.items():
        if value is not None and value < minimum:
            raise ValueError(f"{name}: invalid {value}; expected at least {minimum}")
    if batch_size % batch_chunks:
        raise ValueError(
            f"batch_size: {batch_size} rows cannot be read in {batch_chunks} data.batch_chunks; it "
            f"must be a multiple of {batch_chunks}"
        )
