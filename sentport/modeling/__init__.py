"""The source model in torch: transformer, module chain, checkpoint folder."""

from sentport.errors import SentportError

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as error:
    raise SentportError(
        f"checkpoints need torch and transformers, and {error.name} is not installed: pip install 'sentport[export]'"
    ) from error
