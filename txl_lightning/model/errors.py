"""What a network can come to that no setting forbids."""


class NonFiniteError(ValueError):
    """A loss, score, gradient or weight that is infinite or not a number."""

    exit_code = 5
