#!/bin/bash
# Functions collect the options; main runs with the script's parameters.

function log { echo "[$(date)] $*" >&2; }

data_args() {
    local root=$1 share=$2
    DATA_ARGS="--train-data-path $share ${root}/train-a 0.2 ${root}/train-b --valid-data-path ${root}/valid"
}

batch_args() {
    local mbs=${1:-1}
    local gbs=$(( mbs * ${2} ))
    BATCH_ARGS=(--micro-batch-size "$mbs" --global-batch-size "$gbs")
}

launch() {
    log "launch: $*"
    time numactl --cpunodebind=0 torchrun --nnodes "${NNODES:-1}" --nproc_per_node "$NGPU" "$@"
}

main() {
    NGPU=8
    data_args "$1" 0.8
    batch_args 2 64
    launch pretrain_gpt.py "${BATCH_ARGS[@]}" $DATA_ARGS \
        --seq-length 2048 --train-iters 400 --eval-interval 100 --eval-iters 2 \
        --dataloader-defer-npy-index-mmap --data-cache-path "$1/cache" --num-workers 4 --no-mmap-bin-files \
        --num-dataset-builder-threads 8 --create-attention-mask-in-dataloader --reset-attention-mask
}

main "$@"
