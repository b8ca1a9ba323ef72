"""Nats of a network with one layer, whose tokens depend only on the tokens that they see."""

import numpy as np
import torch
from torch.nn import functional as F

from txl_lightning.model import EvalLengths


def draw_text(seed, count=700):
    return np.random.default_rng(seed).integers(0, 11, count)


@torch.inference_mode()
def predict(net, ids, places, seen):
    """Return logits of `ids[places]`, each from the last `seen` tokens before it."""
    logits_NV = torch.empty(len(places), net.config.n_token, dtype=torch.float64)
    for count in np.unique(seen):
        index_N = np.flatnonzero(seen == count)
        tokens_BL = torch.from_numpy(ids[places[index_N][:, None] + np.arange(-count, 0)])
        memory = net.empty_memory(len(index_N), EvalLengths(mem_len=0))
        logits_NV[index_N] = net(tokens_BL, memory)[0][:, -1].double()
    return logits_NV


def nats_of(net, ids, places, seen):
    target_N = torch.from_numpy(ids[places])
    return F.cross_entropy(predict(net, ids, places, seen), target_N, reduction="none").numpy()


def count_seen(place, segment, mem_len):
    """Return the number of tokens that predict a place, in segments from 0 on and with memory."""
    start = (place - 1) // segment * segment
    return place - np.maximum(start - mem_len, 0)


def mean_nats_of_pieces(net, ids, before, seen):
    """Return mean nats of 64 pieces after `before` others; `seen` is of each place in them."""
    starts = before + np.linspace(0, len(ids) - before - len(seen), 64).astype(int)
    places = starts[:, None] + np.arange(len(seen))
    return nats_of(net, ids, places.ravel(), np.tile(seen, 64)).mean()
