#!/bin/bash
# MODEL is set by the queue.
case $MODEL in
  1b|1B)
    MBS=8 TP=1 ;;
  8b)
    MBS=2
    TP=2
    ;;
  *)
    echo "unknown model $MODEL" >&2
    exit 1
    ;;
esac

mpirun --allow-run-as-root -np 16 --bind-to none -x NCCL_IB_HCA=mlx5 \
  python /opt/megatron/pretrain_gpt.py \
  --tensor-model-parallel-size $TP --micro-batch-size ${MBS} --global-batch-size 128 \
  --data-path /data/corpus_text_document --split 90,5,5 --seq-length 2048 \
  --train-samples 1000000 --eval-interval 200 --eval-iters 10 --sft-tokenizer-prompt-format nemotron
