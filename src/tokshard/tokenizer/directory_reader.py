"""The steps by which both versions of transformers make a tokenizer of a directory.

:mod:`.transformers4_reader` and :mod:`.transformers5_reader` put them in their order and add their own.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from tokshard.tokenizer import canonical
from tokshard.tokenizer.added_tokens import AddedTokens, NamedToken, Token, decoded, text_of
from tokshard.tokenizer.huggingface import SPLITS_SPECIAL_TOKENS, added_ids_of_model
from tokshard.tokenizer.transformers_classes import GENERIC, Family, UnloadableError

FILES_BESIDE: Final = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
)
NAMED_TOKENS: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
ADDITIONAL: Final = "additional_special_tokens"
EXTRA: Final = "extra_special_tokens"
_MISTRAL_FIX_ABOVE: Final = 100_000
_SHOWN_TOKENS: Final = 4
_MOST_SENTINELS: Final = 1_000_000


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


class DirectoryReader:
    """The reader of one directory, and the state of its tokenizer from step to step.

    Attributes:
        list_key: The setting that lists further special tokens.
        kwargs: The settings of ``tokenizer_config.json``, and what other files and the class add to them.
        decoder: The tokens of added_tokens_decoder by their ids.
        by_content: Tokens whose flags are known, by their contents.
        special: The special tokens by their names.
        extra: Further special tokens.
        name: The class that loads the directory.
        parts: The fields of tokenizer.json, with changes.
        added: The added tokens.
        splits: Whether special tokens in texts are encoded as ordinary text.
        unfollowed: See :class:`Reading`.
    """

    version: ClassVar[Family]
    list_key: ClassVar[str]

    def __init__(self, files: Directory) -> None:
        self.files = files
        self.file_tokens = [Token.parse(token) for token in files.definition.get("added_tokens") or []]
        self.kwargs: dict[str, Any] = dict(files.config or {})
        self.decoder: dict[int, Token] = {}
        self.by_content: dict[str, Token] = {}
        self.special: dict[str, NamedToken] = {}
        self.extra: list[NamedToken] = []
        self.name = GENERIC
        self.parts = dict(files.definition)
        self.added = AddedTokens(self.file_tokens, keeps_first=self.version == "4")
        self.splits = False
        self.unfollowed: list[str] = []

    def read(self) -> Reading:
        """Return what the version makes of the directory.

        Raises:
            UnloadableError: It cannot load the directory.
        """
        self.load()
        return self._result()

    def load(self) -> None:
        """Do the steps of the version."""
        raise NotImplementedError

    # The files

    def refuse_settings(self) -> None:
        """List the settings that no reader follows."""
        config = self.files.config or {}
        auto_map = config.get("auto_map") or {}
        if isinstance(auto_map, list) or "AutoTokenizer" in object_of(auto_map, "auto_map"):
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
            for index, value in object_of(decoder, "added_tokens_decoder").items():
                try:
                    self._know(int(index), Token.parse(value))
                except ValueError:
                    raise UnloadableError(f"added_tokens_decoder has the id {index!r}") from None
            return
        self._merge_map(self.files.special_tokens_map or {})
        special = set(self._special_contents())
        for content, index in (self.files.added_tokens or {}).items():
            if not isinstance(index, int):
                raise UnloadableError("added_tokens.json has an id that is no number")
            is_special = content in special
            token = Token(content, normalized=not is_special, special=is_special)
            # Version 4 uses a wrong variable here, so that it does not find the token by its content.
            self._know(index, token, by_content=self.version == "5")
        for value, token in zip(
            self.files.definition.get("added_tokens") or [], self.file_tokens, strict=True
        ):
            index = value.get("id", -1)
            if not isinstance(index, int):
                raise UnloadableError(f"its token {token.content!r} has an id that is no number")
            self._know(index, token)

    def _know(self, index: int, token: Token, *, by_content: bool = True) -> None:
        self.decoder[index] = token
        if by_content:
            self.by_content[token.content] = token

    def _merge_map(self, special_tokens_map: Mapping[str, Any]) -> None:
        """Add the settings of special_tokens_map.json; its list of tokens extends the list there is."""
        for key, value in special_tokens_map.items():
            if key == self.list_key and isinstance(value, list):
                merged = list(map(decoded, self.listed(key)))
                for one in value:
                    token = Token.parse(one, special=True) if isinstance(one, dict) else one
                    if token not in merged:
                        merged.append(token)
                self.kwargs[key] = merged
            elif key != self.list_key and isinstance(value, dict):
                self.kwargs[key] = Token.parse(value, special=True)
            else:
                self.kwargs[key] = value

    def _special_contents(self) -> Iterator[str]:
        """Yield the special tokens that decide how tokens of added_tokens.json are added."""
        for name in NAMED_TOKENS:
            if (value := decoded(self.kwargs.get(name))) is not None:
                yield text_of(value) or ""
        further = self.kwargs.get(self.list_key)
        for token in further if isinstance(further, dict) else self.listed(self.list_key):
            yield text_of(decoded(token)) or ""

    def listed(self, setting: str) -> list[Any]:
        """Return the list in a setting; empty if there is none."""
        value = self.kwargs.get(setting)
        if value is not None and not isinstance(value, list):
            raise UnloadableError(f"its {setting} is not a list")
        return value or []

    # The special tokens

    def name_tokens(self, defaults: Mapping[str, NamedToken | None]) -> None:
        """Set the special tokens: those of the files with the flags that are known for them, or defaults."""
        for name in NAMED_TOKENS:
            value = decoded(self.kwargs.get(name))
            if value is not None:
                self.kwargs[name] = self.by_content.get(text_of(value) or "", value)
        for name, default in defaults.items():
            self.kwargs.setdefault(name, default)
        padding = self.files.definition.get("padding")
        if isinstance(padding, dict):
            self.kwargs.setdefault("pad_token", padding.get("pad_token"))
        for name in NAMED_TOKENS:
            value = decoded(self.kwargs.get(name))
            if value is None:
                continue
            if not isinstance(value, (str, Token)):
                raise UnloadableError(f"its {name} is not a token")
            self.special[name] = value

    def sentinel_names(self) -> list[str]:
        """Return the names of T5's sentinel tokens."""
        count = self.kwargs.get("extra_ids", 100)
        if not isinstance(count, int) or count > _MOST_SENTINELS:
            raise UnloadableError("its extra_ids is not a number of tokens")
        return [f"<extra_id_{number}>" for number in range(count)]

    def special_tokens(self) -> Iterator[NamedToken]:
        """Yield all special tokens in the order in which they are added."""
        yield from (self.special[name] for name in NAMED_TOKENS if name in self.special)
        yield from (token for name, token in self.special.items() if name not in NAMED_TOKENS)
        yield from self.extra

    def unknown_of_decoder(self) -> list[Token]:
        """Return the tokens of added_tokens_decoder that are not yet added with these flags."""
        return [token for _, token in sorted(self.decoder.items()) if token not in self.added]

    def add(self, tokens: Iterable[NamedToken], special: Container[str]) -> None:
        """Add tokens; those without flags, and those with a content in ``special``, are special."""
        for named in tokens:
            token = Token(named, special=True) if isinstance(named, str) else named
            self.added.add(replace(token, special=token.special or token.content in special))

    def add_for_megatron(self) -> None:
        """Add BOS, EOS, CLS and SEP tokens as Megatron's wrapper does, which sets each by its counterpart."""
        for one, other in (("sep_token", "eos_token"), ("bos_token", "cls_token")):
            for missing, known in ((one, other), (other, one)):
                content = text_of(self.special.get(known))
                if missing not in self.special and content:
                    self.special[missing] = token = Token(content, normalized=False, special=True)
                    self.added.add(token)
                    break

    # The post-processor

    def id_of(self, content: str) -> int:
        """Return the id of a token; raise UnloadableError if there is none."""
        vocabulary = self.parts["model"].get("vocab") or {}
        known = self._added_ids()
        if content in known:
            return known[content]
        if isinstance(vocabulary, dict) and content in vocabulary:
            return int(vocabulary[content])
        raise UnloadableError(f"it has no token {content!r}")

    def _added_ids(self) -> dict[str, int]:
        return added_ids_of_model(self.parts["model"], self.added.tokens)

    def template(self, before: str | None, after: str | None) -> dict[str, Any]:
        """Return the post-processor that adds a token before and one after texts."""

        def special(name: str | None, type_id: int) -> list[dict[str, Any]]:
            return [] if name is None else [{"SpecialToken": {"id": name, "type_id": type_id}}]

        def around(sequence: str, type_id: int) -> list[dict[str, Any]]:
            text = {"Sequence": {"id": sequence, "type_id": type_id}}
            return [*special(before, type_id), text, *special(after, type_id)]

        names = [name for name in (before, after) if name is not None]
        return {
            "type": "TemplateProcessing",
            "single": around("A", 0),
            "pair": [*around("A", 0), *around("B", 1)],
            "special_tokens": {
                name: {"id": name, "ids": [self.id_of(name)], "tokens": [name]} for name in names
            },
        }

    # The result

    def _result(self) -> Reading:
        ids = self._added_ids()
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
        twice = self.added.matched_twice()
        if twice and self.parts.get("normalizer") is not None:
            self.unfollowed.append(f"the token {twice[0]!r} is normalized and is not normalized")
        definition = {**self.parts, "added_tokens": tokens}
        if self.splits:
            definition = {SPLITS_SPECIAL_TOKENS: True, **definition}
        before, after = canonical.behavior(self.files.definition), canonical.behavior(definition)
        changed = [key for key in after if before.get(key) != after[key]]
        return Reading(
            self.version,
            definition if changed else self.files.definition,
            text_of(self.special.get("eos_token")),
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
        old = AddedTokens(self.file_tokens).tokens
        new = [content for content in self.added.tokens if content not in old]
        flags = [t.content for t in self.added.matched() if old.get(t.content, t) != t]
        gone = [content for content in old if content not in self.added.tokens]
        for words, contents in (("new tokens", new), ("other flags of", flags), ("without the tokens", gone)):
            if contents:
                shown = ", ".join(map(repr, contents[:_SHOWN_TOKENS]))
                rest = len(contents) - _SHOWN_TOKENS
                yield f"{words} {shown}" + (f" and {rest} more" if rest > 0 else "")


def object_of(value: Any, setting: str) -> dict[str, Any]:
    """Return the value of a setting; raise UnloadableError if it is not an object."""
    if not isinstance(value, dict):
        raise UnloadableError(f"its {setting} is not an object")
    return value
