#!/usr/bin/env python3
"""Asks for known vulnerabilities of every package in constraints.txt: `make audit`.

Exits with 0 if none is known, 1 for each that is, 2 where too few could be asked about to say so:
without a network, or through an index of packages that has no advisories, an audit finds nothing.
"""

import json
import subprocess
import sys
import venv
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "build/audit"
MOST_UNASKED = 0.05
"""Share of the packages that may be unknown, such as those of one vendor's own index."""


def verdict(packages: list[dict]) -> tuple[int, list[str]]:
    """(exit code, what to print) of what pip-audit found about each package."""
    said = [
        f"{each['name']} {each['version']}: {found['id']}, mended in "
        f"{', '.join(found['fix_versions']) or 'no release yet'}"
        for each in packages
        for found in each.get("vulns", ())
    ]
    reasons = Counter(
        each["skip_reason"].partition(":")[0] for each in packages if "skip_reason" in each
    )
    unasked, total = reasons.total(), len(packages)
    said += [f"{count} of {total} were not asked about: {why}" for why, count in reasons.items()]
    if any("vulns" in each and each["vulns"] for each in packages):
        return 1, said
    if unasked > MOST_UNASKED * total:
        return 2, [*said, "this is no audit; run it where pypi.org or osv.dev can be reached"]
    return 0, [*said, f"no vulnerability is known of {total - unasked} packages"]


def main() -> int:
    python = HOME / "bin/python"
    if not python.exists():
        venv.create(HOME, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "pip-audit"], check=True, timeout=300)
    asked = [*("-r", ROOT / "constraints.txt"), "--no-deps", "--disable-pip", "-f", "json"]
    done = subprocess.run(
        [python, "-m", "pip_audit", *asked], capture_output=True, text=True, timeout=600
    )
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(f"nothing was asked: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
        return 2
    code, said = verdict(packages)
    print("\n".join(said))
    return code


if __name__ == "__main__":
    sys.exit(main())
