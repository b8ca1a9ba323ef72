"""The text that a checkpoint is measured on: of its run, by splits, or another file."""

from txl_lightning.checkpoints import load_run
from txl_lightning.commands.inputs import read_ids


def test_text_ids_are_those_of_the_run_or_of_a_file(run_folder, checkpoint, tmp_path):
    _, vocab = load_run(checkpoint)
    whole = (run_folder.parent / "letters.txt").read_bytes()
    parts = {"train": whole[:5400], "val": whole[5400:5700], "test": whole[5700:]}
    for split, text in parts.items():
        assert read_ids(str(checkpoint), vocab, None, split).tobytes() == text
    other = tmp_path / "other.txt"
    other.write_bytes(b"another text")
    assert read_ids(str(checkpoint), vocab, str(other), "val").tobytes() == b"another text"


def test_words_are_read_with_the_checkpoints_vocabulary(txl, small, text_file, tmp_path):
    text_file.write_text("ab cd\n" * 500)
    assert txl("fit", *small, "--data.vocab=words")[0] == 0
    checkpoint = "runs/version_0/checkpoints/last.ckpt"
    _, vocab = load_run(checkpoint)
    (tmp_path / "other.txt").write_text("cd ab\nxy\n")
    ids = read_ids(checkpoint, vocab, "other.txt", "val")
    assert vocab.decode(ids.tolist()).split() == ["cd", "ab", "<unk>"]
    ids = read_ids(checkpoint, vocab, None, "val")
    assert set(vocab.decode(ids.tolist()).split()) == {"ab", "cd"}
