"""The errors a user can meet. Each message is one line: what is wrong, where, and how to mend it."""


class ScaleRLError(Exception):
    """Base of every error that `scalerl` raises on purpose; `exit_code` is what the CLI returns."""

    exit_code = 2


class InputError(ScaleRLError):
    """Unusable input or settings. The message names the file, line, column or key, and the mend."""


class ForecastRefused(ScaleRLError):
    """The data cannot carry a forecast or a fit. The message says which condition failed."""

    exit_code = 3
