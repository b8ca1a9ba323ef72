"""What is wrong with the data, in one line for the person who gave it."""


class DataError(ValueError):
    """A text that cannot be used: it names the file or setting, what was found and the way out."""

    exit_code = 3


class StorageError(ValueError):
    """A place that cannot be written: it names the file and the reason."""

    exit_code = 6
