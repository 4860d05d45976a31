"""The JRE's trust store is made of the machine's certificates."""

from __future__ import annotations

import base64
import hashlib
import struct

from tools.entry.trust import java_key_store, write_trust_store


def _pem(*certificates: bytes) -> str:
    blocks = [base64.encodebytes(der).decode() for der in certificates]
    return "".join(f"# name\n-----BEGIN CERTIFICATE-----\n{b}-----END CERTIFICATE-----\n" for b in blocks)


def test_a_key_store_holds_every_certificate():
    """Header, one entry each with its bytes, and the checksum that Java verifies."""
    ders = [b"first certificate" * 9, b"second"]
    store = java_key_store(_pem(*ders))
    assert struct.unpack(">III", store[:12]) == (0xFEEDFEED, 2, 2)
    assert [store.count(struct.pack(">I", len(der)) + der) for der in ders] == [1, 1]
    salted = "changeit".encode("utf-16-be") + b"Mighty Aphrodite"
    assert store[-20:] == hashlib.sha1(salted + store[:-20]).digest()


def test_a_machine_without_certificates_gets_no_store(tmp_path):
    """Bazel then reaches plain addresses only, as any program there."""
    write_trust_store(tmp_path / "cacerts", tmp_path / "absent.crt")
    assert not (tmp_path / "cacerts").exists()
    (tmp_path / "bundle.crt").write_text(_pem(b"der"))
    write_trust_store(tmp_path / "cacerts", tmp_path / "bundle.crt")
    assert (tmp_path / "cacerts").read_bytes() == java_key_store(_pem(b"der"))
