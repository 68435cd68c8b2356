"""What the tools share: safe checkpoints, launching with and without GPU, and the line that says what is trained."""
from .checkpoint import last_checkpoint, load_from_local
from .hooks import CheckWeightsHook, PlainCheckpointHook, StreamHook, TrainingSummaryHook
from .launch import add_common_arguments, build_runner, load_config, local_file

__all__ = ['CheckWeightsHook', 'PlainCheckpointHook', 'StreamHook', 'TrainingSummaryHook', 'add_common_arguments',
           'build_runner', 'last_checkpoint', 'load_config', 'load_from_local', 'local_file']
