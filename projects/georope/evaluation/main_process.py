"""Long work of one process while the others wait."""
import itertools
import time
from collections.abc import Callable
from typing import Any

from mmengine.dist import broadcast_object_list, is_distributed, is_main_process
from torch.distributed import distributed_c10d

HEARTBEAT = 1  # seconds between two looks of a waiting process
_calls = itertools.count()  # the same in all processes


def on_main_process(work: Callable[[], Any]) -> Any:
    """Run ``work`` in the main process and return its result in all processes; must be called by all.

    The others sleep and poll the store through which the processes met. They wait in no collective, which has a
    timeout, and keep no core or GPU busy. If the main process ends, they end too, by the launcher or as its store is
    gone.
    """
    if not is_distributed():
        return work()
    store, sign, found = distributed_c10d._get_default_store(), f'georope/done/{next(_calls)}', [None]
    if is_main_process():
        found = [work()]
        store.set(sign, '')
    else:
        while not store.check([sign]):
            time.sleep(HEARTBEAT)
    broadcast_object_list(found)
    return found[0]
