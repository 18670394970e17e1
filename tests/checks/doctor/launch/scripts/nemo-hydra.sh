#!/bin/bash

DATA="[0.6,/data/web_text_document,0.4,/data/wiki_text_document]"

read -r -d '' CMD <<END
python /opt/NeMo/examples/nlp/language_modeling/megatron_gpt_pretraining.py \
    --config-path=/conf --config-name=megatron_gpt_config \
    trainer.devices=8 trainer.num_nodes=1 trainer.max_steps=300000 \
    model.micro_batch_size=4 model.global_batch_size=2048 \
    model.encoder_seq_length=2048 \
    model.data.data_prefix=$DATA \
    model.data.splits_string=\'99,1,0\' \
    exp_manager.exp_dir=\$PWD/results
END

singularity exec --nv -B /data:/data nemo.sif bash -c "${CMD}"
