#!/bin/bash
#SBATCH -N 2
#SBATCH --ntasks-per-node 4

MBS=1
if [ -n "$USE_MOCK" ]; then
  DATA_ARGS="--mock-data --tokenizer-type NullTokenizer --vocab-size 131072"
elif [[ $DATASET == pile ]]; then
  DATA_ARGS="--data-path /data/pile_text_document --split 969,30,1"
else
  DATA_ARGS="--per-split-data-args-path /data/lists/splits.json"
fi

# decides nothing about data
if [ ! -z "$WANDB_PROJECT" ]
then
  LOG_ARGS="--wandb-project $WANDB_PROJECT"
fi

srun python pretrain_gpt.py $DATA_ARGS $LOG_ARGS --micro-batch-size $MBS --global-batch-size 32 \
  --seq-length 1024 --train-iters 100 --eval-interval 50 --eval-iters 1
