"""Training sentence encoders: SBERT and SimCSE, from typed recipes to a checkpoint folder."""

from importlib.util import find_spec

from sentport.errors import SentportError

_missing = [name for name in ("torch", "transformers", "accelerate") if find_spec(name) is None]
if _missing:
    raise SentportError(f"training needs {', '.join(_missing)}, not installed here: pip install 'sentport[train]'")
