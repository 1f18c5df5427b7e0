"""What `data(split)` may return, each read so that every worker knows which rows are its own."""

from tfgpujob_trainer.data.sources.base import Indexed, Ordered, Source, share
from tfgpujob_trainer.data.sources.read import source
from tfgpujob_trainer.data.sources.stream import Stream

__all__ = ["Indexed", "Ordered", "Source", "Stream", "share", "source"]
