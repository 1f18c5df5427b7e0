"""A pod's program: a git repository of one commit, over HTTP. It says the commit, and serves until it is ended.

The commit has a plain script, which imports a package, and the package's wheel.
"""

import zipfile
from pathlib import Path
from tempfile import mkdtemp
from wsgiref.simple_server import make_server

from dulwich import porcelain
from dulwich.repo import Repo
from dulwich.server import DictBackend, UploadPackHandler
from dulwich.web import make_wsgi_chain

SCRIPT = """
import keras
import numpy as np
import tinyone

x = np.arange(64, dtype="float32").reshape(64, 1) / 64
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, 2 * x, batch_size=16, epochs=2)
print(f"tinyone {tinyone.VERSION}", flush=True)
"""
PACKAGE = {
    "tinyone/__init__.py": "VERSION = '1.0'\n",
    "tinyone-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tinyone\nVersion: 1.0\n",
    "tinyone-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tinyone-1.0.dist-info/RECORD": "",
}


class Server(UploadPackHandler):
    """As git's own: dulwich's wants thin packs of everybody, which a fetch of one commit has no use for."""

    @classmethod
    def required_capabilities(cls):
        return ()


code = Path(mkdtemp())
(code / "wheels").mkdir()
(code / "train.py").write_text(SCRIPT)
with zipfile.ZipFile(code / "wheels/tinyone-1.0-py3-none-any.whl", "w") as wheel:
    for name, text in PACKAGE.items():
        wheel.writestr(name, text)

repository = Repo.init(str(code))
porcelain.add(repository, [str(code / "train.py"), *map(str, (code / "wheels").iterdir())])
who = b"somebody <somebody@example.com>"
commit = porcelain.commit(repository, message=b"train", author=who, committer=who)
application = make_wsgi_chain(DictBackend({"/code.git": repository}), handlers={b"git-upload-pack": Server})
with make_server("", 8000, application) as server:
    print(commit.decode(), flush=True)
    server.serve_forever()
