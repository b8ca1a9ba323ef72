"""What is wrong with the data, in one line for the person who gave it."""


class DataError(ValueError):
    """A text that cannot be used: it names the file or setting, what was found and the way out."""
