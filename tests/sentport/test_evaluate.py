"""``sentport evaluate``, its tasks, and vectors that are computed once."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import data_folder

from sentport import Encoder
from sentport.encoder import EncoderInfo, Vectors
from sentport.errors import SentportError
from sentport.evaluation import Settings, evaluate, read_sts, sts_score
from sentport.evaluation.embeddings import Embeddings, VectorStore
from sentport.evaluation.tasks import TASKS, choose_tasks

Cli = Callable[..., tuple[int, str, str]]
STS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
MINILM = {"sts12": 72.37, "sts13": 80.60, "sts14": 75.59, "sts15": 85.39, "sts16": 78.99, "stsb": 82.03, "sickr": 77.15}


class Counting:
    """Vectors that hold a text's length; it notes what it was asked for."""

    def __init__(self, fingerprint: str = "f" * 64) -> None:
        self.info = EncoderInfo(2, 8, {}, None, "cosine", fingerprint, "count", "fp32", "padded", "cpu", 1, 1)
        self.asked: list[str] = []

    def encode(
        self, texts: Sequence[str], *, prompt: str | None = None, dim: int | None = None, progress: bool = False
    ) -> Vectors:
        self.asked += texts
        return np.array([[len(text), ord(text[0])] for text in texts], np.float32)


@pytest.fixture(scope="module")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every task in the words of the tiny model: alike pairs score high, and a label is a word of the sentence."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    words = ["the", "red", "blue", "cat", "dog", "sat", "ran", "park", "mat", "on"]

    def sentence(*more: str) -> str:
        return " ".join([*rng.choice(words, 6), *more])

    def write(name: str, rows: int, columns: Callable[[int], tuple[object, ...]]) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join("\t".join(map(str, columns(row))) + "\n" for row in range(rows)))

    def pair(row: int) -> tuple[object, ...]:
        first, second = sentence().split(), sentence().split()
        return row % 6, " ".join(first), " ".join(first[: row % 6] + second[row % 6 :])

    def halves(alike: int) -> tuple[str, str]:
        first = sentence()
        return first, first if alike else sentence()

    for task in ("STS12", "STS13", "STS14", "STS15", "STS16"):
        write(f"sts_raw/{task}/a.tsv", 30, pair)
        write(f"sts_raw/{task}/b.tsv", 50, pair)
    write("sts_raw/STSBenchmark/test.tsv", 80, pair)
    write("sts_raw/STSBenchmark/dev.tsv", 40, pair)
    write("sts/SICK-R/test.tsv", 60, pair)
    write("sts/SICK-R/trial.tsv", 30, pair)
    for name, rows in (("MR/all", 60), ("SST2/train", 60), ("SST2/dev", 20), ("SST2/test", 20)):
        write(f"transfer/{name}.tsv", rows, lambda row: (row % 2, sentence(*(["日", "本"][row % 2] * 2))))
    for name, rows in (("train", 60), ("test", 30)):
        write(
            f"transfer/TREC/{name}.tsv", rows, lambda row: ("ABC"[row % 3], sentence(*[["日", "本", "é"][row % 3]] * 2))
        )
        write(f"transfer/MRPC/{name}.tsv", rows, lambda row: (row % 2, *halves(row % 2)))
    write("wiki_sections/triplets_constructed.tsv", 20, lambda row: (*halves(1), sentence()))
    write(
        "argument_similarity/ukp_aspect.tsv",
        60,
        lambda row: (("NS", "HS")[row % 2], *halves(row % 2), f"topic {row // 2 % 3}"),
    )
    return folder


def report(cli: Cli, *arguments: object) -> dict[str, Any]:
    code, out, err = cli("evaluate", *map(str, arguments), "--json", "--threads", "1")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_table_of_the_papers(tiny_bundle: Path, tiny_checkpoint: Path, small_data: Path, cli: Cli) -> None:
    """Two systems side by side on stdout with the mean of the row; progress on stderr; the conditions below."""
    code, out, err = cli(
        "evaluate",
        str(tiny_bundle),
        str(tiny_checkpoint),
        "--data",
        str(small_data),
        "--threads",
        "1",
        "--engine",
        "onnxruntime,torch",
    )
    assert code == 0
    title, head, *rows = out.split("\n\n")[0].splitlines()
    assert title.startswith("STS: spearman x 100, all pairs of a task, cosine, texts raw")
    assert head.split() == ["system", *STS, "Avg."]
    assert [row.split()[0] for row in rows] == ["tiny.bundle", "tiny"]
    bundle, checkpoint = ([float(value) for value in row.split()[1:]] for row in rows)
    assert bundle == pytest.approx(checkpoint, abs=0.05)
    assert bundle[-1] == pytest.approx(np.mean(bundle[:-1]), abs=0.01)
    with Encoder(tiny_bundle, threads=1) as encoder:
        expected = sts_score(encoder, read_sts(small_data / "sts_raw/STSBenchmark/test.tsv"))
    assert bundle[5] == pytest.approx(expected, abs=0.01)
    assert [line.split()[:2] for line in err.splitlines()[:7]] == [["tiny.bundle:", name] for name in STS]
    assert f"tiny.bundle: bundle {tiny_bundle}, engine onnxruntime, fp32, padded, cpu" in out
    assert f"tiny: checkpoint {tiny_checkpoint}, engine torch, fp32, padded, cpu" in out


def test_json_has_every_figure_with_its_conditions(tiny_bundle: Path, small_data: Path, cli: Cli) -> None:
    found = report(
        cli, tiny_bundle, "--data", small_data, "--tasks", "stsb,sts12", "--aggregation", "wmean", "--control"
    )
    conditions, (system,) = found["conditions"], found["systems"]
    assert conditions["tasks"] == ["sts12", "stsb"]
    assert (conditions["aggregation"], conditions["similarity"], conditions["texts"]) == ("wmean", "cosine", "raw")
    assert set(conditions["versions"]) >= {"python", "sentport", "numpy"}
    with Encoder(tiny_bundle) as encoder:
        assert system["fingerprint"] == encoder.info.fingerprint
    sts12 = system["scores"]["sts12"]
    a, b = (sts12["subsets"][name]["spearman"] for name in "ab")
    assert sts12["score"] == pytest.approx((30 * a + 50 * b) / 80)
    assert system["averages"] == {"sts": None, "transfer": None}, "a mean over two tasks would pass for the papers'"
    assert abs(system["control"]["sts12"]) < 15, "80 pairs only"
    assert system["space"]["alignment"] > 0
    assert sum(map(sum, system["space"]["cosines_by_rating"].values())) == 80


def test_choices_reach_the_figures(tiny_bundle: Path, small_data: Path, cli: Cli) -> None:
    """Of normalised vectors all similarities but Manhattan's rank alike; other splits and cut vectors differ."""
    common = (tiny_bundle, "--data", small_data, "--tasks", "stsb,sickr")
    base = report(cli, *common)["systems"][0]["scores"]
    for name in ("dot", "euclidean"):
        other = report(cli, *common, "--similarity", name)["systems"][0]["scores"]
        assert other["stsb"]["score"] == pytest.approx(base["stsb"]["score"], abs=0.1)
    pearson = report(cli, *common, "--correlation", "pearson")["systems"][0]["scores"]["stsb"]
    assert pearson["score"] == base["stsb"]["pearson"] != base["stsb"]["spearman"]
    dev = report(cli, *common, "--split", "dev")["systems"][0]["scores"]
    assert (dev["stsb"]["pairs"], dev["sickr"]["pairs"]) == (40, 30)
    for option in (("--dim", 4), ("--prompt", "query"), ("--similarity", "manhattan")):
        assert report(cli, *common, *option)["systems"][0]["scores"]["stsb"]["score"] != base["stsb"]["score"]


def test_transfer_and_the_other_tasks(
    tiny_bundle: Path, small_data: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny model sees which word stands at the end, and which pair is one sentence twice."""
    pytest.importorskip("sklearn", reason="transfer tasks need the evaluate extra")
    monkeypatch.setattr("sentport.evaluation.transfer.FOLDS", 3)
    names = "argscross,args,wikisec,mrpc,trec,sst2,mr"
    code, out, _ = cli("evaluate", str(tiny_bundle), "--data", str(small_data), "--tasks", names, "--threads", "1")
    assert code == 0
    transfer, other = (block.splitlines() for block in out.split("\n\n")[:2])
    assert transfer[1].split() == ["system", "MR", "SST", "TREC", "MRPC"]
    assert other[1].split() == ["system", "WikiSec", "Args", "10-fold", "Args", "cross-topic"]
    for block, least in ((transfer, 75), (other, 90)):
        for value in block[2].split()[1:]:
            assert least < float(value) <= 100


def test_control_row_and_constant_encoder(
    tiny_checkpoint: Path, small_data: Path, tmp_path: Path, cli: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    """A Dense layer without weights gives every text the same vector."""
    from safetensors.numpy import load_file, save_file

    constant = tmp_path / "constant"
    shutil.copytree(tiny_checkpoint, constant)
    weights = constant / "2_Dense" / "model.safetensors"
    save_file({name: 0 * value if value.ndim == 2 else value for name, value in load_file(weights).items()}, weights)
    arguments = ("evaluate", str(tiny_checkpoint), str(constant), "--tasks", "stsb", "--data", str(small_data))
    code, out, err = cli(*arguments, "--control")
    assert code == 0, err
    rows = [line.split()[-1] for line in out.split("\n\n")[0].splitlines()[2:]]
    assert abs(float(rows[1])) < 15 < float(rows[0])
    assert rows[2:] == ["nan", "nan"]
    assert "constant, STS-B: undefined (nan), as the encoder gives all pairs the same similarity" in out
    assert "in test, so their correlation is undefined (nan)" in caplog.text
    system = report(cli, constant, "--tasks", "stsb", "--data", small_data)["systems"][0]
    assert system["scores"]["stsb"]["score"] is None
    assert system["notes"] == ["STS-B: undefined (nan), as the encoder gives all pairs the same similarity"]


def test_plots_are_whole_files(tiny_bundle: Path, small_data: Path, tmp_path: Path, cli: Cli) -> None:
    pytest.importorskip("matplotlib", reason="plots need the evaluate extra")
    arguments = ("--data", small_data, "--plots", tmp_path / "plots")
    found = report(cli, tiny_bundle, tiny_bundle, "--tasks", "stsb", *arguments)
    assert [system["label"] for system in found["systems"]] == ["tiny.bundle #1", "tiny.bundle #2"]
    files = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert files == ["alignment_uniformity.png", "cosines_by_rating.png", "singular_values.png"]
    for name in files:
        content = (tmp_path / "plots" / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert content.endswith(b"IEND\xaeB`\x82")
    code, _, err = cli("evaluate", str(tiny_bundle), "--tasks", "sts12", *map(str, arguments))
    assert (code, "--plots draws what STS-B shows; add stsb to --tasks" in err) == (2, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tasks", "sicker"), "unknown task 'sicker'; did you mean sickr? Known: sts, transfer, other, sts12,"),
        (("--tasks", "STS-B"), "unknown task 'STS-B'; did you mean stsb?"),
        (("--tasks", "quora"), "unknown task 'quora'; Known: sts,"),
        (("--similarity", "angle"), "similarity is 'angle'; expected one of cosine, dot, euclidean, manhattan"),
        (("--aggregation", "median"), "aggregation is 'median'; expected one of all, mean, wmean"),
        (("--precision", "fp32,fp32"), "--precision has 2 values for 1 systems; give one for all, or one each"),
        (("--tasks", "wikisec", "--control"), "--control shuffles the gold scores of STS tasks; add one to --tasks"),
        (("--dim", "-1"), "dim is -1; expected a whole number from 1 to"),
        (("--plots", __file__), "is not a folder"),
        (("--split", "train"), "split 'train' of STSBenchmark is not in"),
        (("--prompt", "nonsense"), "prompt 'nonsense' is not saved with this model; known: document, passage, query"),
    ],
)
def test_mistakes_are_told(tiny_bundle: Path, small_data: Path, cli: Cli, options: tuple[str, ...], said: str) -> None:
    code, out, err = cli("evaluate", str(tiny_bundle), "--data", str(small_data), "--tasks", "stsb", *options)
    assert (code, out) == (2, "")
    assert said in err.replace("\n", " ")


def test_gold_scores_without_a_correlation(tiny_bundle: Path, tmp_path: Path, cli: Cli) -> None:
    """Told by its file's name, and before anything is encoded."""
    file = tmp_path / "sts_raw" / "STSBenchmark" / "test.tsv"
    file.parent.mkdir(parents=True)
    file.write_text("3\ta cat\ta dog\n3\tthe cat\tthe dog\n")
    code, out, err = cli("evaluate", str(tiny_bundle), "--data", str(tmp_path), "--tasks", "stsb")
    assert (code, out) == (2, "")
    assert "STSBenchmark/test has one score in 2 lines; expected different ones" in err


def test_no_data_and_no_such_system(
    tiny_bundle: Path, small_data: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second system's mistake is told before the first one's work."""
    monkeypatch.delenv("SENTPORT_DATA", raising=False)
    code, _, err = cli("evaluate", str(tiny_bundle))
    assert (code, "no data folder; add --data DIR, or set $SENTPORT_DATA" in err) == (2, True)
    monkeypatch.setenv("SENTPORT_DATA", str(small_data))
    code, _, err = cli("evaluate", str(tiny_bundle), str(tmp_path / "absent"), "--tasks", "stsb")
    assert code == 2
    assert "absent" in err
    assert "texts computed" not in err


@pytest.mark.parametrize(
    ("address", "options", "said"),
    [
        ("grpc://127.0.0.1:9", (), "grpc://127.0.0.1:9 names no model; expected grpc://host:port/model"),
        ("http://127.0.0.1:9/m", ("--precision", "int8"), "precision int8 cannot be chosen for http://127.0.0.1:9/m"),
        ("grpc://127.0.0.1/m", (), "'127.0.0.1' is not an address; expected host:port"),
        ("http://127.0.0.1:9/m", (), "127.0.0.1:9"),
    ],
)
def test_server_addresses(small_data: Path, cli: Cli, address: str, options: tuple[str, ...], said: str) -> None:
    code, _, err = cli("evaluate", address, "--data", str(small_data), "--tasks", "stsb", *options)
    assert code == 2
    assert said in err


def test_tasks_by_name_and_group() -> None:
    assert [TASKS[name].heading for name in choose_tasks(["sts"])] == list(STS)
    assert choose_tasks(["mrpc", "sts12", "sts12"]) == ["sts12", "mrpc"]
    assert choose_tasks(["transfer"]) == ["mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc"]


def test_a_text_is_embedded_once(small_data: Path) -> None:
    """Whatever number of tasks ask for it, in whatever order."""
    encoder = Counting()
    found = evaluate(encoder, ["sts", "wikisec"], Settings(small_data))
    assert list(found) == ["sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr", "wikisec"]
    assert found["sickr"].figures["pairs"] == 60
    assert len(encoder.asked) == len(set(encoder.asked)) > 500
    embed = Embeddings(encoder)
    assert embed(["dog", "a", "dog"]).tolist() == [[3, 100], [1, 97], [3, 100]]
    assert embed([]).shape == (0, 2)


def test_stored_vectors_are_reused(tmp_path: Path) -> None:
    """By a later run, and only what it asks for counts; two runs that store the same texts do not disturb."""
    identity = ("model", "fp32", "engine")
    Embeddings(Counting(), store=VectorStore(tmp_path, identity))(["a", "bb"])
    Embeddings(Counting(), store=VectorStore(tmp_path, identity))(["bb", "ccc", "\ud800"])
    encoder = Counting()
    embed = Embeddings(encoder, store=VectorStore(tmp_path, identity))
    assert embed(["ccc", "dd", "a"]).tolist() == [[3, 99], [2, 100], [1, 97]]
    assert (encoder.asked, embed.computed, embed.reused) == (["dd"], 1, 2)
    other = Counting()
    Embeddings(other, store=VectorStore(tmp_path, ("model", "int8", "engine")))(["a"])
    assert other.asked == ["a"]


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    store = VectorStore(tmp_path, ("model",))
    Embeddings(Counting(), store=store)(["a", "bb"])
    (file,) = store.folder.iterdir()
    content = file.read_bytes()
    for damaged in (content[:100], b"", content.replace(b"NUMPY", b"NAMPY", 1)):
        file.write_bytes(damaged)
        with pytest.raises(SentportError, match=rf"{file.name} is damaged .*; remove it"):
            Embeddings(Counting(), store=store)
    with pytest.raises(SentportError, match=r"expected vectors of shape \[1, 3\], a row a text; found \[1, 2\]"):
        wide = Counting()
        wide.info = replace(wide.info, dim=3)
        Embeddings(wide)(["a"])


def test_cache_of_the_command(
    tiny_bundle: Path, tiny_checkpoint: Path, small_data: Path, tmp_path: Path, cli: Cli
) -> None:
    """The same bundle again computes nothing; a changed bundle, another engine or prompt never reuses."""
    common = ("--data", small_data, "--tasks", "stsb", "--cache", tmp_path / "cache")
    first = report(cli, tiny_bundle, *common)["systems"][0]
    again = report(cli, tiny_bundle, *common, "--tasks", "stsb,sickr")["systems"][0]
    assert first["texts_reused"] == 0 < first["texts_computed"] == again["texts_reused"]
    assert again["scores"]["stsb"]["score"] == first["scores"]["stsb"]["score"]
    assert again["texts_computed"] > 0, "of SICK-R"
    changed = tmp_path / "changed.bundle"
    shutil.copytree(tiny_bundle, changed)
    description = changed / "bundle.json"
    description.write_text(description.read_text() + "\n")
    for other in ((changed,), (tiny_checkpoint,), (tiny_bundle, "--prompt", "query"), (tiny_bundle, "--dim", 8)):
        assert report(cli, *other, *common)["systems"][0]["texts_reused"] == 0


def test_minilm_on_sts_benchmark(minilm_bundle: Path, cli: Cli) -> None:
    """The known figure, and its control."""
    system = report(cli, minilm_bundle, "--tasks", "stsb", "--data", data_folder(), "--control")["systems"][0]
    assert system["scores"]["stsb"]["score"] == pytest.approx(MINILM["stsb"], abs=0.05)
    assert abs(system["control"]["stsb"]) < 5
    assert system["space"]["uniformity"] < -2


@pytest.mark.full
@pytest.mark.parametrize("form", ["checkpoint", "bundle"])
def test_minilm_scores_as_published(
    form: str, minilm_checkpoint: Path, minilm_bundle: Path, cli: Cli, request: pytest.FixtureRequest
) -> None:
    source = minilm_checkpoint if form == "checkpoint" else minilm_bundle
    code, out, err = cli("evaluate", str(source), "--tasks", "sts", "--data", str(data_folder()), "--control", "--json")
    assert code == 0, err
    (system,) = json.loads(out)["systems"]
    scores = {name: system["scores"][name]["score"] for name in MINILM}
    assert scores == pytest.approx(MINILM, abs=0.05)
    assert all(abs(value) < 5 for value in system["control"].values())
    assert system["averages"]["sts"] == pytest.approx(np.mean(list(scores.values())))


@pytest.mark.full
def test_minilm_transfers(minilm_bundle: Path, cli: Cli) -> None:
    """Well above the larger class on every task that fits into a minute."""
    names = {"cr": 75, "trec": 80, "mrpc": 70}
    (system,) = report(cli, minilm_bundle, "--tasks", ",".join(names), "--data", data_folder())["systems"]
    for name, least in names.items():
        assert system["scores"][name]["score"] > least
    assert not math.isnan(system["scores"]["mrpc"]["f1"])


def test_types_of_vectors_side_by_side(tiny_bundle: Path, small_data: Path, cli: Cli) -> None:
    """Each is scored as it is after having been kept; the texts are computed once."""
    kinds = ("float32", "float16", "int8", "binary")
    found = report(cli, tiny_bundle, "--data", small_data, "--tasks", "stsb", "--vectors", ",".join(kinds))
    systems = found["systems"]
    assert [system["label"] for system in systems] == [f"tiny.bundle {kind}" for kind in kinds]
    assert [system["bytes_a_vector"] for system in systems] == [96, 48, 28, 3]
    assert [system["texts_computed"] > 0 for system in systems] == [True, False, False, False]
    exact, half, codes, bits = (system["scores"]["stsb"]["score"] for system in systems)
    assert half == pytest.approx(exact, abs=0.5)
    assert codes == pytest.approx(exact, abs=2)
    assert bits != exact
    code, _, err = cli("evaluate", str(tiny_bundle), "--data", str(small_data), "--vectors", "int8,int4")
    assert (code, "--vectors int4 is unknown; known: float32, float16, int8, binary" in err) == (2, True)
