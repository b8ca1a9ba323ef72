"""Options of from_pretrained and save_pretrained: which have an effect, which none, no others."""

from collections.abc import Mapping
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from torch import Tensor

from ..errors import require

DOWNLOAD = ("cache_dir", "force_download", "local_files_only", "revision", "token")
"""Options of from_pretrained for a folder on a hub."""
NO_EFFECT = (
    "adapter_kwargs", "low_cpu_mem_usage", "trust_remote_code", "use_safetensors", "weights_only",
)  # fmt: skip
"""Options that change nothing: the network is ours, and every file is read safely."""
LOADING = ("config", "device_map", "dtype", "mem_len", "torch_dtype", *DOWNLOAD, *NO_EFFECT)
SAVING = (
    "is_main_process", "max_shard_size", "safe_serialization", "save_original_format",
    "save_peft_format", "state_dict", "token",
)  # fmt: skip
"""Options of save_pretrained; the last four change nothing."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def require_options(method: str, options: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Refuse an option that has a value and would have no effect, by its name."""
    for name in sorted(name for name, value in options.items() if value and name[0] != "_"):
        require(name in known, method, name, f"one of {', '.join(known)}")


def require_one_file(weights: Mapping[str, Tensor], max_shard_size: int | str | None) -> None:
    """Refuse a limit of the file size that the weights exceed, as they are one file."""
    if max_shard_size is not None:
        shards = split_torch_state_dict_into_shards(dict(weights), max_shard_size=max_shard_size)
        expected = "at least the size of the weights, which are one file"
        require(not shards.is_sharded, "max_shard_size", max_shard_size, expected)


def find_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Return a precision by its name; None: as in the file."""
    if dtype in (None, "auto"):
        return None
    found = getattr(torch, str(dtype).removeprefix("torch."), None)
    require(found in DTYPES, "dtype", dtype, "auto, float16, bfloat16, float32 or float64")
    return found
