#!/bin/bash -l
#SBATCH --job-name=dense
#SBATCH --time=12:00:00
# The size of the job is that of srun.

module load cuda/12.4

: ${DATA_ROOT:=/project/data}
: ${MICRO:=2}

DATA_PATH=(
  1.0 "$DATA_ROOT/nl_text_document"
  2.0 "$DATA_ROOT/en_text_document" )
if [[ -z ${MICRO} || $MICRO == 0 ]]; then
  MICRO=1
fi

export TRAIN_CMD="/opt/megatron/pretrain_gpt.py
  --seq-length 4096 --max-position-embeddings 4096
  --micro-batch-size $MICRO
  --global-batch-size $(( MICRO * 16 * 8 ))
  --train-samples 9_765_625
  --eval-interval 1000 --eval-iters 50
  --data-path ${DATA_PATH[*]}
  --split 99.8,0.1,0.1
  --split 100,0,0
  --data-cache-path $SCRATCH/cache --no-data-sharding"

srun --nodes=2 --ntasks-per-node=8 --export=ALL sh -c '
  export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
  exec python -u $TRAIN_CMD'
