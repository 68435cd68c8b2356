"""What the tools share: safe checkpoints, launching with and without GPU, and the line that says what is trained."""
from .checkpoint import install_loaders, last_checkpoint, load_from_local, read_weights
from .hooks import (
    CheckDataHook,
    CheckScheduleHook,
    CheckWeightsHook,
    PlainCheckpointHook,
    StreamHook,
    TrainingSummaryHook,
)
from .launch import add_common_arguments, build_model, build_runner, load_config, local_file
from .layer_decay import LayerDecayConstructor

__all__ = ['CheckDataHook', 'CheckScheduleHook', 'CheckWeightsHook', 'LayerDecayConstructor', 'PlainCheckpointHook',
           'StreamHook', 'TrainingSummaryHook', 'add_common_arguments', 'build_model', 'build_runner',
           'install_loaders', 'last_checkpoint', 'load_config', 'load_from_local', 'local_file',
           'read_weights']
