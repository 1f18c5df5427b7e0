"""From a Kubeflow TFJob to a TFGPUJob, with a note for everything that has another meaning here.

Pure. Nothing is dropped silently: a `Part` of the TFJob is read key by key, and keys that were not read are noted.
"""

from tfgpujob.convert.job import GROUP, KIND, convert, is_tfjob, tfjob_inside
from tfgpujob.convert.notes import Conversion, Effect, Note
from tfgpujob.convert.template import other_labels

__all__ = ["GROUP", "KIND", "Conversion", "Effect", "Note", "convert", "is_tfjob", "other_labels", "tfjob_inside"]
