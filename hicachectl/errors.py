"""The error tree and the exit codes: a leaf, importable from every layer.

    HicacheError                what failed, where, why we think so, what to do; one HC- code, one exit code
    |-- UsageError              a flag, a file, a trace line or a config key is wrong                      exit 2
    |   `-- ProfileError        a profile or recipe is wrong (file:line)                                  exit 2
    |-- HostError               the host refuses                                                          exit 4
    |   |-- PermissionDenied    a privilege or capability is missing                                      exit 4
    |   |-- Unsupported         hardware, kernel or container lacks it                                    exit 5
    |   `-- Vanished            a device or file went away while we looked                                exit 5
    |-- PlanStale               the plan's fingerprint no longer matches, or the lock is held             exit 8
    |-- ApplyFailed             a change failed; says what was applied, rolled back and left              exit 6 or 7
    |-- VerifyMismatch          an observed value is not the wanted one                                   exit 3
    |-- CapacityError           a sum does not fit; carries its terms                                     exit 10
    |-- StorageError            L3: transient, corrupt or missing                                         exit 11
    `-- InvariantBroken         a law of the runtime does not hold: a bug, both sides shown               exit 1

`assert` is only for what our own code guarantees; anything from outside raises one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum

__all__ = [
    "ApplyFailed",
    "CapacityError",
    "ExitCode",
    "HicacheError",
    "HostError",
    "InvariantBroken",
    "PermissionDenied",
    "PlanStale",
    "ProfileError",
    "StorageError",
    "StorageFault",
    "Unsupported",
    "UsageError",
    "Vanished",
    "VerifyMismatch",
]


class ExitCode(IntEnum):
    """Exit codes of every command; a runbook may branch on them."""

    OK = 0
    BUG = 1
    USAGE = 2
    DIFFERS = 3
    DENIED = 4
    UNSUPPORTED = 5
    UNDONE = 6
    PARTIAL = 7
    STALE = 8
    NO_RESULT = 9
    NOT_READY = 10
    DEGRADED = 11
    INTERRUPTED = 130
    PIPE_CLOSED = 141
    TERMINATED = 143


class HicacheError(Exception):
    """Base of everything hicachectl raises on purpose.

    `what` names the failed thing with both values, `where` is an address, path or file:line, `why` is the
    reason as far as known, `hint` is what to do next. `code` is a stable HC- code with an explain page.
    """

    exit_code: ExitCode = ExitCode.BUG
    default_code: str = "HC-BUG"

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        why: str | None = None,
        hint: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.hint = hint
        self.code = code or self.default_code

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text} ({self.why})" if self.why else text


class UsageError(HicacheError):
    """A flag, a file or a line the user gave cannot be used."""

    exit_code = ExitCode.USAGE
    default_code = "HC-USAGE"


class ProfileError(UsageError):
    """A profile or recipe file is wrong; `where` is file:line."""

    default_code = "HC-PROFILE"


class HostError(HicacheError):
    """The host refused something."""

    exit_code = ExitCode.DENIED
    default_code = "HC-HOST"


class PermissionDenied(HostError):
    """A privilege or capability is missing; `hint` names it."""

    default_code = "HC-DENIED"


class Unsupported(HostError):
    """Hardware, kernel, virtual machine or container lacks the feature."""

    exit_code = ExitCode.UNSUPPORTED
    default_code = "HC-UNSUPPORTED"


class Vanished(HostError):
    """A device or file disappeared between two looks."""

    exit_code = ExitCode.UNSUPPORTED
    default_code = "HC-DEVICE-GONE"


class PlanStale(HicacheError):
    """The host moved since the plan was made, or another apply holds the lock."""

    exit_code = ExitCode.STALE
    default_code = "HC-PLAN-STALE"


class ApplyFailed(HicacheError):
    """A change failed: exit 6 when everything was put back and verified, 7 when something is left."""

    default_code = "HC-APPLY-FAILED"

    def __init__(
        self,
        what: str,
        *,
        applied: Sequence[str],
        rolled_back: Sequence[str],
        left: Sequence[str],
        where: str | None = None,
        why: str | None = None,
        hint: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(what, where=where, why=why, hint=hint, code=code)
        self.applied = tuple(applied)
        self.rolled_back = tuple(rolled_back)
        self.left = tuple(left)
        self.exit_code = ExitCode.PARTIAL if self.left else ExitCode.UNDONE


class VerifyMismatch(HicacheError):
    """What was observed is not what was wanted."""

    exit_code = ExitCode.DIFFERS
    default_code = "HC-VERIFY"


class CapacityError(HicacheError):
    """A sum does not fit. `terms` are (name, amount) pairs, printed one by one, amounts in the unit the text names.

    `unit` "bytes": amounts are bytes, and printed in binary units too, but for terms whose name ends in ", pages".
    """

    exit_code = ExitCode.NOT_READY
    default_code = "HC-CAPACITY"

    def __init__(
        self,
        what: str,
        *,
        terms: Sequence[tuple[str, int | float]] = (),
        unit: str = "",
        where: str | None = None,
        why: str | None = None,
        hint: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(what, where=where, why=why, hint=hint, code=code)
        self.terms = tuple(terms)
        self.unit = unit


class StorageFault(Enum):
    """Why an L3 object could not be used."""

    TRANSIENT = "transient"
    CORRUPT = "corrupt"
    MISSING = "missing"
    FULL = "full"
    DENIED = "denied"


class StorageError(HicacheError):
    """L3 failed. The data path turns it into a counted miss; only set-up lets it reach the user."""

    exit_code = ExitCode.DEGRADED
    default_code = "HC-STORAGE"

    def __init__(
        self,
        what: str,
        *,
        fault: StorageFault,
        where: str | None = None,
        why: str | None = None,
        hint: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(what, where=where, why=why, hint=hint, code=code)
        self.fault = fault


class InvariantBroken(HicacheError):
    """A law of the runtime does not hold. Always a bug here, never the user's; the text shows both sides."""

    exit_code = ExitCode.BUG
    default_code = "HC-INVARIANT"
