"""Wallet folders: private, silent, and the same for Bittensor's own tools."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from bittensor.wallet import Wallet as SdkWallet

from common.chain.wallets import dev_wallet, ensure_wallet, open_wallet
from common.errors import OperatorError, SetupError


def test_a_new_wallet_is_private_and_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wallet = ensure_wallet(tmp_path, "miner1")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == ["coldkey", "coldkeypub.txt", "default", "defaultpub.txt"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert wallet.hotkey_ss58 != wallet.coldkey_ss58
    assert capfd.readouterr() == ("", "")


def test_it_is_opened_and_not_replaced(tmp_path: Path) -> None:
    first = ensure_wallet(tmp_path, "w", "h")
    again = ensure_wallet(tmp_path, "w", "h")
    other = ensure_wallet(tmp_path, "w", "h2")
    assert again.hotkey_ss58 == first.hotkey_ss58
    assert other.coldkey_ss58 == first.coldkey_ss58
    assert other.hotkey_ss58 != first.hotkey_ss58


def test_the_sdk_opens_ours_and_we_open_the_sdks(tmp_path: Path) -> None:
    ours = ensure_wallet(tmp_path, "ours")
    theirs = SdkWallet("ours", "default", path=str(tmp_path))
    assert theirs.coldkey.ss58_address == ours.coldkey_ss58
    message = b"x"
    assert ours.hotkey.verify(message, theirs.hotkey.sign(message))

    made = SdkWallet("made", "default", path=str(tmp_path))
    made.create_new_coldkey(use_password=False, suppress=True)
    made.create_new_hotkey(use_password=False, suppress=True)
    assert open_wallet(tmp_path, "made").hotkey_ss58 == made.hotkey.ss58_address


def test_a_machine_with_the_hotkey_only(tmp_path: Path) -> None:
    ensure_wallet(tmp_path, "w")
    (tmp_path / "w" / "coldkey").unlink()
    wallet = ensure_wallet(tmp_path, "w")
    assert wallet.hotkey.sign(b"x")
    with pytest.raises(SetupError, match="cannot read the key"):
        wallet.coldkey.sign(b"x")


def test_files_that_are_no_keys(tmp_path: Path) -> None:
    ensure_wallet(tmp_path, "w")
    (tmp_path / "w" / "hotkeys" / "default").write_bytes(b"\xff{")
    with pytest.raises(SetupError, match="no key file"):
        open_wallet(tmp_path, "w")
    with pytest.raises(SetupError, match="cannot read"):
        open_wallet(tmp_path, "absent")


def test_an_encrypted_key_is_named(tmp_path: Path) -> None:
    ensure_wallet(tmp_path, "locked")
    (tmp_path / "locked" / "coldkey").write_bytes(b"$NACL" + bytes(80))
    wallet = open_wallet(tmp_path, "locked")
    with pytest.raises(SetupError, match="encrypted"):
        wallet.coldkey.sign(b"x")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "\n"])
def test_names_stay_inside_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(OperatorError):
        ensure_wallet(tmp_path, name)
    with pytest.raises(OperatorError):
        ensure_wallet(tmp_path, "w", name)


def test_alice_is_the_one_everybody_knows() -> None:
    assert dev_wallet("//Alice").coldkey_ss58 == "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"
