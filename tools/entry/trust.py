"""The certificates that the JRE trusts, made of the machine's own: no package of Debian brings that file."""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from pathlib import Path

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.S)


def java_key_store(pem: str, password: str = "changeit") -> bytes:
    """A Java key store (JKS, version 2) with each certificate of a PEM bundle as a trusted one."""
    certificates = [base64.b64decode(match[1]) for match in _PEM.finditer(pem)]
    parts = [struct.pack(">III", 0xFEEDFEED, 2, len(certificates))]
    trusted_certificate, made_at = 2, 0
    for number, der in enumerate(certificates):
        parts += [struct.pack(">I", trusted_certificate), _text(f"ca-{number}"), struct.pack(">Q", made_at)]
        parts += [_text("X.509"), struct.pack(">I", len(der)), der]
    content = b"".join(parts)
    return content + hashlib.sha1(password.encode("utf-16-be") + b"Mighty Aphrodite" + content).digest()


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def write_trust_store(path: Path, bundle: Path = Path("/etc/ssl/certs/ca-certificates.crt")) -> None:
    """Write the machine's bundle of certificates to `path`, where it has one."""
    if bundle.exists():
        path.write_bytes(java_key_store(bundle.read_text()))
