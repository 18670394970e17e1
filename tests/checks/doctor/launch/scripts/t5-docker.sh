#!/bin/bash

# Trains T5 220M in a container on one node.

GPUS_PER_NODE=${GPUS_PER_NODE:-8}
IMAGE=registry.example.com/team/megatron:24.07

CHECKPOINT_DIR=/ckpt/t5
VOCAB_FILE=/tok/bert-large-cased-vocab.txt
DATA_PATH=/data/t5/my-t5_text_sentence

T5_ARGS="
    --encoder-num-layers 12 
    --decoder-num-layers 12 
    --encoder-seq-length 512 
    --decoder-seq-length 128 
    --max-position-embeddings 512 
    --micro-batch-size 64 
    --global-batch-size 512 
    --train-iters 1000000 
    --lr-warmup-fraction .01 
    --vocab-extra-ids 100 
    --bf16
"

DATA_ARGS="
    --data-path $DATA_PATH 
    --vocab-file $VOCAB_FILE 
    --tokenizer-type BertWordPieceCase 
    --split 99982,9,9 
"

OUTPUT_ARGS="
    --log-interval 100 
    --eval-interval 1000 
    --eval-iters 10
"

docker run --rm --gpus all --ipc=host --network host \
    -v /data:/data -v /ckpt:/ckpt -e CUDA_DEVICE_MAX_CONNECTIONS=1 -w /workspace/megatron \
    "$IMAGE" \
    torchrun --nproc_per_node "$GPUS_PER_NODE" pretrain_t5.py \
    $T5_ARGS \
    $DATA_ARGS \
    $OUTPUT_ARGS \
    --save $CHECKPOINT_DIR \
    --load $CHECKPOINT_DIR
