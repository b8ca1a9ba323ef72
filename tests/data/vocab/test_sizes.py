"""How many bytes of text each token stands for."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from txl_lightning.data.vocab import Bytes, Characters, SubwordOptions, Subwords, WordOptions, Words
from txl_lightning.data.vocab.subwords import train_bpe, train_unigram

TEXT = "The king said: it's 1066, 'tis naïve!\n\n  And so…\tthey left 🙂. " * 20


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("make", [train_bpe, train_unigram])
def test_subwords_trained_here_add_up_to_the_text(document, make, size):
    vocab = make(lambda: [document(TEXT)], SubwordOptions(n_token=300))
    ids = np.concatenate(list(vocab.encode(document(TEXT, size))))
    assert vocab.token_bytes()[ids].sum() == len(TEXT.encode())


def test_bytes_and_characters_add_up_to_the_text(document):
    for vocab in (Bytes(), Characters.from_documents([document(TEXT)])):
        ids = np.concatenate(list(vocab.encode(document(TEXT))))
        assert vocab.token_bytes()[ids].sum() == len(TEXT.encode())


def test_an_added_token_has_the_bytes_of_its_text():
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<é>"])
    assert Subwords(tokenizer.to_str()).token_bytes().tolist() == [1, 4]


def test_of_words_and_of_what_changes_the_text_nothing_is_known():
    assert Words.from_list(["a"], WordOptions()).token_bytes() is None
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    assert Subwords(tokenizer.to_str()).token_bytes() is None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert Subwords(tokenizer.to_str()).token_bytes() is None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.normalizer = normalizers.Lowercase()
    assert Subwords(tokenizer.to_str()).token_bytes() is None
