"""Small sizes, and further settings of each of the package's networks with a state, by name."""

SIZES = {"n_layer": 2, "d_model": 16}
SMALL_NETWORKS = {
    "CompressiveTransformer": {"unit_len": 4, "n_state": 8, "n_compressed": 4, "rate": 2},
    "GatedDeltaNet": {"chunk_len": 5},
    "LSTM": {},
    "Mamba2": {"d_head": 8, "d_state": 6, "chunk_len": 5},
    "RecurrentMemoryTransformer": {"unit_len": 4, "n_memory": 3},
}
