"""The errors a user can meet. Each message is one line: what is wrong, where, and how to mend it."""


class ScaleRLError(Exception):
    """Base of every error that `scalerl` raises on purpose; `exit_code` is what the CLI returns."""

    exit_code = 2


class InputError(ScaleRLError):
    """Unusable input or settings. The message names the file, line, column or key, and the mend."""


class ForecastRefused(ScaleRLError):
    """The data cannot carry a forecast or a fit. The message says which condition failed."""

    exit_code = 3


class VerifierError(ScaleRLError):
    """A verifier could not do its work: ours or the user's failure, not the model's, so the rollout is excluded."""


class EngineDied(ScaleRLError):
    """An engine's process is gone. The pipeline starts another; this reaches the user only if that fails."""


class CheckpointError(ScaleRLError):
    """A checkpoint could not be written or read; the message names the path and the mend. Training is intact."""
