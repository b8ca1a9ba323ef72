"""How far back is read in evaluation."""

from ..errors import require


def check_eval_lengths(mem_len: int | None, clamp_len: int | None) -> None:
    """Refuse lengths of evaluation that cannot be."""
    possible = mem_len is None or mem_len >= 0
    require(possible, "eval_mem_len", mem_len, "0 (no memory) or more, or null")
    possible = clamp_len is None or clamp_len >= 1
    require(possible, "eval_clamp_len", clamp_len, "at least 1, or null")
