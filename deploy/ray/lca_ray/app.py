"""The Ray Serve application: deployments `Gate` (the front) and `Lca` (one `lca serve` each). Settings: config.yaml."""

import logging
import logging.handlers
import os
import pathlib
from typing import List, Literal, Optional

from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError, RayServeException

from . import loopback, replica
from .gate import Gate, lifespan
from .process import LcaProcess

serve_log = logging.getLogger("ray.serve")


class Settings(BaseModel):
    """What `args` of an application may say; anything else is an error."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str
    program: str = "lca"
    flags: List[str] = []
    sessions: Optional[str] = None
    api_key_file: Optional[str] = None
    allow_hosts: List[str] = []
    max_body: int = 64 << 20
    first: Literal["message", "user"] = "message"
    replica_wait_s: float = 15
    load_timeout_s: float = 600
    drain_s: float = 30
    restarts: int = 3
    restart_window_s: float = 300
    log_dir: Optional[str] = None

    def command(self):
        words = [self.program, "serve", self.model, "--max-body", str(self.max_body),
                 "--drain", str(self.drain_s)]
        if self.sessions:
            words += ["--sessions", self.sessions]
        if self.api_key_file:
            words += ["--api-key-file", self.api_key_file]
        for host in self.allow_hosts:
            words += ["--allow-host", host]
        return words + self.flags


def replica_log(settings, name):
    """Where the lines of a server go: a file of its own, else Ray's log of the replica."""
    if not settings.log_dir:
        return lambda line: serve_log.info("lca: %s", line)
    folder = pathlib.Path(settings.log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(folder / f"lca-{name}.log", maxBytes=64 << 20, backupCount=3)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log = logging.Logger("lca")
    log.addHandler(handler)
    return log.info


@serve.deployment(name="Lca")
class Lca:
    """Owns one `lca serve`."""

    async def __init__(self, settings):
        settings = Settings(**settings)
        self.name = serve.get_replica_context().replica_id.unique_id
        self.process = LcaProcess(settings.command(), replica_log(settings, self.name), settings.load_timeout_s,
                                  settings.drain_s + 5, settings.restarts, settings.restart_window_s)
        await self.process.start()

    async def forward(self, request, key, avoid):
        async for message in replica.forward(self.process, self.name, request, avoid):
            yield message

    async def whole(self, request):
        """Name, and status, headers and body of a small reply; None where there is none."""
        try:
            reply = await loopback.ask(self.process.port, request["method"], request["target"], request["headers"],
                                       request["body"], timeout=10)
        except (OSError, TypeError):
            return self.name, None
        try:
            return self.name, (reply.status, reply.headers, b"".join([piece async for piece in reply.pieces()]))
        except OSError:
            return self.name, None
        finally:
            reply.close()

    async def check_health(self):
        await self.process.check()

    def __del__(self):
        process = getattr(self, "process", None)
        if process is not None:
            process.stop()


class Messages:
    """The messages of a replica; what Ray throws when a replica dies becomes a ConnectionError."""

    def __init__(self, response):
        self.response = response

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            return await self.response.__anext__()
        except BackPressureError:
            return ("none",)
        except (RayActorError, RayTaskError, RayServeException) as error:
            raise ConnectionError(f"the replica died ({type(error).__name__})") from error

    def cancel(self):
        self.response.cancel()


class GateApp:
    """An object, since Ray calls a plain function to make the application."""

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":  # comes before there is a servable object
            return await lifespan(receive, send)
        await serve.get_replica_context().servable_object.gate(scope, receive, send)


@serve.deployment(name="Gate")
@serve.ingress(GateApp())
class GateDeployment:
    """Finds the replica of a request, passes bytes on, and asks another where one is gone."""

    def __init__(self, lca, settings):
        settings = Settings(**settings)
        forward = lca.options(method_name="forward", stream=True)

        def call(request, key, avoid):
            return Messages(forward.remote(request, key, list(avoid)))

        async def call_all(request):
            replies = await lca.broadcast("whole", request).results_async()
            return {name: reply for name, reply in replies if reply is not None}

        self.gate = Gate(call, call_all, settings.max_body, settings.replica_wait_s, settings.first,
                         serve_log.warning)


def build(args):
    """What config.yaml names as `import_path`."""
    settings = Settings(**args)
    if not settings.api_key_file and os.environ.get("LCA_API_KEY"):
        serve_log.info("the key is LCA_API_KEY of the replicas' environment")
    router = RequestRouterConfig(request_router_class="lca_ray.router:RendezvousRouter")
    values = settings.model_dump()
    return GateDeployment.bind(Lca.options(request_router_config=router).bind(values), values)
