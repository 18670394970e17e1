"""A corpus and tiny tokenizers of each type of Megatron, and the runner of its preprocess_data.py."""

import base64
import json
import subprocess
from pathlib import Path

from support.command_line import SAMPLE
from support.tokenizer_definitions import random_texts

RUNNER = Path(__file__).with_name("preprocess_data_runner.py")
HUGGING_FACE = ("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model")
SENTENCEPIECE = ("Llama2Tokenizer", "GPTSentencePieceTokenizer", "SentencePieceTokenizer")
TIKTOKENIZER = ("--tokenizer-type", "TikTokenizer", "--tokenizer-model", "ranks.json", "--vocab-size")
NULL = ("--tokenizer-type", "NullTokenizer", "--vocab-size")
INCLUDE, EXCLUDE = "--tokenizer-hf-include-special-tokens", "--tokenizer-hf-no-include-special-tokens"
OWN_TOKENS = ("</s>", "the", "<unk>", "<s>", "<mask>", "<pad>", "<cls>", "<sep>")
SPECIAL_TEXT = "<|endoftext|>two  spaces</s> <mask>\n\n <s>"


def gpt2(directory):
    """Return the words of GPT2BPETokenizer with the files of a directory."""
    files = ("--vocab-file", f"{directory}/vocab.json", "--merge-file", f"{directory}/merges.txt")
    return ("--tokenizer-type", "GPT2BPETokenizer", *files)


def make_inputs(directory):
    """Write texts.jsonl, ids.jsonl and a tokenizer of each type into a directory.

    Megatron loads "gpt2" from the Hub: where it runs in this directory, it finds the directory ``gpt2``.
    """
    with (SAMPLE / "stories.jsonl").open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in list(file)[:80]]
    documents = [text if number % 4 else ["", *text.split(". ")] for number, text in enumerate(texts)]
    documents += ["", " ", [], SPECIAL_TEXT, texts[0] + SPECIAL_TEXT + texts[1], *random_texts("preset", 200)]
    write_lines(directory / "texts.jsonl", documents)
    numbers = [" ".join(str(997 * n * k % 50000) for k in range(1, 2 + n % 50)) for n in range(200)]
    write_lines(directory / "ids.jsonl", [*numbers, ["1 2", "3"], []])
    _hugging_face(directory)
    _sentencepiece(directory, texts)
    tokens = _byte_level(directory / "gpt2", texts, 600)
    _byte_level(directory / "own", texts, 500)
    ranks = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": ""}
        for rank, token in enumerate(tokens)
    ]
    (directory / "ranks.json").write_text(json.dumps(ranks))


def write_lines(path, documents):
    """Write documents with two fields, one of which has a dot in its name."""
    lines = [{"text": each, "meta.text": documents[-number]} for number, each in enumerate(documents)]
    path.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in lines), encoding="utf-8")


def _hugging_face(directory):
    definition = json.loads((SAMPLE / "tokenizer.json").read_text())
    token = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    named = {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [token, text],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": named},
    }
    for name, key in (("bos", "eos_token"), ("sep", "sep_token")):
        (directory / name).mkdir()
        (directory / name / "tokenizer.json").write_text(json.dumps(definition))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", key: "<|endoftext|>"}
        (directory / name / "tokenizer_config.json").write_text(json.dumps(config))


def _sentencepiece(directory, texts):
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.replace("\n", " ") for text in texts),
        model_prefix=str(directory / "x"),
        vocab_size=1000,
        hard_vocab_limit=False,
        minloglevel=2,
    )


def _byte_level(directory, texts, size):
    # Write the directory of a tokenizer of class GPT2Tokenizer; return its tokens, bytes first.
    import tokenizers

    directory.mkdir()
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, vocab_size=size, special_tokens=["<|endoftext|>"], show_progress=False)
    trained.save_model(str(directory))
    vocabulary = json.loads((directory / "vocab.json").read_text())
    trained.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text('{"model_type": "gpt2"}')
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    byte_of = {character: byte for byte, character in _byte_characters().items()}
    ordinary = [key for key in sorted(vocabulary, key=vocabulary.__getitem__) if key != "<|endoftext|>"]
    longer = [bytes(byte_of[character] for character in key) for key in ordinary if len(key) > 1]
    return [*(bytes([byte]) for byte in range(256)), *longer]


def _byte_characters():
    # The characters that stand for bytes in GPT-2's vocabulary.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


class Script:
    """The tools/preprocess_data.py of a checkout, imported once by a Python and run in forks of it.

    Raises:
        RuntimeError: The script cannot be imported; with the last line of the traceback.
    """

    def __init__(self, python, checkout, directory, environment):
        messages = Path(directory, "imports.log")
        with messages.open("w") as log:
            self._process = subprocess.Popen(
                [python, str(RUNNER), f"{checkout}/tools/preprocess_data.py"],
                cwd=directory, env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        started = self._process.stdout.readline()
        if not started:
            self.close()
            raise RuntimeError(messages.read_text().strip().splitlines()[-1])
        self.transformers = json.loads(started)

    def run(self, words, log):
        """Return the exit code of the script with these words; its messages are written to ``log``."""
        self._process.stdin.write(json.dumps([list(map(str, words)), str(log)]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        """End the process."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
