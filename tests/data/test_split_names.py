"""Names of documents give the splits, however they are written, or it is said why they do not."""

from pathlib import Path

import pytest

from txl_lightning.data.split_names import SPLITS, assign_splits
from txl_lightning.data.text_files import FRACTIONS, split_user_files
from txl_lightning.errors import DataError

FOLDER = Path("books")
# Names of train, val and test, in this order.
NAMES = [
    ("train.txt", "valid.txt", "test.txt"),
    ("wiki_train.txt", "wiki_valid.txt", "wiki_test.txt"),
    ("stories-train.txt", "stories-dev.txt", "stories-test.txt"),
    ("Train/1", "Valid/1", "Test/1"),
    ("TRAIN.TXT", "VAL.TXT", "TEST.TXT"),
    ("train2.txt", "val_1.txt", "test03.txt"),
    ("train-00000-of-00002.txt", "validation-00000-of-00001.txt", "test-00000-of-00001.txt"),
    ("train.zip/0.txt", "val.zip/0.txt", "test.zip/0.txt"),
    ("train.d/0.txt", "eval.d/0.txt", "test.d/0.txt"),
    ("train\\a.txt", "val\\a.txt", "test\\a.txt"),
    ("wikiTrain.txt", "wikiDev.txt", "wikiTest.txt"),
    ("wikitrain.txt", "wikivalid.txt", "wikitest.txt"),
    ("trainset v2.txt", "devset v2.txt", "testset v2.txt"),
    ("training/b.train", "development/b.txt", "testing/b.txt"),
    # What all names begin with says nothing; then the first word counts.
    ("test_corpus/train.txt", "test_corpus/val.txt", "test_corpus/test.txt"),
    ("eval_train.txt", "eval_valid.txt", "eval_test.txt"),
    ("train/test_notes.txt", "val/train.txt", "test/valid.txt"),
]


@pytest.mark.parametrize("names", NAMES, ids=lambda names: names[0])
def test_a_split_is_named_by_a_word_of_a_path_however_it_is_written(names):
    expected = dict(zip(names, SPLITS, strict=True))
    backwards = dict.fromkeys(reversed(names), 1)
    assert assign_splits(FOLDER, backwards, is_cut=True) == expected


@pytest.mark.parametrize(
    "names",
    [
        ["contest.txt", "interval.txt", "strain.txt"],
        ["contest1.txt", "contest2.txt"],
        [f"chapter{n}.txt" for n in range(9)],
    ],
)
def test_letters_within_words_name_no_split(names, capfd):
    assert assign_splits(FOLDER, dict.fromkeys(names, 1), is_cut=True) == {}
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["my_test_notes.txt"], "most documents have none: my_test_notes.txt"),
        (["The Train.txt", "Test.txt"], "most documents have none: The Train.txt, Test.txt"),
        (["train.py", "tests/test_a.py"], "most documents have none: train.py, tests/test_a.py"),
    ],
)
def test_few_titles_with_such_a_word_give_no_splits_and_are_named(names, reason, capfd):
    sizes = dict.fromkeys([*names, *(f"{n}.txt" for n in range(20))], 1)
    assert assign_splits(FOLDER, sizes, is_cut=True) == {}
    line = f"warning: books: names of splits are not used, as {reason}\n"
    assert capfd.readouterr().err == line
    assert assign_splits(FOLDER, sizes, is_cut=False) == {}
    assert capfd.readouterr().err == ""
    # However long one is; but two splits of half of the text are meant.
    sizes |= {names[0]: 10**6}
    if len(names) == 1:
        assert assign_splits(FOLDER, sizes, is_cut=True) == {}
    else:
        with pytest.raises(DataError, match="is not in train, val or test, but others are"):
            assign_splits(FOLDER, sizes, is_cut=True)


def test_a_split_that_all_documents_name_is_cut_with_a_warning(capfd):
    names = ["test-0.txt", "test-1.txt"]
    assert assign_splits(FOLDER, dict.fromkeys(names, 1), is_cut=True) == {}
    assert "as all have the same one: test-0.txt, test-1.txt" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("names", "stray"),
    [
        (["train.txt", "val.txt", "test.txt", "README.md"], "README.md"),
        (["corpus.txt", "test.txt"], "corpus.txt"),
        (["corpus.txt", "valid.txt", "test.txt"], "corpus.txt"),
        (["train/a", "val/a", "test/a", "LICENSE"], "LICENSE"),
    ],
)
def test_a_document_that_names_no_split_is_refused_beside_those_that_do(names, stray):
    with pytest.raises(DataError, match=f"^books: {stray} is not in train, val or test, but othe"):
        assign_splits(FOLDER, dict.fromkeys(names, 1), is_cut=True)


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["stories-train.txt", "stories-valid.txt"], "test"),
        (["train.txt", "test.txt"], "val"),
        (["wikitest.txt", "wikitrain.txt"], "val"),
        (["val.txt", "test.txt"], "train"),
    ],
)
def test_a_missing_split_is_named_and_empty(write_files, tmp_path, capfd, names, missing):
    folder = write_files({name: name.encode() for name in [*names]}, "books")
    # An empty file names no text.
    write_files({f"{missing}.txt": b""}, "books")
    splits = split_user_files([folder], FRACTIONS, tmp_path)
    given = {split: [part.path.name for part in parts] for split, parts in splits.items()}
    assert given.pop(missing) == []
    assert sorted(name for [name] in given.values()) == sorted(names)
    line = f"no name of a file or a folder has {missing}, which is empty\n"
    assert capfd.readouterr().err.endswith(line)


@pytest.mark.parametrize(
    ("names", "fractions", "is_named"),
    [
        (("train.txt", "val.txt", "test.txt"), (0.8, 0.1, 0.1), True),
        (("train.txt", "val.txt", "test.txt"), FRACTIONS, False),
        # As evaluate reads a text: all of it, unless names say otherwise.
        (("train.txt", "val.txt", "test.txt"), (0.0, 0.0, 1.0), False),
        (("a.txt", "b.txt", "c.txt", "d.txt"), (0.8, 0.1, 0.1), False),
    ],
)
def test_fractions_beside_names_that_give_the_splits_are_named(
    write_files, tmp_path, capfd, names, fractions, is_named
):
    folder = write_files({name: name.encode() for name in names}, "books")
    split_user_files([folder], fractions, tmp_path)
    line = "data.split has no effect, because names of files give the splits"
    assert capfd.readouterr().err == f"warning: {folder}: {line}\n" * is_named
