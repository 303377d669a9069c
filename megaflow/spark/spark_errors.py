"""Spark's errors: turns each into one sentence for users instead of many lines. Pure functions of values.

1. The sentence that matters is at the end of a Python traceback, or before the first Java frame.
2. If the master does not answer, only the log of the session has the reason why the session does not start.
3. A batch of a stopped query ends with INTERRUPTED, because Spark then prints nothing.
"""

import re
from typing import Final

from megaflow.errors import SourceError

OTHER_PYTHON: Final = (
    "No module named 'megaflow", "No module named 'msgpack", "PYTHON_VERSION_MISMATCH", "different minor",
)  # fmt: skip
"""Parts of errors that an executor's Python causes."""
LOST_PYTHON: Final = ("Error from python worker", "worker exited unexpectedly")
"""Errors with which another version of Python may also end."""
UNRESPONSIVE: Final = "masters are unresponsive"
SHUT_DOWN: Final = (
    "stopped SparkContext", "SparkContext was shut down", "SparkContext has been shutdown", "RpcEnv already stopped",
)  # fmt: skip
"""Parts of errors that Java raises between a signal and its end."""
VAGUE: Final = (
    "Encountered error while reading file", "Task failed while writing rows", "Exception thrown in awaitResult",
    "Job aborted", "Writing job aborted",
)  # fmt: skip
"""How sentences begin that do not say why."""
INTERRUPTED: Final = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling the batch: java.lang.InterruptedException"
)
"""Spark takes this text for the interruption of a query."""


def start_failure(master: str, error: str, log: str, version: str) -> SourceError:
    """Return the error for a session that did not start, in one sentence. `log` is the log of Spark's Java.

    >>> print(start_failure("local[2]", "Could not parse Master URL: 'x'", "", "4.3.0"))
    Spark did not start on local[2]: Could not parse Master URL: 'x'
    """
    cause = root_cause(error)
    if UNRESPONSIVE in log or UNRESPONSIVE in error:
        cause = f"The master does not answer. Its web page shows its version, which must be that of PySpark, {version}."
    return SourceError(f"Spark did not start on {master}: {cause}")


def root_cause(text: str) -> str:
    """Return the sentence that matters in the many lines of a Spark error.

    >>> root_cause("[PATH_NOT_FOUND] Path does not exist: /books. SQLSTATE: 42K03")
    'Path does not exist: /books.'
    >>> root_cause("Job aborted …\\nTraceback (most recent call last):\\n  File …\\nValueError: no\\n at org.apache…")
    'ValueError: no'

    An error of a user's function ends with its line.

    >>> root_cause('Traceback (most recent call last):\\n  File "own.py", line 7, in half\\nValueError: no')
    'ValueError: no (own.py, line 7, in half)'

    If a sentence does not say why, the messages of its causes follow.

    >>> root_cause("[TASK_WRITE_FAILED] Task failed while writing rows to /out.\\nCaused by: java.io.IOException: full")
    'Task failed while writing rows to /out. full'
    """
    whole = text
    text = text.partition("=== Streaming Query ===")[0]
    _, traceback, frames = text.rpartition("Traceback (most recent call last):")
    if traceback:
        text = next((line for line in frames.splitlines() if line and not line[0].isspace()), text)
        text = text.rstrip() + last_place(frames.partition(text)[0])
    text = text.removeprefix('Exception in thread "main" ')
    text = re.sub(r"An error occurred while calling \S+\s*:\s*", "", text).strip()
    text = re.sub(r"^\[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR\] [^:]*: ", "", text)
    text = re.sub(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ", "", text)
    sentence = _message(text)
    if sentence.startswith(VAGUE):
        for cause in re.findall(r"^Caused by: (.*)", whole, re.MULTILINE):
            if (message := _message(cause)) not in sentence:
                sentence += f" {message}"
    return sentence


def _message(text: str) -> str:
    """Return the first line of a Java error, without class and code."""
    text = re.sub(r"^(?:(?:[\w$]+\.)+[\w$]*(?:Exception|Error): )+", "", text)
    text = re.sub(r"^\[[A-Z0-9_.]+\] ", "", text)
    return re.sub(r"\s*SQLSTATE: \w+", "", text.partition("\n")[0]).strip()


def text_of(error: BaseException) -> str:
    """Return the text of an error of Spark, with those of its causes, which some errors keep apart."""
    causes = getattr(getattr(error, "_cause", None), "_stackTrace", None)
    return (str(error) or repr(error)) + (f"\nCaused by: {causes}" if causes else "")


def last_place(frames: str) -> str:
    """Return where the last frame of a traceback is; "" if it is in Spark or megaflow.

    >>> last_place('  File "/a/pyspark/worker.py", line 5, in main')
    ''
    """
    found = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', frames)
    if not found or re.search(r"/pyspark[/.]|/megaflow/(spark|job)/", found[-1][0]):
        return ""
    path, line, function = found[-1]
    return f" ({path}, line {line}, in {function})"
