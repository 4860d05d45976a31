"""Copies an engine's package out of its source checkout and says which libraries it consists of, as JSON.

Run by the repository rule, with the standard library only. Copies and not links: a sandbox need not show the place
where the checkout lies, and a worker far away has not got it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from third_party.engines.describe import INFO_FOLDER, describe, watched  # noqa: E402
from third_party.engines.imports import Package  # noqa: E402
from third_party.engines.libraries import Library, libraries  # noqa: E402


def problem(checkout: Path, package: str, origin: str) -> str | None:
    """Why there is no such engine in a checkout, or None."""
    wanted = f"expected a source checkout of {package}, that is a folder with {package}/__init__.py in it"
    if not checkout.is_dir():
        return f"{origin}: {'not a folder' if checkout.exists() else 'no such folder'}; {wanted}."
    if (checkout / package / "__init__.py").is_file():
        return None
    if (checkout / "__init__.py").is_file():
        return f"{origin} is a Python package itself; {wanted}. Give {checkout.parent}?"
    found = ", ".join(sorted(path.name for path in checkout.iterdir() if path.name[0] != ".")[:8]) or "nothing"
    return f"{origin}: there is no package {package} in it; {wanted}, found {found}."


def bring_in(checkout: Path, package: Package, into: Path) -> list[dict]:
    """Writes the package and the libraries' descriptions below `into` and returns the libraries."""
    return [_write(checkout, package, library, into) for library in libraries(package)]


def _write(checkout: Path, package: Package, library: Library, into: Path) -> dict:
    files = [f"{package.name}/{file}" for file in library.files]
    for file in files:
        (into / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(checkout / file, into / file)
    if "" in library.folders and package.lazy:
        files += _put_lazy_root(package, into)
    info = f"{INFO_FOLDER}/{library.folders[0] or package.name}.json"
    (into / info).parent.mkdir(parents=True, exist_ok=True)
    patterns = sorted({str(Path(file).with_name("*")) for file in library.files})
    (into / info).write_text(json.dumps(describe(checkout, package.name, patterns), indent=2) + "\n")
    return {
        "folders": library.folders,
        "needs": library.needs,
        "srcs": [file for file in files if file.endswith(".py")],
        "data": [info, *(file for file in files if not file.endswith(".py"))],
    }


def _put_lazy_root(package: Package, into: Path) -> list[str]:
    root = into / package.name
    (root / "__init__.py").rename(root / "__init__.original")
    shutil.copyfile(Path(__file__).with_name("lazy_root.py"), root / "__init__.py")
    (root / "__init__.exports").write_text(json.dumps(package.exports, indent=2) + "\n")
    return [f"{package.name}/__init__.original", f"{package.name}/__init__.exports"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--checkout", type=Path, required=True, help="top folder of the sources")
    parser.add_argument("--package", required=True, help="name of the package in it")
    parser.add_argument("--origin", required=True, help="where the checkout is from, for messages")
    parser.add_argument("--leave-out", action="append", default=[], help="a folder of the package; may be repeated")
    parser.add_argument("--into", type=Path, help="where to write; without it the checkout is only looked at")
    arguments = parser.parse_args()
    if wrong := problem(arguments.checkout, arguments.package, arguments.origin):
        print(wrong, file=sys.stderr)
        return 1
    if arguments.into:
        package = Package(arguments.checkout / arguments.package, arguments.leave_out)
        brought = bring_in(arguments.checkout, package, arguments.into)
        json.dump({"libraries": brought, "watch": [str(path) for path in watched(arguments.checkout)]}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
