"""Small models of tokenizers, trained on hostile texts and a few sentences."""

import io
import json
from functools import cache

from support.tokenizer_definitions import random_texts

ENGLISH = [
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n    return x ** 2  # square\n\n\nprint(f(3))",
    "It's 3,141,592 o'clock; don't you see? HTTPRequest to http://a.b/c?d=1&e=2",
    "  leading and trailing spaces  ",
    "Das Straßenschild in Zürich — ein „Zitat“.",
    "日本語のテキストと中文文本。",
    "",
    " ",
    "\n",
    "\ttabs\tand  double  spaces",
]


def _trained(library, trainer, seed):
    library.train_from_iterator([*random_texts(seed, 1500), *ENGLISH * 5], trainer)
    return json.loads(library.to_str())["model"]


@cache
def byte_model():
    import tokenizers

    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=900,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return _trained(library, trainer, 2)


@cache
def unigram_model():
    import tokenizers

    library = tokenizers.Tokenizer(tokenizers.models.Unigram())
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=700, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    model = _trained(library, trainer, 3)
    # The texts contain the special tokens, too; tokenizers 0.22 and 0.23 count repeated pieces differently.
    first = {}
    for piece, score in model["vocab"]:
        first.setdefault(piece, score)
    model["vocab"] = [[piece, score] for piece, score in first.items() if piece not in {"<s>", "<mask>"}]
    return model


@cache
def wordpiece_model():
    import tokenizers

    library = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    library.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=800, special_tokens=names, show_progress=False)
    return _trained(library, trainer, 4)


@cache
def sentencepiece_model():
    """Return a model file as of Llama 2, and the vocabulary and merges that transformers converts it to."""
    import sentencepiece

    lines = [line for text in [*random_texts(5, 800), *ENGLISH * 5] for line in text.split("\n") if line]
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line.replace("\0", "") for line in lines]),
        model_writer=written,
        model_type="bpe",
        vocab_size=1000,
        character_coverage=0.98,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        num_threads=1,
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    ids = {model.id_to_piece(index): index for index in range(model.vocab_size())}
    merges = []
    for piece, index in ids.items():
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        local = [pair for pair in halves if pair[0] in ids and pair[1] in ids]
        local.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += [(model.get_score(index), pair) for pair in local]
    merges.sort(key=lambda one: one[0], reverse=True)
    return written.getvalue(), ids, [list(pair) for _, pair in merges]
