"""Reading of a directory by transformers 4, which loads ``tokenizer.json`` and changes parts of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokshard.tokenizer.added_tokens import NamedToken, Token, decoded, named_token, text_of
from tokshard.tokenizer.directory_reader import ADDITIONAL, EXTRA, DirectoryReader, object_of
from tokshard.tokenizer.transformers_classes import CLASSES_4, Class4, UnloadableError, class_4


class Transformers4Reader(DirectoryReader):
    """The reader for version 4."""

    version = "4"
    list_key = ADDITIONAL

    def load(self) -> None:
        """Do the steps of version 4."""
        self.refuse_settings()
        self.name = class_4(self.kwargs, self.files.model_config or {})
        rules = CLASSES_4.get(self.name)
        if rules is None:
            self.unfollowed.append(f"tokenizer_class {self.name}")
            rules = Class4({})
        self._refuse_settings_of_class(rules)
        self.read_decoder()
        own = self._tokens_with_flags(rules)
        self.kwargs |= {name: token for name, token in own.items() if name in self.kwargs}
        self.name_tokens({**rules.tokens, **own})
        self._set_extra(rules)
        self._add_tokens()
        self.splits = bool(self.kwargs.get("split_special_tokens"))
        self._change_pre_tokenizer(rules)
        if rules.is_bert:
            self._change_normalizer()
        if rules.adds_bos is not None:
            self._set_post_processor(adds_bos=rules.adds_bos)
        self.add_for_megatron()

    def _refuse_settings_of_class(self, rules: Class4) -> None:
        config = self.files.config or {}
        if "tokenizer_file" in config:
            self.unfollowed.append("tokenizer_file names another file")
        prefix = config.get("add_prefix_space")
        if config.get("from_slow") or (rules.prefix == "conversion" and prefix is not None):
            setting = "from_slow" if config.get("from_slow") else "add_prefix_space"
            self.unfollowed.append(f"{setting} converts the slow tokenizer of {self.name}")
        if self.name == "CodeGenTokenizer" and config.get("add_bos_token"):
            raise UnloadableError("CodeGenTokenizer does not support add_bos_token")

    def _tokens_with_flags(self, rules: Class4) -> dict[str, Token]:
        """Return the special tokens that are named by text and for which the class has flags of its own."""
        flags: dict[str, Mapping[str, bool]] = {}
        if rules.plain:
            flags = {name: {"normalized": False, "special": True} for name in rules.tokens}
        if rules.mask is not None:
            flags["mask_token"] = rules.mask
        found = {}
        for name, wanted in flags.items():
            # A token with known flags keeps them, unless it is the default of the class.
            value = self.kwargs.get(name, rules.tokens[name])
            if isinstance(value, str) and (name not in self.kwargs or value not in self.by_content):
                found[name] = Token(value, **wanted)
        return found

    def _set_extra(self, rules: Class4) -> None:
        additional = self.listed(ADDITIONAL)
        if rules.sentinels:
            additional = self._sentinels(additional)
        self.extra = [named_token(token, ADDITIONAL) for token in additional]
        named = object_of(self.kwargs.get(EXTRA, {}), EXTRA)
        self.extra += [named_token(token, EXTRA) for token in named.values()]

    def _sentinels(self, additional: list[Any]) -> list[Any]:
        names = self.sentinel_names()
        count = len(names)
        if self.kwargs.get(ADDITIONAL) is None:
            return names
        known = [token for token in additional if "<extra_id_" in str(text_of(decoded(token)))]
        if not known:
            return [*additional, *names]
        if count > 0 and count != len(known):
            raise UnloadableError("extra_ids and additional_special_tokens contradict each other")
        return additional

    def _add_tokens(self) -> None:
        new = self.unknown_of_decoder()
        known = {*self.added.tokens, *(token.content for token in new)}
        resolved = {token.resolved for token in new}
        special: dict[str, NamedToken] = {}
        for token in self.special_tokens():
            special.setdefault(text_of(token) or "", token)
        # Texts are compared with texts, and tokens with tokens.
        more = [
            token
            for content, token in special.items()
            if (content not in known if isinstance(token, str) else token.resolved not in resolved)
        ]
        self.add([*new, *more], special)

    def _change_pre_tokenizer(self, rules: Class4) -> None:
        part = self.parts.get("pre_tokenizer")
        if not isinstance(part, dict) or rules.prefix == "conversion":
            return
        wanted = self.kwargs.get("add_prefix_space", False)
        if part.get("type") == "ByteLevel" and isinstance(wanted, bool):
            self.parts["pre_tokenizer"] = {**part, "add_prefix_space": wanted}
        elif rules.prefix == "all" and wanted:
            self.parts["pre_tokenizer"] = _with_prefix(part)

    def _change_normalizer(self) -> None:
        part = self.parts.get("normalizer")
        if not isinstance(part, dict):
            raise UnloadableError(f"{self.name} requires a normalizer")
        if part.get("type") != "BertNormalizer":
            return
        self.parts["normalizer"] = {
            **part,
            "lowercase": self.kwargs.get("do_lower_case", True),
            "strip_accents": self.kwargs.get("strip_accents"),
            "handle_chinese_chars": self.kwargs.get("tokenize_chinese_chars", True),
        }

    def _set_post_processor(self, *, adds_bos: bool) -> None:
        ends = []
        for name, default in (("bos_token", adds_bos), ("eos_token", False)):
            is_added = bool(self.kwargs.get(f"add_{name}", default))
            if is_added and name not in self.special:
                raise UnloadableError(f"it has add_{name}, and no {name}")
            ends.append(text_of(self.special[name]) if is_added else None)
        self.parts["post_processor"] = self.template(*ends)


def _with_prefix(part: Any) -> Any:
    if isinstance(part, dict):
        changed = {key: _with_prefix(value) for key, value in part.items()}
        return changed | ({"add_prefix_space": True} if part.get("add_prefix_space") is False else {})
    return list(map(_with_prefix, part)) if isinstance(part, list) else part
