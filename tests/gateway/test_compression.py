"""Compressed bodies: what comes back, and what never comes out."""

from __future__ import annotations

import contextlib
import gzip
import random
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbatch.errors import BadRequest, TooLarge, ZbatchError
from zbatch.gateway import compression
from zbatch.gateway.compression import chosen, compress, decompress

encodings = st.sampled_from(["gzip", "deflate"])


@given(encodings, st.binary(max_size=500))
def test_what_was_compressed_comes_back(encoding: str, data: bytes) -> None:
    assert decompress(encoding, compress(encoding, data), len(data)) == data


@given(st.binary(max_size=500))
def test_what_others_compress_is_read(data: bytes) -> None:
    assert decompress("gzip", gzip.compress(data), 500) == data
    assert decompress("X-GZIP ", gzip.compress(data), 500) == data
    assert decompress("deflate", zlib.compress(data), 500) == data
    assert decompress("deflate", zlib.compress(data)[2:-4], 500) == data


def test_a_file_of_several_parts_is_one_body() -> None:
    assert decompress("gzip", gzip.compress(b"one ") + gzip.compress(b"two"), 7) == b"one two"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_bomb_does_not_come_out(encoding: str) -> None:
    bomb = compress(encoding, bytes(100 << 20))
    tracemalloc.start()
    with pytest.raises(TooLarge) as caught:
        decompress(encoding, bomb, 1_000_000)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert str(caught.value) == (
        "the body has more than 1000000 bytes when decompressed, wanted at most 1000000"
    )
    assert most < 8_000_000


def test_a_bomb_in_parts_does_not_come_out() -> None:
    with pytest.raises(TooLarge):
        decompress("gzip", gzip.compress(bytes(600)) * 2, 1_000)


def test_a_body_of_countless_empty_files_is_refused() -> None:
    with pytest.raises(BadRequest, match="the body is more than 16 gzip files, wanted one"):
        decompress("gzip", gzip.compress(b"") * 17, 1_000)
    assert decompress("gzip", gzip.compress(b"a") * 16, 1_000) == b"a" * 16


def test_as_many_bytes_as_are_allowed_come_out() -> None:
    assert decompress("gzip", gzip.compress(bytes(1_000)), 1_000) == bytes(1_000)


@pytest.mark.parametrize(
    ("encoding", "body", "said"),
    [
        ("gzip", b"", "the body is no gzip: it is cut off"),
        ("gzip", gzip.compress(b"hello", mtime=0)[:-3], "the body is no gzip: it is cut off"),
        ("gzip", b"hello", "the body is no gzip: Error -3 while decompressing data: incorrect header check"),
        ("deflate", zlib.compress(b"hello") + b"!", "the body is no deflate: 1 bytes follow its end"),
    ],
)
def test_what_is_not_compressed_as_it_says_is_refused(encoding: str, body: bytes, said: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decompress(encoding, body, 1_000)
    assert str(caught.value) == said


@given(encodings, st.binary(max_size=200))
def test_anything_else_is_refused_or_bounded(encoding: str, body: bytes) -> None:
    with contextlib.suppress(ZbatchError):
        assert len(decompress(encoding, body, 300)) <= 300


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        (None, ""),
        ("", ""),
        ("identity", ""),
        ("br", ""),
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate, br", "gzip"),
        ("gzip;q=0.2, Deflate;q=0.8", "deflate"),
        ("gzip;q=0", ""),
        ("gzip;q=much", ""),
        ("gzip;level=3", "gzip"),
        ("*", "gzip"),
        ("*;q=0.5, gzip;q=0", "deflate"),
    ],
)
def test_an_answer_is_compressed_as_the_client_prefers(accept: str | None, encoding: str) -> None:
    assert chosen(accept) == encoding


def test_what_is_short_or_gets_no_smaller_is_left_as_it_is() -> None:
    assert not compression.is_worth_it(b"a" * 1_023)
    assert compression.is_worth_it(b"a" * 1_024)
    assert compression.is_worth_it(b"a" * 100_000)
    assert not compression.is_worth_it(random.Random(1).randbytes(100_000))


def test_encodings_that_are_read_are_known() -> None:
    assert compression.is_known(" GZIP")
    assert not compression.is_known("br")
