"""Bach's chorales as ids: the only script here that needs music21 and MidiTok.

    python -m venv runs/music && runs/music/bin/pip install -r experiments/music/requirements.txt
    runs/music/bin/python experiments/music/chorales.py runs/music/ids

It writes, of each split, the ids of its pieces and where they begin, and the name of each id. A
piece is all voices of a chorale with four parts on one staff, in MidiTok's REMI tokens: bar,
position in the bar in sixteenths, pitch, velocity (one), duration. Every tenth piece is test text,
every tenth validation text. The licence of music21's corpus is in its folder corpus.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import symusic
from miditok import REMI, TokenizerConfig
from music21 import corpus, repeat

PITCHES = (36, 84)  # of MIDI
STEPS = 4  # of a beat
LONGEST = 8  # beats of a note
SUFFIXES = {".mxl", ".xml", ".krn"}
SPLITS = {0: "test", 5: "val"}  # by the last digit of a piece's number
CONFIG = TokenizerConfig(
    pitch_range=PITCHES, beat_res={(0, LONGEST): STEPS}, num_velocities=1,
    special_tokens=["PAD"], use_time_signatures=False, encode_ids_split="no",
)  # fmt: skip


def prepare(folder: Path) -> None:
    paths = sorted(path for path in corpus.getComposer("bach") if path.suffix in SUFFIXES)
    tokenizer = REMI(CONFIG)
    pieces = [read_piece(path) for path in paths]
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name, _ in sorted(tokenizer.vocab.items(), key=lambda item: item[1])]
    (folder / "names.json").write_text(json.dumps(names))
    ids = [tuple(tokenizer(piece)[0].ids) for piece in pieces if piece is not None]
    # Some pieces are in the corpus twice.
    ids = [*dict.fromkeys(ids)]
    for split in ("train", "val", "test"):
        chosen = [each for n, each in enumerate(ids) if SPLITS.get(n % 10, "train") == split]
        starts = np.cumsum([0, *map(len, chosen[:-1])])
        np.save(folder / f"{split}.npy", np.concatenate(chosen).astype(np.uint16))
        np.save(folder / f"{split}_starts.npy", starts.astype(np.int64))
        print(f"{split}: {len(chosen)} pieces, {sum(map(len, chosen)):,} tokens")


def read_piece(path: Path) -> "symusic.Score | None":
    """Return a piece with all its voices in one track; None for other than four parts."""
    score = corpus.parse(path)
    if len(getattr(score, "parts", ())) != 4:
        return None
    with tempfile.TemporaryDirectory() as folder:
        try:
            piece = symusic.Score(score.write("midi", Path(folder, "piece.mid")))
        except repeat.ExpanderException as error:
            print(f"{path.name} is left out: {error}")
            return None
    notes = [note for track in piece.tracks for note in track.notes]
    merged = symusic.Score(piece.tpq)
    merged.time_signatures = piece.time_signatures
    merged.tracks.append(symusic.Track())
    merged.tracks[0].notes.extend(sorted(notes, key=lambda note: note.time))
    return merged


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
