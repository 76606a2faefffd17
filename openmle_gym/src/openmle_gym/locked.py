"""A folder that holds a card store and is worked on by one process at a time."""

import fcntl
from pathlib import Path

from openmle_gym.errors import ConfigError
from openmle_gym.store import CardStore


class LockedFolder:
    """Open until `close`; the lock ends with the process too, however that ends."""

    def __init__(self, path: Path, *, doing: str) -> None:
        """Opens the folder's `store.sqlite`, or makes it.

        Args:
            doing: What a process with the lock does, for the message to a second one: `is running this run`.

        Raises:
            ConfigError: Another process has the folder open.
            StoreError: The store is damaged.
        """
        self._lock = (path / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"{path}: another process {doing}") from error
        self.store = CardStore(path / "store.sqlite")

    def close(self) -> None:
        """Closes the store and lets the next process in."""
        self.store.close()
        self._lock.close()
