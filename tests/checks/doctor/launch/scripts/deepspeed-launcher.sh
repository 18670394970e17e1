#!/bin/bash

BASE_PATH=/gpfs/${USER}/tokens
DS_CONFIG=ds_config.json

TP=1
PP=1
NLAYERS=24
HIDDEN=512

GLOBAL_BATCH=100
MICRO_BATCH=4

ZERO_STAGE=2

cat <<EOT > $DS_CONFIG
{
  "train_batch_size" : $GLOBAL_BATCH,
  "train_micro_batch_size_per_gpu": $MICRO_BATCH,
  "zero_optimization": { "stage": $ZERO_STAGE }
}
EOT

export NCCL_DEBUG=warn 

ds_args=""
ds_args=" --deepspeed ${ds_args}"
ds_args=" --no-pipeline-parallel ${ds_args}" 
ds_args=" --deepspeed_config=$DS_CONFIG ${ds_args}"
ds_args=" --zero-stage=$ZERO_STAGE ${ds_args}"

deepspeed --num_nodes 1 --num_gpus 8 --master_port 29501 pretrain_gpt.py \
    --tensor-model-parallel-size $TP \
    --pipeline-model-parallel-size $PP \
    --num-layers $NLAYERS \
    --hidden-size $HIDDEN \
    --seq-length 256 \
    --loss-scale 12 \
    --max-position-embeddings 1024 \
    --micro-batch-size $MICRO_BATCH \
    --global-batch-size $GLOBAL_BATCH \
    --train-iters 1_000 \
    --lr 6.0e-5 \
    --data-path ${BASE_PATH}/my-gpt2_text_document \
    --vocab-file ${BASE_PATH}/gpt2-vocab.json \
    --merge-file /gpfs/tok/gpt2-merges.txt \
    --split 949,50,1 \
    --log-interval 1 \
    --eval-interval 40 \
    --eval-iters 10 \
    $ds_args
