"""Certificates made for one run of the tests by the openssl command: nothing that is signed is kept."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Pair(NamedTuple):
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates for localhost and 127.0.0.1, or for other names."""

    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("the openssl command is not there to make certificates with")
        self.directory = directory
        self.ca = directory / "ca.pem"
        self._key = directory / "ca.key"
        self._made = 0
        subject = ("-subj", f"/CN=authority of {directory.name}", "-days", "2")
        _openssl("req", "-x509", *_NEW_KEY, "-keyout", self._key, "-out", self.ca, *subject)

    def sign(self, names: str = "DNS:localhost,IP:127.0.0.1") -> Pair:
        """A fresh pair for these names."""
        self._made += 1
        stem = self.directory / f"{self._made}"
        pair = Pair(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        request, names_file = stem.with_suffix(".csr"), stem.with_suffix(".ext")
        names_file.write_text(f"subjectAltName={names}\n")
        _openssl("req", *_NEW_KEY, "-keyout", pair.key, "-out", request, "-subj", f"/CN={self._made}")
        signer = ("-CA", self.ca, "-CAkey", self._key, "-set_serial", self._made + 1, "-days", "2")
        _openssl("x509", "-req", "-in", request, "-out", pair.cert, "-extfile", names_file, *signer)
        return pair

    def encrypted(self, pair: Pair, passphrase: str) -> Path:
        """The pair's key, behind a passphrase."""
        path = pair.key.with_suffix(".encrypted")
        _openssl("pkcs8", "-topk8", "-in", pair.key, "-out", path, "-passout", f"pass:{passphrase}")
        return path


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
