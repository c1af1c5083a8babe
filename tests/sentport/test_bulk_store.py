"""Stored vectors: what goes in comes out as far as its type holds it, and what is not the same is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sentport import Encoder
from sentport.bulk.inputs import find_inputs
from sentport.bulk.job import Options, encode_files
from sentport.bulk.manifest import Manifest, StoreError, read_manifest, refuse_mix
from sentport.bulk.output import find_output
from sentport.bulk.store import open_vectors

LINES = [f"the {animal} {verb} {place}" for animal in ("cat", "dog") for verb in ("sat", "ran") for place in "abc"]


@pytest.fixture(scope="module")
def encoder(tiny_bundle: Path) -> Encoder:
    return Encoder(tiny_bundle, threads=1)


@pytest.fixture(scope="module")
def wanted(encoder: Encoder) -> NDArray[np.float32]:
    return encoder.encode(LINES)


@pytest.fixture
def texts(tmp_path: Path) -> str:
    (tmp_path / "texts.txt").write_text("\n".join(LINES))
    return str(tmp_path / "texts.txt")


def store(encoder: Encoder, texts: str, out: Path, options: Options = Options()) -> Manifest:  # noqa: B008
    return encode_files(encoder, find_inputs([texts]), find_output(out), options)


@pytest.mark.parametrize("name", ["v.npy", "v.parquet", "v"])
@pytest.mark.parametrize("stored", ["float32", "float16", "int8", "binary"])
def test_round_trip(
    name: str, stored: str, encoder: Encoder, wanted: NDArray[np.float32], texts: str, tmp_path: Path
) -> None:
    if name == "v.npy" and stored in ("int8", "binary"):
        with pytest.raises(StoreError, match="does not describe"):
            np.save(tmp_path / name, np.zeros((12, 24), stored if stored == "int8" else np.uint8))
            (tmp_path / "v.npy.json").write_text(store(encoder, texts, tmp_path / "other.npy").to_json())
            open_vectors(tmp_path / name)
        return
    keep = name != "v.npy"
    written = store(encoder, texts, tmp_path / name, Options(stored=stored, texts=keep, part_rows=5))
    held = open_vectors(tmp_path / name)
    assert held.manifest == written
    assert (held.rows, held.dim, held.manifest.fingerprint) == (12, 24, encoder.info.fingerprint)
    blocks = list(held.blocks(rows=4))
    assert max(len(block.ids) for block in blocks) <= 4
    ids = np.concatenate([block.ids for block in blocks])
    assert ids.tolist() == list(range(12))
    assert [text for block in blocks for text in block.texts or []] == (LINES if keep else [])
    vectors = np.concatenate([block.vectors for block in blocks])
    assert vectors.dtype == np.float32
    if stored == "binary":
        np.testing.assert_allclose(vectors, np.where(wanted > 0, 1, -1) / np.sqrt(24), rtol=1e-6)
    else:
        largest = np.abs(wanted).max(axis=1, keepdims=True)
        bound = {"float32": 1e-6, "float16": 2**-10, "int8": 0.51 / 127}[stored]
        assert (np.abs(vectors - wanted) <= bound * largest).all()
    assert (held.load().vectors == vectors).all()


def test_bad_rows_have_no_id(encoder: Encoder, texts: str, tmp_path: Path) -> None:
    Path(texts).write_bytes(b"the cat\n\xff\na dog\n")
    for name in ("v.npy", "v.parquet", "v"):
        output = find_output(tmp_path / name)
        assert store(encoder, texts, output.path).bad_rows == 1
        held = open_vectors(tmp_path / name)
        assert (held.rows, held.load().ids.tolist()) == (2, [0, 2])
        (row,) = [json.loads(line) for line in output.bad_rows.read_text().splitlines()]
        assert (row["position"], row["file"], row["line"], row["reason"]) == (1, texts, 2, "invalid UTF-8")
    assert np.isnan(np.load(tmp_path / "v.npy")[1]).all()


def test_damage_is_refused(encoder: Encoder, texts: str, tmp_path: Path) -> None:
    for name in ("v.npy", "v.parquet", "v"):
        store(encoder, texts, tmp_path / name, Options(part_rows=5))
    flipped = bytearray((tmp_path / "v.parquet").read_bytes())
    flipped[len(flipped) // 4] ^= 1
    (tmp_path / "flipped.parquet").write_bytes(flipped)
    with pytest.raises(StoreError, match="is damaged"):
        open_vectors(tmp_path / "flipped.parquet").load()
    for file, whole in ((tmp_path / "v.npy", "v.npy"), (tmp_path / "v" / "part-00001.parquet", "v")):
        data = bytearray(file.read_bytes())
        data[-9] ^= 1  # of the same size, and outside of what Parquet has checksums for
        file.write_bytes(data)
        with pytest.raises(StoreError, match=f"{file.name} has changed since it was written"):
            list(open_vectors(tmp_path / whole).blocks(2))
    (tmp_path / "v" / "part-00001.parquet").write_bytes(b"short")
    with pytest.raises(StoreError, match=r"part-00001.parquet is missing or has changed"):
        open_vectors(tmp_path / "v")
    (tmp_path / "v" / "_manifest.json").unlink()
    with pytest.raises(StoreError, match="holds no finished vectors"):
        open_vectors(tmp_path / "v")
    described = tmp_path / "v.npy.json"
    whole = described.read_bytes()
    for damaged in (
        whole[:-20],
        whole.replace(b'"dim": 24', b'"dim": "24"'),
        b"[]",
        b"\xff",
        whole.replace(b"seal", b"x"),
    ):
        described.write_bytes(damaged)
        with pytest.raises(StoreError, match=r"v.npy.json is damaged \(.*\); encode the texts again, with --force"):
            open_vectors(tmp_path / "v.npy")
    described.write_text(replace(read_manifest(whole, ""), format="2.0").to_json())
    with pytest.raises(StoreError, match=r"has format 2.0, this sentport reads 1.0"):
        open_vectors(tmp_path / "v.npy")
    described.unlink()
    with pytest.raises(StoreError, match="which model made"):
        open_vectors(tmp_path / "v.npy")
    with pytest.raises(StoreError, match="does not exist"):
        open_vectors(tmp_path / "none")


def test_mixtures_are_refused_by_name(encoder: Encoder, texts: str, tmp_path: Path) -> None:
    manifest = store(encoder, texts, tmp_path / "v")
    refuse_mix(manifest, encoder.info, ("v", "the encoder"))
    refuse_mix(manifest, replace(manifest, device="cuda", rows=1), ("a", "b"))
    for aspect, value in (("fingerprint", "0" * 64), ("precision", "int8"), ("dim", 8), ("stored", "int8")):
        with pytest.raises(StoreError, match=f"a has {aspect} .*, b has "):
            refuse_mix(manifest, replace(manifest, **{aspect: value}), ("a", "b"))
