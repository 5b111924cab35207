"""`make audit`: what pip-audit found is said, and an audit that asked nobody does not pass."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = spec_from_file_location("audit", ROOT / ".ci/audit.py")
audit = module_from_spec(spec)
spec.loader.exec_module(audit)


def sound(name):
    return {"name": name, "version": "1.0", "vulns": []}


UNKNOWN = {"name": "x", "skip_reason": "not found on the index: x (1.0)"}
BROKEN = {"name": "y", "version": "2.0", "vulns": [{"id": "CVE-1", "fix_versions": ["2.1"]}]}


@pytest.mark.parametrize(
    ("packages", "code", "words"),
    [
        ([sound(str(n)) for n in range(40)] + [UNKNOWN], 0, "no vulnerability is known of 40"),
        ([UNKNOWN] * 5, 2, "5 of 5 were not asked about: not found on the index"),
        ([sound("a"), UNKNOWN], 2, "this is no audit"),
        ([sound("a"), BROKEN, UNKNOWN], 1, "y 2.0: CVE-1, mended in 2.1"),
    ],
)
def test_an_audit_says_what_it_knows(packages, code, words):
    found, said = audit.verdict(packages)
    assert found == code
    assert words in "\n".join(said)


def test_every_place_that_the_security_page_names_is_there():
    page = (ROOT / "SECURITY.md").read_text()
    named = set(re.findall(r"`(tests/[\w/.]+)", page))
    assert len(named) > 8
    assert all((ROOT / name).exists() for name in named)
