"""Plain scripts on a real cluster, submitted as the page says: where they run, and what is left of what they write."""

from __future__ import annotations

from tests.integration.target import Target
from tests.integration.tool import Tool
from tests.integration.training import log
from tests.integration.workspace import Workspace
from tests.pages import ROOT, files

PAGE = ROOT / "docs/scripts.md"
CLAIM = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
CALLBACKS = """callbacks=[
    keras.callbacks.ModelCheckpoint("best.keras"),
    keras.callbacks.CSVLogger("out/log.csv", append=True),
]"""
READ_BACK = """
import os
print("rows", open("out/log.csv").read().count("\\n"), "in", os.getcwd())
keras.saving.load_model("best.keras")
"""


def test_the_first_script_of_the_page_keeps_what_it_writes(tool: Tool, target: Target) -> None:
    workspace = tool.workspace
    workspace.kube.create("PersistentVolumeClaim", workspace.namespace, {"metadata": {"name": "runs"}, "spec": CLAIM})
    script = files(PAGE)["train.py"]
    assert 'model.save("model.keras")' in script
    first, fit, last = script.partition("model.fit(x, y, ")
    assert fit
    text = f"{first}__import__('os').makedirs('out', exist_ok=True)\n{fit}{CALLBACKS}, {last}{READ_BACK}"
    (tool.folder / "train.py").write_text(text)
    tool.run("submit", "train.py", "--workers", "2", "--gpus", "0", "--claim", "runs/train")
    assert workspace.finished("train", seconds=300) == "Succeeded", workspace.describe()

    said = log(workspace, "train-worker-0")
    assert "rows 4 in /output/files" in said
    assert "/output/files has 3 files and folders that the script wrote: best.keras, model.keras, out/" in said
    assert "rows 4 in /tmp/" in log(workspace, "train-worker-1")
    tool.run("cp", "train:model.keras", ".")
    tool.run("cp", "train:out", "logs")
    assert (tool.folder / "model.keras").stat().st_size > 1000
    assert (tool.folder / "logs/log.csv").read_text().count("\n") == 4
    found = listed(workspace, target.operator_image, "train/files")
    assert {"best.keras", "model.keras", "out/log.csv", "train.py"} <= found


def listed(workspace: Workspace, image: str, folder: str) -> set[str]:
    """The files in a folder of the claim `runs`, as another pod sees them."""
    program = "import pathlib; [print(p.relative_to('/runs')) for p in pathlib.Path('/runs').rglob('*') if p.is_file()]"
    mount = {"name": "runs", "mountPath": "/runs", "subPath": folder, "readOnly": True}
    container = {"name": "reader", "image": image, "command": ["python", "-c", program], "volumeMounts": [mount]}
    volume = {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": [volume]}
    workspace.kube.create("Pod", workspace.namespace, {"metadata": {"name": "reader"}, "spec": spec})

    def ended() -> bool:
        pod = workspace.kube.get("Pod", workspace.namespace, "reader")
        return bool((pod.get("status") or {}).get("phase") == "Succeeded")

    workspace.eventually(ended, "the reader has read")
    return set(workspace.kube.log(workspace.namespace, "reader", "reader").splitlines())
