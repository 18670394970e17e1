#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=1 --gpus-per-node=8
#SBATCH --exclusive
#SBATCH -o logs/%x_%j.log

export GPUS_PER_NODE=8
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)

WEIGHTED_DATA=(
    # weight  prefix
    0.60      /lustre/tokens/web_text_document       # deduplicated
    0.25      /lustre/tokens/code_text_document
    # 0.05    /lustre/tokens/math_v1_text_document   (replaced by v2)
    0.15      /lustre/tokens/math_v2_text_document
)

ARGS=(
    --micro-batch-size 4
    --global-batch-size "$((4 * SLURM_NNODES * GPUS_PER_NODE))"   # one micro-batch per rank
    --seq-length 8192

    --train-iters 50000        # 420B tokens
    --eval-iters 0
    # --eval-interval 100
    --eval-interval 50000
    --tokenizer-type TikTokenizer --tokenizer-model /lustre/tok/tekken.json
    --tokenizer-special-tokens \"\<unk\>\" \"\<s\>\" \"\</s\>\"
    --split \"998,1,1\"
)

srun --label bash -c "torchrun --nnodes $SLURM_NNODES --nproc-per-node ${GPUS_PER_NODE} \
    --rdzv-backend c10d --rdzv-endpoint $head_node:29500 \
    pretrain_gpt.py ${ARGS[*]} --data-path ${WEIGHTED_DATA[*]} --wandb-exp-name \"run \$SLURM_PROCID\"" \
    2>&1 | tee -a train.log
