"""What a Python file is: told by the command line before it is sent, and by the trainer before it is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.sides import trainer

from tfgpujob.convert.python_file import is_script

MODULE = "def model(): ...\ndef data(split): ...\n"
TEXTS = {
    MODULE: False,
    MODULE + "model().fit(*data('train'))": False,
    "from mine import *": False,
    "from mine import *\ndef data(split): ...\nmodel().fit(*data('train'))": False,
    "from keras.layers import *\nmodel.fit(1)": True,
    "from mine import model, data": False,
    "model = data = 3\nmodel.fit(1)": True,
    "if x:\n    def model(): ...\ndata = lambda split: 1\n": False,
    "net.predict(1)": True,
    "x = 1": None,
    "def model(:": None,
}


@pytest.mark.parametrize("text", TEXTS)
def test_both_sides_tell_a_script_from_a_module_alike(text: str, tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(text)
    theirs = trainer("kind", {"file": str(file)})
    expected = TEXTS[text]
    assert theirs.get("script") == expected
    if expected is not None:
        assert is_script(file) == expected
        return
    with pytest.raises(ValueError, match=r"a\.py") as caught:
        is_script(file)
    assert str(caught.value).partition(":")[0] in theirs["error"]
