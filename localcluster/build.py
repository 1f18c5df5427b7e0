"""The recipe of the Kubernetes programs: from Debian's source package to a folder of the cache.

Everything that shapes the result stands in this file, so its hash, with the versions of source and compiler,
is the key of the folder. A build happens in a folder of its own that gets its final name when it is whole.
"""

import hashlib
import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from localcluster import apt, archives
from localcluster.layout import CACHE, ClusterError
from localcluster.progress import run_steps
from localcluster.tools import run

SOURCE_VERSION = "1.20.5+really1.20.2-1.1+deb12u1"
KUBERNETES = "v1.20.2"
COMMIT = "faecb196815e248d3ecfb03c680a4507229c2a56"
COMMIT_DATE = "2021-01-13T13:20:00Z"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
TAGS = "providerless dockerless"
GO = Path("/usr/lib/go-1.19/bin/go")
IMPORT_PATH = "src/k8s.io/kubernetes"
# One program that is called by five names: what they have in common, most of it, is linked once.
MAIN = """package main

import (
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	rand.Seed(time.Now().UnixNano())
	commands := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers.NewControllerManagerCommand,
		"kube-proxy":              proxy.NewProxyCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":                 kubelet.NewKubeletCommand,
	}
	command, known := commands[filepath.Base(os.Args[0])]
	if !known {
		fmt.Fprintln(os.Stderr, "no such program:", os.Args[0])
		os.Exit(1)
	}
	logs.InitLogs()
	defer logs.FlushLogs()
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
"""
OPENAPI_PACKAGE = "pkg/generated/openapi"
PLUGIN_API = "staging/src/k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto"
REFLECT2 = "vendor/github.com/modern-go/reflect2"
# Two edits that make the creation of pods take a steady few seconds; docs/local-cluster.md describes them.
EDITS = (
    (
        "pkg/kubelet/status/status_manager.go",
        "const syncPeriod = 10 * time.Second",
        "const syncPeriod = 1 * time.Second",
    ),
    (
        "pkg/kubelet/kubelet.go",
        "ContainerGCPeriod = time.Minute",
        "ContainerGCPeriod = 3 * time.Second",
    ),
)


def key() -> str:
    """The name of the build in the cache."""
    recipe = Path(__file__).read_bytes() + Path(archives.__file__).read_bytes()
    parts = (recipe, SOURCE_VERSION.encode(), apt.version_of("golang-1.19-go").encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def ensure_built() -> Path:
    """The folder with bin/, images/ and stubs/, built when it isn't there. Call it with the cache's lock held."""
    final = CACHE / key()
    if not final.exists():
        for stale in CACHE.glob("building-*"):
            shutil.rmtree(stale)
        with tempfile.TemporaryDirectory(prefix="building-", dir=CACHE, ignore_cleanup_errors=True) as work:
            _Build(Path(work)).run()
            (Path(work) / "result").rename(final)
    return final


class _Build:
    def __init__(self, work: Path) -> None:
        self._work = work
        self._result = work / "result"
        self._source = work / "go" / IMPORT_PATH
        self._log = CACHE / "build.log"

    def run(self) -> None:
        self._log.write_text("")
        (self._result / "bin").mkdir(parents=True)
        run_steps(
            [
                (f"fetch the source of Kubernetes {KUBERNETES} from Debian", self._fetch),
                ("generate the API server's description of itself", self._generate_openapi),
                (f"compile {', '.join(PROGRAMS)} (2 to 5 minutes)", self._compile),
                ("generate the device plugin's messages", self._generate_stubs),
                ("make the small images", self._make_images),
            ]
        )

    def _fetch(self) -> None:
        archive = apt.download_source("kubernetes", SOURCE_VERSION, self._work, self._log)
        self._source.parent.mkdir(parents=True)
        with tarfile.open(archive) as tar:
            top = tar.next()
            if top is None:
                raise ClusterError(f"{archive.name} is empty", "run the command again")
            tar.extractall(self._source.parent, filter="tar")
        (self._source.parent / top.name.partition("/")[0]).rename(self._source)
        for file, old, new in EDITS:
            _replace(self._source / file, old, new)
        self._replace_reflect2()

    def _replace_reflect2(self) -> None:
        """The vendored 1.0.1 reads maps the way Go did before 1.18, and crashes the API server."""
        package = apt.download_binary("golang-github-modern-go-reflect2-dev", self._work, self._log)
        folder = self._source / REFLECT2
        for old in [*folder.glob("*.go"), *folder.glob("*.s")]:
            old.unlink()
        for new in (package / "usr/share/gocode/src/github.com/modern-go/reflect2").glob("*.go"):
            shutil.copy(new, folder)
        # Functions without a body are only accepted beside an assembler file.
        (folder / "linkname.s").touch()

    def _go(self, *arguments: str | Path, env: Mapping[str, str] | None = None) -> None:
        environment = {
            "GO111MODULE": "off", "GOFLAGS": "", "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOPROXY": "off",
            "GOPATH": str(self._work / "go"), "GOCACHE": str(self._work / "gocache"),
            # A compiler lives for a second, and collects no garbage for so long: a third of its time.
            "GOGC": "400",
            **(env or {}),
        }  # fmt: skip
        run(*arguments, cwd=self._source, env=environment, log=self._log)

    def _generate_openapi(self) -> None:
        generator = self._work / "openapi-gen"
        self._go(GO, "build", "-o", generator, "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
        packages = sorted(_packages_with(self._source, b"+k8s:openapi-gen="))
        self._go(
            generator, "--logtostderr",
            "-i", ",".join(f"k8s.io/kubernetes/{package}" for package in packages),
            "-p", f"k8s.io/kubernetes/{OPENAPI_PACKAGE}", "-O", "zz_generated.openapi",
            "-h", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt",
            "-r", self._work / "violations", "-o", self._work / "go/src",
            env={"GOROOT": str(GO.resolve().parent.parent), "PATH": f"{GO.parent}:{os.environ['PATH']}"},
        )  # fmt: skip

    def _compile(self) -> None:
        """Go's own packages are taken as Debian compiled them, which -trimpath would not let it."""
        main = self._source / "cmd/all/main.go"
        main.parent.mkdir()
        main.write_text(MAIN)
        flags = ["-tags", TAGS, "-gcflags=k8s.io/...=-dwarf=false", "-ldflags", f"-s -w {_version_flags()}"]
        self._go(GO, "build", *flags, "-o", self._result / "bin/all", "./cmd/all")
        for program in PROGRAMS:
            (self._result / "bin" / program).symlink_to("all")

    def _generate_stubs(self) -> None:
        """Without the options of a Go-only generator, which would want modules of their own."""
        stubs = self._result / "stubs"
        stubs.mkdir()
        text = (self._source / PLUGIN_API).read_text()
        text = re.sub(r'^(import "github.com/gogo.*|option \(gogoproto.*)\n', "", text, flags=re.MULTILINE)
        text = re.sub(r"\s*\[\(gogoproto[^\]]*\]", "", text)
        (stubs / "deviceplugin.proto").write_text(text)
        run(sys.executable, "-m", "grpc_tools.protoc", f"-I{stubs}", f"--python_out={stubs}",
            f"--grpc_python_out={stubs}", "deviceplugin.proto", log=self._log)  # fmt: skip

    def _make_images(self) -> None:
        images = self._result / "images"
        images.mkdir()
        archives.write_pause(images / "pause.tar")
        archives.write_busybox(images / "busybox.tar")


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    if text.count(old) != 1:
        raise ClusterError(f"{file} does not hold `{old}` once", f"build.py fits Kubernetes {KUBERNETES} only")
    file.write_text(text.replace(old, new))


def _packages_with(source: Path, marker: bytes) -> set[str]:
    """Folders, as import paths below the source, of the Go files that hold the marker."""
    roots = [source / name for name in ("pkg", "cmd", "plugin")]
    staging = (source / "staging/src/k8s.io").iterdir()
    roots += [s for s in staging if s.name != "code-generator" and not s.name.startswith("sample-")]
    found = set()
    for root in roots:
        for file in root.rglob("*.go"):
            if marker in file.read_bytes():
                folder = str(file.parent.relative_to(source))
                found.add(re.sub(r"^staging/src/", "vendor/", folder))
    return found


def _version_flags() -> str:
    major, minor = re.findall(r"\d+", KUBERNETES)[:2]
    values = {
        "gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor, "gitCommit": COMMIT,
        "gitTreeState": "clean", "buildDate": COMMIT_DATE,
    }  # fmt: skip
    packages = [
        f"{prefix}{package}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for prefix in ("", "k8s.io/kubernetes/vendor/")
    ]
    return " ".join(f"-X {package}.{name}={value}" for package in packages for name, value in values.items())
