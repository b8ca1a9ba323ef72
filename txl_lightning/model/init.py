"""The original's initial weights.

matrices, embeddings, u, v, learned positions     init: normal(0, init_std), or uniform
projections of embeddings                         normal(0, proj_init_std)
layer-normalisation weights                       normal(1, init_std)
every other bias                                  0
"""

from torch import nn

from .adaptive import AdaptiveEmbedding, Projection
from .config import TransformerXLConfig

INITIALIZED_LIKE_WEIGHTS = ("u_NHK", "v_NHK", "r_NCHK", "r_NCK", "p_NCD")
"""Parameters of position schemes that are no biases of a distance."""


def initialize_weights(model: nn.Module, config: TransformerXLConfig) -> None:
    """Draw every weight of a network, in place."""

    def draw(weight: nn.Parameter) -> None:
        if config.init == "uniform":
            nn.init.uniform_(weight, -config.init_range, config.init_range)
        else:
            nn.init.normal_(weight, 0.0, config.init_std)

    for module in model.modules():
        match module:
            case nn.Linear() | nn.Embedding():
                draw(module.weight)
            case nn.LayerNorm():
                nn.init.normal_(module.weight, 1.0, config.init_std)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif name.endswith(INITIALIZED_LIKE_WEIGHTS):
            draw(parameter)
    embeddings = [part for part in model.modules() if isinstance(part, AdaptiveEmbedding)]
    projections = [linear for embedding in embeddings for linear in embedding.projections]
    projections += [part for part in model.modules() if isinstance(part, Projection)]
    for projection in projections:
        nn.init.normal_(projection.weight, 0.0, config.proj_init_std)
