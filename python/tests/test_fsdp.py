"""Sharded training: two processes, gloo, FSDP2."""

import os
import socket

import pytest

torch = pytest.importorskip("torch")
from test_torch import Block  # noqa: E402


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def train(rank, world, port, folder):
    """One step of a sharded model on this process's half of the batch."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    import lca
    lca.set_threads(1)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    model = torch.nn.Sequential(Block(mla=True, mass="score"), Block())
    mesh = init_device_mesh("cpu", (world,))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    x = torch.load(folder / "x.pt")[rank:rank + 1]
    model(x).square().sum().backward()
    grads = [parameter.grad.full_tensor() for parameter in model.parameters()]
    if rank == 0:
        torch.save(grads, folder / "grads.pt")
    torch.distributed.destroy_process_group()


def test_sharded_gradients_equal_those_of_one_process(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(2, 40, 16)
    torch.save(x, tmp_path / "x.pt")
    torch.multiprocessing.spawn(train, (2, free_port(), tmp_path), nprocs=2)
    model = torch.nn.Sequential(Block(mla=True, mass="score"), Block())
    model(x).square().sum().div(2).backward()  # FSDP takes the mean over processes
    for one, parameter in zip(torch.load(tmp_path / "grads.pt"), model.parameters()):
        assert torch.allclose(one, parameter.grad, rtol=1e-4, atol=1e-5)
