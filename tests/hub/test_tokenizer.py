"""Vocabularies as fast tokenizers of transformers."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

import txl_lightning.hub  # noqa: F401
from txl_lightning.checkpoints import save_folder
from txl_lightning.convert import save_huggingface
from txl_lightning.data.text_files import FileSlice
from txl_lightning.data.vocab import Bytes, Characters, WordOptions, Words
from txl_lightning.data.vocab.subwords import SubwordOptions, Subwords, train_subwords
from txl_lightning.errors import DataError

pytestmark = pytest.mark.slow
TEXT = "The king said: it's 1066, 'tis naïve!\n\n  And so…\tthey left. " * 20
ODD = ["", " a  b ", "naïve é🙂\r\n\x00\x1c\u3000Ā", "the king's <s> </s> [PAD]", "日本 1066!"]


@pytest.fixture(params=["bpe", "unigram", "bytes"])
def vocab(request, tmp_path):
    if request.param == "bytes":
        return Bytes()
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    document = FileSlice(path, 0, path.stat().st_size)
    return train_subwords(request.param, [document], SubwordOptions(n_token=300))


def test_ids_and_text_are_those_of_the_vocabulary_also_after_saving(vocab, make_net, tmp_path):
    folder = tmp_path / "net"
    save_folder(make_net(n_token=vocab.n_token), folder, vocab)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(tmp_path / "again")
    save_folder(make_net(n_token=vocab.n_token), tmp_path / "again", vocab)
    for each in (tokenizer, AutoTokenizer.from_pretrained(tmp_path / "again")):
        assert (each.is_fast, each.vocab_size, len(each)) == (True, *[vocab.n_token] * 2)
        for text in (TEXT, *ODD):
            ids = vocab.encode_text(text).tolist()
            assert each(text).input_ids == each.encode(text) == ids
            assert each.decode(ids) == text


def test_symbols_truncation_and_padding_of_a_loaded_tokenizer_are_left_out(make_net, tmp_path):
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, "[SEP]": 9}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing("$A [SEP]", None, [("[SEP]", 9)])
    words.enable_truncation(3)
    words.enable_padding(length=8)
    vocab = Subwords.from_tokenizer(json.loads(words.to_str()))
    save_folder(make_net(n_token=vocab.n_token), tmp_path, vocab)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("a b c a b").input_ids == vocab.encode_text("a b c a b").tolist()


def test_rows_are_padded_before_their_text(make_net, tmp_path):
    save_folder(make_net(n_token=256), tmp_path, Bytes())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, pad_token="<pad>")
    batch = tokenizer(["ab", "c"], padding=True)
    assert batch.input_ids == [[97, 98], [256, 99]]
    assert batch.attention_mask == [[1, 1], [0, 1]]


@pytest.mark.parametrize("save", [save_folder, save_huggingface])
@pytest.mark.parametrize(
    "vocab",
    [Characters("abcdefghijk"), Words(("<unk>", "<eos>", *"abcdefghi"), WordOptions())],
    ids=["characters", "words"],
)
def test_other_vocabularies_are_refused_in_one_line(vocab, save, make_net, tmp_path):
    save(make_net(), tmp_path, vocab)
    message = rf"^vocab\.json: invalid {vocab.unit}s; expected subwords or bytes.*$"
    with pytest.raises(DataError, match=message):
        AutoTokenizer.from_pretrained(tmp_path)
