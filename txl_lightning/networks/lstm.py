"""LSTM with tied weights (Hochreiter and Schmidhuber 1997; Press and Wolf 2017).

B rows   L tokens in the segment   X among which no document begins   D width
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from .recurrent import RecurrentNetwork
from .stateful import State, StateConfig, StateMemory, new_zeros


@dataclass(frozen=True)
class LSTMConfig(StateConfig):
    """An LSTM; with no settings of its own."""

    def build(self) -> "LSTM":
        """Return a new network."""
        layers = (LSTMLayer(self) for _ in range(self.n_layer))
        return LSTM(self, layers, norm=nn.Identity())


class LSTM(RecurrentNetwork):
    """Layers of torch's LSTM, which reads a whole sequence."""

    def read(
        self, tokens_BL: Tensor, memory: StateMemory, doc_pos_BL: Tensor
    ) -> tuple[Tensor, StateMemory]:
        # Cut where a document begins in any row, once for all layers: on a GPU, this waits for the
        # positions. Each layer is called once, because fsdp2 gathers its weights for each call.
        starts = (doc_pos_BL[:, 1:] == 0).any(dim=0).nonzero()[:, 0] + 1
        cuts = [0, *starts.tolist(), doc_pos_BL.size(1)]
        lengths = [stop - start for start, stop in pairwise(cuts)]
        return super().read(tokens_BL, memory, doc_pos_BL.split(lengths, dim=1))


class LSTMLayer(nn.Module):
    """i, f, g, o = W x_t + U h_{t-1} + b;  c_t = f c_{t-1} + i tanh(g);  h_t = o tanh(c_t).

    i, f and o are after a sigmoid.
    """

    def __init__(self, config: StateConfig) -> None:
        super().__init__()
        # Linear maps, which Muon knows; both biases add up, as in torch's own LSTM.
        self.of_inputs = nn.Linear(config.d_model, 4 * config.d_model)
        self.of_states = nn.Linear(config.d_model, 4 * config.d_model)
        self.drop = nn.Dropout(config.dropout)

    def empty_state(self, batch_size: int) -> State:
        zero_BD = new_zeros(self, batch_size, self.of_states.in_features)
        return {"h_BD": zero_BD, "c_BD": zero_BD}

    def forward(
        self, x_BLD: Tensor, state: State, doc_pos_BX: Sequence[Tensor]
    ) -> tuple[Tensor, State]:
        """Return the outputs and the next state; documents begin only where a part does."""
        lengths = [pos_BX.size(1) for pos_BX in doc_pos_BX]
        parts = []
        for x_BXD, pos_BX in zip(x_BLD.split(lengths, dim=1), doc_pos_BX, strict=True):
            h_BXD, state = self.read_part(x_BXD, state, pos_BX[:, :1] > 0)
            parts.append(h_BXD)
        return self.drop(torch.cat(parts, dim=1)), state

    def read_part(self, x_BXD: Tensor, state: State, is_old_B1: Tensor) -> tuple[Tensor, State]:
        h_1BD, c_1BD = (state[name].where(is_old_B1, 0)[None] for name in ("h_BD", "c_BD"))
        maps = (self.of_inputs, self.of_states)
        weights = [*(each.weight for each in maps), *(each.bias for each in maps)]
        options = {"has_biases": True, "num_layers": 1, "dropout": 0.0}
        # Without "train", a GPU keeps nothing for gradients.
        options |= {"train": torch.is_grad_enabled(), "bidirectional": False, "batch_first": True}
        # In the precision of the weights, also under autocast: errors of a state add up.
        with torch.autocast(x_BXD.device.type, enabled=False):
            x_BXD = x_BXD.to(h_1BD.dtype)
            h_BXD, h_1BD, c_1BD = torch.lstm(x_BXD, (h_1BD, c_1BD), weights, **options)
        return h_BXD, {"h_BD": h_1BD[0], "c_BD": c_1BD[0]}
