"""Floor 4: prompts and verifiers. Importing this package loads neither torch nor transformers."""

from scalerl.tasks.guard import Guard
from scalerl.tasks.registry import build_task

__all__ = ["Guard", "build_task"]
