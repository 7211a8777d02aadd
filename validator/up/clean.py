"""``brigade clean``: delete a run's folder, after asking; wallets only when told so."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from common.errors import OperatorError
from validator.up.folder import Folder, locked

app = typer.Typer(help="Delete a run's folder.", rich_markup_mode=None)
KEEP = ("wallets", "up.lock")


@app.command()
def clean(
    directory: Annotated[
        Path, typer.Option("--dir", envvar="BRIGADE_DIR", help="Folder of a run that `brigade up` made.")
    ] = Path("brigade-run"),
    wallets: Annotated[
        bool, typer.Option("--wallets", help="Delete the wallets too: keys that are nowhere else are lost.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete everything of a run but its wallets."""
    folder = Folder(directory.absolute())
    if not (folder.run.exists() or folder.wallets.exists()):
        raise OperatorError(f"{folder.root} holds no run of Brigade; nothing was deleted")
    with locked(folder):
        doomed = [path for path in sorted(folder.root.iterdir()) if path.name not in KEEP]
        doomed += [folder.wallets] if wallets and folder.wallets.exists() else []
        if not doomed:
            print("only wallets are left; --wallets deletes them")
            return
        print("\n".join(str(path) for path in doomed))
        if not yes:
            typer.confirm(f"Delete these {len(doomed)} from {folder.root}?", abort=True)
        for path in doomed:
            _delete(path)
        print("deleted" if wallets else f"deleted; wallets stay in {folder.wallets}")


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
