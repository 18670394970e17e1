"""Programs and options of jobs whose data tokshard does not check.

The tables follow Megatron-LM 0.15 to 0.19 (``pretrain_*.py``, ``megatron/training/arguments.py``) and the
forks Megatron-DeepSpeed, Pai-Megatron-Patch and swiss-ai/Megatron-LM.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tokshard.checks.doctor.launch.arguments import option_of
from tokshard.checks.doctor.launch.launch import Launch

# Programs that read other samples than GPT's, by name.
_OTHER_SAMPLES = {
    "pretrain_bert.py": "BERT's masked samples",
    "pretrain_t5.py": "T5's masked samples",
    "pretrain_ict.py": "pairs of sentences",
    "pretrain_retro.py": "samples with neighbors",
    "pretrain_vlm.py": "images and text",
    "pretrain_vision_classify.py": "images",
    "pretrain_vision_dino.py": "images",
    "pretrain_vision_inpaint.py": "images",
    "pretrain_mimo.py": "several modalities",
    "train_rl.py": "no dataset",
    "megatron_gpt_pretraining.py": "data that NeMo's own configuration names",
    "megatron_gpt_finetuning.py": "data that NeMo's own configuration names",
}
# Directories of programs for several modalities, and of fine-tuning on conversations.
_OTHER_DIRECTORIES = re.compile(
    r"(?:^|/)(?:multimodal|mimo|tasks|modelopt|retro|llava[^/]*|[^/]*_vl|[^/]*_omni)(?:/|$)"
)
_NOT_JOBS = re.compile(
    r"preprocess|convert|checkpoint|merge_datasets|server|inference|generat|export|evaluat|eval_|_eval|analyze_|report_|create_doc_index|hf2mcore|mcore2hf"
)
_TRAINS = re.compile(r"pretrain|train|finetune")

_FORKS = {
    "deepspeed": "Megatron-DeepSpeed",
    "data_impl": "Megatron-DeepSpeed",
    "patch_tokenizer_type": "Pai-Megatron-Patch",
}
_WEIGHTED_SPLITS = re.compile(r"(?:train|valid|test)_weighted_split_paths(?:_path)?")

# Options that change the data or its order in a way that is not checked.
_UNCHECKED = frozenset(
    {
        "data_efficiency_curriculum_learning",
        "hybrid_context_parallel",
        "iterations_to_skip",
        "object_storage_cache_path",
        "repeated_dataloader",
        "skip_train_iteration_range",
        "train_data_exact_num_epochs",
        "train_desc_path",
        "train_doc_idx_path",
        "use_checkpoint_args",
        "validation_set_names",
    }
)
_UNCHECKED_ARGUMENTS = (
    "dataloader_defer_npy_index_mmap",
    "dataloader_fast_cache_load",
    "decrease_batch_size_if_needed",
    "per_dataset_sequences_path",
)


def is_training_program(name: str) -> bool:
    """Return whether a program is named like one that trains.

    Example:
        >>> is_training_program("pretrain_gpt.py"), is_training_program("preprocess_data.py")
        (True, False)
    """
    return _TRAINS.search(name) is not None and not is_other_program(name)


def is_other_program(name: str) -> bool:
    """Return whether a program is named like one that does not train."""
    return _NOT_JOBS.search(name) is not None


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Data of a job that is not checked.

    Attributes:
        reason: The reason, a sentence.
        has_other_names_only: Whether the job reads GPT's samples, but names its cache files differently.
    """

    reason: str
    has_other_names_only: bool = False


def unsupported_data(launch: Launch) -> Unsupported | None:
    """Return the reason why the data of a job is not checked, or None."""
    name, arguments = launch.program_name, launch.arguments
    samples = _OTHER_SAMPLES.get(name)
    if samples is not None:
        return Unsupported(f"{name} reads {samples}")
    if _OTHER_DIRECTORIES.search((launch.program or "").rpartition("/")[0]):
        return Unsupported(f"{launch.program} reads other samples than GPT's")
    for reason in _other_data(launch):
        return Unsupported(reason)
    if arguments.fim_data:
        return Unsupported("with --fim-data the files of the cache have other names", True)
    fork = fork_of(launch)
    return None if fork is None else Unsupported(f"the files of the cache have other names in {fork}", True)


def fork_of(launch: Launch) -> str | None:
    """Return the fork of Megatron with other cache file names to which options of a job belong, or None."""
    return next((fork for option, fork in _FORKS.items() if option in launch.others), None)


def _other_data(launch: Launch) -> Iterator[str]:
    arguments, others = launch.arguments, launch.others
    if arguments.mock_data:
        yield "with --mock-data the job reads no dataset"
    if arguments.sft:
        yield "with --sft the job reads conversations, not documents"
    if "perform_rl_step" in others:
        yield "with --perform-rl-step the job reads no dataset"
    if arguments.dataloader_type == "external":
        yield "with --dataloader-type external the job reads no indexes"
    if any(_WEIGHTED_SPLITS.fullmatch(name) for name in others):
        yield "--train-weighted-split-paths and the like are Megatron-DeepSpeed's, and not read"
    if "train_data" in others or "valid_data" in others:
        yield "--train-data and --valid-data are Pai-Megatron-Patch's, and name texts, not indexed datasets"
    if "prompt_data" in others:
        yield "with --prompt-data the job generates its data"
    if "finetune_hf_dataset" in others:
        yield "with --finetune-hf-dataset the job reads conversations, not documents"
    dataset = others.get("dataset")
    if dataset is not None and dataset != "MMAP":
        yield f"with --dataset {dataset} Pai-Megatron-Patch reads other samples than GPT's"
    elif others.get("train_mode") == "finetune":
        yield "with --train-mode finetune Pai-Megatron-Patch reads conversations, not documents"


def unchecked_options(launch: Launch) -> tuple[str, ...]:
    """Return the options of a job that affect its data in a way that is not checked."""
    names = sorted(_UNCHECKED & launch.others.keys())
    names += [name for name in _UNCHECKED_ARGUMENTS if getattr(launch.arguments, name)]
    return tuple(map(option_of, names))
