"""Who may ask for what: API keys with scopes.

    OPENMLE_SANDBOX_KEYS="submit:KEY,submit:KEY2,grade:KEY3,admin:KEY4"

    submit   submit jobs graded on validation; see every job, without test scores; cancel one's own
    grade    and ask for test scores, and see them
    admin    and cancel anybody's jobs

A client sends its key as `X-API-Key`. Keys come from the environment only, and only their digests are kept.

A service without keys serves its own machine: it listens on loopback, everybody there has the scope `submit`, and
nobody can have test scores. Browsers reach loopback too, so it refuses requests that a web page elsewhere sent.
"""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from openmle_gym.configuration import secret_from_environment
from openmle_gym.errors import ConfigError, OpenMLEError
from openmle_gym.jobs import JobView
from pydantic import SecretStr

KEYS_VARIABLE = "OPENMLE_SANDBOX_KEYS"


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
    """Names the key without telling it; `anonymous` on a service without keys."""
    scope: Scope

    def need(self, scope: Scope, what: str) -> None:
        """Raises:
        AccessDenied: The caller's key does not allow it.
        """
        if self.scope < scope:
            raise AccessDenied(403, f"{what} needs a key with the scope {scope.name.lower()}")

    def shown(self, view: JobView) -> JobView:
        """The job as this caller may see it: below `grade`, without its test score."""
        result = view.result
        if self.scope >= Scope.GRADE or result is None or result.eval_split == "validation":
            return view
        hidden = result.model_copy(update={"test_score": None, "score": result.validation_score})
        return view.model_copy(update={"result": hidden})


class Keys:
    """The keys of one service; none at all is a service for its own machine."""

    def __init__(self, secret: SecretStr | None) -> None:
        """Args:
        secret: `scope:key,scope:key,...`

        Raises:
            ConfigError: It does not read like that. The message does not quote it.
        """
        self._scopes: dict[bytes, Scope] = {}
        for number, entry in enumerate((secret.get_secret_value() if secret else "").split(","), start=1):
            name, colon, key = (part.strip() for part in entry.partition(":"))
            if not entry.strip():
                continue
            if not (colon and key and name.upper() in Scope.__members__):
                raise ConfigError(f"{KEYS_VARIABLE}: entry {number} is not submit:KEY, grade:KEY or admin:KEY")
            digest = _digest(key)
            self._scopes[digest] = max(Scope[name.upper()], self._scopes.get(digest, Scope.SUBMIT))

    @classmethod
    def from_environment(cls) -> "Keys":
        """The keys that the service's environment names."""
        return cls(secret_from_environment(KEYS_VARIABLE))

    def __bool__(self) -> bool:
        return bool(self._scopes)

    def check_host(self, host: str) -> None:
        """Raises:
        ConfigError: Without keys the service would be open to other machines.
        """
        if not self and not _is_loopback(host):
            raise ConfigError(f"host={host}: other machines can reach this address; set {KEYS_VARIABLE} to allow it")

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Who sends a request with these headers.

        Raises:
            AccessDenied: The key is missing or unknown, or a web page elsewhere sent the request.
        """
        if not self:
            _refuse_foreign_pages(headers)
            return Caller(owner="anonymous", scope=Scope.SUBMIT)
        given = _digest(headers.get("x-api-key", ""))
        scopes = [scope for digest, scope in self._scopes.items() if hmac.compare_digest(digest, given)]
        if not scopes:
            raise AccessDenied(401, "a valid key in the header X-API-Key is needed")
        return Caller(owner=given.hex()[:12], scope=scopes[0])


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
    host = headers.get("host", "")
    own = f"http://{host}"
    if not _is_loopback(re.sub(r":\d+$", "", host).strip("[]")) or headers.get("origin", own) != own:
        raise AccessDenied(403, f"a service without keys answers its own machine only, not a web page at {host!r}")
