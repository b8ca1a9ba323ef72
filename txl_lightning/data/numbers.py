"""Which numbers a stream can have."""

from .orders import VarlenLengths


def check_numbers(
    tgt_len: int,
    batch_size: int,
    ext_len: int,
    eval_tgt_len: int | None,
    eval_batch_size: int | None,
    eval_ext_len: int | None,
    eval_warmup_len: int,
    segments: str,
    micro_batches: int,
) -> None:
    """Refuse numbers that no stream can have, before anything is read.

    Raises:
        ValueError: it starts with the setting's name.
    """
    shortest = VarlenLengths.SHORTEST if segments == "varlen" else 1
    least = {
        "tgt_len": (tgt_len, shortest),
        "batch_size": (batch_size, 1),
        "ext_len": (ext_len, 0),
        "eval_tgt_len": (eval_tgt_len, 1),
        "eval_batch_size": (eval_batch_size, 1),
        "eval_ext_len": (eval_ext_len, 0),
        "eval_warmup_len": (eval_warmup_len, 0),
        "micro_batches": (micro_batches, 1),
    }
    for name, (value, minimum) in least.items():
        if value is not None and value < minimum:
            raise ValueError(f"{name}: invalid {value}; expected at least {minimum}")
