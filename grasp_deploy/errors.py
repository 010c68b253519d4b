"""The exceptions that end a command without a traceback."""


class InputError(ValueError):
    """Bad input, told in one line: what is wrong, why, and what to do about it.

    The command line prints the message without a traceback and exits with status 2.
    """


class ChildError(RuntimeError):
    """A process that we started, such as vLLM, failed; the message ends with the end of its log."""
