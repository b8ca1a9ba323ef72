"""prepare: download and encode a text."""

from pathlib import Path
from typing import Any

from ..data.config import DataConfig
from ..data.corpora import CORPORA
from ..data.documents import SPLITS
from ..data.store import Store
from ..data.tasks import TASKS
from ..errors import DataError


def prepare_command(name: str, **text: Any) -> None:
    """Download a corpus, or take a text of your own, and encode it; say where it is.

    Args:
        name: A corpus, or the path of your own text: a file, a folder or a tar of documents.
        **text: As in fit, where each stands under data.
    """
    if name in TASKS:
        print(f"{name}: made on the spot; there is nothing to prepare")
        return
    if name not in CORPORA and not Path(name).exists():
        allowed = f"it must be a file, a folder, or one of {', '.join(CORPORA)}"
        raise DataError(f"{name}: no such text; {allowed}")
    corpus, path = (name, None) if name in CORPORA else ("python_source", name)
    store = DataConfig(corpus=corpus, path=path, **text).open()
    print(f"{name}: {store.folder}")
    print(f"{store.vocab.n_token:,} {store.vocab.unit}s in the vocabulary")
    for split in SPLITS:
        print(f"{split:5}  " + "  ".join(counts(store, split)))
    print(f"fingerprint {store.fingerprint}, of the vocabulary {store.vocab.fingerprint}")


def counts(store: Store, split: str) -> list[str]:
    """What a split holds, in words."""
    manifest, found = store.manifest, []
    found.append(f"{manifest['tokens'][split]:>13,} tokens")
    found.append(f"{manifest['bytes'][split]:>13,} bytes")
    if manifest["documents"]:
        found.append(f"{manifest['n_document'][split]:>9,} documents")
    if manifest["unknown"][split]:
        share = manifest["unknown"][split] / manifest["tokens"][split]
        found.append(f"{share:6.2%} of them unknown")
    return found
