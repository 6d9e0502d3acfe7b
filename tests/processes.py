"""Starts processes for tests by forking a helper process, which is five times as fast as a new interpreter.
The helper has imported torch and other large packages, but no package of this repository: each fork imports
those itself, with its own environment variables.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

SERVER = """
import atexit, ctypes, gc, json, os, socket, sys, traceback
import numpy, pydantic, rich.console, safetensors, torch, transformers, typer
transformers.Qwen3NextForCausalLM
gc.collect()
gc.freeze()
server = socket.socket(fileno=int(sys.argv[1]))
while request := socket.recv_fds(server, 1 << 20, 3):
    if not request[0]:
        os._exit(0)
    if child := os.fork():
        for each in request[1]:
            os.close(each)
        server.sendall(b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        continue
    server.close()
    program, arguments, variables, folder = json.loads(request[0])
    for target, each in enumerate(request[1]):
        os.dup2(each, target)
        os.close(each)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    sys.argv[1:] = arguments
    sys.path[1:1] = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
    status = 0
    try:
        exec(program, {"__name__": "__main__", "__builtins__": __builtins__})
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)  # C's own buffers, as at the end of a process
    os._exit(status)  # without the interpreter's finalization, which takes as long as the imports
"""


class Helper:
    """The process from which others are forked, one at a time."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-c", SERVER, str(theirs.fileno())]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        theirs.close()

    def start(
        self,
        program: str,
        arguments: Sequence[object] = (),
        *,
        streams: tuple[int, int, int],
        env: Mapping[str, str] | None = None,
        cwd: Path | str = ".",
    ) -> None:
        """Start a process that runs a program like `python -c`; `wait` must follow."""
        variables = dict(os.environ if env is None else env)
        request = [program, [str(each) for each in arguments], variables, str(Path(cwd).absolute())]
        socket.send_fds(self._socket, [json.dumps(request).encode()], streams)

    def wait(self) -> int:
        """Wait for the started process to end; returns its exit status."""
        return int(self._socket.makefile().readline())

    def run(
        self,
        program: str,
        arguments: Sequence[object] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | str = ".",
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, like `subprocess.run` with captured output."""
        file = tempfile.TemporaryFile
        with open(os.devnull) as none, file("w+") as out, file("w+") as err:
            streams = (none.fileno(), out.fileno(), err.fileno())
            self.start(program, arguments, streams=streams, env=env, cwd=cwd)
            status = self.wait()
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess([program, *arguments], status, out.read(), err.read())

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.wait()


COMMAND = """#!{python} -IS
import json, os, socket, sys
variables = {{**os.environ, "COMMAND_PROCESS": str(os.getpid())}}
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [json.dumps([sys.argv[1:], variables, os.getcwd()]).encode()], [0, 1, 2])
    sys.exit(int(server.recv(16)))
"""


@contextmanager
def command(path: Path, helper: Helper, program: str) -> Iterator[None]:
    """Within this context, the script at `path` runs `program` in a forked process.

    The program gets the script's arguments, environment variables, folder and streams. Its environment
    variable `COMMAND_PROCESS` is the script's process id.
    """
    with socket.socket(socket.AF_UNIX) as listening:
        address = f"{path}.socket"
        listening.bind(address)
        listening.listen()
        server = threading.Thread(target=_serve, args=(listening, helper, program), name="commands")
        server.start()
        path.write_text(COMMAND.format(python=sys.executable, address=address))
        path.chmod(0o755)
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            server.join()


def _serve(listening: socket.socket, helper: Helper, program: str) -> None:
    """Run the requested commands one after another, until the socket is shut down."""
    while True:
        try:
            client, _ = listening.accept()
        except OSError:
            return
        with client:
            request, streams, *_ = socket.recv_fds(client, 1 << 20, 3)
            arguments, variables, folder = json.loads(request)
            standard_input, output, errors = streams
            helper.start(
                program, arguments, streams=(standard_input, output, errors), env=variables, cwd=folder
            )
            for stream in streams:
                os.close(stream)
            client.sendall(b"%d" % helper.wait())


@pytest.fixture(scope="session")
def processes():
    """The helper, started when a test first needs it."""
    helper = Helper()
    yield helper
    helper.close()
