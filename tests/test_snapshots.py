"""Snapshots: hostile archives, failing indexes, interrupted and concurrent runs; on toy releases.

The toy index is a real HTTP server, so that unearth and the HTTP client take part.
"""
from __future__ import annotations

import errno
import functools
import hashlib
import http.server
import io
import os
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from migrate import cli
from migrate.errors import MigrateError, UsageError
from upstream_snapshots import archive, index, metadata, pins, pip_settings, sync

PROJECT = Path(__file__).resolve().parent.parent
METADATA = ("Metadata-Version: 2.1\nName: Toy_Kernels\nVersion: {version}\n"
            "License: MIT License\n        \n        Copyright\n")
TOY = {"toy/__init__.py": b"", "toy/ops/add.py": b"ADD = 1\n", "toy/ops/mul.py": b"MUL = 2\n"}


# ---------------------------------------------------------------- archives

def make_zip(path: Path, entries: Sequence[tuple[str | zipfile.ZipInfo, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in entries:
            out.writestr(name, data)
    return path


def make_tar(path: Path, entries: Sequence[tuple[str | tarfile.TarInfo, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as out:
        for name, data in entries:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zip_link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o120777 << 16
    return info


def test_reads_sources_and_licences_only(tmp_path: Path) -> None:
    names = ["toy/a.py", "LICENSE", "COPYING.txt", "AUTHORS", "NOTICE.md", "a/b.cu", "README.md", "LICENSEE"]
    entries = [(f"toy-1.0/{name}", b"x") for name in names]
    sdist = make_tar(tmp_path / "toy-1.0.tar.gz", [(special("toy-1.0", tarfile.DIRTYPE), b""), *entries])
    assert sorted(archive.read(sdist)) == ["AUTHORS", "COPYING.txt", "LICENSE", "NOTICE.md", "toy/a.py"]
    wheel = make_zip(tmp_path / "toy-1.0-py3-none-any.whl",
                     [("toy/a.py", b"x"), ("toy-1.0.dist-info/licenses/MIT.txt", b"x"), ("toy/a.so", b"x")])
    assert sorted(archive.read(wheel)) == ["toy-1.0.dist-info/licenses/MIT.txt", "toy/a.py"]


@pytest.mark.parametrize(("entries", "says"), [
    ([("t/../../evil.py", b"x")], "leaves the folder"),
    ([("..", b"x")], "leaves the folder"),
    ([("/etc/evil.py", b"x")], "absolute"),
    ([("C:/evil.py", b"x")], "absolute"),
    ([("t/a\\..\\evil.py", b"x")], "backslash"),
    ([("t/a\nb.py", b"x")], "control character"),
    ([("t/a.py", b"x"), ("t/a.py", b"y")], "occurs twice"),
    ([("t/a.py", b"x"), ("t/./a.py", b"y")], "occurs twice"),
    ([("t/a.py", b"x"), ("t/A.py", b"y")], "differ by case"),
    ([("t/p/a.py", b"x"), ("t/P/b.py", b"y")], "differ by case"),
    ([("t/p", b"x"), ("t/p/b.py", b"y")], "both a file and a folder"),
    ([("t/big.bin", bytes(65 << 20))], "more than 64 MiB"),
    ([(f"t/{i}.bin", bytes(33 << 20)) for i in range(2)], "more than 64 MiB"),
    ([(f"t/{i}.py", b"") for i in range(10_001)], "more than 10000 members"),
])
@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_hostile_names_and_sizes(tmp_path: Path, make: Callable, entries: list, says: str) -> None:
    path = make(tmp_path / ("t.whl" if make is make_zip else "t.tar.gz"), entries)
    with pytest.raises(archive.ArchiveError, match=says):
        archive.read(path)


@pytest.mark.parametrize(("entry", "says"), [
    (special("t/a.py", tarfile.SYMTYPE, "/etc/passwd"), "a link"),
    (special("t/a.py", tarfile.LNKTYPE, "../../etc/passwd"), "a link"),
    (special("t/a.py", tarfile.CHRTYPE), "a device"),
    (special("t/a.py", tarfile.BLKTYPE), "a device"),
    (special("t/a.py", tarfile.FIFOTYPE), "a device"),
])
def test_hostile_tar_members(tmp_path: Path, entry: tarfile.TarInfo, says: str) -> None:
    with pytest.raises(archive.ArchiveError, match=says):
        archive.read(make_tar(tmp_path / "t.tar.gz", [("t/b.py", b"x"), (entry, b"")]))


def test_hostile_zip_members(tmp_path: Path) -> None:
    with pytest.raises(archive.ArchiveError, match="a link"):
        archive.read(make_zip(tmp_path / "a.whl", [(zip_link("t/a.py"), b"/etc/passwd")]))
    nul = make_zip(tmp_path / "b.whl", [("t/a.py0.txt", b"x")])
    nul.write_bytes(nul.read_bytes().replace(b"a.py0.txt", b"a.py\0.txt"))
    with pytest.raises(archive.ArchiveError, match="control character"):
        archive.read(nul)
    liar = make_zip(tmp_path / "c.whl", [("t/a.py", bytes(1 << 20))])
    size = (1 << 20).to_bytes(4, "little")
    liar.write_bytes(liar.read_bytes().replace(size, (10).to_bytes(4, "little")))
    with pytest.raises(archive.ArchiveError, match="damaged"):
        archive.read(liar)


def test_huge_tar_header_is_stopped(tmp_path: Path) -> None:
    """A pax header is read into memory before its member is seen: the limit must cover it."""
    info = tarfile.TarInfo("t/a.py")
    info.pax_headers = {"comment": "x" * (70 << 20)}
    path = tmp_path / "t.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as out:
        out.addfile(info)
    with pytest.raises(archive.ArchiveError, match="more than 64 MiB"):
        archive.read(path)


@pytest.mark.parametrize("suffix", [".tar.gz", ".whl", ".zip"])
def test_truncated_and_garbage(tmp_path: Path, suffix: str) -> None:
    make = make_tar if suffix == ".tar.gz" else make_zip
    entries = [("t/a.py", os.urandom(5000)), ("t/b.py", os.urandom(5000))]
    whole = make(tmp_path / f"t{suffix}", entries).read_bytes()
    for part in (b"", b"garbage" * 100, whole[:200], whole[:7000], whole[:-30]):
        path = tmp_path / f"part{suffix}"
        path.write_bytes(part)
        with pytest.raises(archive.ArchiveError, match="damaged"):
            archive.read(path)


def test_source_archive_needs_one_top_folder(tmp_path: Path) -> None:
    with pytest.raises(archive.ArchiveError, match="one leading folder"):
        archive.read(make_tar(tmp_path / "t.tar.gz", [("a/x.py", b""), ("b/y.py", b"")]))
    with pytest.raises(archive.ArchiveError, match="one leading folder"):
        archive.read(make_tar(tmp_path / "u.tar.gz", [("x.py", b"")]))


# ---------------------------------------------------------------- a toy index

class ToyIndex(http.server.ThreadingHTTPServer):
    """Serves a folder; `delay` (seconds) before each archive, `answer` to fail, `cut` to break off."""

    def __init__(self, root: Path) -> None:
        self.root, self.delay, self.answer, self.cut = root, 0.0, 0, False
        self.asked: list[str] = []

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(handler) -> None:
                self.asked.append(handler.path)
                if handler.path.endswith((".whl", ".gz")):
                    time.sleep(self.delay)
                if self.answer:
                    handler.send_error(self.answer)
                else:
                    super(Handler, handler).do_GET()

            def send_header(handler, keyword: str, value: str) -> None:
                if self.cut and keyword == "Content-Length" and handler.path.endswith((".whl", ".gz")):
                    value = str(int(value) + 100)
                super(Handler, handler).send_header(keyword, value)

            def log_message(handler, *args: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), functools.partial(Handler, directory=str(root)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/simple"

    def publish(self, archive: Path, sha256: str | None = None) -> None:
        """Put an archive into the index page of toy-kernels, with its sha256 or the one given."""
        page = self.root / "simple/toy-kernels/index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        sha256 = sha256 or hashlib.sha256(archive.read_bytes()).hexdigest()
        text = page.read_text() if page.exists() else "<!DOCTYPE html>"
        page.write_text(f'{text}<a href="../../{archive.name}#sha256={sha256}">{archive.name}</a>\n')


def wheel(folder: Path, version: str = "1.0", files: dict[str, bytes] = TOY) -> Path:
    info = f"toy_kernels-{version}.dist-info"
    return make_zip(folder / f"toy_kernels-{version}-py3-none-any.whl",
                    [*files.items(), (f"{info}/METADATA", METADATA.format(version=version).encode()),
                     (f"{info}/licenses/LICENSE", b"as you like")])


def sdist(folder: Path, version: str = "1.0", files: dict[str, bytes] = TOY) -> Path:
    top = f"toy_kernels-{version}"
    extra = {"PKG-INFO": METADATA.format(version=version).encode(), "LICENSE": b"as you like",
             "setup.py": b"raise SystemExit('setup.py was run')\n"}
    entries = [(f"{top}/{name}", data) for name, data in {**files, **extra}.items()]
    return make_tar(folder / f"{top}.tar.gz", entries)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToyIndex]:
    """An index of its own, empty pins, an empty folder for what is unpacked, and none of this machine's pip
    settings."""
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    server = ToyIndex(tmp_path / "www")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", server.url)
    monkeypatch.setenv("MIGRATE_SNAPSHOTS", str(tmp_path / "unpacked"))
    monkeypatch.setattr(pins, "HERE", tmp_path / "pins")
    pins.HERE.mkdir()
    (pins.HERE / "snapshots.toml").write_text("# pins\n")
    (pins.HERE / "snapshots.sha256").touch()
    (tmp_path / "www").mkdir()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def pinned(toy: ToyIndex) -> sync.Snapshot:
    """toy-kernels 1.0 pinned as a wheel, published, not unpacked."""
    toy.publish(wheel(toy.root))
    snapshot, _ = sync.add("toy-kernels==1.0")
    remove(snapshot.folder)
    toy.asked.clear()
    return snapshot


def remove(folder: Path) -> None:
    subprocess.run(["rm", "-r", str(folder)], check=True)


def left(tmp_path: Path) -> list[str]:
    """What lies in the folder of unpacked releases, but for the lock."""
    folder = tmp_path / "unpacked"
    return sorted(p.name for p in folder.iterdir() if p.name != ".lock") if folder.exists() else []


def test_add_then_offline(toy: ToyIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toy.publish(sdist(toy.root))
    toy.publish(wheel(toy.root))
    snapshot, new = sync.add("Toy.Kernels==1.0.0")
    assert new
    assert (snapshot.spec, snapshot.file) == ("toy-kernels==1.0", "toy_kernels-1.0-py3-none-any.whl")
    assert (snapshot.licence, snapshot.package, snapshot.port_as) == ("MIT", "toy", "toy")
    assert sync.files(snapshot) == sorted(TOY)
    assert sync.load() == [snapshot] and sync.load()[0].hashes == snapshot.hashes
    assert (pins.HERE / "snapshots.toml").read_text().startswith("# pins\n\n[[snapshot]]\n")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/")
    root = sync.ensure(sync.find("toy_kernels"))
    assert (root / "toy/ops/add.py").read_bytes() == TOY["toy/ops/add.py"]
    assert sync.add("toy-kernels==1") == (snapshot, False)
    assert left(tmp_path) == ["toy-kernels-1.0"]


def test_add_source_archive_and_second_version(toy: ToyIndex) -> None:
    toy.publish(sdist(toy.root))
    toy.publish(sdist(toy.root, "1.1.post2", {f"src/{name}": data for name, data in TOY.items()}))
    first, _ = sync.add("toy-kernels==1.0")
    second, _ = sync.add("toy-kernels==1.1.post2")
    assert first.root == first.folder and (first.root / "LICENSE").exists()
    assert second.port_as == "toy_1_1_post2"
    assert second.root == second.folder / "src" and sync.files(second) == sorted(TOY)
    assert (second.root / "toy/ops/mul.py").exists()
    with pytest.raises(UsageError, match=r"several.*toy-kernels==1\.0, toy-kernels==1\.1\.post2"):
        sync.find("toy-kernels")
    with pytest.raises(UsageError, match="is not pinned"):
        sync.find("toy-kernels==2")
    subprocess.run(["sha256sum", "-c", "--quiet", str(pins.HERE / "snapshots.sha256")],
                   cwd=pins.unpacked_folder(), check=True)


def test_add_refuses(toy: ToyIndex, tmp_path: Path) -> None:
    for spec in ("toy-kernels", "toy kernels==1", "==1", "toy==one", "../toy==1", "toy>=1", ""):
        with pytest.raises(UsageError):
            sync.add(spec)
    with pytest.raises(MigrateError, match="not found"):
        sync.add("toy-kernels==1.0")
    binary = make_zip(toy.root / "toy_kernels-2.0-cp311-cp311-linux_x86_64.whl", [("toy/__init__.py", b"")])
    toy.publish(binary)
    with pytest.raises(MigrateError, match="neither a wheel for any platform nor a source archive"):
        sync.add("toy-kernels==2.0")
    toy.publish(sdist(toy.root, "3.0", {}))
    with pytest.raises(MigrateError, match="no Python package"):
        sync.add("toy-kernels==3.0")
    other = wheel(toy.root, "4.0").rename(toy.root / "toy_kernels-5.0-py3-none-any.whl")
    toy.publish(other)
    with pytest.raises(MigrateError, match=r"expected toy-kernels==5\.0, but .* Toy_Kernels==4\.0"):
        sync.add("toy-kernels==5.0")
    toy.publish(wheel(toy.root, "6.0"), sha256="0" * 64)
    with pytest.raises(MigrateError, match="sha256 expected 0000"):
        sync.add("toy-kernels==6.0")
    assert sync.load() == [] and left(tmp_path) == []


def test_add_again_after_its_pin_was_taken_back(pinned: sync.Snapshot) -> None:
    sync.ensure(pinned)
    (pins.HERE / "snapshots.toml").write_text("")
    assert sync.add("toy-kernels==1.0") == (pinned, True)
    assert sync.load() == [pinned]


def test_the_hash_is_checked_before_the_archive_is_opened(
        pinned: sync.Snapshot, toy: ToyIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened = []
    monkeypatch.setattr(archive, "read", lambda *args: opened.append(args))
    (toy.root / pinned.file).write_bytes(b"something else")
    with pytest.raises(MigrateError, match=f"sha256 expected {pinned.sha256}, got [0-9a-f]{{64}}"):
        sync.ensure(pinned)
    assert not opened and left(tmp_path) == []


def test_index_states_another_hash(pinned: sync.Snapshot, toy: ToyIndex) -> None:
    (toy.root / "simple/toy-kernels/index.html").unlink()
    toy.publish(toy.root / pinned.file, sha256="0" * 64)
    with pytest.raises(MigrateError, match=f"expected {pinned.sha256}, stated 0000"):
        sync.ensure(pinned)
    assert toy.asked == ["/simple/toy-kernels/"]  # not even downloaded


def test_pins_that_do_not_fit_the_archive(pinned: sync.Snapshot, tmp_path: Path) -> None:
    sidecar = pins.HERE / "snapshots.sha256"
    sidecar.write_text(sidecar.read_text().replace("add.py", "sub.py"))
    with pytest.raises(MigrateError, match=r"toy/ops/add\.py: snapshots\.sha256 expects no such file"):
        sync.ensure(sync.find("toy-kernels"))
    assert left(tmp_path) == []


@pytest.mark.parametrize("name", ["toy/ops/add.py", "toy_kernels-1.0.dist-info/licenses/LICENSE"])
def test_tampered_file(pinned: sync.Snapshot, name: str) -> None:
    place = sync.ensure(pinned) / name
    old = place.stat()
    place.write_bytes(place.read_bytes()[::-1])
    os.utime(place, ns=(old.st_atime_ns, old.st_mtime_ns))  # same size, same time
    with pytest.raises(MigrateError, match=f"{place.name} is not as released.*migrate snapshot sync"):
        sync.ensure(pinned)
    place.unlink()
    with pytest.raises(MigrateError, match="No such file"):
        sync.ensure(pinned)


def test_no_network(pinned: sync.Snapshot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:1/simple")
    with pytest.raises(MigrateError) as caught:
        sync.ensure(pinned)
    line = str(caught.value)
    assert "toy-kernels==1.0" in line and "refused" in line and "PIP_FIND_LINKS" in line
    assert "secret" not in line and "\n" not in line
    assert left(tmp_path) == []


def test_index_that_fails(pinned: sync.Snapshot, toy: ToyIndex, capfd: pytest.CaptureFixture[str]) -> None:
    toy.answer = 503
    with pytest.raises(MigrateError, match=r"not found.*503"):
        sync.ensure(pinned)
    toy.answer = 0
    (toy.root / pinned.file).unlink()
    with pytest.raises(MigrateError, match=r"download failed: HTTP 404"):
        sync.ensure(pinned)
    assert capfd.readouterr() == ("", "")  # unearth's warnings are part of the message instead


def test_a_dead_index_does_not_stop_the_next(pinned: sync.Snapshot, toy: ToyIndex,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"file:///no/such/folder {toy.url}")
    monkeypatch.setenv("PIP_FIND_LINKS", "/no/such/folder")
    assert sync.ensure(pinned).is_dir()


@pytest.mark.parametrize("as_url", [False, True])
def test_archive_from_a_folder(pinned: sync.Snapshot, toy: ToyIndex, monkeypatch: pytest.MonkeyPatch,
                               as_url: bool) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", toy.root.as_uri() if as_url else str(toy.root))
    assert sync.ensure(pinned).is_dir()
    assert toy.asked == []


def test_broken_download(pinned: sync.Snapshot, toy: ToyIndex, monkeypatch: pytest.MonkeyPatch,
                         tmp_path: Path) -> None:
    toy.cut = True
    with pytest.raises(MigrateError, match=r"broke off at \d+ bytes"):
        sync.ensure(pinned)
    toy.cut = False
    monkeypatch.setattr(index, "MAX_DOWNLOAD", 100)
    with pytest.raises(MigrateError, match="larger than"):
        sync.ensure(pinned)
    assert left(tmp_path) == []


@pytest.mark.parametrize(("error", "says"), [
    (OSError(errno.ENOSPC, "No space left on device"), "disk full"),
    (OSError(errno.EROFS, "Read-only file system"), "Read-only file system.*MIGRATE_SNAPSHOTS"),
    (KeyboardInterrupt(), None),
])
def test_interrupted_while_unpacking(pinned: sync.Snapshot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                     error: BaseException, says: str | None) -> None:
    write, calls = Path.write_bytes, []

    def failing(path: Path, data: bytes) -> int:
        calls.append(path)
        if len(calls) == 2:
            raise error
        return write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", failing)
        with pytest.raises((KeyboardInterrupt, MigrateError), match=says):
            sync.ensure(pinned)
    assert len(calls) == 2 and left(tmp_path) == [] and not pinned.is_unpacked
    assert sync.ensure(pinned).is_dir()


@pytest.mark.parametrize("folder", ["/proc/no", "/dev/null/no"])
def test_folder_that_cannot_be_written(pinned: sync.Snapshot, monkeypatch: pytest.MonkeyPatch,
                                       folder: str) -> None:
    monkeypatch.setenv("MIGRATE_SNAPSHOTS", folder)
    with pytest.raises(MigrateError, match=f"{folder} cannot be used.*set MIGRATE_SNAPSHOTS"):
        sync.ensure(pinned)


def run_ensure(before: str = "") -> subprocess.Popen[bytes]:
    """`ensure` of the pinned toy release in another process."""
    code = ("import os\nfrom pathlib import Path\nfrom upstream_snapshots import pins, sync\n"
            f"pins.HERE = Path({str(pins.HERE)!r})\n{before}\nsync.ensure(sync.find('toy-kernels'))\n")
    return subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT)


def test_killed_while_unpacking(pinned: sync.Snapshot, tmp_path: Path) -> None:
    killed = run_ensure("def half(snapshot, content, work):\n"
                        "    (work / 'tree').mkdir(); (work / 'tree/a.py').touch(); os.kill(os.getpid(), 9)\n"
                        "sync._place = half")
    assert killed.wait(60) == -9
    leftover, = left(tmp_path)
    assert leftover.startswith(".tmp-") and not pinned.is_unpacked
    sync.ensure(pinned)
    assert left(tmp_path) == ["toy-kernels-1.0"]


def test_two_processes_at_once(pinned: sync.Snapshot, toy: ToyIndex, tmp_path: Path) -> None:
    toy.delay = 0.5
    runs = [run_ensure() for _ in range(3)]
    assert [run.wait(60) for run in runs] == [0, 0, 0]
    assert sum(path.endswith(".whl") for path in toy.asked) == 1
    assert left(tmp_path) == ["toy-kernels-1.0"]
    sync.verify(pinned)


def test_lock_held_too_long(pinned: sync.Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "LOCK_TIMEOUT", 0.1)
    with sync._work_folder(), pytest.raises(MigrateError, match="another run has held this lock"):
        sync.ensure(pinned)


# ---------------------------------------------------------------- pins and settings

@pytest.mark.parametrize(("old", "new", "says"), [
    ('port_as = "toy"\n', "", "port_as"),
    ('port_as = "toy"', 'port_as = "toy"\nextra = "x"', "extra"),
    ('name = "toy-kernels"', 'name = "Toy_Kernels"', "write 'toy-kernels'"),
    ('version = "1.0"', 'version = "../1"', "not a version"),
    ('version = "1.0"', 'version = "1.1"', "no file hashes"),
    ('version = "1.0"', "version = ", "snapshots.toml"),
])
def test_bad_pins(pinned: sync.Snapshot, old: str, new: str, says: str) -> None:
    path = pins.HERE / "snapshots.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UsageError, match=says):
        sync.load()


def test_bad_hashes_and_clashing_ports(pinned: sync.Snapshot) -> None:
    path = pins.HERE / "snapshots.toml"
    text = path.read_text()
    path.write_text(text + text.removeprefix("# pins\n"))
    with pytest.raises(UsageError, match="port as 'toy'"):
        sync.load()
    (pins.HERE / "snapshots.sha256").write_text("nonsense\n")
    with pytest.raises(UsageError, match=r"snapshots\.sha256:1"):
        sync.load()


def test_pip_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, toy: ToyIndex) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://one.example/simple\ntimeout = 7\ncert = /a.pem\n"
                      "[install]\ntrusted-host =\n    one.example\n    two.example\nfind-links = /a /b\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://x.example/s https://y.example/s")
    monkeypatch.delenv("PIP_INDEX_URL")
    found = pip_settings.load()
    assert found.index_urls == ("https://one.example/simple", "https://x.example/s", "https://y.example/s")
    assert found.trusted_hosts == ("one.example", "two.example") and found.timeout == 7
    assert found.cert == "/a.pem"
    with pytest.raises(UsageError, match="cert"):
        index.Index(found)
    monkeypatch.setenv("PIP_INDEX_URL", "https://env.example/simple")
    assert pip_settings.load().index_urls[0] == "https://env.example/simple"
    monkeypatch.setattr(pip_settings.importlib.util, "find_spec", lambda name: None)  # no pip here
    assert pip_settings.load().find_links == ()
    monkeypatch.setenv("PIP_TIMEOUT", "soon")
    with pytest.raises(UsageError, match="'soon'"):
        pip_settings.load()


def test_broken_pip_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("no section\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    with pytest.raises(UsageError, match="pip's configuration cannot be read"):
        pip_settings.load()


@pytest.mark.parametrize(("text", "spdx"), [
    ("License-Expression: apache-2.0 OR mit", "Apache-2.0 OR MIT"),
    ("License: Apache License\n                           Version 2.0, January 2004", "Apache-2.0"),
    ("License: BSD 3-Clause License", "BSD-3-Clause"),
    ("License: MIT", "MIT"),
    ("License: see the file", metadata.UNKNOWN),
    ("Classifier: License :: OSI Approved :: MIT License", "MIT"),
    ("Classifier: License :: OSI Approved :: BSD License", metadata.UNKNOWN),
    ("Name: toy", metadata.UNKNOWN),
])
def test_licence(text: str, spdx: str) -> None:
    from email.parser import Parser
    assert metadata.licence(Parser().parsestr(text)) == spdx


# ---------------------------------------------------------------- command line

def test_command_line(toy: ToyIndex, tmp_path: Path) -> None:
    toy.publish(wheel(toy.root))
    run = functools.partial(CliRunner().invoke, cli.app)
    added = run(["snapshot", "add", "toy-kernels==1.0"])
    assert added.exit_code == 0 and added.stdout == "toy-kernels==1.0: pinned, MIT, ports go to toy/\n"
    assert "already pinned" in run(["snapshot", "add", "toy-kernels==1.0"]).stdout
    remove(tmp_path / "unpacked/toy-kernels-1.0")
    row = run(["snapshot", "list"]).stdout.splitlines()[1]
    assert row.split() == ["toy-kernels==1.0", "MIT", "no", "3", "toy/"]
    synced = run(["snapshot", "sync"])
    assert synced.stdout == f"toy-kernels==1.0  {tmp_path}/unpacked/toy-kernels-1.0\n" and synced.stderr == ""
    assert "  yes  " in run(["snapshot", "list"]).stdout


def test_table_on_a_terminal(pinned: sync.Snapshot, monkeypatch: pytest.MonkeyPatch,
                             capsys: pytest.CaptureFixture[str]) -> None:
    from migrate.report import snapshots
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    snapshots.print_snapshots([pinned])
    assert "│" in capsys.readouterr().out


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(*args: str, **env: str) -> tuple[int, list[str]]:
        done = subprocess.run([sys.executable, "-m", "migrate.cli", "snapshot", *args], cwd=PROJECT,
                              env={**os.environ, **env}, capture_output=True, text=True)
        return done.returncode, done.stderr.splitlines()

    code, lines = run("add", "no/such==1")
    assert code == 2 and len(lines) == 1
    code, lines = run("sync", MIGRATE_SNAPSHOTS="/proc/no")
    assert code == 3 and len(lines) == 1 and "MIGRATE_SNAPSHOTS" in lines[0]


# ---------------------------------------------------------------- the real pins

def test_real_pins() -> None:
    assert {s.spec: (s.licence, s.package, s.port_as) for s in sync.load()}.items() >= {
        "mamba-ssm==2.3.2.post1": ("Apache-2.0", "mamba_ssm", "mamba_ssm"),
        "fla-core==0.5.2": ("MIT", "fla", "fla_0_5_2"),
        "fla-core==0.6.0": ("MIT", "fla", "fla"),
    }.items()
    assert sync.find("mamba-ssm").sha256 == "104cc47e9101e5401a675fa2b784f2952b9b037f3b1dd83b5ac544394e95d028"
    assert "mamba_ssm/ops/triton/mamba3/mamba3_siso_bwd.py" in sync.files(sync.find("mamba-ssm"))


@pytest.mark.network
def test_fetch_mamba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIGRATE_SNAPSHOTS", str(tmp_path))
    snapshot = sync.find("mamba-ssm")
    seen: list[tuple[str, int, int | None]] = []
    try:
        root = sync.ensure(snapshot, lambda *progress: seen.append(progress))
    except index.FetchError as error:
        if "sha256" in str(error):
            raise
        pytest.skip(f"the package index cannot be reached: {error}")
    assert (root / "mamba_ssm/__init__.py").exists() and (root / "LICENSE").exists()
    assert seen[-1][0] == snapshot.spec and seen[-1][1] == seen[-1][2]
    monkeypatch.setattr(index, "fetch_pinned", None)
    assert sync.ensure(snapshot) == root
