from quotas.record_signature import RecordSigner

OLD, NEW = b"o" * 16, b"n" * 16


def test_a_record_is_known_by_the_secret_that_signed_it_and_by_nothing_else() -> None:
    signer = RecordSigner("quotas", [NEW, OLD])
    signature = signer.sign(b"key", None)
    assert signer.secret_of(signature, b"key", None) == 0
    assert signer.secret_of(RecordSigner("quotas", [OLD]).sign(b"key", None), b"key", None) == 1
    for forged, key, value in (
        (None, b"key", None),
        (signature[:-1], b"key", None),
        (signature, b"key", b""),
        (signature, None, b"key"),
        (RecordSigner("usage", [NEW]).sign(b"key", None), b"key", None),
        (RecordSigner("quotas", [b"x" * 16]).sign(b"key", None), b"key", None),
    ):
        assert signer.secret_of(forged, key, value) is None
