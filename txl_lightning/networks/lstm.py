"""LSTM with tied weights (Hochreiter and Schmidhuber 1997; Press and Wolf 2017).

B rows   L tokens in the segment   D width
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from .recurrent import RecurrentNetwork
from .stateful import State, StateConfig


@dataclass(frozen=True)
class LSTMConfig(StateConfig):
    """An LSTM; with no settings of its own."""

    def build(self) -> RecurrentNetwork:
        """Return a new network."""
        layers = (LSTMLayer(self) for _ in range(self.n_layer))
        return RecurrentNetwork(self, layers, norm=nn.Identity())


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
        zero_BD = self.of_states.weight.new_zeros(batch_size, self.of_states.in_features)
        return {"h_BD": zero_BD, "c_BD": zero_BD}

    def forward(self, x_BLD: Tensor, state: State, doc_pos_BL: Tensor) -> tuple[Tensor, State]:
        outputs = []
        # torch's LSTM reads a whole sequence: it is cut where a document begins in any row.
        starts = (doc_pos_BL == 0).any(dim=0).nonzero()[:, 0].tolist()
        for start, stop in pairwise(sorted({0, x_BLD.size(1), *starts})):
            is_old_B1 = doc_pos_BL[:, start, None] > 0
            h_BD = torch.where(is_old_B1, state["h_BD"], 0)
            c_BD = torch.where(is_old_B1, state["c_BD"], 0)
            h_BLD, state = self.read_document(x_BLD[:, start:stop], h_BD, c_BD)
            outputs.append(h_BLD)
        return self.drop(torch.cat(outputs, dim=1)), state

    def read_document(self, x_BLD: Tensor, h_BD: Tensor, c_BD: Tensor) -> tuple[Tensor, State]:
        """Return the outputs and the state after tokens among which no document begins."""
        maps = (self.of_inputs, self.of_states)
        weights = [*(each.weight for each in maps), *(each.bias for each in maps)]
        options = {"has_biases": True, "num_layers": 1, "dropout": 0.0}
        # Without "train", a GPU keeps nothing for gradients.
        options |= {"train": torch.is_grad_enabled(), "bidirectional": False, "batch_first": True}
        # In the precision of the weights, also under autocast: errors of a state add up.
        with torch.autocast(x_BLD.device.type, enabled=False):
            state = (h_BD[None], c_BD[None])
            h_BLD, h_1BD, c_1BD = torch.lstm(x_BLD.to(h_BD.dtype), state, weights, **options)
        return h_BLD, {"h_BD": h_1BD[0], "c_BD": c_1BD[0]}
