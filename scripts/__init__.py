"""Scripts of this repository, for its checkout; no part of the installed packages."""
