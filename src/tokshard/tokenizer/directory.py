"""The tokenizer that transformers makes of a directory: ``tokenizer.json`` with the files beside it.

AutoTokenizer changes what ``tokenizer.json`` says by ``tokenizer_config.json``, ``special_tokens_map.json``,
``added_tokens.json`` and the class that is named there or follows from ``config.json``; versions 4 and 5
differ. Megatron's HuggingFaceTokenizer then adds its BOS, EOS, CLS and SEP tokens once more, without flags.

:func:`read_directory` repeats these steps for the parsed files. The result is a definition in the form of
``tokenizer.json`` with which the plain library gives the same ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tokshard.tokenizer import canonical
from tokshard.tokenizer.huggingface import SPLITS_SPECIAL_TOKENS, added_ids_of_model
from tokshard.tokenizer.transformers_classes import (
    CLASSES_4,
    CLASSES_5,
    GENERIC,
    Class4,
    Family,
    UnloadableError,
    built_parts,
    class_4,
    class_5,
)

FILES_BESIDE: Final = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
)
_NAMED: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_ADDITIONAL: Final = "additional_special_tokens"
_EXTRA: Final = "extra_special_tokens"
_MISTRAL_FIX_ABOVE: Final = 100_000
_SHOWN_TOKENS: Final = 4
_MOST_SENTINELS: Final = 1_000_000
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Directory:
    """The parsed files of a directory; an absent file is None.

    Attributes:
        definition: ``tokenizer.json``.
        has_byte_level: Whether the text of tokenizer.json contains ``"ByteLevel"``.
    """

    definition: dict[str, Any]
    has_byte_level: bool
    config: dict[str, Any] | None = None
    special_tokens_map: dict[str, Any] | None = None
    added_tokens: dict[str, Any] | None = None
    model_config: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A directory as one version of transformers reads it.

    Attributes:
        definition: In the form of tokenizer.json; the very object of the file if nothing changes ids.
        eos_token: The token that ends documents, if one is declared: EOS, or SEP where there is no EOS.
        applied: Settings that change ids, one phrase each.
        unfollowed: Settings that would change ids and are not applied, one phrase each.
        is_loadable: Whether that version loads the directory at all.
    """

    version: Family
    definition: dict[str, Any]
    eos_token: str | None
    applied: tuple[str, ...] = ()
    unfollowed: tuple[str, ...] = ()
    is_loadable: bool = True


def read_directory(files: Directory, version: Family) -> Reading:
    """Return what a version of transformers makes of a directory.

    Example:
        >>> model = {"type": "BPE", "vocab": {"a": 0, "<end>": 1}, "merges": []}
        >>> files = Directory({"model": model, "added_tokens": []}, False, {"eos_token": "<end>"})
        >>> read_directory(files, "5").eos_token
        '<end>'
    """
    try:
        reader: _DirectoryReader = _Reader4(files) if version == "4" else _Reader5(files)
        reader.read()
        return reader.result()
    except UnloadableError as error:
        declared = _text(_declared(files))
        return Reading(version, files.definition, declared, unfollowed=(str(error),), is_loadable=False)


@dataclass(frozen=True, slots=True)
class ReadingProblem:
    """Something that a user must know of a directory: a sentence, and what to do.

    Attributes:
        is_fatal: Whether transformers cannot load the directory.
    """

    message: str
    hint: str
    is_fatal: bool = False


def choose_reading(
    files: Directory, wanted: Family | None, place: str, *, special_tokens: bool
) -> tuple[Reading, ReadingProblem | None]:
    """Return the reading that a job follows, and the reason why its ids may not be those of the training job.

    That is version 5 where the versions differ and none is wanted.

    Args:
        files: The directory.
        wanted: The version of transformers that the user names.
        place: The tokenizer, for messages.
        special_tokens: Whether the post-processor applies.
    """
    if wanted is not None:
        reading = read_directory(files, wanted)
        return reading, _unfollowed(reading, place)
    newest, other = read_directory(files, "5"), read_directory(files, "4")
    if not other.is_loadable:
        return newest, _unfollowed(newest, place)
    if not newest.is_loadable:
        return other, _unfollowed(other, place)
    if newest.unfollowed and other.unfollowed:
        return newest, _unfollowed(newest, place)
    found = differences(newest, other, special_tokens=special_tokens)
    found += [setting for reading in (newest, other) for setting in reading.unfollowed]
    if not found:
        return newest, None
    message = f"transformers 4 and 5 read the directory of the tokenizer {place} differently"
    return newest, ReadingProblem(
        f"{message}: {', '.join(found)}",
        "pass --transformers 4 or --transformers 5, the version of the training job",
    )


def _unfollowed(reading: Reading, place: str) -> ReadingProblem | None:
    if not reading.unfollowed:
        return None
    settings = "; ".join(reading.unfollowed)
    if not reading.is_loadable:
        return ReadingProblem(
            f"transformers {reading.version} cannot load the directory of the tokenizer {place}: {settings}",
            "pass --transformers with the version that loads it, or the tokenizer.json in a directory of its "
            "own",
            is_fatal=True,
        )
    return ReadingProblem(
        f"tokshard does not follow a setting in the directory of the tokenizer {place}, which transformers "
        f"{reading.version} follows: {settings}",
        "save what AutoTokenizer loads with tokenizer.backend_tokenizer.save('tokenizer.json'), and pass "
        "this file in a directory of its own",
    )


def differences(first: Reading, second: Reading, *, special_tokens: bool) -> list[str]:
    """Return in which respects two readings of a directory differ, as words for a message.

    ``special_tokens``: whether the post-processor applies.
    """
    parts = canonical.behavior(first.definition), canonical.behavior(second.definition)
    names = {
        "model": "the model",
        "added_tokens": "the added tokens",
        "normalizer": "the normalizer",
        "pre_tokenizer": "the pre-tokenizer",
        "post_processor": "the post-processor",
        SPLITS_SPECIAL_TOKENS: "split_special_tokens",
    }
    if not special_tokens:
        del names["post_processor"]
    found = [words for key, words in names.items() if parts[0].get(key) != parts[1].get(key)]
    return found + (["the EOS token"] if first.eos_token != second.eos_token else [])


@dataclass(frozen=True, slots=True)
class _Token:
    # normalized is None where it follows from ``special``, as in the library.
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool = False

    @classmethod
    def parse(cls, value: Any, **flags: bool) -> _Token:
        if not isinstance(value, Mapping) or not isinstance(value.get("content"), str):
            raise UnloadableError("a token of it has no content")
        names = ("single_word", "lstrip", "rstrip", "normalized", "special")
        known = {name: bool(value[name]) for name in names if value.get(name) is not None}
        return cls(value["content"], **{**known, **flags})

    @property
    def resolved(self) -> _Token:
        return replace(self, normalized=self.is_normalized)

    @property
    def is_normalized(self) -> bool:
        return not self.special if self.normalized is None else self.normalized


_Named = str | _Token


class _AddedTokens:
    """The added tokens of the library: contents with their flags, in the order of their ids.

    ``keeps_first``: whether a token goes on being found as it was added first, before or after
    normalization, as in the versions of the library below 0.23.
    """

    def __init__(self, tokens: Iterable[_Token], *, keeps_first: bool = False) -> None:
        self.tokens: dict[str, _Token] = {}
        self._keeps_first = keeps_first
        self._first: dict[str, bool] = {}  # special tokens: whether normalized
        self._others: dict[str, set[bool]] = {}
        for token in tokens:
            self.add(token)

    def add(self, token: _Token) -> None:
        content, normalized = token.content, token.is_normalized
        if not content:
            return
        if not content.isprintable() and _SURROGATE.search(content):
            raise UnloadableError(f"its token {content!r} has half of a surrogate pair")
        if token.special:
            self._first.setdefault(content, normalized)
        if content not in self._first:
            self._others.setdefault(content, set()).add(normalized)
        self.tokens[content] = token.resolved

    def __contains__(self, token: _Token) -> bool:
        return self.tokens.get(token.content) == token.resolved

    def matched(self) -> Iterator[_Token]:
        """Yield the tokens as they are found in texts."""
        for content, token in self.tokens.items():
            normalized = all(self._ways(content)) if self._keeps_first else token.normalized
            # A token that was special once stays so, in every version.
            yield replace(token, normalized=normalized, special=content in self._first)

    def found_twice(self) -> list[str]:
        """Return the tokens that are found before and after normalization."""
        return [content for content in self.tokens if self._keeps_first and len(self._ways(content)) > 1]

    def _ways(self, content: str) -> set[bool]:
        first = {self._first[content]} if content in self._first else set()
        return first | self._others.get(content, set())


class _DirectoryReader:
    """The steps that both versions have in common, and their state."""

    version: Family

    def __init__(self, files: Directory) -> None:
        self.files = files
        self.file_tokens = [_Token.parse(token) for token in files.definition.get("added_tokens") or []]
        self.kwargs: dict[str, Any] = dict(files.config or {})
        self.decoder: dict[int, _Token] = {}
        self.by_content: dict[str, _Token] = {}
        self.special: dict[str, _Named] = {}
        self.extra: list[_Named] = []
        self.name = GENERIC
        self.parts = dict(files.definition)
        self.added = _AddedTokens(self.file_tokens, keeps_first=self.version == "4")
        self.splits = False
        self.unfollowed: list[str] = []

    def read(self) -> None:
        raise NotImplementedError

    # The files

    def refuse_settings(self) -> None:
        config = self.files.config or {}
        auto_map = config.get("auto_map") or {}
        if isinstance(auto_map, list) or "AutoTokenizer" in _object(auto_map, "auto_map"):
            self.unfollowed.append("auto_map names code of its own")
        if config.get("fast_tokenizer_files"):
            self.unfollowed.append("fast_tokenizer_files names another tokenizer.json")
        if config.get("init_inputs"):
            self.unfollowed.append("init_inputs is not empty")
        is_large = len(self.files.definition["model"].get("vocab") or ()) > _MISTRAL_FIX_ABOVE
        if config.get("fix_mistral_regex") and is_large and self.files.model_config is not None:
            self.unfollowed.append("fix_mistral_regex replaces the pattern of the pre-tokenizer")

    def read_decoder(self) -> None:
        """Read added_tokens_decoder, or the files that are read where there is none."""
        decoder = self.kwargs.pop("added_tokens_decoder", ...)
        if decoder is not ...:
            for index, value in _object(decoder, "added_tokens_decoder").items():
                try:
                    self._know(int(index), _Token.parse(value))
                except ValueError:
                    raise UnloadableError(f"added_tokens_decoder has the id {index!r}") from None
            return
        self.merge_map(self.files.special_tokens_map or {})
        special = set(self.special_contents())
        for content, index in (self.files.added_tokens or {}).items():
            if not isinstance(index, int):
                raise UnloadableError("added_tokens.json has an id that is no number")
            is_special = content in special
            token = _Token(content, normalized=not is_special, special=is_special)
            # Version 4 loses sight of it by the name of another variable.
            self._know(index, token, by_content=self.version == "5")
        for value, token in zip(
            self.files.definition.get("added_tokens") or [], self.file_tokens, strict=True
        ):
            index = value.get("id", -1)
            if not isinstance(index, int):
                raise UnloadableError(f"its token {token.content!r} has an id that is no number")
            self._know(index, token)

    def merge_map(self, special_tokens_map: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def special_contents(self) -> Iterator[str]:
        """Yield the special tokens that decide how tokens of added_tokens.json are added."""
        for name in _NAMED:
            if (value := _converted(self.kwargs.get(name))) is not None:
                yield _text(value) or ""

    def _know(self, index: int, token: _Token, *, by_content: bool = True) -> None:
        self.decoder[index] = token
        if by_content:
            self.by_content[token.content] = token

    def name_tokens(self, defaults: Mapping[str, _Named | None]) -> None:
        """Set the special tokens: those of the files with the flags that are known for them, or defaults."""
        for name in _NAMED:
            value = _converted(self.kwargs.get(name))
            if value is not None:
                self.kwargs[name] = self.by_content.get(_text(value) or "", value)
        for name, default in defaults.items():
            self.kwargs.setdefault(name, default)
        padding = self.files.definition.get("padding")
        if isinstance(padding, dict):
            self.kwargs.setdefault("pad_token", padding.get("pad_token"))
        for name in _NAMED:
            value = _converted(self.kwargs.get(name))
            if value is None:
                continue
            if not isinstance(value, (str, _Token)):
                raise UnloadableError(f"its {name} is not a token")
            self.special[name] = value

    def sentinel_names(self) -> list[str]:
        """Return the names of T5's sentinel tokens."""
        count = self.kwargs.get("extra_ids", 100)
        if not isinstance(count, int) or count > _MOST_SENTINELS:
            raise UnloadableError("its extra_ids is not a number of tokens")
        return [f"<extra_id_{number}>" for number in range(count)]

    def unknown_of_decoder(self) -> list[_Named]:
        """Return the tokens of added_tokens_decoder that are not yet added with these flags."""
        return [token for _, token in sorted(self.decoder.items()) if token not in self.added]

    def add_for_megatron(self) -> None:
        """Add BOS, EOS, CLS and SEP tokens as Megatron's wrapper does, which sets each by its counterpart."""
        for one, other in (("sep_token", "eos_token"), ("bos_token", "cls_token")):
            for missing, known in ((one, other), (other, one)):
                content = _text(self.special.get(known))
                if missing not in self.special and content:
                    self.special[missing] = token = _Token(content, normalized=False, special=True)
                    self.added.add(token)
                    break

    # The result

    def id_of(self, content: str) -> int:
        vocabulary = self.parts["model"].get("vocab") or {}
        known = self.added_ids()
        if content in known:
            return known[content]
        if isinstance(vocabulary, dict) and content in vocabulary:
            return int(vocabulary[content])
        raise UnloadableError(f"it has no token {content!r}")

    def added_ids(self) -> dict[str, int]:
        return added_ids_of_model(self.parts["model"], self.added.tokens)

    def template(self, before: str | None, after: str | None) -> dict[str, Any]:
        """Return the post-processor that adds a token before and one after texts."""
        names = [name for name in (before, after) if name is not None]
        single: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
        second: list[dict[str, Any]] = [{"Sequence": {"id": "B", "type_id": 1}}]
        for place, name in ((0, before), (-1, after)):
            if name is not None:
                for parts, kind in ((single, 0), (second, 1)):
                    token = {"SpecialToken": {"id": name, "type_id": kind}}
                    parts.insert(0 if place == 0 else len(parts), token)
        tokens = {name: {"id": name, "ids": [self.id_of(name)], "tokens": [name]} for name in names}
        return {
            "type": "TemplateProcessing",
            "single": single,
            "pair": single + second,
            "special_tokens": tokens,
        }

    def result(self) -> Reading:
        ids = self.added_ids()
        tokens = [
            {
                "id": ids[token.content],
                "content": token.content,
                "single_word": token.single_word,
                "lstrip": token.lstrip,
                "rstrip": token.rstrip,
                "normalized": token.is_normalized,
                "special": token.special,
            }
            for token in self.added.matched()
        ]
        twice = self.added.found_twice()
        if twice and self.parts.get("normalizer") is not None:
            self.unfollowed.append(f"the token {twice[0]!r} is normalized and is not normalized")
        definition = {**self.parts, "added_tokens": tokens}
        if self.splits:
            definition = {SPLITS_SPECIAL_TOKENS: True, **definition}
        before, after = canonical.behavior(self.files.definition), canonical.behavior(definition)
        changed = [key for key in after if before.get(key) != after[key]]
        eos = self.special.get("eos_token")
        return Reading(
            self.version,
            definition if changed else self.files.definition,
            None if eos is None else _text(eos),
            tuple(self._applied(changed)),
            tuple(self.unfollowed),
        )

    def _applied(self, changed: list[str]) -> Iterator[str]:
        by = "" if self.name == GENERIC else f" of {self.name}"
        words = {"model": "model", "normalizer": "normalizer", "pre_tokenizer": "pre-tokenizer"}
        for key in changed:
            match key:
                case "added_tokens":
                    yield from self._added_phrases()
                case "post_processor":
                    yield f"the post-processor{by or ' of the settings'}"
                case "pre_tokenizer" if "add_prefix_space" in self.kwargs:
                    yield f"add_prefix_space {str(self.kwargs['add_prefix_space']).lower()}{by}"
                case _ if key in words:
                    yield f"the {words[key]}{by or ' of the settings'}"
                case _:
                    yield "split_special_tokens true"

    def _added_phrases(self) -> Iterator[str]:
        old = _AddedTokens(self.file_tokens).tokens
        new = [content for content in self.added.tokens if content not in old]
        flags = [t.content for t in self.added.matched() if old.get(t.content, t) != t]
        gone = [content for content in old if content not in self.added.tokens]
        for words, contents in (("new tokens", new), ("other flags of", flags), ("without the tokens", gone)):
            if contents:
                shown = ", ".join(map(repr, contents[:_SHOWN_TOKENS]))
                rest = len(contents) - _SHOWN_TOKENS
                yield f"{words} {shown}" + (f" and {rest} more" if rest > 0 else "")


class _Reader4(_DirectoryReader):
    version = "4"

    def read(self) -> None:
        self.refuse_settings()
        self.name = class_4(self.kwargs, self.files.model_config or {})
        rules = CLASSES_4.get(self.name)
        if rules is None:
            self.unfollowed.append(f"tokenizer_class {self.name}")
            rules = Class4({})
        config = self.files.config or {}
        if "tokenizer_file" in config:
            self.unfollowed.append("tokenizer_file names another file")
        prefix = config.get("add_prefix_space")
        if config.get("from_slow") or (rules.prefix == "conversion" and prefix is not None):
            setting = "from_slow" if config.get("from_slow") else "add_prefix_space"
            self.unfollowed.append(f"{setting} converts the slow tokenizer of {self.name}")
        if self.name == "CodeGenTokenizer" and config.get("add_bos_token"):
            raise UnloadableError("CodeGenTokenizer does not support add_bos_token")
        self.read_decoder()
        self.defaults: dict[str, _Named | None] = dict(rules.tokens)
        self._with_flags(rules)
        for name, token in self.defaults.items():
            if isinstance(token, _Token) and name in self.kwargs:
                self.kwargs[name] = token
        self.name_tokens(self.defaults)
        self._set_extra(rules)
        self._add_tokens()
        self.splits = bool(self.kwargs.get("split_special_tokens"))
        self._change_pre_tokenizer(rules)
        if rules.is_bert:
            self._change_normalizer()
        if rules.adds_bos is not None:
            ends = []
            for setting, default in (("add_bos_token", rules.adds_bos), ("add_eos_token", False)):
                name = setting.removeprefix("add_")
                is_added = bool(self.kwargs.get(setting, default))
                if is_added and name not in self.special:
                    raise UnloadableError(f"it has {setting}, and no {name}")
                ends.append(_text(self.special[name]) if is_added else None)
            self.parts["post_processor"] = self.template(*ends)
        self.add_for_megatron()

    def merge_map(self, special_tokens_map: Mapping[str, Any]) -> None:
        for key, value in special_tokens_map.items():
            if isinstance(value, dict):
                self.kwargs[key] = _Token.parse(value, special=True)
            elif key == _ADDITIONAL and isinstance(value, list):
                merged = list(map(_converted, _listed(self.kwargs, _ADDITIONAL)))
                for one in value:
                    token = _Token.parse(one, special=True) if isinstance(one, dict) else one
                    if token not in merged:
                        merged.append(token)
                self.kwargs[key] = merged
            else:
                self.kwargs[key] = value

    def special_contents(self) -> Iterator[str]:
        yield from super().special_contents()
        for token in _listed(self.kwargs, _ADDITIONAL):
            yield _text(_converted(token)) or ""

    def _with_flags(self, rules: Class4) -> None:
        """Set the flags of special tokens that are text, for classes that give them flags of their own."""
        flags: dict[str, Mapping[str, bool]] = {}
        if rules.plain:
            flags = {name: {"normalized": False, "special": True} for name in rules.tokens}
        if rules.mask is not None:
            flags["mask_token"] = rules.mask
        for name, wanted in flags.items():
            # A token with known flags keeps them, unless it is the default of the class.
            value = self.kwargs.get(name, rules.tokens[name])
            if isinstance(value, str) and (name not in self.kwargs or value not in self.by_content):
                self.defaults[name] = _Token(value, **wanted)

    def _set_extra(self, rules: Class4) -> None:
        additional = _listed(self.kwargs, _ADDITIONAL)
        if rules.sentinels:
            additional = self._sentinels(additional)
        self.extra = [_special(token, _ADDITIONAL) for token in additional]
        named = _object(self.kwargs.get(_EXTRA, {}), _EXTRA)
        self.extra += [_special(token, _EXTRA) for token in named.values()]

    def _sentinels(self, additional: list[Any]) -> list[Any]:
        names = self.sentinel_names()
        count = len(names)
        if self.kwargs.get(_ADDITIONAL) is None:
            return names
        known = [token for token in additional if "<extra_id_" in str(_text(_converted(token)))]
        if not known:
            return [*additional, *names]
        if count > 0 and count != len(known):
            raise UnloadableError("extra_ids and additional_special_tokens contradict each other")
        return additional

    def _add_tokens(self) -> None:
        new = self.unknown_of_decoder()
        known = {*self.added.tokens, *map(_text, new)}
        special: dict[str, _Named] = {}
        for token in (*(self.special[name] for name in _NAMED if name in self.special), *self.extra):
            special.setdefault(_text(token) or "", token)
        resolved = [token.resolved for token in new if isinstance(token, _Token)]
        for content, token in special.items():
            # Texts are compared with texts there, and tokens with tokens.
            is_known = content in known if isinstance(token, str) else token.resolved in resolved
            if content and not is_known:
                new.append(token)
        for token in new:
            flags = _Token(token) if isinstance(token, str) else token
            self.added.add(replace(flags, special=flags.special or flags.content in special))

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


class _Reader5(_DirectoryReader):
    version = "5"

    def read(self) -> None:
        self.refuse_settings()
        files = self.files
        self.name = class_5(self.kwargs, files.model_config or {}, has_byte_level=files.has_byte_level)
        if self.name not in CLASSES_5 and self.name != GENERIC:
            self.unfollowed.append(f"tokenizer_class {self.name}")
            self.name = GENERIC
        # The class is given the post-processor of the file.
        for name in ("add_bos_token", "add_eos_token"):
            self.kwargs.pop(name, None)
        if _ADDITIONAL in self.kwargs and not self.kwargs.get(_EXTRA):
            self.kwargs[_EXTRA] = self.kwargs.pop(_ADDITIONAL)
        own = self._own_tokens()
        self.read_decoder()
        if isinstance(self.kwargs.get(_EXTRA), dict):
            own.update(self.kwargs.pop(_EXTRA))
        name = "model_specific_special_tokens"
        own = own or _object(self.kwargs.get(name) or {}, name)
        if self.name != GENERIC:
            self._build(CLASSES_5[self.name].model)
        self.name_tokens(CLASSES_5[self.name].tokens if self.name != GENERIC else {})
        self._set_extra(own)
        self._add_tokens()
        self.splits = bool(self.kwargs.get("split_special_tokens"))
        if self.name != GENERIC:
            if CLASSES_5[self.name].readds:
                self._add_again()
            self._set_post_processor()
        self.add_for_megatron()

    def _own_tokens(self) -> dict[str, Any]:
        """Take the tokens out of the configuration whose names no other class knows."""
        own = {
            key: self.kwargs.pop(key)
            for key, value in list(self.kwargs.items())
            if key.endswith("_token") and key not in _NAMED and isinstance(value, str)
        }
        if isinstance(self.kwargs.get(_EXTRA), dict):
            own.update(self.kwargs.pop(_EXTRA))
        return own

    def _set_extra(self, own: Mapping[str, Any]) -> None:
        if self.name == "T5Tokenizer":
            self.kwargs.setdefault(_EXTRA, self.sentinel_names())
        if _ADDITIONAL in self.kwargs and _EXTRA not in self.kwargs:
            self.kwargs[_EXTRA] = self.kwargs.pop(_ADDITIONAL)
        self.extra = [_special(token, _EXTRA) for token in _listed(self.kwargs, _EXTRA)]
        for key, value in self.kwargs.items():
            if key.endswith("_token") and key not in _NAMED and isinstance(_converted(value), (str, _Token)):
                self.special[key] = _converted(value)
        for key, value in own.items():
            self.special[key] = _special(value, key)

    def merge_map(self, special_tokens_map: Mapping[str, Any]) -> None:
        for key, value in special_tokens_map.items():
            if isinstance(value, dict) and key != _EXTRA:
                self.kwargs[key] = _Token.parse(value, special=True)
            elif key == _EXTRA and isinstance(value, list):
                merged = list(map(_converted, _listed(self.kwargs, _EXTRA)))
                for one in value:
                    token = _Token.parse(one, special=True) if isinstance(one, dict) else one
                    if token not in merged:
                        merged.append(token)
                self.kwargs[key] = merged
            else:
                self.kwargs[key] = value

    def special_contents(self) -> Iterator[str]:
        yield from super().special_contents()
        named = self.kwargs.get(_EXTRA)
        for token in named if isinstance(named, dict) else _listed(self.kwargs, _EXTRA):
            yield _text(_converted(token)) or ""

    def _build(self, kind: str) -> None:
        model = self.files.definition["model"]
        if canonical.model_type(model) != kind:
            self.unfollowed.append(f"{self.name} makes a {kind} model of another")
            self.name = GENERIC
            return
        tokens = CLASSES_5[self.name].tokens
        named = {name: self.kwargs.get(name, default) for name, default in tokens.items()}
        kwargs = {**self.kwargs, **{name: _text(_converted(value)) for name, value in named.items()}}
        self.parts |= built_parts(self.name, model, kwargs, self.files.definition.get("normalizer"))
        self.added = _AddedTokens([])

    def _add_tokens(self) -> None:
        new = self.unknown_of_decoder()
        known = {*self.added.tokens, *map(_text, new)}
        named = {_text(token) for token in self.special.values()}
        resolved = [token.resolved for token in new if isinstance(token, _Token)]
        texts = [token for token in new if isinstance(token, str)]
        order: list[str] = [name for name in _NAMED if name in self.special]
        order += [name for name in self.special if name not in _NAMED]
        for token in (*(self.special[name] for name in order), *self.extra):
            is_waiting = token in texts if isinstance(token, str) else token.resolved in resolved
            if _text(token) not in known and not is_waiting:
                new.append(token)
                if isinstance(token, str):
                    texts.append(token)
                else:
                    resolved.append(token.resolved)
        for token in new:
            flags = _Token(token, special=True) if isinstance(token, str) else token
            self.added.add(replace(flags, special=flags.special or flags.content in named))

    def _add_again(self) -> None:
        for token in (*self.special.values(), *self.extra):
            if self.name == "CohereTokenizer" and isinstance(token, _Token):
                self.added.add(replace(token, special=True))
            else:
                self.added.add(_Token(_text(token) or "", normalized=False, special=True))

    def _set_post_processor(self) -> None:
        """Set the post-processor of classes that have one."""
        named = {name: _text(token) or "" for name, token in self.special.items()}
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
            case _ if self.name in CLASSES_5 and CLASSES_5[self.name].model == "WordPiece":
                self.parts["post_processor"] = self.template(named.get("cls_token"), named.get("sep_token"))


def _declared(files: Directory) -> Any:
    for parsed in (files.special_tokens_map, files.config):
        if parsed and parsed.get("eos_token") is not None:
            return parsed["eos_token"]
    return None


def _converted(value: Any) -> Any:
    """Return a value of the configuration with its tokens: objects whose ``__type`` is AddedToken."""
    if isinstance(value, dict) and value.get("__type") == "AddedToken":
        return _Token.parse(value)
    return value


def _special(value: Any, setting: str) -> _Named:
    token = _converted(value)
    if not isinstance(token, (str, _Token)):
        raise UnloadableError(f"a token of its {setting} is neither text nor a token")
    return token


def _text(token: Any) -> str | None:
    if isinstance(token, _Token):
        return token.content
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _listed(kwargs: Mapping[str, Any], name: str) -> list[Any]:
    value = kwargs.get(name)
    if value is not None and not isinstance(value, list):
        raise UnloadableError(f"its {name} is not a list")
    return value or []


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UnloadableError(f"its {name} is not an object")
    return value


def _with_prefix(part: Any) -> Any:
    if isinstance(part, dict):
        changed = {key: _with_prefix(value) for key, value in part.items()}
        return changed | ({"add_prefix_space": True} if part.get("add_prefix_space") is False else {})
    return list(map(_with_prefix, part)) if isinstance(part, list) else part
