"""The mask of transformers, in the terms of the network: where each text of a batch begins.

B rows   L tokens   T tokens so far
"""

from typing import Any

import torch
from torch import Tensor

from ..data.stream import IGNORED
from ..errors import require


def require_mask(mask_BT: Any, batch_size: int, n_read: int, tgt_len: int) -> None:
    """Refuse a mask that does not say of every token so far whether it is of the text.

    `n_read` tokens are in memory. A mask of the new tokens alone would hide the memory, and padding
    between tokens would be read as text.
    """
    require_values(mask_BT, batch_size, n_read, tgt_len)
    n_text_B = starts_of_text(mask_BT).sum(1)
    one_text = "padding before or after the tokens of a row"
    require(bool((n_text_B <= 1).all()), "attention_mask", "padding between tokens", one_text)


def require_values(mask_BT: Any, batch_size: int, n_read: int, tgt_len: int) -> None:
    """Refuse another shape than that of all tokens so far, and other values than 0 and 1."""
    is_tensor = isinstance(mask_BT, Tensor)
    sizes = [batch_size, n_read + tgt_len]
    expected = f"{sizes}, each token of each row, with the {n_read} in past_key_values"
    shape = f"shape {list(mask_BT.shape)}" if is_tensor else type(mask_BT).__name__
    require(is_tensor and list(mask_BT.shape) == sizes, "attention_mask", shape, expected)
    values = mask_BT.unique().tolist()
    require({*values} <= {0, 1}, "attention_mask", values[:3], "1 for tokens, 0 for padding")


def require_labels(labels_BL: Tensor | None, tokens_BL: Tensor) -> None:
    expected = f"{list(tokens_BL.shape)}, that of input_ids"
    is_same = labels_BL is None or labels_BL.shape == tokens_BL.shape
    require(is_same, "labels", None if is_same else list(labels_BL.shape), expected)


def require_prompt(tokens_BL: Tensor, mask_BT: Any, n_read: int) -> None:
    """Refuse tokens for `generate` that are neither a whole text nor what follows the memory.

    They are what follows it if the mask has a value for the tokens in memory, too.
    """
    batch_size, n_token = tokens_BL.shape
    is_rest = isinstance(mask_BT, Tensor) and mask_BT.shape[-1] != n_token
    if mask_BT is not None:
        require_values(mask_BT, batch_size, n_read if is_rest else 0, n_token)
        # The next token would see padding after a token instead of tokens of its text.
        is_at_start = bool((mask_BT.long().diff(dim=1) >= 0).all())
        expected = 'padding before each text: padding_side="left"'
        require(is_at_start, "attention_mask", "padding after a token", expected)
    whole = f"the whole text, more than the {n_read} in past_key_values, or a mask of all of it"
    require(is_rest or n_token > n_read, "input_ids", f"{n_token} tokens", whole)


def starts_of_text(mask_BT: Tensor) -> Tensor:
    """Return True for each token that follows padding, or is the first of its row."""
    before_BT = torch.nn.functional.pad(mask_BT[:, :-1], (1, 0))
    return (mask_BT != 0) & (before_BT == 0)


def hide_padding(
    tokens_BL: Tensor, labels_BL: Tensor | None, mask_BT: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return tokens, doc_pos_BL and labels of a segment that has padding.

    doc_pos_BL counts the tokens of the text before each token. Labels of padding, and of a token
    that has padding before it, are not scored.
    """
    tgt_len = tokens_BL.size(1)
    doc_pos_BL = (mask_BT.long().cumsum(1) - 1).clamp(min=0)[:, -tgt_len:]
    mask_BL = mask_BT[:, -tgt_len:]
    if labels_BL is not None:
        is_scored_BL = (mask_BL != 0) & ~starts_of_text(mask_BL)
        labels_BL = labels_BL.masked_fill(~is_scored_BL, IGNORED)
    # Padding may have an id beyond the vocabulary.
    return tokens_BL.masked_fill(mask_BL == 0, 0), doc_pos_BL, labels_BL
