"""Teams of processes that train, asked of one that has imported TensorFlow (sharded_training.py)."""

import json
import select
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SHARDS = 3
_ANSWER_SECONDS = 280.0


@dataclass
class Teams:
    process: "subprocess.Popen[str]"
    directory: Path
    _alone: dict[str, dict[str, Any]] = field(default_factory=dict)

    def alone(self, model: str, **training: Any) -> dict[str, Any]:
        """What one process on one device trains."""
        asked = f"{model} {training}"
        if asked not in self._alone:
            self._alone[asked] = self.train(model=model, training=training)
        return self._alone[asked]

    def train(self, *, training: dict[str, Any] | None = None, **question: Any) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        asked = {"shards": _SHARDS} | (training or {})
        whole = {"workers": 1, "devices": 1, "training": asked, "directory": str(self.directory), **question}
        self.process.stdin.write(json.dumps(whole) + "\n")
        self.process.stdin.flush()
        answered, _, _ = select.select([self.process.stdout], [], [], _ANSWER_SECONDS)
        assert answered, f"no answer within {_ANSWER_SECONDS} s to {whole}"
        return dict(json.loads(self.process.stdout.readline()))
