#!/bin/bash
# One job per seed; the job's text is not expanded here.
export DATA_ROOT=/data/llm
for SEED in 1234 5678; do
  export SEED
  sbatch --export=ALL --job-name=seed-$SEED <<'JOB'
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8

DATA="0.7 $DATA_ROOT/web_text_document \
      0.3 $DATA_ROOT/wiki_text_document"

srun torchrun --nnodes=$SLURM_JOB_NUM_NODES --nproc_per_node=8 --rdzv_backend=c10d pretrain_gpt.py \
  --train-iters=10000 --eval-iters=10 --eval-interval=1000 \
  --seq-length=2048 --micro-batch-size=8 --global-batch-size=256 \
  --seed=$SEED --split=95,5,0 \
  --data-path $DATA
JOB
done
