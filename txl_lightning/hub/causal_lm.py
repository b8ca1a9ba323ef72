"""The network as a causal language model of transformers, with its memory as the cache.

B rows   L tokens   T tokens so far   D width   V vocabulary
"""

import copy
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast

from ..checkpoints import save_folder
from ..checkpoints.contents import build_network, map_own_weights, match_weights
from ..checkpoints.saving import MODEL_TYPE
from ..convert import huggingface, load_any_checkpoint
from ..data.stream import IGNORED
from ..data.vocab import Vocabulary
from ..errors import require
from ..generation.state import SEGMENT_LEN, find_missing_memory
from ..model import (
    EvalLengths,
    HoldsNetwork,
    KeyValueCache,
    TransformerXL,
    TransformerXLConfig,
)
from ..model.config import CLASS, describe_config, make_config, require_transformer_xl
from ..model.contract import AnyMemory
from ..model.parts import is_training
from ..model.reading import Reader
from ..runs.folder import KEY
from .folder_options import (
    DOWNLOAD,
    LOADING,
    SAVING,
    find_dtype,
    require_one_file,
    require_options,
)
from .masks import hide_padding, require_labels, require_mask, require_prompt

FILES = ("*.json", "model.safetensors", "pytorch_model.bin", "vocab.txt")


class TXLConfig(transformers.PreTrainedConfig):
    """config.json of a folder that `convert` wrote."""

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012
    net: dict | None = None
    """Fields of `TransformerXLConfig`."""
    mem_len: int | None = None
    """Memory length in use; None: as in training."""

    def __post_init__(self, **kwargs: Any) -> None:
        # Checksums of the file that was read.
        kwargs.pop(KEY, None)
        # The Auto class passes a precision here first, by either name.
        former = kwargs.pop("torch_dtype", None)
        self.dtype = find_dtype(former if self.dtype is None else self.dtype)
        super().__post_init__(**kwargs)
        net = self.to_network()
        self.vocab_size = net.n_token
        self.hidden_size = net.d_model
        self.num_hidden_layers = net.n_layer
        self.num_attention_heads = net.n_head

    def to_network(self) -> TransformerXLConfig:
        net = self.net or {}
        expected = "null, as transformers has classes for networks of TransformerXLConfig alone"
        require(CLASS not in net, CLASS, net.get(CLASS), expected)
        return make_config(net)

    @classmethod
    def from_network(cls, config: TransformerXLConfig) -> "TXLConfig":
        return cls(net=describe_config(config))


class TransfoXLConfig(TXLConfig):
    """config.json of TransfoXL, as transformers 4 wrote it."""

    model_type = huggingface.MODEL_TYPE

    def to_network(self) -> TransformerXLConfig:
        return huggingface.config_from_huggingface(self.to_dict())

    @classmethod
    def from_network(cls, config: TransformerXLConfig) -> "TransfoXLConfig":
        return cls(**huggingface.config_to_huggingface(config))


class MemoryCache(transformers.Cache):
    """The memory as `past_key_values`; a forward pass returns a new one and keeps the old one."""

    is_croppable = False

    def __init__(self, memory: AnyMemory, n_read: int) -> None:
        super().__init__(layers=[])
        self.memory = memory
        self.n_read = n_read

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.n_read

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.memory = self.memory.rows(beam_idx)


def require_cache(cache: Any, is_cached: bool) -> None:
    """Refuse what no earlier pass returned, and keys and values in a pass with gradients."""
    kind = type(cache).__name__
    earlier = "None, or past_key_values of an earlier pass of this class"
    require(isinstance(cache, MemoryCache), "past_key_values", kind, earlier)
    expected = "None, or the memory of a pass with gradients, because this pass has gradients"
    expected += ", or the network has hooks or parts of your own"
    is_possible = is_cached or not isinstance(cache.memory, KeyValueCache)
    require(is_possible, "past_key_values", type(cache.memory).__name__, expected)


def mean_nats(
    reader: Reader, h_BLD: Tensor, labels_BL: Tensor, count: Tensor | int | None
) -> Tensor:
    targets_BL = labels_BL[:, 1:]
    nats_BL = reader.head.nats(h_BLD[:, :-1], targets_BL)
    return nats_BL.sum() / ((targets_BL != IGNORED).sum() if count is None else count)


class TXLForCausalLM(HoldsNetwork, transformers.PreTrainedModel, transformers.GenerationMixin):
    """Transformer-XL, with its memory as the cache.

    In eval mode and without gradients, the memory has keys and values (`KeyValueCache`).
    """

    config_class = TXLConfig
    accepts_loss_kwargs = True
    # Private, but without it assisted decoding would need a memory that can be shortened.
    _is_stateful = True
    map_names = staticmethod(map_own_weights)
    save_files = staticmethod(save_folder)

    def __init__(self, config: TXLConfig, net: TransformerXL | None = None) -> None:
        super().__init__(config)
        # `Trainer` finds by it that the loss has no first label; a class name may not say so.
        self.loss_type = "ForCausalLM"
        self.net = TransformerXL(config.to_network()) if net is None else net
        self.vocab: Vocabulary | None = None
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        # Private, but called for every module; TransformerXL has initialized its own.
        pass

    def forward(
        self,
        input_ids: Tensor,
        past_key_values: MemoryCache | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> CausalLMOutputWithPast | tuple:
        """Read one segment; return logits_BLV, the memory for the next one, and the loss of labels.

        Args:
            input_ids: tokens_BL.
            past_key_values: the memory of the segments before; default empty.
            attention_mask: mask_BT of all tokens so far, those in the memory included: 1, and 0 for
                padding before a text or at its end.
            labels: the same tokens_BL, or -100 where there is no loss, which is the mean nats of
                the label after each token; the first label, and one after padding, has no token
                before it.
            use_cache: return the memory (default).
            logits_to_keep: number of last tokens that have logits, 0: all; or their places.
            return_dict: False for a tuple.
            num_items_in_batch: divisor of the summed nats, as `Trainer` gives it.
        """
        batch_size, tgt_len = input_ids.shape
        reader = self.make_reader()
        cache = past_key_values
        if cache is None:
            lengths = EvalLengths(self.config.mem_len)
            cache = MemoryCache(reader.empty_memory(batch_size, lengths), 0)
        require_cache(cache, reader.keeps_keys)
        require_labels(labels, input_ids)
        doc_pos_BL = None
        if attention_mask is not None:
            require_mask(attention_mask, batch_size, cache.n_read, tgt_len)
            input_ids, doc_pos_BL, labels = hide_padding(input_ids, labels, attention_mask)
        h_BLD, memory = reader.hidden(input_ids, cache.memory, doc_pos_BL)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        after = None if use_cache is False else MemoryCache(memory, cache.n_read + tgt_len)
        output = CausalLMOutputWithPast(
            loss=None if labels is None else mean_nats(reader, h_BLD, labels, num_items_in_batch),
            logits=reader.head(h_BLD[:, kept]),
            past_key_values=after,
        )
        return output.to_tuple() if return_dict is False else output

    def make_reader(self) -> Reader:
        is_constant = not (torch.is_grad_enabled() or is_training(self.net))
        return Reader(self.net, keeps_keys=is_constant)

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """Continue texts as transformers does, after a check of the mask, which it may drop."""
        tokens_BL = kwargs.get("input_ids") if inputs is None else inputs
        cache = kwargs.get("past_key_values")
        if isinstance(tokens_BL, Tensor):
            n_read = 0 if cache is None else cache.get_seq_length()
            require_prompt(tokens_BL, kwargs.get("attention_mask"), n_read)
        return super().generate(inputs, *args, **kwargs)

    # The name kwargs tells transformers that `forward` takes them.
    def prepare_inputs_for_generation(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> dict:
        """Read all but the last token, in the segments of our own `generate`; return the rest."""
        # `generate` reads stop strings with the tokenizer, and passes it on to `forward`, too.
        for name in ("tokenizer", "assistant_tokenizer"):
            kwargs.pop(name, None)
        inputs = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)
        if not inputs.get("use_cache"):
            return inputs
        reason = find_missing_memory(self.net, self.config.mem_len)
        require(not reason, "use_cache", True, f"False, because {reason}")
        tokens_BL = inputs["input_ids"]
        mask_BT = inputs.get("attention_mask")
        cache = inputs.get("past_key_values")
        while (n_left := tokens_BL.size(1) - 1) > 0:
            first_BL, tokens_BL = tokens_BL.tensor_split([n_left % SEGMENT_LEN or SEGMENT_LEN], 1)
            seen_BT = None if mask_BT is None else mask_BT[:, : -tokens_BL.size(1)]
            cache = self(first_BL, cache, seen_BT, logits_to_keep=1).past_key_values
        return inputs | {"input_ids": tokens_BL, "past_key_values": cache}

    # Private, but otherwise `generate` makes its own cache.
    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        config: TXLConfig | None = None,
        dtype: torch.dtype | str | None = None,
        torch_dtype: torch.dtype | str | None = None,
        device_map: Any = None,
        mem_len: int | None = None,
        **options: Any,
    ) -> "TXLForCausalLM":
        """Load a network in eval mode.

        Args:
            pretrained_model_name_or_path: a folder of `convert` or of TransfoXL, here or on a hub;
                here also a run or a checkpoint.
            config: settings; only mem_len may differ from the folder's.
            dtype: precision of the weights; default as in the file.
            torch_dtype: the former name of dtype.
            device_map: the device.
            mem_len: memory length; default as in training.
            **options: DOWNLOAD and NO_EFFECT of folder_options.py.

        Raises:
            ValueError: another option, an unknown precision, or a missing file.
            CheckpointError: a file that is damaged, does not fit its settings, or would run code.
        """
        require_options("from_pretrained", options, LOADING)
        dtype = find_dtype(torch_dtype if dtype is None else dtype)
        source = str(pretrained_model_name_or_path)
        if not os.path.exists(source):
            download = {name: options[name] for name in DOWNLOAD if name in options}
            source = snapshot_download(source, allow_patterns=FILES, **download)
        net, vocab, _ = load_any_checkpoint(source)
        require_transformer_xl(net, "from_pretrained", source)
        net = net.to(dtype)
        config = copy.deepcopy(config) or cls.config_class.from_network(net.config)
        config.mem_len = config.mem_len if mem_len is None else mem_len
        config.name_or_path = source
        config.dtype = next(net.parameters()).dtype
        model = cls(config, net).eval()
        model.vocab = vocab
        with suppress(OSError):
            model.generation_config = transformers.GenerationConfig.from_pretrained(source)
        device = device_map.get("") if isinstance(device_map, dict) else device_map
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return model if device is None else model.to(device)

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        push_to_hub: bool = False,
        max_shard_size: int | str | None = None,
        safe_serialization: bool = True,
        **options: Any,
    ) -> None:
        """Write the folder that `convert` writes, or for TransfoXL the one of transformers 4.

        The weights are one file of safetensors; options that ask for others are refused. mem_len of
        `from_pretrained` says how the network is read, and is not saved.
        """
        require(not push_to_hub, "push_to_hub", True, "False; call push_to_hub(NAME)")
        require(safe_serialization, "safe_serialization", False, "True: weights are safetensors")
        require_options("save_pretrained", options, SAVING)
        if not is_main_process:
            return
        net = self.net
        folder = Path(save_directory)
        if state_dict is not None:
            ours = {name.removeprefix("net."): weight for name, weight in state_dict.items()}
            net = build_network(ours, net.config)
        require_one_file(net.state_dict(), max_shard_size)
        folder.mkdir(parents=True, exist_ok=True)
        self.save_files(net, folder, self.vocab)
        self.generation_config.save_pretrained(folder)

    def load_state_dict(self, state_dict: dict[str, Tensor], *args: Any, **options: Any) -> Any:
        """Load weights by their names here or in a folder; `Trainer` resumes from a folder's."""
        if not all(name.startswith("net.") for name in state_dict):
            ours = match_weights(state_dict, self.map_names, self.net.config)
            state_dict = {f"net.{name}": weight for name, weight in ours.items()}
        return super().load_state_dict(state_dict, *args, **options)


class TransfoXLLMHeadModel(TXLForCausalLM):
    """TransfoXL, in the format of transformers 4."""

    config_class = TransfoXLConfig
    map_names = staticmethod(huggingface.map_huggingface_weights)
    save_files = staticmethod(huggingface.save_huggingface)
