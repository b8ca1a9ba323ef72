"""How far back is read in evaluation."""

from ..model import EvalLengths, EvalSameLength


def make_eval_lengths(
    eval_mem_len: int | None, eval_clamp_len: int | None, eval_same_length: EvalSameLength = None
) -> EvalLengths:
    """Return the lengths of evaluation.

    Raises:
        ValueError: an impossible one, with the name of the setting.
    """
    try:
        return EvalLengths(eval_mem_len, eval_clamp_len, eval_same_length)
    except ValueError as error:
        raise ValueError(f"eval_{error}") from error
