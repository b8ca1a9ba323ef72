"""MemoryBank: the memory after each segment, kept for the next one, in every stage.

N layers   B rows   M in memory   D width
"""

from ..model import AnyMemory, CachedReader, EvalLengths, TransformerXL


class MemoryBank:
    """Memories by stage and slot (the index of the stage's dataloader).

    The memory after a segment is staged, and replaces the previous one when the step is done,
    together with the position in the text. Memories are plain attributes, never buffers: DDP would
    overwrite buffers with rank 0's, and an average of weights would average them.
    """

    def __init__(self, net: TransformerXL, eval_lengths: EvalLengths, compiled: bool) -> None:
        self.net, self.eval_lengths = net, eval_lengths
        # Cached keys and values change their shape; a compiled network has one graph per shape.
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
        memory = memory.resized(EvalLengths().resolve(self.net.config))
        return memory.to(self.net.device, self.net.compute_dtype)

    def stage(self, stage: str, slot: int, memory: AnyMemory) -> None:
        self.staged[stage, slot] = memory

    def commit(self) -> None:
        self.committed |= self.staged
        self.staged = {}

    def discard(self, stage: str) -> None:
        self.committed = {key: self.committed[key] for key in self.committed if key[0] != stage}
        self.staged = {key: self.staged[key] for key in self.staged if key[0] != stage}
