"""Parts for networks of a package: a memory whose tensors have rows first, and the loss."""

from torch import nn


class RowMemory:
    """Base of frozen dataclasses whose fields are tensors with a first dimension for the rows."""

    @property
    def batch_size(self):
        return len(next(iter(self.tensors().values())))

    def tensors(self):
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def restored(self, tensors):
        return type(self)(**tensors)

    def rows(self, index_B):
        return self.restored({name: each[index_B] for name, each in self.tensors().items()})

    def to(self, device):
        return self.restored({name: each.to(device) for name, each in self.tensors().items()})


class LogitNetwork(nn.Module):
    """Base of networks whose `forward` returns logits_BLV and the next memory."""

    def loss(self, tokens_BL, targets_BL, *inputs):
        logits_BLV, memory = self(tokens_BL, *inputs)
        logits_BVL = logits_BLV[:, -targets_BL.size(1) :].float().mT
        return nn.functional.cross_entropy(logits_BVL, targets_BL, reduction="none"), memory
