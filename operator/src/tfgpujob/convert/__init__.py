"""From a Kubeflow TFJob to a TFGPUJob, with a note for everything that means something else here.

Pure. Nothing is dropped in silence: a `Part` of the TFJob is read key by key, and what nobody took is noted.
"""

from tfgpujob.convert.job import GROUP, KIND, convert, is_tfjob, tfjob_inside
from tfgpujob.convert.notes import Conversion, Effect, Note

__all__ = ["GROUP", "KIND", "Conversion", "Effect", "Note", "convert", "is_tfjob", "tfjob_inside"]
