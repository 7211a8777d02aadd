"""Wallet folders in Bittensor's own layout, made and opened without a question asked or a mnemonic shown.

    <path>/<name>/coldkey  coldkeypub.txt  hotkeys/<hotkey>  hotkeys/<hotkey>pub.txt     all mode 0600

Any Bittensor tool opens them, and they open what such a tool wrote, unless it is encrypted. The keys of one folder
appear whole: a file is written under another name and renamed. A machine that only works with its hotkey needs no
coldkey file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bittensor_core import (
    KeyfileError,
    Keypair,
    deserialize_keypair_from_keyfile_data,
    keyfile_data_is_encrypted,
    serialized_keypair_to_keyfile_data,
)

from common.errors import OperatorError, SetupError
from common.files import write_atomically
from common.units import Coldkey, Hotkey

FOLDER_MODE = 0o700
MNEMONIC_WORDS = 12

NewKey = Callable[[], Keypair]


@dataclass(frozen=True)
class Wallet:
    """A coldkey and one of its hotkeys on disk; keys are read when they are first used.

    Has the attributes that the Bittensor SDK asks of a wallet.
    """

    path: Path
    name: str
    hotkey_name: str

    @property
    def folder(self) -> Path:
        """Where this wallet's files are."""
        return self.path / self.name

    @cached_property
    def hotkey(self) -> Keypair:
        """The hotkey with its secret."""
        return _read(self.folder / "hotkeys" / self.hotkey_name)

    @cached_property
    def coldkey(self) -> Keypair:
        """The coldkey with its secret. ``SetupError`` on a machine that doesn't have it."""
        return _read(self.folder / "coldkey")

    @cached_property
    def coldkeypub(self) -> Keypair:
        """The coldkey's public part."""
        return _read(self.folder / "coldkeypub.txt")

    @cached_property
    def hotkeypub(self) -> Keypair:
        """The hotkey's public part."""
        return self.hotkey

    @property
    def hotkey_ss58(self) -> Hotkey:
        """The hotkey's address."""
        return Hotkey(self.hotkey.ss58_address)

    @property
    def coldkey_ss58(self) -> Coldkey:
        """The coldkey's address."""
        return Coldkey(self.coldkeypub.ss58_address)


@dataclass(frozen=True)
class DevWallet:
    """Keys in memory that everybody knows: for local chains and tests."""

    coldkey: Keypair
    hotkey: Keypair

    @property
    def coldkeypub(self) -> Keypair:
        """The coldkey."""
        return self.coldkey

    @property
    def hotkeypub(self) -> Keypair:
        """The hotkey."""
        return self.hotkey

    @property
    def hotkey_ss58(self) -> Hotkey:
        """The hotkey's address."""
        return Hotkey(self.hotkey.ss58_address)

    @property
    def coldkey_ss58(self) -> Coldkey:
        """The coldkey's address."""
        return Coldkey(self.coldkey.ss58_address)


def dev_wallet(uri: str, hotkey_uri: str | None = None) -> DevWallet:
    """``dev_wallet("//Alice")``: the account that every development chain funds and trusts."""
    return DevWallet(Keypair.create_from_uri(uri), Keypair.create_from_uri(hotkey_uri or f"{uri}//hotkey"))


def new_key() -> Keypair:
    """A fresh random key; its mnemonic exists only inside the key."""
    return Keypair.create_from_mnemonic(Keypair.generate_mnemonic(MNEMONIC_WORDS))


def ensure_wallet(path: Path, name: str, hotkey: str = "default", make: NewKey = new_key) -> Wallet:
    """Open the wallet, making what isn't there yet. ``make`` gives new keys: coldkey first, then hotkey.

    A folder that holds the public coldkey alone stays so. ``SetupError`` for files that can't be used.
    """
    wallet = Wallet(path, _safe(name), _safe(hotkey))
    if not (wallet.folder / "coldkeypub.txt").exists():
        if not (wallet.folder / "coldkey").exists():
            _write(wallet.folder / "coldkey", make())
        _write(wallet.folder / "coldkeypub.txt", _public(wallet.coldkey))
    if not (wallet.folder / "hotkeys" / hotkey).exists():
        _write(wallet.folder / "hotkeys" / hotkey, make())
    if not (wallet.folder / "hotkeys" / f"{hotkey}pub.txt").exists():
        _write(wallet.folder / "hotkeys" / f"{hotkey}pub.txt", _public(wallet.hotkey))
    return open_wallet(path, name, hotkey)


def open_wallet(path: Path, name: str, hotkey: str = "default") -> Wallet:
    """Open a wallet that must be there; ``SetupError`` says which file is missing or unusable."""
    wallet = Wallet(path, _safe(name), _safe(hotkey))
    for key in (wallet.hotkey, wallet.coldkeypub):
        if not key.ss58_address:
            raise SetupError(f"{wallet.folder} holds a key without an address: make the wallet anew")
    return wallet


def _safe(name: str) -> str:
    if not name or name in (".", "..") or not all(char.isalnum() or char in "._-" for char in name):
        raise OperatorError(f"a wallet's name may hold letters, digits, '.', '_' and '-', not {name!r}")
    return name


def _public(key: Keypair) -> Keypair:
    return Keypair(ss58_address=key.ss58_address, public_key=bytes(key.public_key), crypto_type=key.crypto_type)


def _read(path: Path) -> Keypair:
    try:
        data = path.read_bytes()
        if keyfile_data_is_encrypted(data):
            raise SetupError(f"{path} is encrypted: Brigade's processes use wallets without a password")
        return deserialize_keypair_from_keyfile_data(data)
    except OSError as error:
        raise SetupError(f"cannot read the key {path}: {error.strerror}") from None
    except (KeyfileError, ValueError) as error:
        raise SetupError(f"{path} is no key file: {error}") from None


def _write(path: Path, key: Keypair) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
    write_atomically(path, bytes(serialized_keypair_to_keyfile_data(key)))
