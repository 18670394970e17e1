"""The tokenizer classes of transformers 4 and 5, as far as they change ids.

Read from the sources of 4.57 and 5.23. Version 4 loads ``tokenizer.json`` and changes parts of it; most
classes of version 5 keep vocabulary, merges and post-processor and rebuild the rest.
``scripts/tokenizer_matrix`` compares the results with both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from tokshard.tokenizer.huggingface import COMPONENT_DEFAULTS
from tokshard.tokenizer.tiktoken_files import QWEN3_5_PATTERN, QWEN_PATTERN

GENERIC: Final = "TokenizersBackend"
"""The class that keeps all of ``tokenizer.json``, by its name in version 5."""

Family = Literal["4", "5"]
Tokens = Mapping[str, str | None]

_TEXT_END = "<|endoftext|>"
_GPT2: Tokens = {"unk_token": _TEXT_END, "bos_token": _TEXT_END, "eos_token": _TEXT_END}
_QWEN: Tokens = {**_GPT2, "bos_token": None, "pad_token": _TEXT_END}
_LLAMA: Tokens = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_GEMMA: Tokens = {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
_COHERE: Tokens = {"unk_token": "<UNK>", "bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"}
_BERT: Tokens = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_ROBERTA: Tokens = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
_T5: Tokens = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


@dataclass(frozen=True, slots=True)
class Class4:
    """A class of version 4.

    Attributes:
        tokens: Its special tokens where the files name none.
        adds_bos: Its default of add_bos_token, if it makes a post-processor of add_bos_token and
            add_eos_token; None if it keeps that of the file.
        prefix: Reach of add_prefix_space: the pre-tokenizer of the file unless it is a sequence, all parts
            of it, or a conversion of the SentencePiece model instead of the file.
        is_bert: Whether do_lower_case, strip_accents and tokenize_chinese_chars apply.
        plain: Whether special tokens that are given as text lose the flags of the file.
        mask: Flags of a mask token that is given as text.
        sentinels: Whether ``<extra_id_0>`` and so on are special tokens.
    """

    tokens: Tokens
    adds_bos: bool | None = None
    prefix: Literal["own", "all", "conversion"] = "own"
    is_bert: bool = False
    plain: bool = False
    mask: Mapping[str, bool] | None = None
    sentinels: bool = False


_MASK = {"lstrip": True, "normalized": False}
_BERT4 = Class4(_BERT, is_bert=True)
CLASSES_4: Final[Mapping[str, Class4]] = {
    GENERIC: Class4({}),
    "GPT2Tokenizer": Class4(_GPT2),
    "CodeGenTokenizer": Class4(_GPT2),
    "GPTNeoXTokenizer": Class4({**_GPT2, "pad_token": None}, adds_bos=False),
    "Qwen2Tokenizer": Class4(_QWEN, plain=True),
    "LlamaTokenizer": Class4(_LLAMA, adds_bos=True, prefix="conversion"),
    "GemmaTokenizer": Class4(_GEMMA, adds_bos=True),
    "CohereTokenizer": Class4(_COHERE, adds_bos=True, prefix="all"),
    "BloomTokenizer": Class4({**_LLAMA, "pad_token": "<pad>"}, prefix="all"),
    "RobertaTokenizer": Class4(_ROBERTA, mask=_MASK),
    "XLMRobertaTokenizer": Class4(_ROBERTA, mask={"lstrip": True}),
    "BartTokenizer": Class4(_ROBERTA, mask={"lstrip": True, "normalized": True, "special": True}),
    "T5Tokenizer": Class4(_T5, prefix="conversion", sentinels=True),
    "MT5Tokenizer": Class4(_T5, prefix="conversion", sentinels=True),
    "BertTokenizer": _BERT4,
    "DistilBertTokenizer": _BERT4,
    "ElectraTokenizer": _BERT4,
}
_NAMES_4 = """
    Albert Barthez Bartpho BertGeneration BertJapanese Bertweet BigBird BioGpt BlenderbotSmall Blenderbot ByT5
    CLIP CTRL Camembert Canine Clvp CodeLlama ConvBert CpmAnt Cpm DPRContextEncoder DPRQuestionEncoder
    DPRReader Deberta DebertaV2 Dia ErnieM Esm FNet FSMT FastSpeech2Conformer Flaubert Funnel GPTNeoXJapanese
    GPTSanJapanese GPTSw3 Herbert Jukebox LED LayoutLM LayoutLMv2 LayoutLMv3 LayoutXLM Longformer Luke Lxmert
    M2M100 MBart50 MBart MLuke MPNet Marian MarkupLM Mgpstr MobileBert Mvp MyT5 Nllb Nougat OpenAIGPT PLBart
    ParakeetCTC Parakeet Pegasus Perceiver Phobert ProphetNet Rag Realm Reformer RemBert RetriBert RoCBert
    RoFormer SeamlessM4T Siglip Speech2Text2 Speech2Text SpeechT5 Splinter SqueezeBert Tapas Tapex TransfoXL
    Udop Vits Wav2Vec2CTC Wav2Vec2PhonemeCTC Whisper XGLM XLMProphetNet XLM XLNet
"""
_TYPES_4: Mapping[str, str] = {
    GENERIC: """
        bitnet blt csm falcon glm glm4 glm4_moe glm4v glm4v_moe gpt_oss helium kosmos-2.5 modernbert moonshine
        moshi nemotron pixtral smollm3 voxtral""",
    "LlamaTokenizer": """
        arcee aria chameleon colpali deepseek_v2 deepseek_v3 deepseek_vl deepseek_vl_hybrid diffllama ernie4_5
        ernie4_5_moe idefics idefics2 idefics3 jamba janus jetmoe llama llama4 llama4_text llava llava_next
        llava_next_video llava_onevision ministral mistral mistral3 mixtral mllama paligemma persimmon phi3
        phimoe video_llava vipllava zamba zamba2""",
    "GPT2Tokenizer": """
        blip-2 dbrx emu3 exaone4 flex_olmo gpt2 gpt_bigcode gpt_neo gptj instructblip instructblipvideo
        minimax olmo3 opt starcoder2""",
    "CodeGenTokenizer": "codegen phi",
    "GPTNeoXTokenizer": "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmo2 olmoe rwkv stablelm xlstm",
    "Qwen2Tokenizer": """
        colqwen2 internvl qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3 qwen3_moe
        qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe""",
    "GemmaTokenizer": """
        gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma shieldgemma2 siglip2 t5gemma""",
    "CohereTokenizer": "aya_vision cohere cohere2",
    "BloomTokenizer": "bloom",
    "RobertaTokenizer": "bridgetower clap data2vec-text ibert mega mra roberta roberta-prelayernorm",
    "XLMRobertaTokenizer": "kosmos-2 metaclip_2 xlm-roberta xlm-roberta-xl xmod",
    "BartTokenizer": "bart",
    "T5Tokenizer": "longt5 musicgen musicgen_melody pix2struct switch_transformers t5 umt5",
    "MT5Tokenizer": "mt5",
    "BertTokenizer": """
        align bark bert blip bros chinese_clip ernie git grounding-dino megatron-bert mm-grounding-dino nezha
        qdqbert tvp vilt visual_bert""",
    "DistilBertTokenizer": "distilbert",
    "ElectraTokenizer": "electra",
}


@dataclass(frozen=True, slots=True)
class Class5:
    """A class of version 5 that rebuilds normalizer and pre-tokenizer.

    Attributes:
        model: The type of model whose vocabulary and merges it keeps.
        tokens: Its special tokens where the files name none.
        readds: Whether it adds its special tokens once more, without flags.
    """

    model: Literal["BPE", "Unigram", "WordPiece"]
    tokens: Tokens
    readds: bool = False


_BERT5 = Class5("WordPiece", _BERT)
_ROBERTA5 = Class5("BPE", _ROBERTA)
CLASSES_5: Final[Mapping[str, Class5]] = {
    "GPT2Tokenizer": Class5("BPE", {**_GPT2, "pad_token": None}),
    "CodeGenTokenizer": Class5("BPE", {**_GPT2, "pad_token": None}),
    "GPTNeoXTokenizer": Class5("BPE", {**_GPT2, "pad_token": "<|padding|>"}),
    "Qwen2Tokenizer": Class5("BPE", _QWEN, readds=True),
    "Qwen3_5Tokenizer": Class5("BPE", _QWEN),
    "LlamaTokenizer": Class5("BPE", _LLAMA),
    "GemmaTokenizer": Class5("BPE", {**_GEMMA, "mask_token": "<mask>"}),
    "CohereTokenizer": Class5(
        "BPE",
        {
            **_COHERE,
            "pad_token": "<PAD>",
            "cls_token": "<CLS>",
            "sep_token": "<SEP>",
            "mask_token": "<MASK_TOKEN>",
        },
        readds=True,
    ),
    "RobertaTokenizer": _ROBERTA5,
    "BartTokenizer": _ROBERTA5,
    "LEDTokenizer": _ROBERTA5,
    "MvpTokenizer": _ROBERTA5,
    "XLMRobertaTokenizer": Class5("Unigram", _ROBERTA),
    "T5Tokenizer": Class5("Unigram", _T5),
    "BertTokenizer": _BERT5,
    "DistilBertTokenizer": _BERT5,
    "LxmertTokenizer": _BERT5,
    "MobileBertTokenizer": _BERT5,
    "SqueezeBertTokenizer": _BERT5,
}
_NAMES_5 = """
    Albert Barthez BigBird Blenderbot CLIP Camembert CodeLlama DPRContextEncoder DPRQuestionEncoder DPRReader
    Deberta DebertaV2 Esmc Funnel Herbert Lasr LayoutLMv2 LayoutLMv3 LayoutXLM Luke MBart50 MBart MLuke MPNet
    MarkupLM Nllb Nougat OpenAIGPT Pegasus Reformer RemBert RoFormer SeamlessM4T Siglip2 Splinter Tipsv2 Udop
    VideoPrism Whisper XGLM XLNet Pop2Piano Rag Bartpho BertGeneration GPTSw3 PLBart Siglip SpeechT5
    BertJapanese Bertweet BioGpt BlenderbotSmall ByT5 CTRL Canine Clvp CpmAnt Cpm Dia Esm FSMT
    FastSpeech2Conformer Flaubert GPTNeoXJapanese M2M100 Marian Mgpstr MyT5 Perceiver Phobert ProphetNet
    RoCBert Speech2Text Tapas Vits Wav2Vec2CTC Wav2Vec2PhonemeCTC XLM
"""
_TYPES_5: Mapping[str, str] = {
    GENERIC: """
        EvollaModel aria beam bigbird_pegasus canary flex_olmo glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe
        glm_image glmasr got_ocr2 gpt_bigcode gradium_phonon_tts granite granitemoe granitemoehybrid
        granitemoeshared kimi_k25 kimi_linear kosmos-2 mimo_v2_flash minicpm_ocr minicpmv4_6 minicpmv4_7
        ministral ministral3 mistral mistral3 mistral_large4 mixtral nemo_speechlm nystromformer olmo2 olmo3
        olmo_hybrid pegasus_x persimmon pix2struct pixtral pocket_tts stablelm umt5 voxtral voxtral_realtime
        xlm-roberta-xl""",
    "BertTokenizer": """
        align bark bert blip bros chinese_clip convbert distilbert electra ernie flava git grounding-dino
        layoutlm megatron-bert mm-grounding-dino nezha nomic_bert qdqbert realm retribert squeezebert tvp vilt
        visual_bert""",
    "Qwen2Tokenizer": """
        audioflamingo3 colqwen2 cosmos3_omni dots3_note fun_asr_nano hunyuan_vl internvl lighton_ocr
        moss_transcribe_diarize ovis2 qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl
        qwen3 qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe vibevoice""",
    "Qwen3_5Tokenizer": "qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen4_exp",
    "CohereTokenizer": "aya_vision cohere cohere2",
    "RobertaTokenizer": """
        bart bridgetower clap data2vec-text ibert lilt longformer mega mra roberta roberta-prelayernorm""",
    "BartTokenizer": "florence2",
    "GPT2Tokenizer": """
        blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip instructblipvideo jais2
        opt phi starcoder2""",
    "GemmaTokenizer": """
        diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma shieldgemma2
        t5gemma zaya""",
    "GPTNeoXTokenizer": "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm",
    "XLMRobertaTokenizer": "gte jina_embeddings_v3 metaclip_2 trocr xlm-roberta xmod",
    "LlamaTokenizer": "idefics idefics2",
    "T5Tokenizer": "mt5 musicgen musicgen_melody switch_transformers t5",
    "MobileBertTokenizer": "mobilebert",
    "LxmertTokenizer": "lxmert",
    "LEDTokenizer": "led",
    "MvpTokenizer": "mvp",
    "Siglip2Tokenizer": "siglip2",
}
# Types of models whose published tokenizer_class version 5 overrides.
_OVERRIDDEN_5 = """
    arctic camembertv2-base chatlm cohere_asr ernie4_5 ernie4_5_moe fuyu h2ovl_chat hyperclovax
    hyperclovax_vision_v2 hyperclovax_vlm internlm2 internlm3 iquestcoder jamba llava llava_next minicpm3
    minicpmv minimax_m2 modernbert modernbert-decoder molmo molmo2 nemotron nvfp4 opencua openvla paddleocr_vl
    phi3 phi3_v phimoe qwen2 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen4_exp siglip2 smolvlm step3_vl vipllava
"""
_MISTRAL_5 = """
    ministral ministral3 mistral mistral3 mistral_large4 mixtral pixtral voxtral voxtral_realtime
"""


def _by_type(table: Mapping[str, str]) -> dict[str, str]:
    return {kind: name for name, kinds in table.items() for kind in kinds.split()}


def _known(names: str, followed: Mapping[str, Any]) -> frozenset[str]:
    return frozenset({f"{name}Tokenizer" for name in names.split()} | followed.keys())


class UnloadableError(Exception):
    """A directory that transformers cannot load; the message is the reason."""


def class_4(config: Mapping[str, Any], model_config: Mapping[str, Any]) -> str:
    """Return the class that version 4 loads a directory with, without ``Fast`` at its end.

    Raises:
        UnloadableError: There is none.
    """
    name = config.get("tokenizer_class") or model_config.get("tokenizer_class")
    if name is None:
        kind = model_config.get("model_type")
        if kind is None:
            raise UnloadableError("it has no tokenizer_class, and no config.json with a model_type")
        return _by_type(_TYPES_4).get(_name(kind, "model_type"), f"the class of the model_type {kind}")
    plain = _plain(name)
    if plain == "PreTrainedTokenizer":
        return GENERIC
    if plain == GENERIC or plain not in _known(_NAMES_4, CLASSES_4):
        raise UnloadableError(f"it has no tokenizer_class {name}")
    return plain


def class_5(config: Mapping[str, Any], model_config: Mapping[str, Any], *, has_byte_level: bool) -> str:
    """Return the class that version 5 loads a directory with.

    ``has_byte_level``: whether tokenizer.json contains ``"ByteLevel"``.
    """
    kind = _name(model_config.get("model_type") or "", "model_type")
    named = config.get("tokenizer_class") or model_config.get("tokenizer_class")
    is_overridden = kind in _OVERRIDDEN_5.split()
    registered = _by_type(_TYPES_5).get(kind, GENERIC if is_overridden else None)
    if named is None:
        return registered or GENERIC
    plain = _plain(named)
    if plain == "LlamaTokenizer" and has_byte_level and not is_overridden and kind not in _MISTRAL_5.split():
        return GENERIC
    if registered == GENERIC:
        return GENERIC
    if is_overridden and registered is not None:
        plain = registered
    return plain if plain in _known(_NAMES_5, CLASSES_5) else GENERIC


def _plain(name: Any) -> str:
    return _name(name, "tokenizer_class").removesuffix("Fast")


def _name(value: Any, setting: str) -> str:
    if not isinstance(value, str):
        raise UnloadableError(f"its {setting} is not a name")
    return value


def built_parts(
    name: str, model: Mapping[str, Any], kwargs: Mapping[str, Any], normalizer: Any
) -> dict[str, Any]:
    """Return model, normalizer and pre-tokenizer that a class of version 5 builds.

    ``kwargs``: the settings of the files and the class; ``normalizer``: that of tokenizer.json.
    """
    prefix = kwargs.get("add_prefix_space")
    spaces: Any = None
    match name:
        case "GPTNeoXTokenizer":
            built, spaces, pieces = _bpe(model), _NFC, _byte_level(kwargs)
        case "Qwen2Tokenizer" | "Qwen3_5Tokenizer":
            split = _split(QWEN_PATTERN if name == "Qwen2Tokenizer" else QWEN3_5_PATTERN)
            bytes_ = _byte_level({"add_prefix_space": bool(prefix)}, use_regex=False)
            built, spaces, pieces = _bpe(model), _NFC, _sequence(split, bytes_)
        case "CohereTokenizer":
            digits = {"type": "Digits", "individual_digits": True}
            built, spaces, pieces = _bpe(model), _NFC, _sequence(digits, _byte_level(kwargs))
        case "LlamaTokenizer":
            scheme = "always" if kwargs.get("legacy", False) else "first"
            pieces = _metaspace(scheme if prefix is None or prefix else "never", split=False)
            built = _bpe(model, fuse_unk=True, byte_fallback=True)
        case "GemmaTokenizer":
            if kwargs["unk_token"] not in model["vocab"]:
                raise UnloadableError(f"its vocabulary has no unknown token {kwargs['unk_token']!r}")
            built = _bpe(model, fuse_unk=True, byte_fallback=True, unk_token=kwargs["unk_token"])
            spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _MARK}
            pieces = {**_split(""), "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}
        case "XLMRobertaTokenizer":
            scheme = "always" if kwargs.get("add_prefix_space", True) else "never"
            built, spaces, pieces = _unigram(model, 3), _precompiled(normalizer), _words_then(scheme)
        case "T5Tokenizer":
            built, spaces, pieces = _unigram(model, 2), _precompiled(normalizer), _words_then("always")
        case _ if CLASSES_5[name].model == "WordPiece":
            built = _word_piece(model, kwargs["unk_token"])
            spaces = {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": _flag(kwargs, "tokenize_chinese_chars", default=True),
                "strip_accents": kwargs.get("strip_accents"),
                "lowercase": _flag(kwargs, "do_lower_case", default=True),
            }
            pieces = {"type": "BertPreTokenizer"}
        case _:  # the family of GPT-2
            built, pieces = _bpe(model), _byte_level(kwargs)
    return {"model": built, "normalizer": spaces, "pre_tokenizer": pieces}


_MARK = "\N{LOWER ONE EIGHTH BLOCK}"
_NFC = {"type": "NFC"}


def _flag(kwargs: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    value = kwargs.get(name, default)
    if not isinstance(value, bool):
        raise UnloadableError(f"its {name} is neither true nor false")
    return value


def _bpe(model: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "type": "BPE",
        **COMPONENT_DEFAULTS["BPE"],
        **changes,
        "vocab": model["vocab"],
        "merges": model.get("merges") or [],
    }


def _word_piece(model: Mapping[str, Any], unknown: Any) -> dict[str, Any]:
    return {
        "type": "WordPiece",
        **COMPONENT_DEFAULTS["WordPiece"],
        "unk_token": unknown,
        "vocab": model["vocab"],
    }


def _unigram(model: Mapping[str, Any], unknown: int) -> dict[str, Any]:
    return {"type": "Unigram", "unk_id": unknown, "vocab": model["vocab"], "byte_fallback": False}


def _byte_level(kwargs: Mapping[str, Any], *, use_regex: bool = True) -> dict[str, Any]:
    prefix = _flag(kwargs, "add_prefix_space")
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


def _metaspace(scheme: str, *, split: bool) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": _MARK, "prepend_scheme": scheme, "split": split}


def _words_then(scheme: str) -> dict[str, Any]:
    return _sequence({"type": "WhitespaceSplit"}, _metaspace(scheme, split=True))


def _sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _precompiled(normalizer: Any) -> Any:
    match normalizer:
        case {"type": "Sequence", "normalizers": list(parts)}:
            pass
        case _:
            parts = [normalizer]
    return next((part for part in parts if isinstance(part, dict) and "precompiled_charsmap" in part), None)
