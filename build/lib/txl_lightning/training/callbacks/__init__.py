"""Callbacks of runs; ../trainer_parts.py puts them in order."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..module import LanguageModel
else:
    # A name for annotations of hooks; at run time, module.py imports callbacks.
    LanguageModel = "LanguageModel"
