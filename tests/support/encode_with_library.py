"""Encode texts of tokenizer files with a library in another Python; imports nothing of this repository.

The standard input is a JSON object: ``library``, ``texts`` and ``files``, each with a ``path`` and settings.
The standard output is one, too: ``version`` and ``answers``, one for each file: the size of the vocabulary,
the EOD token and the ids with and without special tokens, or an ``error``. If the library is not installed,
it is ``missing``.
"""

import contextlib
import importlib.metadata
import json
import sys


def megatron_core(path, texts, **settings):
    """Encode with the class that --tokenizer-type TikTokenizer selects; it adds no special tokens."""
    from megatron.core.tokenizers.text.libraries.tiktoken_tokenizer import TikTokenTokenizer

    tokenizer = TikTokenTokenizer(path, **settings)
    ids = [tokenizer.text_to_ids(text) for text in texts]
    return {"size": tokenizer.vocab_size, "eod": tokenizer.eod}, [ids, ids]


def transformers(path, texts, *, is_directory=False, special_tokens=0):
    """Encode with AutoTokenizer, or with the tokenizer that a file of Llama 3 is converted to.

    The latter lacks its special tokens. These follow the ordinary tokens in the vocabulary; the first begins
    a text, the second ends it.
    """
    if is_directory:
        from transformers import AutoTokenizer

        auto = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        ids = [[auto(text, add_special_tokens=way).input_ids for text in texts] for way in (False, True)]
        return {"size": len(auto), "eod": auto.eos_token_id}, ids
    from transformers.convert_slow_tokenizer import TikTokenConverter

    tokenizer = TikTokenConverter(vocab_file=path, additional_special_tokens=[]).converted()
    first = tokenizer.get_vocab_size()
    ids = [tokenizer.encode(text).ids for text in texts]
    facts = {"size": first + special_tokens, "eod": first + 1}
    return facts, [ids, [[first, *one] for one in ids]]


LIBRARIES = {one.__name__.replace("_", "-"): one for one in (megatron_core, transformers)}


def answer(request):
    """Return the answer to a request."""
    try:
        version = importlib.metadata.version(request["library"])
    except importlib.metadata.PackageNotFoundError:
        return {"missing": request["library"]}
    answers = []
    for file in request["files"]:
        try:
            facts, ids = LIBRARIES[request["library"]](texts=request["texts"], **file)
            answers.append({**facts, "without": ids[0], "with": ids[1]})
        except Exception as error:  # whatever the libraries raise is an answer
            answers.append({"error": f"{type(error).__name__}: {error}"})
    return {"version": version, "answers": answers}


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        answered = json.dumps(answer(json.load(sys.stdin)))
    print(answered)
