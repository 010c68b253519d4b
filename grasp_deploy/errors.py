"""The exceptions that end a command without a traceback."""


class InputError(ValueError):
    """Bad input, told in one line: what is wrong, why, and what to do about it.

    The command line prints the message without a traceback and exits with status 2.
    """


class ChildError(RuntimeError):
    """A process that we started, such as vLLM, failed; the message ends with the end of its log."""


def first_line(error: object) -> str:
    """The first line of an error's text, or the error's type where it says nothing.

    A line that ends in a colon takes the next one with it.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return text.rstrip(".: ")
