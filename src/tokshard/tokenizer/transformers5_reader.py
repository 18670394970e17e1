"""Reading of a directory by transformers 5, whose classes rebuild most parts of ``tokenizer.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokshard.tokenizer.added_tokens import AddedTokens, NamedToken, Token, decoded, named_token, text_of
from tokshard.tokenizer.directory_reader import ADDITIONAL, EXTRA, NAMED_TOKENS, DirectoryReader, object_of
from tokshard.tokenizer.huggingface import model_type
from tokshard.tokenizer.transformers_classes import (
    CLASSES_5,
    GENERIC,
    Class5,
    UnloadableError,
    built_parts,
    class_5,
)


class Transformers5Reader(DirectoryReader):
    """The reader for version 5."""

    version = "5"
    list_key = EXTRA

    def load(self) -> None:
        """Do the steps of version 5."""
        self.refuse_settings()
        files = self.files
        self.name = class_5(self.kwargs, files.model_config or {}, has_byte_level=files.has_byte_level)
        if self.name not in CLASSES_5 and self.name != GENERIC:
            self.unfollowed.append(f"tokenizer_class {self.name}")
            self.name = GENERIC
        # The class is given the post-processor of the file.
        for name in ("add_bos_token", "add_eos_token"):
            self.kwargs.pop(name, None)
        if ADDITIONAL in self.kwargs and not self.kwargs.get(EXTRA):
            self.kwargs[EXTRA] = self.kwargs.pop(ADDITIONAL)
        own = self._own_tokens()
        self.read_decoder()
        if isinstance(self.kwargs.get(EXTRA), dict):
            own.update(self.kwargs.pop(EXTRA))
        name = "model_specific_special_tokens"
        own = own or object_of(self.kwargs.get(name) or {}, name)
        if self.name != GENERIC:
            self._build(CLASSES_5[self.name])
        rules = CLASSES_5.get(self.name)
        self.name_tokens({} if rules is None else rules.tokens)
        self._set_extra(own)
        self._add_tokens()
        self.splits = bool(self.kwargs.get("split_special_tokens"))
        if rules is not None:
            if rules.readds:
                self._add_again()
            self._set_post_processor(rules)
        self.add_for_megatron()

    def _own_tokens(self) -> dict[str, Any]:
        """Take the tokens out of the configuration whose names no other class knows."""
        own = {
            key: self.kwargs.pop(key)
            for key, value in list(self.kwargs.items())
            if key.endswith("_token") and key not in NAMED_TOKENS and isinstance(value, str)
        }
        if isinstance(self.kwargs.get(EXTRA), dict):
            own.update(self.kwargs.pop(EXTRA))
        return own

    def _build(self, rules: Class5) -> None:
        """Replace the parts that the class builds."""
        model = self.files.definition["model"]
        if model_type(model) != rules.model:
            self.unfollowed.append(f"{self.name} makes a {rules.model} model of another")
            self.name = GENERIC
            return
        named = {name: self.kwargs.get(name, default) for name, default in rules.tokens.items()}
        kwargs = {**self.kwargs, **{name: text_of(decoded(value)) for name, value in named.items()}}
        self.parts |= built_parts(self.name, model, kwargs, self.files.definition.get("normalizer"))
        self.added = AddedTokens([])

    def _set_extra(self, own: Mapping[str, Any]) -> None:
        if self.name == "T5Tokenizer":
            self.kwargs.setdefault(EXTRA, self.sentinel_names())
        if ADDITIONAL in self.kwargs and EXTRA not in self.kwargs:
            self.kwargs[EXTRA] = self.kwargs.pop(ADDITIONAL)
        self.extra = [named_token(token, EXTRA) for token in self.listed(EXTRA)]
        for key, value in self.kwargs.items():
            if key.endswith("_token") and key not in NAMED_TOKENS:
                token = decoded(value)
                if isinstance(token, (str, Token)):
                    self.special[key] = token
        for key, value in own.items():
            self.special[key] = named_token(value, key)

    def _add_tokens(self) -> None:
        new: list[NamedToken] = list(self.unknown_of_decoder())
        known = {*self.added.tokens, *map(text_of, new)}
        # Texts are compared with texts, and tokens with tokens.
        waiting = set(map(_resolved, new))
        for token in self.special_tokens():
            if text_of(token) not in known and _resolved(token) not in waiting:
                new.append(token)
                waiting.add(_resolved(token))
        self.add(new, {text_of(token) or "" for token in self.special.values()})

    def _add_again(self) -> None:
        for token in (*self.special.values(), *self.extra):
            if self.name == "CohereTokenizer" and isinstance(token, Token):
                self.added.add(replace(token, special=True))
            else:
                self.added.add(Token(text_of(token) or "", normalized=False, special=True))

    def _set_post_processor(self, rules: Class5) -> None:
        """Set the post-processor of classes that have one."""
        named = {name: text_of(token) or "" for name, token in self.special.items()}
        match self.name:
            case "GPTNeoXTokenizer":
                self.parts["post_processor"] = self.template(None, None)
            case "T5Tokenizer":
                if "eos_token" not in named:
                    raise UnloadableError("T5Tokenizer requires an eos_token")
                self.parts["post_processor"] = self.template(None, named["eos_token"])
            case "XLMRobertaTokenizer":
                self.parts["post_processor"] = self.template(named.get("bos_token"), named.get("eos_token"))
            case "RobertaTokenizer" | "BartTokenizer" | "LEDTokenizer" | "MvpTokenizer":
                ends = (named.get("sep_token", ""), named.get("cls_token", ""))
                sep, cls = ([content, self.id_of(content)] for content in ends)
                self.parts["post_processor"] = {
                    "type": "RobertaProcessing",
                    "sep": sep,
                    "cls": cls,
                    "trim_offsets": True,
                    "add_prefix_space": bool(self.kwargs.get("add_prefix_space", False)),
                }
            case _ if rules.model == "WordPiece":
                self.parts["post_processor"] = self.template(named.get("cls_token"), named.get("sep_token"))


def _resolved(token: NamedToken) -> NamedToken:
    return token.resolved if isinstance(token, Token) else token
