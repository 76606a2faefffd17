"""Who may ask for what: API keys with scopes.

    OPENMLE_SANDBOX_KEYS="submit:KEY,submit@alice:KEY2,grade@alice:KEY3,admin:KEY4"
    OPENMLE_SANDBOX_KEYS_FILE=/etc/openmle/keys        one such entry a line; # begins a comment

    submit   submit jobs graded on validation; see every job, without test scores; cancel one's own, and take its files
    grade    and ask for test scores, and see them
    admin    and do so with anybody's jobs

A client sends its key as `X-API-Key: KEY` or `Authorization: Bearer KEY`. Only digests of keys are kept.

What is submitted belongs to the owner of the key: the name after `@`, which several keys may share, or, without one,
the key itself. With names a key can be replaced while its jobs, idempotency keys and files stay reachable.

The file is read again when it changes. While it is broken (unreadable, misspelt, open to other users, without a key)
the keys read before stay in force, and the log says so once.

A service without keys serves its own machine: it listens on loopback, everybody there has the scope `submit`, and
nobody can have test scores. Browsers reach loopback too, so it refuses requests that a web page elsewhere sent.
"""

import hashlib
import hmac
import ipaddress
import logging
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from openmle_gym.configuration import secret_from_environment
from openmle_gym.errors import ConfigError, OpenMLEError
from openmle_gym.jobs import JobView
from pydantic import SecretStr

KEYS_VARIABLE = "OPENMLE_SANDBOX_KEYS"
KEYS_FILE_VARIABLE = "OPENMLE_SANDBOX_KEYS_FILE"
_ENTRY = re.compile(r"(?P<scope>\w+)(@(?P<owner>[\w.-]{1,40}))?\s*:\s*(?P<key>\S(.*\S)?)")

logger = logging.getLogger(__name__)


class Scope(IntEnum):
    """What a key allows; each implies those before it."""

    SUBMIT = 1
    GRADE = 2
    ADMIN = 3


class AccessDenied(OpenMLEError):
    """A request that its sender may not make: `status` is 401 (no valid key) or 403 (not with this key)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sent a request."""

    owner: str
    """Whom the caller's jobs belong to; `anonymous` on a service without keys."""
    scope: Scope

    def need(self, scope: Scope, what: str) -> None:
        """Raises:
        AccessDenied: The caller's key does not allow it.
        """
        if self.scope < scope:
            raise AccessDenied(403, f"{what} needs a key with the scope {scope.name.lower()}")

    def need_own(self, owner: str | None, what: str) -> None:
        """As `need(Scope.ADMIN)`, unless the job at hand, whose owner is given, is the caller's or does not exist."""
        if owner not in (self.owner, None):
            self.need(Scope.ADMIN, f"{what} a job that another key submitted")

    def shown(self, view: JobView) -> JobView:
        """The job as this caller may see it: below `grade`, without its test score."""
        result = view.result
        if self.scope >= Scope.GRADE or result is None or result.eval_split == "validation":
            return view
        hidden = result.model_copy(update={"test_score": None, "score": result.validation_score})
        return view.model_copy(update={"result": hidden})


class _Stamp(NamedTuple):
    """What tells one version of a file from the next."""

    inode: int
    modified_ns: int
    changed_ns: int
    size: int


class Keys:
    """The keys of one service; none at all is a service for its own machine."""

    def __init__(self, secret: SecretStr | None, file: Path | None = None) -> None:
        """Args:
        secret: Entries between commas, which hold as long as the service runs.
        file: Entries one a line, read again when it changes.

        Raises:
            ConfigError: One of them does not read like that. The message does not quote it.
        """
        self._fixed = _callers((secret.get_secret_value() if secret else "").split(","), KEYS_VARIABLE)
        self._file = file
        self._stamp = _stamp(file) if file else None
        self._callers = self._fixed | (_read(file) if file else {})

    @classmethod
    def from_environment(cls, keys_file: str | None = None) -> "Keys":
        """The keys that the service's environment names.

        Args:
            keys_file: Takes the place of the file that the environment names.
        """
        file = keys_file or os.environ.get(KEYS_FILE_VARIABLE)
        return cls(secret_from_environment(KEYS_VARIABLE), Path(file) if file else None)

    def __bool__(self) -> bool:
        return bool(self._callers)

    def check_host(self, host: str) -> None:
        """Raises:
        ConfigError: Without keys the service would be open to other machines.
        """
        if not self and not _is_loopback(host):
            raise ConfigError(
                f"host={host}: other machines can reach this address; set {KEYS_VARIABLE} or {KEYS_FILE_VARIABLE}"
                " to allow it"
            )

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Who sends a request with these headers.

        Raises:
            AccessDenied: The key is missing or unknown, or a web page elsewhere sent the request.
        """
        self._follow_file()
        if not self:
            _refuse_foreign_pages(headers)
            return Caller(owner="anonymous", scope=Scope.SUBMIT)
        given = _digest(_key(headers))
        # Every digest is compared: the time says nothing about which one it was.
        matches = [caller for digest, caller in self._callers.items() if hmac.compare_digest(digest, given)]
        if not matches:
            raise AccessDenied(401, "a valid key in the header X-API-Key is needed")
        return matches[0]

    def _follow_file(self) -> None:
        if self._file is None:
            return
        stamp = _stamp(self._file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._callers = self._fixed | _read(self._file)
        except ConfigError as error:
            logger.error("%s; the keys read before stay in force", error)
        else:
            logger.info("read %d keys; those in %s have changed", len(self._callers), self._file)


def _stamp(file: Path) -> _Stamp | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return _Stamp(status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)


def _read(file: Path) -> dict[bytes, Caller]:
    """Raises:
    ConfigError: The file cannot be read, others may read or write it, an entry is misspelt, or there is none.
    """
    try:
        # A FIFO in its place must not hold up the service.
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            lines = stream.read().splitlines() if stat.S_ISREG(mode) else []
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot read the keys: {type(error).__name__}") from None
    if mode & 0o077:
        raise ConfigError(f"{file}: has mode {mode & 0o777:o}, so other users may read it; chmod 600 it")
    callers = _callers(["" if line.lstrip().startswith("#") else line for line in lines], str(file))
    if not callers:
        raise ConfigError(f"{file}: names no key")
    return callers


def _callers(entries: Iterable[str], place: str) -> dict[bytes, Caller]:
    """Who sends which key, by the key's digest; the most that several entries for one key allow."""
    callers: dict[bytes, Caller] = {}
    for number, entry in enumerate(entries, start=1):
        if not entry.strip():
            continue
        match = _ENTRY.fullmatch(entry.strip())
        if match is None or match["scope"].upper() not in Scope.__members__:
            raise ConfigError(
                f"{place}: entry {number} is not submit:KEY, grade:KEY or admin:KEY (or submit@OWNER:KEY)"
            )
        digest = _digest(match["key"])
        caller = Caller(owner=match["owner"] or digest.hex()[:12], scope=Scope[match["scope"].upper()])
        if digest not in callers or caller.scope > callers[digest].scope:
            callers[digest] = caller
    return callers


def _key(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", errors="surrogatepass")).digest()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _refuse_foreign_pages(headers: Mapping[str, str]) -> None:
    """A page's own requests carry its `Origin`; a page behind a re-bound name carries that name as `Host`."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if not _leads_here(host) or origin not in (None, f"http://{host}", f"https://{host}"):
        raise AccessDenied(403, f"a service without keys answers its own machine only, not a web page at {host!r}")


@lru_cache(64)
def _leads_here(host: str) -> bool:
    """Whether a `Host` names this machine."""
    return _is_loopback(re.sub(r":\d+$", "", host).strip("[]"))
