"""The symbol audit: every entry of the CUDA driver and of NVML must be interposed, or passed on purpose.

`check` compares the committed lists; `headers` regenerates them from NVIDIA's wheels (needs a package index); `library`
lists entries that an installed driver exports and no header names.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import compare
import entries
import headers


def check() -> int:
    """Print every complaint; return 1 if there is one."""
    said = [line for family in entries.FAMILIES for line in compare.complaints(compare.read(family))]
    for line in said:
        print(f"audit: {line}", file=sys.stderr)
    if not said:
        for family in entries.FAMILIES:
            lists = compare.read(family)
            print(
                f"audit: {family.title}: {len(lists.known)} entries, {len(lists.hooked)} stood before, the rest passed"
            )
    return 1 if said else 0


def library(paths: list[str]) -> int:
    """Print the exports of installed libraries beyond the lists; return 1 if one could allocate, launch or report."""
    known = {name for family in entries.FAMILIES for name in compare.read(family).known}
    beyond = sorted({name for path in paths for name in entries.of_library(path)} - known)
    for name in beyond:
        print(f"audit: exported, and in no header that was read: {name}")
    telling = ("Alloc", "Create", "Launch", "CtxCreate", "Capture", "MemGetInfo", "TotalMem", "Process", "MemoryInfo")
    return 1 if any(word in name for name in beyond for word in telling) else 0


def main() -> int:
    """Run the command line; return 2 if the audit itself could not be done."""
    parser = argparse.ArgumentParser(prog="audit", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("check", help="compare shim/lookup/real.h and audit/passed-*.txt with the committed names")
    fetch = verbs.add_parser("headers", help="write the committed names anew")
    fetch.add_argument("--major", type=int, choices=sorted(headers.WHEELS), action="append", help="default: all")
    fetch.add_argument("--wheels", type=Path, help="a folder of wheels of one major, instead of fetching them")
    installed = verbs.add_parser("library", help="look into installed libraries")
    installed.add_argument("path", nargs="+", help="libcuda.so.1, libnvidia-ml.so.1")
    given = parser.parse_args()
    try:
        if given.verb == "check":
            return check()
        if given.verb == "library":
            return library(given.path)
        if given.wheels and len(given.major or ()) != 1:
            parser.error("--wheels needs exactly one --major")
        headers.refresh(given.major or sorted(headers.WHEELS), given.wheels)
    except entries.AuditError as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
