"""Checkpoints and servers that the tests share."""

import pytest

from serving import Serving
from tiny_checkpoints import SLOW, checkpoint_make


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folders of tiny checkpoints: llama, qwen2, and slow, which reads some thousand tokens a second."""
    folder = tmp_path_factory.mktemp("models")
    return {"llama": checkpoint_make(folder / "tiny-llama", "llama"),
            "qwen2": checkpoint_make(folder / "tiny-qwen", "qwen2", context=8192),
            "slow": checkpoint_make(folder / "tiny-slow", "llama", context=65536, **SLOW)}


@pytest.fixture
def serving(models, tmp_path):
    """A function that starts a server on a named checkpoint; all are stopped at the end."""
    servers = []

    def start(name, *flags, **options):
        log = options.pop("log", tmp_path / f"server{len(servers)}.log")
        server = Serving(models[name], *flags, log=log, **options)
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.stop(10)


def shared(models, tmp_path_factory, name, *flags):
    folder = tmp_path_factory.mktemp("server")
    return Serving(models[name], *flags, log=folder / "server.log")


@pytest.fixture(scope="session")
def server(models, tmp_path_factory):
    """The tiny llama as it is served by default."""
    with shared(models, tmp_path_factory, "llama") as running:
        yield running


@pytest.fixture(scope="session")
def plain(models, tmp_path_factory):
    """The same without prefix cache, in float32."""
    with shared(models, tmp_path_factory, "llama", "--prefix-cache", "off", "--precision", "f32") as running:
        yield running


@pytest.fixture(scope="session")
def tools(models, tmp_path_factory):
    """The tiny qwen2, which can call tools."""
    with shared(models, tmp_path_factory, "qwen2") as running:
        yield running
