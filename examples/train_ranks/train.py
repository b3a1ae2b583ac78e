# SPDX-License-Identifier: MIT OR Apache-2.0
"""Trains a small network on several GPUs: on those of each rank of an MPI job, whose gradients are summed over all ranks.

    clang-19 --target=amdgcn-amd-amdhsa -mcpu=gfx11-generic -mcode-object-version=6 -O3 -nogpulib -o train.co examples/train/train.c
    mpirun -np 4 python -m mpi4py train.py --code train.co --steps 100 --sets sets --every 20

On a node gradients go from GPU to GPU, also between ranks: the first rank of a node has an inbox for each GPU there, and the others are
given their names. Between nodes they go through host memory and MPI. They are gathered and summed in the order of the GPUs, not by
a reduction of MPI's, whose order depends on where ranks run: the weights are the same to the bit wherever that is.

`-m mpi4py` has an error of one rank end all; without it the others wait for that rank.

Ranks that get SIGTERM or SIGUSR1 save all together at the end of the step, and end; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import stasis
from stasis.ranks import Ranks

INPUTS, HIDDEN, CLASSES, SAMPLES, RATE = 64, 128, 10, 4096, 0.5
FIRST, SECOND = (INPUTS + 1) * HIDDEN, (HIDDEN + 1) * CLASSES
PARAMETERS = FIRST + SECOND


def numbers(seed: int, count: int) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).uniform(-1, 1, count).astype("f4")


class Model:
    """The network on one GPU, for batches of so many rows."""

    def __init__(self, device: stasis.Device, code: Path, rows: int, weights: stasis.Buffer | None, name: str) -> None:
        self.rows, module = rows, stasis.Module(device, code)
        kernels = ("layer", "lack", "gradients", "backward", "descend")
        self.layer, self.lack, self.gradients, self.backward, self.descend = (module[name] for name in kernels)
        inputs = numbers(1, SAMPLES * INPUTS).reshape(SAMPLES, INPUTS)
        self.weights = weights or stasis.Buffer.from_numpy(device, 0.1 * numbers(2, PARAMETERS)).set_label(name)
        self.inputs = stasis.Buffer.from_numpy(device, inputs)
        self.labels = stasis.Buffer.from_numpy(device, inputs[:, :CLASSES].argmax(1).astype("u4"))
        sizes = (PARAMETERS, rows * HIDDEN, rows * HIDDEN, rows * CLASSES, rows)
        self.gradient, self.hidden, self.hidden_lack, self.logits, self.losses = (
            stasis.Buffer.empty(device, size) for size in sizes
        )

    def compute(self, first: int, share: float) -> None:
        """The gradients of the rows from ``first`` on, each for this share of the whole batch."""
        n, w, g = self.rows, self.weights.data_ptr(), self.gradient.data_ptr()
        x, labels = self.inputs.data_ptr() + 4 * first * INPUTS, self.labels.data_ptr() + 4 * first

        def launch(kernel: stasis.Kernel, items: int, *args: object) -> None:
            kernel[(items + 63) // 64, 64](*args)

        launch(self.layer, n * HIDDEN, x, w, w + 4 * INPUTS * HIDDEN, self.hidden, n, INPUTS, HIDDEN, 1)
        second_bias = w + 4 * (FIRST + HIDDEN * CLASSES)
        launch(self.layer, n * CLASSES, self.hidden, w + 4 * FIRST, second_bias, self.logits, n, HIDDEN, CLASSES, 0)
        launch(self.lack, n, self.logits, labels, self.losses, n, CLASSES, share)
        launch(self.gradients, SECOND, self.hidden, self.logits, g + 4 * FIRST, n, HIDDEN, CLASSES)
        launch(self.backward, n * HIDDEN, self.logits, w + 4 * FIRST, self.hidden, self.hidden_lack, n, HIDDEN, CLASSES)
        launch(self.gradients, FIRST, x, self.hidden_lack, g, n, INPUTS, HIDDEN)

    def step(self) -> None:
        self.descend[(PARAMETERS + 63) // 64, 64](self.weights, self.gradient, PARAMETERS, RATE)


class Node:
    """The ranks of one node, whose GPUs reach each other's memory.

    The first of them has an inbox for the gradient of each GPU, and the sum over all nodes. The others take them for their own memory.
    """

    def __init__(self, world: MPI.Comm, devices: list[stasis.Device], ranks_of_node: int) -> None:
        rank = world.Get_rank()
        self.ranks = world.Split(rank // ranks_of_node, rank) if ranks_of_node else world.Split_type(MPI.COMM_TYPE_SHARED, rank)
        self.is_first = self.ranks.Get_rank() == 0
        # Between the first ranks of all nodes.
        self.between = world.Split(0 if self.is_first else MPI.UNDEFINED, rank)
        self.world_ranks = self.ranks.allgather(rank)
        mine = slice(self.ranks.Get_rank() * len(devices), (self.ranks.Get_rank() + 1) * len(devices))
        names = None
        if self.is_first:
            count = self.ranks.Get_size() * len(devices)
            self.inboxes = [stasis.Buffer.empty(devices[0], PARAMETERS) for _ in range(count)]
            # The host writes it and GPUs of other processes read it: no process waits for what another one's CPU writes to a GPU.
            self.sum = stasis.Buffer.empty(devices[0], PARAMETERS, memory="host")
            names = [buffer.name() for buffer in (*self.inboxes, self.sum)]
        names = self.ranks.bcast(names)
        if not self.is_first:
            self.sum = stasis.Buffer.named(devices[0], names[-1])
        self.boxes = (
            self.inboxes[mine]
            if self.is_first
            else [stasis.Buffer.named(device, name) for device, name in zip(devices, names[:-1][mine])]
        )

    def sum_up(self, models: list[Model]) -> None:
        """Puts the sum of all GPUs' gradients into each model's."""
        for box, model in zip(self.boxes, models):
            box.copy_(model.gradient)
        self.ranks.Barrier()
        if self.is_first:
            gradients = np.stack([box.numpy() for box in self.inboxes]).reshape(len(self.world_ranks), -1, PARAMETERS)
            by_rank = {}
            for world_ranks, of_node in self.between.allgather((self.world_ranks, gradients)):
                by_rank.update(zip(world_ranks, of_node))
            total = np.zeros(PARAMETERS, "f4")
            for rank in sorted(by_rank):
                for one in by_rank[rank]:
                    total += one
            self.sum.write(total)
        self.ranks.Barrier()
        for model in models:
            model.gradient.copy_(self.sum)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small network on the GPUs of all ranks.")
    parser.add_argument("--code", type=Path, required=True, help="the compiled examples/train/train.c")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=256, help="rows of a step, over all GPUs")
    parser.add_argument("--devices", type=int, default=1, help="GPUs of each rank")
    parser.add_argument("--node", type=int, default=0, metavar="RANKS", help="take so many ranks for those of a node (default: ask MPI)")
    parser.add_argument("--sets", type=Path, required=True, help="where sets of images are, for all ranks the same")
    parser.add_argument("--every", type=int, default=0, help="save after so many steps")
    parser.add_argument("--pace", type=float, default=0, help="seconds to wait after every step")
    parser.add_argument("--weights", type=Path, help="where to write the weights")
    args = parser.parse_args()

    asked = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, frame: asked.append(number))
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    ranks = Ranks(world, args.sets)
    adopted, state = ranks.load() or ({}, {"step": 0})
    devices = [stasis.Device(index) for index in range(args.devices)]
    rows = args.batch // (size * args.devices)
    models = [
        Model(device, args.code, rows, adopted.get(f"weights-{index}"), f"weights-{index}") for index, device in enumerate(devices)
    ]
    node = Node(world, devices, args.node)
    if rank == 0:
        print(f"from step {state['step']}", flush=True)
    for step in range(state["step"], args.steps):
        first = step * args.batch % SAMPLES
        for index, model in enumerate(models):
            model.compute(first + (rank * args.devices + index) * rows, 1 / args.batch)
        # Kernels were given addresses: nobody else knows which buffers they use.
        stasis.synchronize()
        node.sum_up(models)
        for model in models:
            model.step()
        loss = sum(world.allgather(float(sum(model.losses.numpy().sum() for model in models)))) / args.batch
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss:.6f}", flush=True)
        time.sleep(args.pace)
        leaves = ranks.agree(bool(asked))
        if leaves or args.every and (step + 1) % args.every == 0 and step + 1 < args.steps:
            number = ranks.save({"step": step + 1})
            if rank == 0:
                print(f"set {number} after step {step}", flush=True)
        if leaves:
            return
    stasis.synchronize()
    if rank == 0:
        if args.weights is not None:
            args.weights.write_bytes(models[0].weights.numpy().tobytes())
        print("done", flush=True)


if __name__ == "__main__":
    main()
