"""Prints who caught what."""

from __future__ import annotations

import sys

from tests.harness.mutations import MUTATIONS, caught


def main() -> None:
    free = True
    for mutation in MUTATIONS:
        found = caught(mutation)
        free = free and found is not None
        how = f"{found[1].partition(':')[0]:32} {found[0]}" if found else "NOT CAUGHT"
        print(f"{mutation.name:36} {how}")
    sys.exit(0 if free else 1)


if __name__ == "__main__":
    main()
