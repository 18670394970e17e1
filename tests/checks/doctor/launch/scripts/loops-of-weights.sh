#!/bin/bash
# Blend from parallel arrays; nodes from the scheduler.

ROOT=/lustre/tokens/v3
NAMES=(web code math)
WEIGHTS=(0.7 0.2 0.1)

BLEND=()
for i in "${!NAMES[@]}"; do
    BLEND+=("${WEIGHTS[$i]}" "$ROOT/${NAMES[i]}_text_document")
done

EXTRA=""
for part in de:0.05 fr:0.03
do
    lang=${part%%:*}
    EXTRA="$EXTRA ${part#*:} $ROOT/multi-$lang"
done

NNODES=$SLURM_NNODES
SEQ_LENGTH=$(expr 4 \* 1024)
if [ ${#BLEND[@]} -gt 2 ] && [ "$SEQ_LENGTH" != 2048 ]; then
    SPLIT=99,1,0
fi

COMMON="--micro-batch-size 1 --global-batch-size 96 --seq-length ${SEQ_LENGTH} \
    --data-path ${BLEND[*]} $EXTRA --split $SPLIT --dataloader-type cyclic"

torchrun --nnodes=$NNODES --nproc_per_node=8 pretrain_gpt.py $COMMON \
    --train-iters 1000 --eval-interval 100 --eval-iters 10 || exit 1

# then the loss of the whole validation split
torchrun --nnodes=$NNODES --nproc_per_node=8 pretrain_gpt.py $COMMON \
    --skip-train --full-validation --train-iters 1000 --eval-iters 10
