"""The original's initial weights.

matrices, embeddings, u, v, learned positions     init: normal(0, init_std), or uniform
projections of embeddings                         normal(0, proj_init_std)
layer-normalisation weights                       normal(1, init_std)
every other bias                                  0
"""

from functools import partial

from torch import nn

from .adaptive import AdaptiveEmbedding
from .config import TransformerXLConfig
from .softmax import Down

DRAWN = ("u_NHK", "v_NHK", "r_NCHK", "r_NCK", "p_NCD")
"""Parameters of position schemes that are no biases of a distance."""


def initialise(model: nn.Module, config: TransformerXLConfig) -> None:
    """Draw every weight of a network."""
    std, span = config.init_std, config.init_range
    draws = {
        "normal": partial(nn.init.normal_, mean=0.0, std=std),
        "uniform": partial(nn.init.uniform_, a=-span, b=span),
    }
    draw = draws[config.init]
    for module in model.modules():
        match module:
            case nn.Linear() | nn.Embedding():
                draw(module.weight)
            case nn.LayerNorm():
                nn.init.normal_(module.weight, 1.0, std)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif name.endswith(DRAWN):
            draw(parameter)
    for projection in projections(model):
        nn.init.normal_(projection.weight, 0.0, config.proj_init_std)


def projections(model: nn.Module) -> list[nn.Module]:
    """What projects embeddings, and hidden states to their width."""
    found = [module for module in model.modules() if isinstance(module, AdaptiveEmbedding)]
    softmax = [module for module in model.modules() if isinstance(module, Down)]
    return [linear for embedding in found for linear in embedding.projections] + softmax
