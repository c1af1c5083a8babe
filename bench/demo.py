"""``python -m bench.demo``: one real model from checkpoint to a Triton server, and an honest table of the way there."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from bench.cases import Settings
from bench.cli_checks import check_counts, check_folder
from bench.corpus import Corpus, load_corpus
from bench.grid import RunOptions
from bench.measure import measure
from bench.models import MODEL, copy_model, sentport_command
from bench.report_cli import print_report
from bench.server import served
from sentport.bundle import LAYOUTS, read_bundle
from sentport.errors import SentportError
from sentport.hardware import available_cores

# A minute or two of measuring on two cores: the texts are as many as hold this many words.
_WORDS = 1500
# (clients, texts a request): many texts a request, and the hard case of one.
_SERVER_LOADS = ((16, 16), (64, 1))


@dataclass(frozen=True, slots=True)
class Demo:
    """What a demo works with.

    Attributes:
        out: Folder for everything it makes.
        corpus: Where the texts come from.
        texts: How many of them are used.
        settings: How often each row is measured.
        server_env: The server's Python environment; None = the user's cache folder.
    """

    out: Path
    corpus: Corpus
    texts: int
    settings: Settings
    server_env: Path | None

    @property
    def bundle(self) -> Path:
        """The bundle."""
        return self.out / "minilm.bundle"

    def run(self) -> None:
        """Everything, in order.

        Raises:
            SentportError: When a step fails that the others need.
        """
        checkpoint = copy_model(self.out / MODEL)
        self._say(f"1/5 a verified bundle of {MODEL}")
        self._export(checkpoint)
        drawn = self.corpus.sample(self.texts, self.settings.seed)
        self._say(f"2/5 encode {len(drawn.texts)} texts: {drawn.source}")
        self._encode(drawn)
        self._say("3/5 a Triton server on this machine (the first time, its environment is built)")
        with served(self._options(checkpoint), self.out / "server.log", self._say, self.server_env) as options:
            self._say("4/5 measure; leave the machine alone for a minute or two")
            start = time.monotonic()
            raw = measure([options], self.out / "raw", self._say)
            assert raw is not None
            self._say(f"measured in {time.monotonic() - start:.0f} s; stopping the server")
        self._say("5/5 report\n")
        self._report(raw)

    def _export(self, checkpoint: Path) -> None:
        if (
            self.bundle.exists()
            and sentport_command("verify", str(self.bundle))
            and read_bundle(self.bundle).layouts == LAYOUTS
        ):
            return
        layouts = ("--layout", ",".join(LAYOUTS))
        if not sentport_command("export", str(checkpoint), "--out", str(self.bundle), *layouts, "--force"):
            raise SentportError("the export failed; its message stands above")
        if not sentport_command("verify", str(self.bundle)):
            raise SentportError("the new bundle does not verify; its message stands above")

    def _encode(self, corpus: Corpus) -> None:
        lines = self.out / "corpus.txt"
        # A sentence is one line here, whatever breaks it holds.
        lines.write_text("".join(" ".join(text.split()) + "\n" for text in corpus.texts), encoding="utf-8")
        vectors = self.out / "vectors.npy"
        if not sentport_command("encode", str(self.bundle), "--input", str(lines), "--output", str(vectors), "--force"):
            raise SentportError("encoding failed; its message stands above")

    def _options(self, checkpoint: Path) -> RunOptions:
        return RunOptions(
            checkpoint,
            self.bundle,
            (self.corpus,),
            serve=True,
            loads=_SERVER_LOADS,
            settings=self.settings,
            texts=self.texts,
        )

    def _report(self, raw: Path) -> None:
        print_report([raw], self.out)
        print(f"raw      {raw}\nbundle   {self.bundle}", flush=True)

    def _say(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)


def text_count(corpus: Corpus) -> int:
    """How many of a corpus's texts about fill the measuring time that the demo allows itself."""
    words = sum(len(text.split()) for text in corpus.texts) / len(corpus.texts)
    return max(64, int(_WORDS / max(1.0, words)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit code: 0 done, 1 or 2 with one line that says what is wrong, 130 Ctrl-C."""
    options = _parser().parse_args(arguments)
    # Rows are compared at equal threads, and the tokenizers of the baseline have a pool of their own.
    os.environ.setdefault("RAYON_NUM_THREADS", str(available_cores()))
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which is how nohup asks to go on
        signal.signal(signal.SIGHUP, _interrupt)
    try:
        check_counts("texts", options.texts)
        check_counts("repeats", options.repeats)
        check_folder(options.out)
        corpus = load_corpus(options.corpus)
        texts = options.texts or text_count(corpus)
        options.out.mkdir(parents=True, exist_ok=True)
        Demo(options.out, corpus, texts, Settings(repeats=options.repeats), options.server_env).run()
    except SentportError as problem:
        print(f"demo: {problem}", file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.demo",
        description=f"Export {MODEL}, verify it, serve it with Triton and measure every way to run it.",
        epilog="example: python -m bench.demo --corpus sentences.txt",
        allow_abbrev=False,
    )
    parser.add_argument("--corpus", metavar="FILE", type=Path, help="one sentence a line (default: STS-B, else docs)")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("build/demo"), help="default: %(default)s")
    parser.add_argument("--texts", metavar="N", type=int, help="texts to measure on (default: about 4,000 words)")
    parser.add_argument("--repeats", metavar="N", type=int, default=3, help="timed calls a row (%(default)s)")
    parser.add_argument(
        "--server-env", metavar="DIR", type=Path, help="the server's environment (default: user's cache)"
    )
    return parser


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
