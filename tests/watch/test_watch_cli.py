"""`tlt watch` as scripts and browsers meet it."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.watch.live_jobs import FAULTS, FakeJob, FakeMetrics
from tlt.commands.watch.command import watch
from tlt.commands.watch.page import Page, html
from tlt.plugin.facts import Fault
from tlt.traces.doctor.base import Finding
from tlt.traces.watch.guard import Status
from tltsched.errors import InputError


def job_of(folder: Path, fault: str, steps: int) -> Path:
    job = FakeJob(5, fault, begins=0)
    for _ in range(steps):
        job.live()
        job.write(folder)
    return folder


def test_a_script_gets_exit_code_1_and_the_reason(tmp_path: Path) -> None:
    bad, good = job_of(tmp_path / "bad", FAULTS[0], 1), job_of(tmp_path / "good", "", 1)
    done = CliRunner().invoke(watch, [str(bad), "--once"])
    assert done.exit_code == 1
    assert "problem [acceptance-none] step 0: acceptance length 1.000" in done.output
    done = CliRunner().invoke(watch, [str(good), "--once", "--strict"])
    assert (done.exit_code, done.output.count("\n")) == (0, 1)
    assert done.output.startswith("step 0: ")


def test_a_run_folder_that_grows_is_watched_and_a_comparison_is_not() -> None:
    runs = Path(__file__).resolve().parents[2] / "evidence/runs/h100-qwen2.5-7b/replay"
    done = CliRunner().invoke(watch, [str(runs / "static-4"), "--once"])
    assert done.exit_code == 0
    assert "acceptance length 3.33 (with bonus)" in done.output
    done = CliRunner().invoke(watch, [str(runs), "--once"])
    assert isinstance(done.exception, InputError)
    assert "the folder of one of its policies" in str(done.exception)


def test_a_plugin_that_stopped_is_told(tmp_path: Path) -> None:
    good = job_of(tmp_path / "good", "", 1)
    with (good / "engines/0001/facts.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(Fault(t_s=9.0, text="OSError: disk full")) + b"\n")
    done = CliRunner().invoke(watch, [str(good), "--once"])
    assert done.exit_code == 0
    assert (
        "notice [plugin] it stopped, and the engine goes on by its own choice: engine 1: OSError"
        in done.output
    )
    assert CliRunner().invoke(watch, [str(good), "--once", "--strict"]).exit_code == 1


def test_it_ends_when_nothing_is_new(tmp_path: Path) -> None:
    good = job_of(tmp_path / "good", "", 1)
    done = CliRunner().invoke(watch, [str(good), "--until-idle", "0.1", "--every", "0.05", "--json"])
    assert done.exit_code == 0
    assert msgspec.json.decode(done.stdout)["step"] == 0
    (tmp_path / "nothing").mkdir()
    done = CliRunner().invoke(watch, [str(tmp_path / "nothing"), "--until-idle", "0.1", "--every", "0.05"])
    assert (done.exit_code, done.output) == (0, "nothing to judge was read\n")


@pytest.fixture
def served() -> Iterator[str]:
    """The metrics of a job without acceptance, half a second of it between two readings."""
    fake = FakeMetrics(FakeJob(1, FAULTS[0], begins=0))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake.advance(0.5)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(fake.get("http://h/0"))

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- its name there
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    server.shutdown()
    server.server_close()


def test_a_url_is_read_twice_for_one_status(served: str) -> None:
    done = CliRunner().invoke(watch, [served, "--once", "--every", "0.05"])
    assert done.exit_code == 1
    assert "problem [acceptance-none]" in done.output


def test_what_cannot_be_watched_is_refused(tmp_path: Path) -> None:
    for targets, text in (
        (["http://127.0.0.1:1/metrics"], "an engine that answers"),
        (["ftp://x/y"], "http:// or https://"),
        ([str(tmp_path), "http://127.0.0.1:1/"], "one folder, or URLs alone"),
        ([str(tmp_path / "gone")], "a folder that is there"),
    ):
        done = CliRunner().invoke(watch, [*targets, "--once"])
        assert isinstance(done.exception, InputError)
        assert text in str(done.exception)


def test_the_page_is_of_this_machine_alone_and_escapes() -> None:
    evil = "<script>alert(1)</script>"
    finding = Finding(check=evil, severity="problem", policy="", found=evil, why=evil, todo=evil, source=evil)
    status = Status(step=3, text=evil, findings=(finding,), new=(finding,), over=(), unknown={evil: evil})
    assert evil not in html(evil, [status])
    with Page(0) as page:
        assert page._server.server_address[0] == "127.0.0.1"
        page.show("job", [status])
        with urllib.request.urlopen(page.url) as answer:  # noqa: S310 -- ours
            assert "step 3" in answer.read().decode()
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        other = urllib.request.Request(page.url, headers={"Host": "attacker.example"})  # noqa: S310
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(other)  # noqa: S310
