# SPDX-License-Identifier: MIT OR Apache-2.0
"""A plugin for pytest: a session, or single tests of it, on the software device; files of tests in copies of a warm process.

``pytest --stasis`` runs the session on a software device of its own and says at the end what kernels did there.
``@pytest.mark.stasis_device("soft:gfx1100*2")`` has a test run on another one, in a process of its own. With
``--stasis-warm ready:warm_up`` that function is called once, in a process that is then checkpointed; each file of tests runs in a
copy of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Generator, Iterable

import pytest

from stasis import _programs
from stasis._stasis import Error, _counts

# The device of a session that names none.
_DEVICE = "soft:gfx1100"
# Variables that are this session's alone.
_NOT_HANDED_ON = {"PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "STASIS_SOFTGPU_INSTANCE"}
# Seconds after which tests of another process count as hanging.
_LIMIT = 3600.0


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("stasis", "software GPU (stasis)")
    group.addoption("--stasis", action="store_true", help="run the session on a software device of its own")
    group.addoption("--stasis-device", metavar="DEVICE", help=f"which one, {_DEVICE} for instance; implies --stasis")
    group.addoption(
        "--stasis-warm",
        metavar="MODULE:FUNCTION",
        help="call the function once, and run each file of tests in a copy of the process that it was called in; needs CRIU",
    )
    group.addoption("--stasis-reports", metavar="FILE", help="write reports for another session")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "stasis_device(device): run the test on this device, in a process of its own")
    device = config.getoption("--stasis-device")
    is_wanted = config.getoption("--stasis") or device is not None or config.getoption("--stasis-warm") is not None
    if is_wanted:
        device = device or os.environ.get("STASIS_DEVICE") or _DEVICE
        os.environ["STASIS_DEVICE"] = device
        # One that runs already has its settings from whoever started it.
        os.environ["STASIS_SOFTGPU_INSTANCE"] = f"pytest-{os.getpid()}"
    config.pluginmanager.register(_Session(config, device if is_wanted else None), "stasis-session")


class _Session:
    """What a session runs elsewhere, and what it says of devices."""

    def __init__(self, config: pytest.Config, device: str | None) -> None:
        self._config = config
        self._device = device
        self._begun = time.monotonic()
        self._reports: dict[str, list[Any]] = {}
        self._counts: dict[str, int] = {}
        path = config.getoption("--stasis-reports")
        self._out = None if path is None else open(path, "a", encoding="utf-8")
        warm = config.getoption("--stasis-warm")
        # What another session has asked for runs here.
        self._warm = None if warm is None or self._out is not None else _Warm(config, warm)
        # A worker of pytest-xdist knows of all tests, and runs some.
        self._is_worker = hasattr(config, "workerinput")

    def _place(self, item: pytest.Item) -> Any:
        """Where else a test is to run; tests of one place run together."""
        if self._out is not None:
            return None
        marker = item.get_closest_marker("stasis_device")
        device = None if marker is None else (marker.args or (marker.kwargs.get("device"),))[0]
        if device is not None and device != self._device:
            return device
        return item.path if self._warm is not None else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        place = self._place(item)
        if place is None:
            return None
        if item.nodeid not in self._reports:
            items = [item] if self._is_worker else item.session.items
            self._run_elsewhere(place, [each for each in items if self._place(each) == place])
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports[item.nodeid]:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        # What tests here have left for the ones after them, which this one stands between.
        item.session._setupstate.teardown_exact(nextitem)
        return True

    def _run_elsewhere(self, place: Any, items: list[pytest.Item]) -> None:
        with tempfile.TemporaryDirectory(prefix="stasis-pytest-") as directory:
            reports = Path(directory) / "reports"
            arguments = [*_arguments(self._config), "--stasis-reports", str(reports)]
            # Whatever the directory is that the session was started in.
            arguments += [str(self._config.rootpath / item.nodeid) for item in items]
            if isinstance(place, str):
                said = _run([sys.executable, "-m", "pytest", "--stasis-device", place, *arguments], self._config)
            else:
                assert self._warm is not None
                said = self._warm.run(arguments)
            for line in reports.read_text().splitlines() if reports.exists() else []:
                self._take(json.loads(line))
        for item in items:
            reports_of = self._reports.setdefault(item.nodeid, [])
            if not any(report.when == "teardown" for report in reports_of):
                reports_of.append(_lost(item, said))

    def _take(self, line: dict[str, Any]) -> None:
        if "counts" in line:
            for name, count in line["counts"].items():
                self._counts[name] = self._counts.get(name, 0) + count
            return
        report = self._config.hook.pytest_report_from_serializable(config=self._config, data=line)
        self._reports.setdefault(report.nodeid, []).append(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._out is not None:
            data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
            print(json.dumps(data), file=self._out, flush=True)

    def _all_counts(self) -> dict[str, int]:
        own: dict[str, int] = {}
        if self._device is not None or self._out is not None:
            try:
                own = dict(_counts())
            except Error:
                # The device is lost, and what it has counted.
                pass
        return {name: own.get(name, 0) + self._counts.get(name, 0) for name in {**own, **self._counts}}

    def pytest_sessionfinish(self) -> None:
        if self._out is not None:
            print(json.dumps({"counts": self._all_counts()}), file=self._out, flush=True)
            self._out.close()
        if self._is_worker:
            self._config.workeroutput["stasis"] = self._all_counts()  # type: ignore[attr-defined]
        if self._warm is not None:
            self._warm.end()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        """A worker of pytest-xdist has ended."""
        self._take({"counts": getattr(node, "workeroutput", {}).get("stasis", {})})

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        counts = self._all_counts()
        if counts and self._out is None:
            seconds = time.monotonic() - self._begun
            terminalreporter.write_sep("-", "software GPU")
            terminalreporter.write_line(
                f"{counts['dispatches']} kernels, {counts['waves']} waves, {counts['instructions']} instructions, "
                f"{counts['copied_bytes']} bytes copied, in {seconds:.2f} s of the session on {self._device or 'other devices'}"
            )
        if self._warm is not None and self._out is None:
            terminalreporter.write_line(self._warm.gain())


def _arguments(config: pytest.Config) -> list[str]:
    """Arguments by which another session is as this one, but for what its configuration says of arguments."""
    arguments = ["-p", "no:cacheprovider", "--rootdir", str(config.rootpath), "-o", "addopts="]
    if config.inipath is not None:
        arguments += ["-c", str(config.inipath)]
    for option, values in [("-W", config.option.pythonwarnings), ("-o", config.option.override_ini)]:
        arguments += [word for value in values or [] for word in (option, value)]
    return arguments + _options_of_conftests(config)


def _options_of_conftests(config: pytest.Config) -> list[str]:
    """What was said of the options that conftest files have added: pytest keeps those without a group in one of its own."""
    words: list[str] = []
    for option in getattr(getattr(config, "_parser", None), "_anonymous", _Group).options:
        value, given = getattr(config.option, option.dest, None), option.attrs()
        if value is None or value == given.get("default"):
            continue
        name = option.names()[-1]
        # Newer versions of pytest give what argparse made of the option, older ones what it was made of.
        if given.get("nargs") == 0 or given.get("action") in ("store_true", "store_false", "store_const", "append_const", "count"):
            is_counted = isinstance(value, int) and not isinstance(value, bool)
            words += [name] * (value - (given.get("default") or 0) if is_counted else 1)
        else:
            words += [f"{name}={each}" for each in (value if isinstance(value, list) else [value])]
    return words


class _Group:
    """The options of a pytest that keeps them elsewhere."""

    options: list[Any] = []


def _run(arguments: Iterable[Any], config: pytest.Config) -> str:
    """Runs a process to its end; what it said."""
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_HANDED_ON}
    try:
        done = subprocess.run(
            [str(argument) for argument in arguments],
            cwd=config.invocation_params.dir,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_LIMIT,
        )
    except subprocess.TimeoutExpired as expired:
        return f"no end after {expired.timeout} s"
    except OSError as failed:
        return f"not started: {failed}"
    return f"status {done.returncode}\n{done.stdout}"


def _lost(item: pytest.Item, said: str) -> pytest.TestReport:
    """A report of a test whose process did not tell of its end."""
    text = f"The test's process ended without a word of its end: {said}"
    return pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")


class _Warm:
    """A process that was made ready once, and its copies."""

    def __init__(self, config: pytest.Config, function: str) -> None:
        self._config = config
        self._directory = tempfile.TemporaryDirectory(prefix="stasis-warm-")
        self._path = Path(self._directory.name)
        self._function = function
        self._first = 0.0
        self._pid: int | None = None
        self._copies: list[float] = []

    def _make_ready(self) -> int:
        begun = time.monotonic()
        settings = {"function": self._function, "rootdir": str(self._config.rootpath)}
        (self._path / "settings").write_text(json.dumps(settings))
        with (self._path / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "stasis._warm", self._path],
                cwd=self._config.invocation_params.dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        status = process.wait(_LIMIT)
        self._first = time.monotonic() - begun
        # It ends by the checkpoint.
        if not (self._path / "ready").exists() or status != -signal.SIGKILL:
            raise pytest.UsageError(f"--stasis-warm: {(self._path / 'log').read_text(errors='replace')}")
        return process.pid

    def run(self, arguments: list[str]) -> str:
        """Runs pytest in a copy; what it said."""
        if self._pid is None:
            self._pid = self._make_ready()
        for name in ("begun", "said"):
            (self._path / name).unlink(missing_ok=True)
        (self._path / "arguments").write_text(json.dumps(arguments))
        asked, limit = time.time(), time.monotonic() + _LIMIT
        # The copy goes on by itself; the command ends when it runs.
        said = _run([_programs.path("stasis") or "stasis", "restore", self._path / "image"], self._config)
        try:
            copy = os.pidfd_open(self._pid)
        except OSError:
            # It has ended already, or never came.
            copy = None
        if copy is not None:
            try:
                while time.monotonic() < limit and self._is_alive():
                    time.sleep(0.01)
            finally:
                if self._is_alive():
                    signal.pidfd_send_signal(copy, signal.SIGKILL)
                os.close(copy)
        if (self._path / "begun").exists():
            self._copies.append((self._path / "begun").stat().st_mtime - asked)
        out = self._path / "said"
        return said + (out.read_text(errors="replace") if out.exists() else "")

    def _is_alive(self) -> bool:
        """Whether the copy runs, which has the process's number."""
        try:
            state = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state not in "ZX"

    def gain(self) -> str:
        """What copies have saved."""
        if not self._copies:
            return "warm start: no file of tests was run"
        mean = sum(self._copies) / len(self._copies)
        return (
            f"warm start: ready in {self._first:.2f} s once; {len(self._copies)} files, each {mean:.2f} s after it was wanted; "
            f"{self._first * (len(self._copies) - 1) - sum(self._copies):.2f} s saved"
        )

    def end(self) -> None:
        self._directory.cleanup()


@pytest.fixture(scope="session")
def stasis_device() -> Generator[Any, None, None]:
    """The session's first device."""
    import stasis

    yield stasis.Device(0)
