"""How far back is read in evaluation."""

from ..model import SameLength, TransformerXLConfig, require

Lengths = tuple[int, int | None, SameLength]
"""mem_len, clamp_len, same_length."""


def evaluation_lengths(
    net: TransformerXLConfig, mem_len: int | None, clamp_len: int | None, same_length: SameLength
) -> Lengths:
    """What is given, and as in training what is not."""
    check_eval_lengths(mem_len, clamp_len)
    return (
        net.mem_len if mem_len is None else mem_len,
        net.clamp_len if clamp_len is None else clamp_len,
        same_length or net.same_length,
    )


def check_eval_lengths(mem_len: int | None, clamp_len: int | None) -> None:
    """Refuse lengths of evaluation that cannot be."""
    possible = mem_len is None or mem_len >= 0
    require(possible, "eval_mem_len", mem_len, "0 (no memory) or more, or null")
    possible = clamp_len is None or clamp_len >= 1
    require(possible, "eval_clamp_len", clamp_len, "at least 1, or null")
