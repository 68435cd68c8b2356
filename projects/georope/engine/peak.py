"""Memory of a process and its children, for benchmarks (Linux)."""
import multiprocessing
import os
import threading
import time
from pathlib import Path


class Peak(threading.Thread):
    """The largest memory of this process and its children since it was made, in MiB.

    It is the sum of their proportional set sizes, looked at every ``interval`` seconds.
    """

    def __init__(self, interval: float = 1.) -> None:
        super().__init__(daemon=True)
        self.mib, self.interval = 0., interval
        self.start()

    def run(self) -> None:
        while True:
            self.look()
            time.sleep(self.interval)

    def look(self) -> None:
        total = 0
        for pid in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
            try:
                lines = Path(f'/proc/{pid}/smaps_rollup').read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith('Pss:'))
            except OSError:  # has just ended
                continue
        self.mib = max(self.mib, total / 1024)
