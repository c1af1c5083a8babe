"""``sentport train`` from recipe to folder: what it makes, says, resumes and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from conftest import export_tiny

from sentport.encoder import Encoder
from sentport.evaluation import read_sts
from sentport.evaluation.scoring import sts_score
from training.card import summary
from training.job import job_folder
from training.step import Learner, train_step

Cli = Callable[..., tuple[int, str, str]]
Recipe = Callable[..., str]

TEXTS = ["the cat sat on the mat", "a red dog ran"]


def test_train(cli: Cli, recipe_file: Recipe, data: Path, tmp_path: Path) -> None:
    """One command: the folder loads everywhere with the same vectors, and tells how it came about."""
    from sentence_transformers import SentenceTransformer

    out = tmp_path / "out"
    recipe = recipe_file(kind="contrastive", more='test = ["sts.tsv-copy"]\n')
    (data / "sts.tsv-copy").write_bytes((data / "sts.tsv").read_bytes())
    setting = ["--set", "head=kept", "--set", "normalize=true"]
    code, printed, said = cli(
        "train", recipe, "--threads", "1", "--data", str(data), "--out", str(out), "--seeds", "2", *setting
    )
    assert code == 0, said
    assert "sentences.tsv: 48 examples of 48 rows" in said
    assert "step 4/6  loss " in said
    assert "sentences/s" in said
    assert "seed 2, 2 of 2" in said
    assert "± " in printed
    assert not job_folder(out).exists()
    ours = Encoder(out, threads=1).encode(TEXTS)
    np.testing.assert_allclose(SentenceTransformer(str(out), device="cpu").encode(TEXTS), ours, atol=1e-6)
    record = json.loads((out / "training.json").read_text())
    assert [result["seed"] for result in record["seeds"]] == [1, 2]
    chosen = next(result for result in record["seeds"] if result["seed"] == record["chosen_seed"])
    assert chosen["scores"]["dev"] == max(result["scores"]["dev"] for result in record["seeds"])
    assert chosen["scores"]["dev"] == max(point["dev"] for point in chosen["curve"])
    assert [point["step"] for point in chosen["curve"]] == [2, 4, 6]
    pairs = read_sts(data / "sts.tsv")
    assert sts_score(Encoder(out, threads=1), pairs) == pytest.approx(chosen["scores"]["dev"], abs=0.01)
    centre, spread = summary(record["seeds"])["dev"]
    scores = [result["scores"]["dev"] for result in record["seeds"]]
    assert (centre, spread) == pytest.approx((np.mean(scores), np.std(scores, ddof=1)))
    card = (out / "README.md").read_text()
    for piece in (
        "pipeline_tag: sentence-similarity",
        "| sentences.tsv | 48 | 48 |",
        "| 4 | ",
        "(this one)",
        "training.batch_size = 8",
    ):
        assert piece in card


@pytest.mark.full
def test_a_trained_folder_is_exported(cli: Cli, recipe_file: Recipe, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert (
        cli(
            "train", recipe_file(), "--threads", "1", "--data", str(data), "--out", str(out), "--set", "head=kept", "-q"
        )[0]
        == 0
    )
    bundle = export_tiny(out, tmp_path / "bundle", flavours=("portable",))
    wanted = Encoder(out, threads=1).encode(TEXTS)
    np.testing.assert_allclose(Encoder(bundle, threads=1).encode(TEXTS, dim=32), wanted, atol=1e-5)


def test_ctrl_c(cli: Cli, recipe_file: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that the same command goes on, and that is so."""
    command = ["train", recipe_file(), "--threads", "1", "--data", str(data), "--out", str(tmp_path / "out")]

    def interrupted(learner: Learner, step: int) -> float:
        if step == 3:
            raise KeyboardInterrupt
        return train_step(learner, step)

    monkeypatch.setattr("training.loop.train_step", interrupted)
    code, printed, said = cli(*command)
    assert (code, printed) == (130, "")
    assert "stopped; the same command goes on" in said.splitlines()[-1]
    monkeypatch.undo()
    code, _, said = cli(*command)
    assert code == 0
    assert "going on after step 2 of 6" in said


def test_an_output_in_the_way(cli: Cli, recipe_file: Recipe, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    command = ["train", recipe_file(), "--threads", "1", "--data", str(data), "--out", str(out)]
    code, _, said = cli(*command)
    assert (code, "exists; add --force to replace it" in said) == (2, True)
    assert cli(*command, "--force", "-q")[0] == 0
    assert (out / "modules.json").is_file()
    (tmp_path / "theirs").mkdir()
    kept = tmp_path / "theirs" / "letter.txt"
    kept.write_text("dear")
    code, _, said = cli(*command[:-1], str(kept.parent), "--force")
    assert (code, "was not made by sentport train" in said) == (2, True)
    assert kept.read_text() == "dear"


def test_another_run_in_the_way(
    cli: Cli, recipe_file: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that stopped is taken up by the same command, and no other takes its place unasked."""
    from training import loop

    command = ["train", recipe_file(), "--threads", "1", "--data", str(data), "--out", str(tmp_path / "out")]
    real, calls = loop.save_state, []

    def stop_at_second(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "save_state", stop_at_second)
    assert cli(*command)[0] == 130
    monkeypatch.undo()
    code, _, said = cli(*command, "--set", "training.learning_rate=0.5")
    assert code == 2
    assert "unfinished training with another learning_rate (0.001 there, 0.5 here); add --force" in said
    state = tmp_path / ".out.job" / "seed-1" / "state.pt"
    whole = state.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"no state"):
        state.write_bytes(damaged)
        code, _, said = cli(*command)
        assert (code, f"the state in {state.parent} is damaged" in said) == (2, True)
    state.write_bytes(whole)
    code, _, said = cli(*command)
    assert code == 0
    assert "going on after step 4 of 6" in said


def test_a_recipe_after_itself(cli: Cli, recipe_file: Recipe, data: Path, tmp_path: Path) -> None:
    loop = Path(recipe_file("loop"))
    text = loop.read_text()
    loop.write_text(f'after = "{loop}"\n' + text[text.index("[[data]]") :])
    code, _, said = cli("train", str(loop), "--data", str(data), "--out", str(tmp_path / "out"))
    assert (code, "comes after itself" in said) == (2, True)


def test_a_recipe_after_another(cli: Cli, recipe_file: Recipe, data: Path, tmp_path: Path) -> None:
    first = recipe_file("first", "nli", "classification")
    second = Path(recipe_file("second", "sts", "regression"))
    text = second.read_text()
    second.write_text(f'after = "{first}"\n' + text[text.index("[[data]]") :])
    out = tmp_path / "out"
    code, _, said = cli("train", str(second), "--threads", "1", "--data", str(data), "--out", str(out), "--json")
    assert code == 0, said
    record = json.loads((out / "training.json").read_text())
    assert record["run"]["after"]["recipe"]["objective"]["kind"] == "classification"
    assert record["seeds"][0]["base"] == "model"
    assert not (out / "first").exists()


def test_without_dev_the_last_checkpoint_is_kept(cli: Cli, recipe_file: Recipe, data: Path, tmp_path: Path) -> None:
    recipe = Path(recipe_file())
    recipe.write_text(recipe.read_text().partition("[evaluation]")[0])
    code, printed, _ = cli("train", str(recipe), "--threads", "1", "--data", str(data), "--out", str(tmp_path / "out"))
    assert code == 0
    assert "±" not in printed
    record = json.loads((tmp_path / "out" / "training.json").read_text())["seeds"][0]
    assert (record["scores"], record["best_step"]) == ({}, 6)


def test_refusals(cli: Cli, recipe_file: Recipe, data: Path, tmp_path: Path) -> None:
    command = ["train", recipe_file(), "--threads", "1", "--data", str(data), "--out", str(tmp_path / "out")]
    (data / "equal.tsv").write_text("3\ta cat\ta dog\n3\tthe cat\tthe dog\n")
    for more, message in (
        (["--set", "training.batch_size=100"], "training.batch_size is 100, but the data has 48 examples"),
        (["--set", "training.bach_size=1"], "did you mean batch_size?"),
        (["--seeds", "0"], "seeds is 0; expected 1 or more"),
        (["--device", "tpu"], "device 'tpu' is unknown to training"),
        (["--set", "base=nowhere-at-all/x"], "nowhere-at-all/x"),
        (["--data", str(tmp_path)], "sentences.tsv does not exist; --data names the folder"),
        (["--threads", "0"], "threads is 0; expected 1 or more"),
        (["--set", "pooling=mean"], "says itself how it pools; leave pooling out"),
        (["--set", "=3"], "'=3' sets nothing; expected table.field=value"),
        (["--set", "evaluation.dev=equal.tsv"], "equal.tsv has one score in 2 lines; expected different ones"),
        (["--set", "training.learning_rate=1e38", "--set", "training.clip_norm=0"], "lower training.learning_rate"),
    ):
        code, _, said = cli(*command, *more)
        assert code == 2
        assert message in said
        assert len(said.strip().splitlines()) <= 3, said
        assert not list(tmp_path.glob("*out*")), "a mistake leaves nothing, so it can be mended and tried again"
    assert cli("train", "--out", "x")[0] == 2


def test_list(cli: Cli) -> None:
    code, printed, _ = cli("train", "--list")
    assert code == 0
    assert "simcse-unsup " in printed
    assert "Gao, Yao & Chen 2021" in printed


def test_tensorboard(cli: Cli, recipe_file: Recipe, data: Path, tmp_path: Path) -> None:
    curves = tmp_path / "curves"
    command = [
        "train",
        recipe_file(),
        "--data",
        str(data),
        "--out",
        str(tmp_path / "out"),
        "--tensorboard",
        str(curves),
    ]
    code, _, said = cli(*command)
    if find_spec("tensorboard") is None:
        assert (code, "needs the package tensorboard" in said, "sentport[train]" in said) == (2, True, True)
    else:
        assert code == 0
        assert list(curves.glob("events.*"))
