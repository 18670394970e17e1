"""Packing: what Megatron's preprocessing does with a document's texts, against a plain twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokshard.errors import IntegrityError
from tokshard.text.tokenize.packing import pack_documents

documents = st.lists(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=3), max_size=8)


def twin(texts_of_documents, eod_id, *, append_eod):
    """FORMATS: texts without tokens give no sequence; EOD is counted in the last one."""
    tokens, lengths, sequences = [], [], []
    for texts in texts_of_documents:
        kept = [list(text) for text in texts if text]
        if kept and append_eod:
            kept[-1].append(eod_id)
        tokens += [token for text in kept for token in text]
        lengths += [len(text) for text in kept]
        sequences.append(len(kept))
    return tokens, lengths, sequences


def pack(texts_of_documents, *, append_eod, eod_id=9, dtype="uint16", counted=True):
    texts = [text for texts in texts_of_documents for text in texts]
    return pack_documents(
        np.array([token for text in texts for token in text], np.uint32),
        np.concatenate(([0], np.cumsum([len(text) for text in texts], dtype=np.int64))).astype(np.int64),
        np.array([len(texts) for texts in texts_of_documents], np.uint32) if counted else None,
        dtype=np.dtype(dtype),
        eod_id=eod_id,
        append_eod=append_eod,
    )


@given(documents, st.booleans())
def test_lists_of_texts_equal_the_twin(texts_of_documents, append_eod):
    packed = pack(texts_of_documents, append_eod=append_eod)
    tokens, lengths, sequences = twin(texts_of_documents, 9, append_eod=append_eod)
    assert packed.tokens.tolist() == tokens
    assert packed.lengths.tolist() == lengths
    assert packed.sequences.tolist() == sequences
    assert packed.counts.tokens == len(tokens)
    assert packed.counts.sequences == len(lengths)
    assert packed.counts.empty_documents == sequences.count(0)
    assert packed.counts.longest_sequence == max(lengths, default=0)
    flat = [token for texts in texts_of_documents for text in texts for token in text]
    assert packed.counts.eod_in_text == flat.count(9)


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=8), st.booleans())
def test_one_text_each_is_the_same_without_counting(texts, append_eod):
    single = [[text] for text in texts]
    counted, plain = (pack(single, append_eod=append_eod, counted=flag) for flag in (True, False))
    for name in ("tokens", "lengths", "sequences"):
        assert getattr(counted, name).tolist() == getattr(plain, name).tolist()


def test_dtypes():
    packed = pack([[[1]]], append_eod=True, dtype="int32")
    assert (packed.tokens.dtype, packed.lengths.dtype, packed.sequences.dtype) == ("int32", "int32", "uint32")


def test_an_id_beyond_the_dtype_is_refused():
    assert pack([[[65535]]], append_eod=False).tokens.tolist() == [65535]
    with pytest.raises(IntegrityError, match="65536"):
        pack([[[65536]]], append_eod=False)
