"""MemoryBank: the memories of training and evaluation between their segments.

N layers   B rows   M remembered   D width
"""

from ..model import AnyMemory, CachedReader, EvalLengths, EvalSameLength, Memory, TransformerXL


class MemoryBank:
    """Memories by stage and slot: the number of the stage's dataloader.

    The memory that a step leaves is staged, and replaces the one before it when the step is done,
    together with the position in the text. Memories are plain attributes, never buffers: DDP would
    overwrite buffers with rank 0's, and an average of weights would average them.

    Args:
        net: the network that reads them.
        eval_lengths: how far back evaluation attends.
        compiled: whether the network is compiled.
    """

    def __init__(self, net: TransformerXL, eval_lengths: EvalLengths, compiled: bool) -> None:
        self.net, self.eval_lengths = net, eval_lengths
        # Kept keys and values change their shape; a compiled network is one graph for one shape.
        self.reader: TransformerXL | CachedReader = net if compiled else CachedReader(net)
        self.committed: dict[tuple[str, int], AnyMemory] = {}
        self.staged: dict[tuple[str, int], AnyMemory] = {}

    def get(self, stage: str, slot: int, batch_size: int) -> AnyMemory:
        """Return the memory of a slot on the network's device; empty at first or for other rows."""
        memory = self.committed.get((stage, slot))
        if memory is None or memory.batch_size != batch_size:
            if stage == "train":
                return self.net.empty_memory(batch_size)
            return self.reader.empty_memory(batch_size, self.eval_lengths)
        if stage != "train":
            return memory
        mem_len, *lengths = EvalLengths().resolve(self.net.config)
        memory = memory.resized(mem_len).with_lengths(*lengths)
        return memory.to(self.net.device, self.net.compute_dtype)

    def stage(self, stage: str, slot: int, memory: AnyMemory) -> None:
        """Hold a memory back until its step is done."""
        self.staged[stage, slot] = memory

    def commit(self) -> None:
        """Let the staged memories replace those before them."""
        self.committed |= self.staged
        self.staged = {}

    def discard(self, stage: str) -> None:
        """Forget a stage's memories, staged and committed."""
        self.committed = {key: self.committed[key] for key in self.committed if key[0] != stage}
        self.staged = {key: self.staged[key] for key in self.staged if key[0] != stage}


def make_eval_lengths(
    eval_mem_len: int | None, eval_clamp_len: int | None, eval_same_length: EvalSameLength = None
) -> EvalLengths:
    """Return the lengths of evaluation; an impossible one is named as its setting."""
    try:
        return EvalLengths(eval_mem_len, eval_clamp_len, eval_same_length)
    except ValueError as error:
        raise ValueError(f"eval_{error}") from error


def measure_memory(memory: Memory) -> dict[str, float]:
    """Return the mean number of filled states of a row, and the bytes kept by this process."""
    mean = memory.filled_B.float().mean().item()
    return {"mem_filled": mean, "memory_bytes": float(memory.h_NBMD.nbytes)}
