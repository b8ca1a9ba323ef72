"""Ids that other programs have written, and stores without a text."""

import json
import re
import shutil
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from txl_lightning import CorpusDataModule
from txl_lightning.checkpoints import LoadedCheckpoint, load_checkpoint
from txl_lightning.commands.given_texts import find_kind
from txl_lightning.commands.inputs import find_id_options, read_ids
from txl_lightning.data import id_files
from txl_lightning.data.id_files import IdOptions
from txl_lightning.data.id_types import find_type
from txl_lightning.data.sources import DataConfig
from txl_lightning.data.store import EvalText, Store
from txl_lightning.data.vocab import Bytes
from txl_lightning.errors import DataError
from txl_lightning.files import hash_values, write_json

IDS = np.random.default_rng(0).integers(0, 300, 2000)
STARTS = [0, 7, 8, 500, 1500, 1999]
ALL_TRAIN = (1.0, 0.0, 0.0)


def save_npy(folder: Path) -> None:
    np.save(folder / "a.npy", IDS)
    np.save(folder / "starts.npy", STARTS)


def save_flat(folder: Path) -> None:
    IDS.astype("<u2").tofile(folder / "a.bin")
    np.save(folder / "starts.npy", STARTS)


def save_megatron(folder: Path) -> None:
    """Two sequences in each document but the last."""
    IDS.astype("<i4").tofile(folder / "a.bin")
    bounds = np.unique([*STARTS, *(start + 1 for start in STARTS[:-1]), len(IDS)])
    lengths = np.diff(bounds).astype("<i4")
    pointers = (4 * bounds[:-1]).astype("<i8")
    documents = [*np.searchsorted(bounds, STARTS), len(bounds) - 1]
    with (folder / "a.idx").open("wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, len(bounds) - 1, len(documents)))
        file.write(lengths.tobytes() + pointers.tobytes() + np.array(documents, "<i8").tobytes())


def save_datatrove(folder: Path, kind: str = "<u2") -> None:
    IDS.astype(kind).tofile(folder / "a.ds")
    np.array([*STARTS[1:], len(IDS)], "<u8").tofile(folder / "a.ds.index")


FORMATS = {
    "npy": (save_npy, "a.npy", {"starts": "starts.npy"}),
    "flat": (save_flat, "a.bin", {"starts": "starts.npy"}),
    "megatron": (save_megatron, "a.bin", {}),
    "datatrove": (save_datatrove, "a.ds", {}),
    "datatrove of 4 bytes": (lambda folder: save_datatrove(folder, "<u4"), "a.ds", {}),
}


@pytest.fixture
def open_ids(tmp_path, monkeypatch):
    """Open ids in tmp_path as a text."""
    monkeypatch.chdir(tmp_path)

    def run(ids, split=ALL_TRAIN, vocab=None, **options):
        return DataConfig(ids=ids, split=split, vocab=vocab, id_options=options).open_text()

    return run


@pytest.mark.parametrize("name", FORMATS)
def test_ids_of_each_format_are_read_with_their_documents(open_ids, tmp_path, monkeypatch, name):
    save, file, options = FORMATS[name]
    save(tmp_path)
    store = open_ids(file, **options)
    monkeypatch.setattr(id_files, "IDS_AT_ONCE", 64)
    shutil.rmtree("data")
    for each in (store, open_ids(file, **options)):
        text = each.text("train")
        np.testing.assert_array_equal(text.ids, IDS)
        assert text.starts.tolist() == STARTS
        assert each.fingerprint == store.fingerprint
    assert (store.vocab.n_token, store.bytes_per_token("train")) == (1 + IDS.max(), None)


MANY = np.random.default_rng(1).integers(0, 300, 4000)
TEXT_LIKE = np.random.default_rng(2).zipf(1.3, 4000) % 50_257  # small ids are frequent
LARGE = np.where(MANY < 20, MANY + 70_000, MANY)
LLM_C = {"<u2": (20240520, 1), "<u4": (20240801, 7)}


def save_llm_c(path: str, kind: str, ids: np.ndarray, **changes: int) -> None:
    header = np.zeros(256, "<i4")
    header[:3] = *LLM_C[kind], len(ids)
    for place, value in changes.items():
        header[int(place[1:])] = value
    Path(path).write_bytes(header.tobytes() + ids.astype(kind).tobytes())


@pytest.mark.parametrize("kind", LLM_C)
def test_the_header_of_llm_c_gives_the_type_whatever_the_option_says(open_ids, kind):
    ids = LARGE if kind == "<u4" else MANY
    save_llm_c("a.bin", kind, ids)
    for options in ({}, {"dtype": "uint32"}, {"dtype": "uint8"}):
        assert open_ids("a.bin", **options).text("train").ids.tolist() == ids.tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_1": 2}, "unknown header 20240520, version 2"),
        ({"_0": 20240522}, "unknown header 20240522, version 1"),
        ({"_2": 3999}, "truncated: 9,024 bytes; expected 9,022, as its header says"),
    ],
)
def test_an_unknown_header_is_refused(open_ids, changes, message):
    save_llm_c("a.bin", "<u2", MANY, **changes)
    with pytest.raises(DataError, match=message):
        open_ids("a.bin")


@pytest.mark.filterwarnings("ignore:.*every second id")
@pytest.mark.parametrize(
    ("kind", "ids", "message"),
    [
        ("<u4", MANY, "int32 or uint32"),
        ("<u4", LARGE, "int32 or uint32"),
        ("<i4", np.where(MANY < 9, -100, MANY), "int32 or uint32"),
        ("<i4", MANY[:200], "int32 or uint32"),
        ("<i4", MANY % 4, "int32 or uint32"),
        ("<i8", LARGE, "int64"),
        ("<i8", MANY % 2, "int64"),
        (">u4", LARGE, "32 or 64 bits, the highest byte first"),
        (">i8", MANY, "32 or 64 bits, the highest byte first"),
        (">u2", MANY, "16 bits, the highest byte first"),
        (">u2", MANY % 4, "16 bits, the highest byte first"),
        (">u2", TEXT_LIKE, "16 bits, the highest byte first"),
        ("u1", MANY % 70, "uint8"),
        ("u1", MANY % 4, "uint8"),
        ("u1", MANY % 26 + 97, "a text"),
    ],
)
def test_ids_that_do_not_say_their_type_and_look_like_another_are_refused(
    open_ids, kind, ids, message
):
    ids.astype(kind).tofile("a.bin")
    with pytest.raises(DataError) as error:
        open_ids("a.bin")
    expected = "expected uint16, or the type given as data.id_options.dtype, or a .npy"
    assert str(error.value) == f"a.bin: invalid ids: it looks like {message}; {expected}"
    if kind[0] != ">":
        options = {"dtype": {"u1": "uint8", "<u4": "uint32", "<i4": "int32"}.get(kind, "int64")}
        if ids.min() >= 0:
            assert open_ids("a.bin", **options).text("train").ids.tolist() == ids.tolist()
        assert open_ids("a.bin", dtype="uint16").vocab.n_token > 1


@pytest.mark.parametrize(
    "ids",
    [
        IDS, MANY, MANY % 4, MANY % 2, MANY % 2 * 300, MANY[:20], MANY[:20] % 4, (MANY < 3) * 300,
        TEXT_LIKE, np.full(4000, 256), np.zeros(4000, int), np.arange(4000) % 50_257,
        np.random.default_rng(3).integers(0, 50_257, 4000), np.where(MANY < 9, 50_256, MANY % 4),
        np.stack([MANY[:2000] % 128, 128 + MANY[2000:] % 64], axis=1).ravel(),
    ],
)  # fmt: skip
def test_small_frequent_and_rare_ids_of_16_bits_are_read(open_ids, ids):
    ids.astype("<u2").tofile("a.bin")
    assert open_ids("a.bin").text("train").ids.tolist() == ids.tolist()


@pytest.mark.parametrize("mark", [b"LITPKDS\0", b"PK\3\4", b"\x93NUMPY\1\0", b"\x1f\x8b\x08\0"])
def test_a_file_of_another_format_is_refused_by_its_mark(open_ids, mark):
    Path("a.bin").write_bytes(mark + MANY.astype("<u2").tobytes())
    with pytest.raises(DataError, match=r"a.bin: invalid ids: it looks like a"):
        open_ids("a.bin")


@pytest.mark.parametrize("name", ["a.bin", "a.npy", "a.ds"])
def test_a_git_lfs_pointer_is_not_read_as_ids(open_ids, name):
    Path(name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(DataError, match=rf"{name}: a Git LFS pointer in place of the file; run:"):
        open_ids(name)


def test_an_assumed_type_must_hold_all_ids_of_the_vocabulary(open_ids):
    MANY.astype("<u2").tofile("a.bin")
    with pytest.raises(DataError, match=r"a.bin: a vocabulary of 100,000 needs a larger type"):
        open_ids("a.bin", n_token=100_000)
    open_ids("a.bin", n_token=65_536)
    assert open_ids("a.bin", n_token=100_000, dtype="uint16").vocab.n_token == 100_000


def test_ids_that_are_far_too_large_are_refused(open_ids):
    MANY.astype("<u2").tofile("a.bin")
    with pytest.raises(DataError, match=r"expected ids below 16,777,216; set data.id_options"):
        open_ids("a.bin", dtype="uint32")


def test_evaluation_reads_other_ids_as_those_of_training(accepted, refused, small, tmp_path):
    ids = IDS % 50
    for name in ("a.bin", "b.bin"):
        ids.astype("<u4").tofile(tmp_path / name)
    options = ("--id_options.dtype=uint32", "--id_options.separator=9")
    accepted("prepare", "a.bin", "--out=store", *options)
    accepted("fit", *small[:-1], "--trainer.max_steps=1", "--data.store=store")
    record = json.loads(accepted("evaluate", "runs/version_0", "--path=b.bin").out)
    # The first token of each document is not scored.
    n_start = 1 + np.count_nonzero(ids[:-1] == 9)
    assert (record["tokens"], record["tokens_scored"]) == (len(ids), len(ids) - n_start)
    for path, what in (("b.bin", "has ids"), ("store", "is prepared")):
        code, line = refused(
            "evaluate", "runs/version_0", f"--path={path}", "--document_unit=files"
        )
        expected = f"document_unit: invalid files; expected null, because {path} {what}"
        assert (code, line) == (2, expected)
    # As inspect and recl read it.
    checkpoint = load_checkpoint("runs/version_0")
    vocab = checkpoint.load_vocabulary()
    assert read_ids(checkpoint, vocab, "b.bin", None).tolist() == ids.tolist()
    val = DataConfig(store="store").open_text().ids("val")
    assert 0 < len(val) < len(ids)
    assert read_ids(checkpoint, vocab, "store", "val").tolist() == val.tolist()


def test_the_settings_of_a_run_say_how_the_ids_of_an_older_checkpoint_were_read(write_files):
    settings = b"data: {ids: a.bin, id_options: {dtype: uint32, separator: 9, starts: a.npy}}"
    folder = write_files({"config.yaml": settings, "run.json": b"{}", "checkpoints/a.ckpt": b""})
    checkpoint = LoadedCheckpoint(folder / "checkpoints" / "a.ckpt", "", {})
    assert find_id_options(checkpoint) == IdOptions("uint32", separator=9)


def test_a_model_of_bytes_reads_a_file_of_ids_as_ids(write_files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write_files({"config.yaml": b"data: {}", "run.json": b"{}", "checkpoints/a.ckpt": b""})
    checkpoint = LoadedCheckpoint(folder / "checkpoints" / "a.ckpt", "", {})
    np.save("a.npy", IDS % 256)
    assert read_ids(checkpoint, Bytes(), "a.npy", None).tolist() == (IDS % 256).tolist()
    np.save("a.npy", [256])
    with pytest.raises(DataError, match=r"a\.npy: invalid id 256; expected ids from 0 to 255"):
        read_ids(checkpoint, Bytes(), "a.npy", None)
    Path("a.bin").write_bytes(b"a text, not ids\n" * 99)
    with pytest.raises(DataError, match=r"a\.bin: invalid ids: it looks like a text"):
        read_ids(checkpoint, Bytes(), "a.bin", None)


@pytest.mark.parametrize("size", [1 << 20, 16, 1])
def test_documents_end_with_the_separator(open_ids, tmp_path, monkeypatch, size):
    ids = IDS % 5
    ids.astype("<u2").tofile(tmp_path / "a.bin")
    monkeypatch.setattr(id_files, "IDS_AT_ONCE", size)
    starts = open_ids("a.bin", separator=4).text("train").starts
    assert starts.tolist() == [0, *(np.flatnonzero(ids[:-1] == 4) + 1)]


def test_ids_are_cut_by_fractions_between_documents(open_ids, tmp_path):
    save_datatrove(tmp_path)
    store = open_ids("a.ds", split=(0.3, 0.3, 0.4))
    # 600 and 1,200 are in the fourth document, so that the fifth is all of test.
    sizes = [len(store.text(split)) for split in ("train", "val", "test")]
    assert sizes == [1500, 0, 500]
    (tmp_path / "a.ds.index").unlink()
    (tmp_path / "a.ds").rename("a.bin")
    store = open_ids("a.bin", split=(0.3, 0.3, 0.4))
    assert [len(store.text(split)) for split in ("train", "val", "test")] == [600, 600, 800]


def test_three_files_of_ids_are_train_val_and_test(open_ids, tmp_path):
    names = [f"{name}.bin" for name in ("train", "val", "again")]
    for name in names:
        IDS[: 100 + len(name)].astype("<u2").tofile(tmp_path / name)
    store = open_ids(names, split=(0.9, 0.05, 0.05))
    assert [len(store.text(split)) for split in ("train", "val", "test")] == [109, 107, 109]


@pytest.mark.parametrize(
    ("names", "path", "kind"),
    [
        ("a.txt", "a.txt", "path"),
        ("a.npy", "a.npy", "ids"),
        ("a.txt b.bin", ".", "path"),
        ("texts.bin/a.txt", "texts.bin", "path"),
        ("a.txt manifest.json", ".", "store"),
    ],
)
def test_a_path_is_read_as_ids_by_the_ending_of_its_name(write_files, names, path, kind):
    folder = write_files(dict.fromkeys(names.split(), b'{"n_document": {}}'))
    assert find_kind(folder / path) == kind


def test_the_manifest_of_another_program_makes_no_store(write_files):
    folder = write_files({"a.txt": b"12", "manifest.json": b'{"name": "a web app"}'})
    assert find_kind(folder) == "path"
    (folder / "manifest.json").write_bytes(b'{"n_document": {')
    assert find_kind(folder) == "store"


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("flat", "a.bin", b"abc", "a.bin: truncated: 3 bytes; expected 2"),
        ("megatron", "a.bin", b"a" * 400, "a.bin: truncated: 400 bytes"),
        ("megatron", "a.idx", b"MMIDIDX", "a.idx: damaged, or not an index"),
        ("datatrove", "a.ds", b"a" * 400, "a.ds: truncated: 400 bytes"),
        ("datatrove", "a.ds.index", None, "a.ds.index: cannot be read"),
        ("npy", "a.npy", [1.0], "a.npy: invalid float64 of shape"),
        ("npy", "a.npy", [[1, 2]], "expected whole numbers in one dimension"),
        ("npy", "a.npy", b"\x93NUMPY", "a.npy: damaged, or not a .npy"),
        ("npy", "a.npy", [{}], "a.npy: damaged, or not a .npy"),
        ("npy", "a.npy", [*range(-1, 1999)], "a.npy: invalid id -1; expected ids from 0"),
        ("flat", "starts.npy", [5, 3], "starts.npy: invalid starts of documents"),
        ("megatron", "a.idx", lambda raw: raw[:-16] + bytes(8) + raw[-8:], "a.bin: invalid starts"),
        ("megatron", "a.idx", lambda raw: raw[:17] + b"\6" + raw[18:], "Megatron with whole numb"),
        ("datatrove", "a.ds.index", lambda raw: raw[8:16] + raw, "a.ds: invalid starts of docum"),
        ("npy", "starts.npy", [0, 5, 3], "starts.npy: invalid starts of documents"),
        ("npy", "starts.npy", [0, 9999], "expected positions from 0 to 2,000, in order"),
    ],
)
def test_files_that_are_no_ids_are_refused_in_one_line(
    open_ids, tmp_path, name, file, content, message
):
    save, path, options = FORMATS[name]
    save(tmp_path)
    if content is None:
        Path(file).unlink()
    elif callable(content):
        Path(file).write_bytes(content(Path(file).read_bytes()))
    elif isinstance(content, bytes):
        Path(file).write_bytes(content)
    else:
        np.save(file, content)
    with pytest.raises(DataError) as error:
        open_ids(path, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", FORMATS)
def test_ids_beyond_a_given_vocabulary_are_refused(open_ids, tmp_path, name):
    save, file, options = FORMATS[name]
    save(tmp_path)
    message = rf"{re.escape(file)}: invalid id 299; expected ids from 0 to 298"
    with pytest.raises(DataError, match=message):
        open_ids(file, n_token=299, **options)


def test_a_tokenizer_gives_ids_their_text_and_bytes(open_ids, tmp_path):
    (tmp_path / "text.txt").write_text("a book of words, and more words\n" * 200)
    config = DataConfig(path="text.txt", vocab="bpe", split=ALL_TRAIN)
    text = config.open_text()
    np.save("a.npy", text.ids("train"))
    Path("tokenizer.json").write_text(text.vocab.tokenizer)
    store = open_ids("a.npy", vocab="tokenizer.json")
    assert store.manifest["bytes"] == text.manifest["bytes"]
    assert store.bytes_per_token("train") == text.bytes_per_token("train")
    assert store.vocab.decode(store.ids("train")).startswith("a book of words, and more words\na")


@pytest.mark.parametrize("is_special", [True, False])
def test_marks_between_the_texts_of_ids_have_no_bytes(open_ids, is_special):
    Path("text.txt").write_text("a book of words, and more words\n" * 200)
    text = DataConfig(path="text.txt", vocab="bpe", split=ALL_TRAIN).open_text()
    tokenizer = json.loads(text.vocab.tokenizer)
    mark = text.vocab.n_token
    same = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = {"id": mark, "content": "<|endoftext|>", "special": is_special} | same
    tokenizer["added_tokens"].append(added)
    Path("tokenizer.json").write_text(json.dumps(tokenizer))
    np.save("a.npy", np.concatenate([text.ids("train")[:50], [mark] * 9, text.ids("train")[50:]]))
    options = {} if is_special else {"separator": mark}
    store = open_ids("a.npy", vocab="tokenizer.json", **options)
    assert store.n_byte == text.n_byte
    expected = text.n_byte["train"] / (len(text.ids("train")) + 9)
    assert store.bytes_per_token("train") == pytest.approx(expected)
    scored = EvalText.from_store("a", store, "train")
    assert scored.count_bytes(np.arange(len(scored.tokens))) == text.n_byte["train"]
    # In a text, a mark has its letters.
    Path("marked.txt").write_text("a book<|endoftext|>a book")
    marked = DataConfig(path="marked.txt", vocab="tokenizer.json", split=ALL_TRAIN).open_text()
    scored = EvalText.from_store("marked", marked, "train")
    assert mark in marked.ids("train")
    assert scored.count_bytes(np.arange(len(scored.tokens))) == marked.n_byte["train"] == 25
    # Until version 8, a store counted marks as text.
    folder = store.folder
    manifest = store.manifest | {"version": 8, "bytes": {"train": 10**6, "val": 0, "test": 0}}
    write_json(manifest | {"checksum": hash_values(manifest)}, folder / "manifest.json")
    assert Store(folder, store.data_dir).n_byte == text.n_byte
    assert f"{text.n_byte['train']:,} bytes" in Store(folder, store.data_dir).describe()


@pytest.mark.parametrize(
    "options", [{"separator": 4}, {"separator": None}, {"starts": "b.npy"}, {"starts": "c.npy"}]
)
def test_a_run_on_ids_continues_only_with_the_same_documents(open_ids, options):
    np.save("a.npy", IDS)
    # As many documents as the separator makes, and their places but for one.
    starts = np.concatenate([[0], np.flatnonzero(IDS[:-1] == 3) + 1])
    np.save("b.npy", starts)
    starts[-1] += 1
    np.save("c.npy", starts)
    settings = {"ids": "a.npy", "split": ALL_TRAIN, "order": "shuffled"}
    before = CorpusDataModule(**settings, id_options={"separator": 3})
    after = CorpusDataModule(**settings, id_options=options)
    if options == {"starts": "b.npy"}:
        after.load_state_dict(before.state_dict())
        return
    with pytest.raises(DataError, match=r"data \(a.npy\): the checkpoint's is .*, this text's"):
        after.load_state_dict(before.state_dict())


def test_training_on_ids_and_on_a_store_of_them_is_the_same(txl, small, tmp_path, monkeypatch):
    """Also evaluation, and generation from ids to ids."""
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", IDS)
    fit = ("fit", *small[:-1], "--model.net.n_layer=1")
    assert txl("prepare", "a.npy", "--out=store")[0] == 0
    Path("a.npy").rename("other.npy")
    assert txl(*fit, "--data.store=store")[0] == 0
    assert txl(*fit, "--data.ids=other.npy", "--trainer.default_root_dir=again")[0] == 0
    runs = [Path(root, "version_0/checkpoints/last.ckpt") for root in ("runs", "again")]
    one, two = (torch.load(path, weights_only=True)["state_dict"] for path in runs)
    torch.testing.assert_close(one, two, rtol=0, atol=0)
    code, output = txl("test", "runs/version_0")
    assert (code, "test/bits_per_token" in output.out) == (0, True), output.err
    results = [json.loads(txl("evaluate", "runs/version_0", "--path", path)[1].out)
               for path in ("other.npy", "store")]  # fmt: skip
    assert [result["tokens"] for result in results] == [2000, 100]
    nats = []
    for root in ("runs", "again"):
        assert txl("predict", f"{root}/version_0")[0] == 0
        nats.append(np.load(f"{root}/version_0/nats.npy"))
    np.testing.assert_array_equal(*nats)
    assert np.isfinite(nats[0]).sum() > 90
    generate = ("generate", "runs/version_0", "--prompt_ids=1,2", "--max_new_tokens=3", "--seed=1")
    code, output = txl(*generate, "--out_ids=new.npy")
    assert (code, output.out) == (0, "1 2 " + " ".join(map(str, np.load("new.npy"))) + " \n")
    again = txl(*generate[:2], "--prompt_ids=new.npy", "--max_new_tokens=0")[1].out
    assert again.split() == output.out.split()[2:]


def test_the_same_bytes_in_another_type_are_another_text(open_ids):
    kinds = ("<u4", "<i4", "<u2", ">u2", "u1")
    raw = np.arange(1200).astype("<u4").tobytes()
    stores = {}
    for kind in kinds:
        np.save("a.npy", np.frombuffer(raw, kind))
        stores[kind] = open_ids("a.npy")
        expected = np.frombuffer(raw, kind)
        tokens = stores[kind].text("train")
        assert tokens.ids_at(np.arange(len(tokens))).tolist() == expected.tolist(), kind
    assert len({store.folder for store in stores.values()}) == len(kinds)


def test_a_store_of_ids_that_does_not_say_their_type_is_found_again(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", IDS)
    source = DataConfig(ids=str(tmp_path / "a.npy"), data_dir=str(tmp_path / "data")).source
    describe = id_files.IdEncoding.describe

    def leave_out_types(self, data_dir):
        described = describe(self, data_dir)
        return {name: value for name, value in described.items() if name != "types"}

    with monkeypatch.context() as patch:
        patch.setattr(id_files.IdEncoding, "describe", leave_out_types)
        store = source.write_store(tmp_path / "out")
    assert "types" not in store.manifest
    assert source.write_store(tmp_path / "out").fingerprint == store.fingerprint


def test_an_index_whose_differences_overflow_is_refused(open_ids):
    IDS.astype("<u2").tofile("a.ds")
    np.array([400, 2**63, len(IDS)], "<u8").tofile("a.ds.index")
    with pytest.raises(DataError, match=r"a\.ds.*: invalid starts of documents; expected"):
        open_ids("a.ds")


@pytest.mark.parametrize("unit", ["lines", "none"])
def test_document_unit_has_no_effect_on_ids(tmp_path, monkeypatch, unit):
    monkeypatch.chdir(tmp_path)
    save_datatrove(tmp_path)
    settings = DataConfig(ids="a.ds", split=ALL_TRAIN, document_unit=unit)
    with pytest.warns(UserWarning, match="document_unit: no effect, because a.ds has ids"):
        text = settings.open_text().text("train")
    assert text.ids_at(np.arange(len(IDS))).tolist() == IDS.tolist()
    assert list(text.starts) == STARTS


@pytest.mark.parametrize(("written", "given"), [("<i8", "uint32"), ("<i4", "uint16")])
def test_ids_of_twice_the_given_width_are_read_with_a_warning(tmp_path, written, given):
    path = tmp_path / "a.bin"
    (IDS % 50 + 1).astype(written).tofile(path)
    with pytest.warns(UserWarning, match=rf"a\.bin: every second id of {given[4:]} bits is 0"):
        assert find_type(path, given)[0] == np.dtype(given)


@pytest.mark.parametrize("given", ["uint16", "uint32", "int64"])
def test_ids_of_the_given_width_have_no_warning(tmp_path, given):
    path = tmp_path / "a.bin"
    (IDS % 50).astype(given).tofile(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        find_type(path, given)
