#!/usr/bin/env bash
# Writes the job file and submits it.
# Usage: submit.sh [nodes] [data list]

NODES=${1:-8}
DATA_LIST=${2:-/lustre/lists/phase1.txt}
NAME="dense-3b-n${NODES}"
GBS=$((NODES * 8 * 4))

cat > "$NAME.sbatch.sh" <<EOT
#!/bin/bash
#SBATCH --job-name=$NAME
#SBATCH --nodes=$NODES
#SBATCH --ntasks-per-node=8
#SBATCH --time=24:00:00

export MASTER_ADDR=\$(scontrol show hostnames \$SLURM_JOB_NODELIST | head -n 1)
CACHE=/scratch/\$SLURM_JOB_ID/cache     # local to the job

srun --cpu-bind=none python -u pretrain_gpt.py \\
    --seq-length 4096 \\
    --micro-batch-size 4 --global-batch-size $GBS \\
    --train-samples $((GBS * 1000)) \\
    --data-args-path $DATA_LIST \\
    --split 100,0,0 \\
    --eval-interval 1000 --eval-iters 0 \\
    --data-cache-path \$CACHE
EOT

sbatch "$NAME.sbatch.sh"
