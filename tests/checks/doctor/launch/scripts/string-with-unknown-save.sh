#!/bin/bash
# 8B run of one node; OUT is the experiment's directory
set -u
ARGS="--num-layers 32 --seq-length 4096 --micro-batch-size 2 --global-batch-size 64 \
  --train-iters 20000 --data-path 0.5 /data/a 0.5 /data/b --split 969,30,1 --seed 7 \
  --data-cache-path $OUT/cache --save $OUT/c --eval-interval 500 --eval-iters 20 --seed 11"
exec env NCCL_DEBUG=WARN OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node=4 \
  pretrain_gpt.py $ARGS $EXTRA_ARGS
