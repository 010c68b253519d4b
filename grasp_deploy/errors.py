"""The exceptions that end a command without a traceback, and texts of others made harmless."""

import signal

# Control characters, and marks that turn the direction of writing, by pictures of one column: names
# and texts in files of strangers would repaint the terminal with them.
PICTURES = {
    **{
        code: "\ufffd"
        for code in (
            *range(0x80, 0xA0),
            *(0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),
        )
    },
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "\u2421",
}
# In errors that have no type of their own. Libraries take their room when their handle is made.
NO_ROOM = ("can't allocate memory", "ALLOC_FAILED", "cublasCreate", "cusolverDnCreate")


class InputError(ValueError):
    """Bad input: one line that names what is wrong, the reason and the remedy.

    The command line prints the message without a traceback and exits with status 2.
    """


class ChildError(RuntimeError):
    """Failure of a child process, such as vLLM; the message ends with the end of its log."""


def printable(text: str) -> str:
    """The text as a terminal may show it: a picture for each character that would act on it."""
    return text.translate(PICTURES)


def is_signal(error: BaseException) -> bool:
    """True for the exit that a signal to stop makes of a command."""
    stops = (128 + signal.SIGTERM, 128 + signal.SIGHUP)
    return isinstance(error, SystemExit) and error.code in stops


def is_out_of_memory(error: BaseException) -> bool:
    """True if memory ran out: Python's, a GPU's or its libraries', or that of torch on the CPU."""
    if isinstance(error, MemoryError) or any(said in str(error) for said in NO_ROOM):
        return True
    return type(error).__name__ == "OutOfMemoryError"  # torch's, which is not imported here


def first_line(error: object) -> str:
    """The first line of an error's text, with the next one after a colon; else the error's type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return text.rstrip(".: ")
