#!/bin/bash

SCRIPT_DIR="$(dirname "$(readlink -f "$0")")"

# Common arguments and base model specific arguments
source "${SCRIPT_DIR}/conf/arguments.sh"

export HF_DATASETS_CACHE="/tmp/hf_datasets_cache"

# Extra arguments of this script
MLM_DEFAULT_ARGS=" \
    --distributed-timeout-minutes 30 \
    --finetune \
"

if [ -z "${MLM_DATA_ARGS}" ]; then
    MLM_DATA_ARGS=" \
        --train-samples 128000 \
        --split 100,0,0 \
        --data-path ${DATASET:-/data/magpie_text_document} \
    "
    printf "MLM_DATA_ARGS is not set, the default is ${MLM_DATA_ARGS}\n"
fi

if [ -z "${MLM_TRAIN_ARGS}" ]; then
    MLM_TRAIN_ARGS=" \
        --reset-position-ids \
        --micro-batch-size 1 \
        --global-batch-size 16 \
        --no-check-for-nan-in-loss-and-grad \
    "
fi

MLM_EVAL_ARGS=" \
    --eval-iters 1 \
    --eval-interval 1000 \
"

torchrun --nproc_per_node=$((TP * ${DP:-2})) ${SCRIPT_DIR}/finetune.py \
    --tensor-model-parallel-size ${TP} \
    --context-parallel-size ${CP:-1} \
    --seq-length 4096 \
    --tokenizer-type HuggingFaceTokenizer \
    --tokenizer-model ${TOKENIZER_MODEL} \
    --load ${MLM_MODEL_CKPT} \
    ${MLM_DATA_ARGS} \
    ${MLM_TRAIN_ARGS} \
    ${MLM_EVAL_ARGS} \
    ${MLM_DEFAULT_ARGS} ${MLM_EXTRA_ARGS}
