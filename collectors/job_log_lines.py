"""Which lines of a job's output tell why it failed, and what must not leave the node with them.

Time is bounded: no quantifier stands inside another, every repetition has a bound, and lines are cut before they are
looked at.
"""

from __future__ import annotations

import re
from typing import Final

MAX_LINE: Final = 2048
"""Characters of a line that are looked at."""
KEPT: Final = 1000
"""Characters of a line that are sent: 1 kB."""

_KINDS: Final[tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...]] = (
    ("oom", ("memory", "oom"), re.compile(
        r"CUDA out of memory|OutOfMemoryError|oom[-_ ]kill|Out of memory: Killed|Detected \d{1,6} oom"
        r"|CUDA_ERROR_OUT_OF_MEMORY|exceeded (?:job |step )?memory limit|Cannot allocate memory|MemoryError",
        re.IGNORECASE)),
    ("nccl", ("nccl", "distbackend", "collective op", "caught collective", "remote peer", "system error", "net/ib"),
     re.compile(
        r"Watchdog caught collective|\bE\d{4} .{0,60}ProcessGroupNCCL|NCCL WARN|ncclSystemError|ncclRemoteError"
        r"|ncclInternalError|ncclUnhandledCudaError|NCCL error|NCCL timeout|DistBackendError"
        r"|collective operation timeout|NET/IB : Got completion|Connection closed by remote peer"
        r"|unhandled system error",
        re.IGNORECASE)),
    ("cuda", ("cuda", "cublas", "cudnn", "device-side", "memory access", "ecc", "launch failure", "xid", "accelerator",
              "is lost", "device handle"), re.compile(
        r"CUDA error|cudaError|CUDA_ERROR_|CUBLAS_STATUS|CUDNN_STATUS|device-side assert|illegal memory access"
        r"|uncorrectable ECC|unspecified launch failure|NVRM: Xid|no CUDA-capable device|AcceleratorError"
        r"|GPU is lost|Unable to determine the device handle", re.IGNORECASE)),
    ("nan", ("nan", "inf"), re.compile(
        r"(?:loss|grad[_ ]?norm|perplexity|ppl)[\"']? ?(?:[=:]|is|was|became) ?[\"']?(?:tensor\()?[-+]?(?:nan|inf)\b"
        r"|\bnan (?:loss|gradient|grad|in loss)|(?:loss|gradients?) (?:is|are|contains?|became) (?:nan|inf)\b"
        r"|detected (?:nan|inf)", re.IGNORECASE)),
    ("signal", ("segmentation", "bus error", "core dumped", "sig", "exited with", "killed", "terminated", "aborted",
                "exitcode", "failure", "cancelled", "time limit"), re.compile(
        r"Segmentation fault|Bus error|core dumped|SIG(?:SEGV|BUS|ABRT|KILL|TERM|ILL|FPE)\b|Signal \d{1,2} \(SIG"
        r"|srun: error: .{0,200}(?:Exited with exit code|Killed|Terminated|Aborted)|exitcode ?: ?-\d{1,2}\b"
        r"|DUE TO NODE FAILURE|slurmstepd: error: .{0,200}(?:CANCELLED|FAILURE|KILLED)|DUE TO TIME LIMIT"
        r"|died with <Signals")),
)  # fmt: skip
"""Kind, words of which one is in every line that the pattern knows, pattern; the most telling first: a line is of the
first kind that knows it. Looking for a word costs a hundredth of the pattern, and most lines have none."""
_WORDS: Final = ("traceback", *dict.fromkeys(word for _, words, _ in _KINDS for word in words))
_WORDS_AS_BYTES: Final = tuple(word.encode() for word in _WORDS)
_TRACEBACK: Final = re.compile(r"^Traceback \(most recent call last\)")
_PREFIX: Final = re.compile(
    r"\[(?:rank|default|local_rank)? ?(\d{1,6})\](?::(?:\[rank\d{1,6}\])?:?)? ?|(\d{1,6}): ?", re.IGNORECASE
)
"""What a launcher puts before a line: ``3: `` (srun -l), ``[rank3]: `` (torch), ``[3] ``, ``[default3]:``."""
_RANK: Final = re.compile(r"\[Rank (\d{1,6})\]|\brank[ =](\d{1,6})\b", re.IGNORECASE)

_SECRET: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"\b([a-z][a-z0-9+.-]{1,20})://[^/\s:@]{1,200}:[^/\s@]{1,400}@", re.IGNORECASE), r"\1://[redacted]@"),
    (re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,6}"), "[email]"),
    (re.compile(
        r"(?P<key>[\w-]{0,40}"
        r"(?:token|passw(?:or)?d|secret|api[_-]?key|access[_-]?key|credential|private[_-]?key|auth)[\w-]{0,40})"
        r"(?P<sep>[\"']? ?[=:] ?[\"']?)[^\s\"',;}]{1,800}", re.IGNORECASE), r"\g<key>\g<sep>[redacted]"),
    (re.compile(r"\b(bearer|basic|token|apikey)( ?)[A-Za-z0-9._~+/=-]{8,800}", re.IGNORECASE), r"\1\2[redacted]"),
    (re.compile(
        r"\b(?:hf_[A-Za-z0-9]{10,200}|gh[pousr]_[A-Za-z0-9]{10,200}|github_pat_\w{10,200}|glpat-[\w-]{10,200}"
        r"|sk-[\w-]{10,200}|xox[abps]-[\w-]{10,200}|AKIA[A-Z0-9]{12,40}|AIza[\w-]{20,80}"
        r"|eyJ[\w-]{10,800}\.[\w-]{4,800}(?:\.[\w-]{0,800})?|whsec_[\w+/=]{10,200})"), "[redacted]"),
    (re.compile(r"\b(?=[A-Za-z0-9]{0,400}\d)(?=[A-Za-z0-9]{0,400}[A-Za-z])[A-Za-z0-9]{40,400}\b"), "[redacted]"),
    (re.compile(r"(/(?:home|users|u)/)[^/\s\"':,)]{1,100}", re.IGNORECASE), r"\1[user]"),
    (re.compile(r"(?<=[?&])([\w.-]{1,60})=[^&\s\"']{16,800}"), r"\1=[redacted]"),
)  # fmt: skip
"""In this order: credentials in URLs go before what would take their at sign for a mail address."""
_CONTROL: Final = re.compile(
    r"\x1b\[[0-9;?]{0,20}[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def clean(raw: bytes) -> str:
    """A line as text: without colours, carriage-return overwriting (a progress bar) and control characters."""
    text = raw[: 4 * MAX_LINE].decode("utf-8", "replace").rstrip("\r\n")
    return _CONTROL.sub("", text.rpartition("\r")[2])[:MAX_LINE]


def redact(text: str) -> str:
    """At most ``KEPT`` characters without tokens, passwords, credentials in URLs, mail addresses and user names in home
    paths. Addresses of machines stay: which peer a collective lost is what the line is for. What does not look like a
    secret cannot be known to be one.
    """
    for pattern, put in _SECRET:
        text = pattern.sub(put, text)
    return text[:KEPT]


class Telling:
    """Lines of one output in their order; remembers that a traceback is being printed, for its last line tells."""

    def __init__(self) -> None:
        self.inside = self._indented = False

    def of(self, text: str) -> str | None:
        """The kind of line this is, ``None`` for one that tells nothing."""
        prefix = _PREFIX.match(text)
        body = text[prefix.end() :] if prefix else text
        if _TRACEBACK.match(body):
            self.inside, self._indented = True, False
            return None
        if self.inside:
            if not body.strip() or body[0].isspace():
                self._indented = True
                return None  # the code that a traceback shows names errors too
            if self._indented:
                self.inside = False
                return _kind(text) or "traceback"
        return _kind(text)


def may_tell(chunk: bytes) -> bool:
    """Whether any line of a chunk can tell something: most of an output is passed over by this alone."""
    low = chunk.lower()
    return any(word in low for word in _WORDS_AS_BYTES)


def rank_of(text: str) -> int | None:
    """The rank that a launcher or a library put into the line, ``None`` without one."""
    match = _PREFIX.match(text) or _RANK.search(text)
    return next((int(group) for group in match.groups() if group), None) if match else None


def _kind(text: str) -> str | None:
    low = text.lower()
    for kind, words, pattern in _KINDS:
        if any(word in low for word in words) and pattern.search(text):
            return kind
    return None
