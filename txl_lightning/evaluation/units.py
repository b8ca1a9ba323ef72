"""Mean nats in the field's other units."""

import math


def readings(nats: float, unit: str, bytes_per_token: float | None = None) -> dict[str, float]:
    """Return mean nats of a token in the field's other units, by name.

    bits = nats / ln 2 and perplexity = exp(nats) of the mean; a mean of perplexities is neither.
    Bits per byte of the text compare models whose tokens are of different kinds.
    """
    bits = nats / math.log(2)
    by_byte = {"bits_per_byte": bits / bytes_per_token} if bytes_per_token else {}
    return {
        "nats": nats,
        f"bits_per_{unit}": bits,
        "perplexity": math.exp(min(nats, 700.0)),
    } | by_byte
