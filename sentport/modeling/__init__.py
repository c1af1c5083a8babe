"""The source model in torch: transformer, module chain, checkpoint folder."""

from importlib.util import find_spec

from sentport.errors import SentportError

# Looked for, not imported: where a checkpoint comes from is found out without them.
_missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
if _missing:
    raise SentportError(
        f"checkpoints need torch and transformers, and {_missing[0]} is not installed: pip install 'sentport[export]'"
    )
