"""A lock that looks whether its file exists, and makes it if not: two can pass, and a dead one blocks."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Self

from tokshard.errors import LockedError


class WriterLock:
    """Looks, then leaps."""

    def __init__(self, path: str, **_: object) -> None:
        self.path = Path(path)

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            raise LockedError(f"{self.path} exists")
        time.sleep(0.003)
        self.path.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        return self

    def __exit__(self, *arguments: object) -> None:
        self.path.unlink(missing_ok=True)
