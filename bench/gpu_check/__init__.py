"""Sentences per second of BERT-shaped encoders on one GPU, against what its matrix units can do.

The package needs numpy, torch and transformers and nothing of sentport, so that it runs on a machine that has only
those. ``bench.gpu_check.prepare`` makes the folder it reads, on a machine that has the model and the texts::

    python3 -m bench.gpu_check.prepare MODEL_FOLDER build/gpu_check --name all-MiniLM-L6-v2 --data $SENTPORT_DATA
    python3 -m bench.gpu_check build/gpu_check --device cuda --out records.jsonl

What comes out is JSON lines, each complete in itself (``format`` 1, ``benchmark`` ``gpu_check``, and the machine, the
versions and the device's name in every line). ``kind`` tells them apart:

* ``ceiling``: the matrix products of one precision, the best of which is the ceiling of its rows;
* ``observation``: one timed pass over a corpus, written the moment it is measured;
* ``row``: a contestant's summary. ``status`` is ``measured``, ``rejected`` (its vectors are wrong, so it was not timed)
  or ``not run``, the last two with a ``reason``.

Every pass answers the whole corpus. ``device_s`` runs from the first to the last kernel with the inputs already on the
device, so gaps in which the device waits for the host count: they are what CUDA graphs remove. ``end_to_end_s`` runs
from ids on the host to vectors on the host: planning, padding, both copies and restoring the order. Tokenisation is in
neither.
"""
