"""The exceptions that end a command without a traceback."""


class InputError(ValueError):
    """Bad input: one line that names what is wrong, the reason and the remedy.

    The command line prints the message without a traceback and exits with status 2.
    """


class ChildError(RuntimeError):
    """Failure of a child process, such as vLLM; the message ends with the end of its log."""


def is_out_of_memory(error: BaseException) -> bool:
    """True if memory ran out: Python's, a GPU's, or that of torch on the CPU."""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return True
    return type(error).__name__ == "OutOfMemoryError"  # torch's, which is not imported here


def first_line(error: object) -> str:
    """The first line of an error's text, with the next one after a colon; else the error's type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return text.rstrip(".: ")
