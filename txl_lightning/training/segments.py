"""Segments one after the other, for LanguageModel: its loss, memories between, metrics.

B rows   L segment
"""

import warnings
from functools import cached_property, partial
from inspect import signature
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint
from torchmetrics import Metric

from ..data.stream import IGNORED, Segment, share_rows
from ..errors import prefix_errors, require
from ..model import EvalLengths, EvalSameLength, Network, NetworkConfig, accumulator_dtype
from ..model.adaptation import Adaptation
from ..model.config import require_transformer_xl
from ..model.contract import AnyMemory, join_rows, keep_gradient, stop_gradient
from ..model.memory import Memory
from ..model.reading import Reader, score_segment


def make_eval_lengths(
    config: NetworkConfig, mem_len: int | None, clamp_len: int | None, same_length: EvalSameLength
) -> EvalLengths:
    """Return the lengths of validate, test and predict, which the network must have."""
    with prefix_errors("eval", "_"):
        lengths = EvalLengths(mem_len, clamp_len, same_length)
        lengths.resolve(config)
    if mem_len and not config.mem_len:
        reason = "evaluation reads a memory that the network is trained without"
        warnings.warn(f"model.eval_mem_len {mem_len}: {reason}", stacklevel=3)
    return lengths


class MemoryBank:
    """Memories by stage and slot (the index of the stage's dataloader).

    The memory after a segment is staged, and replaces the previous one when the segment is over,
    together with the position in the text. Memories are plain attributes, never buffers: DDP would
    overwrite buffers with rank 0's, and an average of weights would average them.
    """

    def __init__(self, net: Network, eval_lengths: EvalLengths, compiled: bool) -> None:
        self.net = net
        self.eval_lengths = eval_lengths
        self.compiled = compiled
        self.adaptation: Adaptation | None = None
        self.captured: Any = None  # the reader of validations with model.cuda_graph
        self.committed: dict[tuple[str, int], AnyMemory] = {}
        self.staged: dict[tuple[str, int], AnyMemory] = {}

    @property
    def suffix(self) -> str:
        """End of the stage's name in results, where what adapts is never mixed with the rest."""
        return "-adapted" if self.adaptation else ""

    @cached_property
    def reader(self) -> Reader:
        # Cached keys and values change their shape; a compiled network has one graph per shape.
        keeps_keys = not self.compiled
        return self.captured or Reader(self.net, self.adaptation or Adaptation(), keeps_keys)

    def get(self, stage: str, slot: int, tokens_BL: Tensor) -> AnyMemory:
        """Return the memory of a slot for the next tokens; empty at first or for other rows."""
        batch_size = len(tokens_BL)
        memory = self.committed.get((stage, slot))
        if memory is None or memory.batch_size != batch_size:
            if stage == "train":
                return self.net.empty_memory(batch_size)
            return self.reader.empty_memory(batch_size, self.eval_lengths)
        if stage != "train":
            return memory
        memory = memory.resize(EvalLengths().resolve(self.net.config))
        dtypes = [self.net.compute_dtype] if hasattr(self.net, "compute_dtype") else []
        return memory.to(tokens_BL.device, *dtypes)

    def stage(self, stage: str, slot: int, memory: AnyMemory) -> None:
        self.staged[stage, slot] = memory

    def commit(self) -> None:
        self.committed |= self.staged
        self.staged = {}

    @property
    def can_empty(self) -> bool:
        """True if zeros are an empty memory, as in a Transformer-XL."""
        return all(isinstance(memory, Memory) for memory in self.staged.values())

    def empty_staged(self, is_true: Tensor) -> None:
        """Empty the staged memories if a number on their device is true, without waiting for it."""
        for key, memory in self.staged.items():
            tensors = memory.tensors()
            emptied = {name: tensors[name].masked_fill(is_true, 0) for name in tensors}
            self.staged[key] = memory.restore(emptied)

    def discard(self, stage: str) -> None:
        self.committed = {key: self.committed[key] for key in self.committed if key[0] != stage}
        self.staged = {key: self.staged[key] for key in self.staged if key[0] != stage}
        # It may have learned from a text.
        vars(self).pop("reader", None)


def recompute_layers(net: Network) -> None:
    """Store only each layer's input; the backward pass recomputes the rest, with equal dropout."""
    require_transformer_xl(net, "model.recompute", "true")
    net.call_layer = partial(checkpoint, use_reentrant=False)


def capture_network(module: Any) -> Any:
    """Return what replaces the network of a LanguageModel in a fit with model.cuda_graph, or None.

    Its validations in this fit are read by graphs, too.

    Raises:
        ValueError: a graph cannot compute its segments.
    """
    # A fit that failed has left its own.
    module.memory_bank.captured = None
    if not module.hparams["cuda_graph"] or module.trainer.state.fn != "fit":
        return None
    # Here, because few runs need them.
    from ..model.captured import CapturedReader
    from .cuda_graph import capture_training

    captured = capture_training(module)
    module.memory_bank.captured = CapturedReader(module.net)
    return captured


def segment_loss(
    net: Network, segment: Segment, memory: AnyMemory, n_part: int = 1, part_len: int | None = None
) -> tuple[Tensor, AnyMemory]:
    """Return nats_BL of a segment's targets, 0 where IGNORED, and the memory after it.

    With part_len, it is several segments of so many tokens, with gradient through their memories.
    The memory that is returned has no gradient: here a step ends.

    The rows are computed in n_part parts (micro-batches). The backward pass recomputes each part,
    with the same random numbers, just before its gradient, so that the activations of only one part
    are stored. For Lightning it is one forward and one backward pass: gradients are accumulated,
    scaled and averaged over ranks as usual.
    """
    n_row = len(segment.tokens_BL)
    if min(n_part, n_row) == 1:
        if part_len is not None:
            return score_parts(net, segment.cut(part_len), memory)
        nats_BL, memory = score_segment(net, segment, memory)
        return nats_BL, stop_gradient(memory)
    n_part = min(n_part, n_row)
    nats = []
    memories = []
    for part in range(n_part):
        rows = share_rows(n_row, part, n_part)
        inputs = net, segment.rows(rows), memory.rows(rows), 1, part_len
        part_BL, part_memory = checkpoint(segment_loss, *inputs, use_reentrant=False)
        nats.append(part_BL)
        memories.append(part_memory.tensors())
    return torch.cat(nats), memory.restore(join_rows(part_memory, memories))


def count_tokens(segment: Segment, corpus: Any, n_rank: int) -> int:
    """Return the tokens of a segment on all ranks."""
    if corpus is None:
        return segment.targets_BL.numel() * n_rank
    return corpus.config.batch_size * segment.new_len


def find_part_len(segment: Segment, n_joined: int, corpus: Any) -> int | None:
    """Return the length of the segments that a step reads; None if it reads one.

    All have data.tgt_len, or equal lengths if the data are of another kind.
    """
    if n_joined == 1:
        return None
    return corpus.config.tgt_len if corpus else -(-segment.new_len // n_joined)


def require_whole_units(net: Network, data: Any, n_rank: int) -> None:
    """Refuse segments that end within a unit; on several devices, those of evaluation, too."""
    # Which unfinished units are left where documents begin depends on the rows of a device.
    unit_len = getattr(net.config, "unit_len", 1)
    expected = f"a multiple of model.net.unit_len ({unit_len})"
    for name in ("tgt_len", "eval_tgt_len", "eval_ext_len") if n_rank > 1 else ("tgt_len",):
        length = getattr(data, name)
        require(length % unit_len == 0, f"data.{name}", length, expected)
    if unit_len > 1:
        expected = f"fixed, as the network reads units of {unit_len} tokens"
        require(data.segments == "fixed", "data.segments", data.segments, expected)


def score_parts(
    net: Network, segments: list[Segment], memory: AnyMemory
) -> tuple[Tensor, AnyMemory]:
    """Return nats_BL of segments in order, with gradient through the memories between them."""
    memory = keep_gradient(memory)
    parts = []
    for segment in segments:
        nats_BL, memory = score_segment(net, segment, memory)
        parts.append(nats_BL)
    has_gradient = any(each.requires_grad for each in memory.tensors().values())
    # Without memory, nothing is between them.
    if torch.is_grad_enabled() and len(segments) > 1 and net.config.mem_len:
        expected = f"1, as the memory of {type(net).__name__} has no gradient"
        require(has_gradient, "model.gradient_segments", len(segments), expected)
    return torch.cat(parts, dim=1), stop_gradient(memory)


def count_targets(batch: Any, segment: Segment, trainer: Trainer) -> float:
    """Return the scored targets of a batch on all ranks, divided by the number of ranks."""
    n_target = segment.loss_denominator
    if isinstance(batch, Segment) or trainer.world_size == 1:
        return n_target
    # A batch of another kind knows only those of its own rank.
    device = segment.targets_BL.device
    on_device = torch.tensor(n_target, dtype=accumulator_dtype(device), device=device)
    return trainer.strategy.reduce(on_device, reduce_op="mean").item()


def describe_memory(memory: AnyMemory, n_row: float) -> dict[str, float]:
    """Return the bytes of the states in a memory, and the mean number of those that count.

    n_row: rows of all ranks, divided by the number of ranks. Ranks may have a row more: the mean of
    what they return is that of all rows.
    """
    states = [each for each in memory.tensors().values() if each.is_floating_point()]
    values = {"memory_bytes": float(sum(each.nbytes for each in states))}
    if hasattr(memory, "filled_B"):
        values["mem_filled"] = memory.filled_B.float().sum().item() / n_row
    return values


class StepMean:
    """Weigh the segments of a step: its gradient is the mean over all its targets.

    Lightning averages the means of the segments, but these may have unequal numbers of targets. So
    each mean is weighted with its targets, relative to the most of a segment until then (a weight
    above 1 could overflow float16). At the end, the gradients are divided by the mean weight.
    Segments of equal numbers leave every number as it is.
    """

    def __init__(self) -> None:
        self.n_target = self.largest = 0.0
        # Set after each segment; their gradients are those of the segments until then.
        self.parameters: list[Parameter] = []

    def weigh(self, n_target: float) -> float:
        """Return the weight of the next segment."""
        if n_target > self.largest:
            self.scale_gradients(self.largest / n_target)
            self.largest = n_target
        self.n_target += n_target
        return n_target / self.largest if self.largest else 1.0

    def finish(self, n_segment: int) -> None:
        """Divide the gradients of all segments, which Lightning has divided by `n_segment`."""
        if self.n_target:
            self.scale_gradients(n_segment * self.largest / self.n_target)

    def scale_gradients(self, factor: float) -> None:
        if factor == 1:
            return
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)


def compile_in_place(net: Network) -> None:
    """Compile what is called for each layer; of a network that has no such function, the whole.

    One graph serves all layers, in a fraction of the time that the whole network takes. Weights
    keep their names.
    """
    # Since torch 2.13; without it, all networks of a process share the recompilation limit.
    is_available = "isolate_recompiles" in signature(torch.compile).parameters
    options = {"isolate_recompiles": True} if is_available else {}
    if hasattr(net, "run_layer"):
        if "run_layer" not in vars(net):
            net.run_layer = torch.compile(net.run_layer, **options)
        return
    # A loss whose shapes depend on the targets would be recompiled for every segment.
    reads_targets = getattr(getattr(net, "head", None), "reads_targets", False)
    for name in ("hidden",) if reads_targets else ("loss", "hidden"):
        if hasattr(net, name) and name not in vars(net):
            compiled = torch.compile(getattr(type(net), name), **options)
            # A deep copy of a partial function has a copy of the network. A bound method has not
            # worked with torch 2.11: Dynamo called `hidden` within `loss` without the network.
            setattr(net, name, partial(compiled, net))


class MeanNats(Metric):
    """Summed nats over counted tokens, in float64 where the device has it."""

    full_state_update = False

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        for name in ("nats", "count"):
            zero = torch.zeros((), dtype=accumulator_dtype(device), device=device)
            self.add_state(name, zero, dist_reduce_fx="sum")

    def update(self, nats_BL: Tensor, targets_BL: Tensor) -> None:
        scored_BL = targets_BL != IGNORED
        self.nats += nats_BL.detach().masked_fill(~scored_BL, 0.0).sum(dtype=self.nats.dtype)
        self.count += scored_BL.sum()

    def reset_if(self, is_true: Tensor) -> None:
        """Forget all until now if a number on the device is true, without waiting for it."""
        self.nats = self.nats.masked_fill(is_true, 0.0)
        self.count = self.count.masked_fill(is_true, 0.0)

    def compute(self) -> Tensor:
        return self.nats / self.count


class RightAnswers(Metric):
    """Accuracy of a task: per token, and per answer at the end of each example."""

    full_state_update = False

    def __init__(self, example_len: int) -> None:
        super().__init__()
        self.example_len = example_len
        for name in ("right_tokens", "tokens", "right_answers", "answers"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")
        self.wrong_B: Tensor | None = None

    def update(self, right_BL: Tensor, targets_BL: Tensor, doc_pos_BL: Tensor) -> None:
        """Count the next segment; an answer may span two segments."""
        scored_BL = targets_BL != IGNORED
        wrong_B = torch.zeros_like(right_BL[:, 0]) if self.wrong_B is None else self.wrong_B
        # The last token of an example is an answer; in the warm-up it is not scored.
        ends_BL = (doc_pos_BL + 2 == self.example_len) & scored_BL
        for wrong_token_B, ends_B in zip((scored_BL & ~right_BL).t(), ends_BL.t(), strict=True):
            wrong_B = wrong_B | wrong_token_B
            self.answers += ends_B.sum()
            self.right_answers += (ends_B & ~wrong_B).sum()
            wrong_B = wrong_B & ~ends_B
        self.wrong_B = wrong_B
        self.tokens += scored_BL.sum()
        self.right_tokens += (right_BL & scored_BL).sum()

    def compute(self) -> dict[str, Tensor]:
        answers = {"answer_accuracy": self.right_answers / self.answers}
        return {"token_accuracy": self.right_tokens / self.tokens} | answers
