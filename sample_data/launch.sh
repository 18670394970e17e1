#!/bin/bash
#SBATCH --job-name=tour
#SBATCH --ntasks-per-node=8
# An example for `tokshard doctor`: a small job on the datasets of the tutorial.

SEQ_LENGTH=256
DATA_ARGS=(
    --data-path 0.7 data/stories 0.3 data/manuals   # weights and path prefixes
    --split 1,0,0
    --data-cache-path ${CACHE:-index_cache}
    --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model sample_data
)
if [ "$BENCHMARK" = yes ]; then
    DATA_ARGS=(--mock-data --tokenizer-type NullTokenizer --vocab-size 4096)
fi

srun --nodes $SLURM_NNODES bash -c "python -u pretrain_gpt.py ${DATA_ARGS[*]} \
    --seq-length $SEQ_LENGTH --train-iters 30 --micro-batch-size 3 --global-batch-size 64 \
    --eval-interval 30 --eval-iters 0 --save $SCRATCH/checkpoints --node-rank \$SLURM_NODEID"
