"""prepare: download and encode a text."""

from pathlib import Path
from typing import Any

from ..data.config import DataConfig
from ..data.corpora import CORPORA
from ..data.documents import SPLITS
from ..data.tasks import TASKS
from ..errors import DataError


def prepare_command(name: str, check: bool = False, **text: Any) -> None:
    """Download a corpus, or take your own text, and encode it; print where it is.

    Args:
        name: A corpus, or the path of your own text: a file, or a folder or tar of documents.
        check: Compare all of what is prepared with its checksums; damaged, it is encoded again.
        **text: As in fit, under data there.
    """
    if name in TASKS:
        print(f"{name}: generated when it is used; there is nothing to prepare")
        return
    if name not in CORPORA and not Path(name).exists():
        expected = f"expected a file, a folder, or one of {', '.join(CORPORA)}"
        raise DataError(f"name: invalid {name}; {expected}")
    corpus, path = (name, None) if name in CORPORA else ("python_source", name)
    store = DataConfig(corpus=corpus, path=path, **text).open(whole=check)
    print(f"{name}: {store.folder}")
    print(f"{store.vocab.n_token:,} {store.vocab.unit}s in the vocabulary")
    for split in SPLITS:
        n_token, n_unknown = (store.manifest[name][split] for name in ("tokens", "unknown"))
        counts = [f"{n_token:>13,} tokens", f"{store.manifest['bytes'][split]:>13,} bytes"]
        if store.manifest["documents"]:
            counts.append(f"{store.manifest['n_document'][split]:>9,} documents")
        if n_unknown:
            counts.append(f"{n_unknown / n_token:6.2%} of them unknown")
        print(f"{split:5}", *counts, sep="  ")
    print(f"fingerprint {store.fingerprint}, of the vocabulary {store.vocab.fingerprint}")
