"""`python -m deploy.release`: everything that a release consists of; `--help` lists the flags.

It builds the commit that is checked out, and refuses a tree with changes. See docs/deploying.md#a-release.
"""

import argparse
import getpass
import os
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deploy.release import image, signing
from deploy.release.artefacts import ARTEFACTS, LOCKS, Build
from deploy.release.checkout import CheckoutError, clean_commit, files_of
from deploy.release.distributions import BuildError
from deploy.release.provenance import Origin, digests, statement, statement_bytes
from deploy.release.release_notes import UNRELEASED, sections

ROOT = Path(__file__).resolve().parents[2]
CHECKSUMS = "SHA256SUMS"


class ReleaseError(Exception):
    """The release cannot be built as it was asked for; the message says what to do."""


def main() -> int:
    """Build as the command line says. Exit status 1 with one message if that fails."""
    options = _options()
    os.umask(0o022)
    try:
        release(ROOT, options)
    except (BuildError, CheckoutError, LookupError, ReleaseError, signing.KeyFileError, image.ImageError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="the directory; a release in it is replaced")
    parser.add_argument("--repository", type=_uri, metavar="URI", help="where others find the commit")
    parser.add_argument("--builder", type=_uri, metavar="URI", help="who builds: the provenance's builder.id")
    parser.add_argument("--sign-key", type=Path, metavar="FILE", help="sign with this Ed25519 key (PEM)")
    parser.add_argument("--image", action="store_true", help="build the image, too; needs a Docker daemon")
    options = parser.parse_args()
    if options.sign_key and not options.builder:
        parser.error("--sign-key needs --builder: the signed provenance says who built the release")
    return options


def _uri(text: str) -> str:
    address = urlsplit(text)
    if not address.scheme or text.split() != [text]:
        raise argparse.ArgumentTypeError(f"{text!r} is no URI, such as https://example.com/builds")
    if address.scheme.startswith("http") and (address.username or address.password):
        raise argparse.ArgumentTypeError("leave user and password out: everybody reads the provenance")
    return text


def release(tree: Path, options: argparse.Namespace) -> None:
    """Write all files of a release into `options.to`, and say what each is."""
    to: Path = options.to
    key = _key(options.sign_key) if options.sign_key else None
    commit, epoch = clean_commit(tree)
    if to.exists() and any(to.iterdir()) and not (to / CHECKSUMS).exists():
        raise ReleaseError(f"{to} holds no earlier release to replace: empty it, or name another directory with --to")
    with files_of(tree, commit) as files, tempfile.TemporaryDirectory(prefix="tollgate-release-") as staging:
        version = tomllib.loads((files / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
        build = Build(files, Path(staging), version, commit, epoch)
        if key and UNRELEASED in sections(build.read("CHANGELOG.md")):
            raise ReleaseError(f'CHANGELOG.md has a section "{UNRELEASED}": name it after the version, then sign')
        for builder in ARTEFACTS.values():
            builder(build)
        base_images = image.build(build) if options.image else {}
        locks = {name: (files / name).read_bytes() for name in LOCKS}
        _seal(build, Origin(commit, locks, options.repository, options.builder, base_images), key)
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        for path in sorted(build.to.iterdir(), key=lambda one: one.name == CHECKSUMS):
            shutil.copyfile(path, to / path.name)
    print((to / CHECKSUMS).read_text(), end="")
    print(
        f"release: signed with the key {signing.key_id(key)}" if key else "release: not signed; --sign-key names a key"
    )


def _seal(build: Build, origin: Origin, key: Ed25519PrivateKey | None) -> None:
    """Write checksums and provenance of what was built, signed if there is a key."""
    subjects = digests(build.to)
    checksums = "".join(f"{digest}  {name}\n" for name, digest in sorted(subjects.items())).encode()
    payload = statement_bytes(statement(subjects, origin))
    (build.to / CHECKSUMS).write_bytes(checksums)
    if key:
        (build.to / f"{CHECKSUMS}.sig").write_bytes(key.sign(checksums))
        build.write(".intoto.jsonl", signing.envelope(payload, key))
    else:
        build.write(".provenance.json", payload.decode())


def _key(path: Path) -> Ed25519PrivateKey:
    """Read the key; ask on a terminal for the passphrase that no variable has."""
    passphrase = os.environ.get(signing.PASSPHRASE)
    if not passphrase and signing.is_encrypted(path) and sys.stdin.isatty():
        passphrase = getpass.getpass(f"passphrase of {path}: ")
    return signing.read_key(path, passphrase)


if __name__ == "__main__":
    sys.exit(main())
