#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1

DATA_PATH="
0.40 /eagle/dolma/wiki_text_document
0.35 /eagle/dolma/books_text_document
0.25 /eagle/dolma/stack_text_document
"
GBS=64
SPLIT="949,50,1"

singularity exec --nv -B /eagle:/eagle megatron.sif bash <<EOS
export OMP_NUM_THREADS=8
mkdir -p /eagle/logs
torchrun --nnodes=$SLURM_NNODES --nproc_per_node=4 --node_rank=\$SLURM_NODEID pretrain_gpt.py \
  --tensor-model-parallel-size 4 --micro-batch-size 2 --global-batch-size $GBS --seq-length 2048 \
  --train-iters 2000 --eval-interval 100 --eval-iters 10 --split ${SPLIT} \
  --data-path $(echo $DATA_PATH)
EOS
