"""A package ``transformers`` that reads tokenizer.json and does what a test wants.

The program of tokshard runs as it does for users, and the tests need no transformers. tests/oracle and
scripts/tokenizer_directories run it with transformers itself.
"""

import shlex
import sys

from support.tokenizer_definitions import GPT2_BYTE_LEVEL, added, definition_of
from tokshard.text.tokenizer.huggingface import byte_alphabet

PACKAGE = """
import os, tokenizers
print("a message to stdout")
__version__ = "99.0"

class Encoded:
    def __init__(self, ids):
        self.input_ids = ids

class LikeFast:
    is_fast = True
    sep_token = cls_token = unk_token = mask_token = pad_token = bos_token = None
    eos_token = "<|end|>"

    def __init__(self, path):
        self.backend_tokenizer = tokenizers.Tokenizer.from_file(os.path.join(path, "tokenizer.json"))

    def add_special_tokens(self, tokens):
        for name, value in tokens.items():
            setattr(self, name, value)

    def __len__(self):
        return self.backend_tokenizer.get_vocab_size()

    def __call__(self, texts, add_special_tokens):
        encoded = self.backend_tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)
        return Encoded([one.ids for one in encoded])

class AutoTokenizer:
    @staticmethod
    def from_pretrained(path, use_fast, trust_remote_code, local_files_only):
        assert use_fast and local_files_only and not trust_remote_code
        assert os.environ["HF_HUB_OFFLINE"] == "1"
        tokenizer = LikeFast(path)
        {change}
        return tokenizer
"""


def python_with_transformers(directory, change="pass"):
    """Return the command of a Python with the package; ``change``: a statement about ``tokenizer``."""
    package = directory / "transformers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE.replace("{change}", change))
    start = f"echo a banner of a container; echo 1; exec {shlex.quote(sys.executable)}"
    return shlex.join(["env", f"PYTHONPATH={directory}", "sh", "-c", start])


def small_directory(**config):
    """Return the files of a tokenizer with one special token, whose settings change no ids."""
    vocabulary = {
        token: index for index, token in enumerate([*byte_alphabet(), "Ġt", "he", "Ġthe", "al", "all"])
    }
    merges = [["Ġ", "t"], ["h", "e"], ["Ġt", "he"], ["a", "l"], ["al", "l"]]
    definition = definition_of(
        {"type": "BPE", "vocab": vocabulary, "merges": merges},
        pre_tokenizer=GPT2_BYTE_LEVEL,
        added_tokens=[added(len(vocabulary), "<|end|>")],
    )
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", **config}
    return {"tokenizer.json": definition, "tokenizer_config.json": settings}
