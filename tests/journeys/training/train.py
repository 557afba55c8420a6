"""A small real training run, as a user writes it: a network of 4352 weights learns a function, on one node or more.

Reads STEPS, PAUSE_S and CHECKPOINT_EVERY from the environment. Resumes from the last checkpoint in
TOLLGATE_CHECKPOINT_DIR. With several nodes, node 0 averages the gradients that the others send it (GRADIENT_PORT).
"""

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

Weights = list[np.ndarray]
RANK = int(os.environ["TOLLGATE_NODE_RANK"])
NODES = int(os.environ["TOLLGATE_NODE_COUNT"])
CHECKPOINTS = Path(os.environ["TOLLGATE_CHECKPOINT_DIR"])
STEPS = int(os.environ["STEPS"])
EVERY = int(os.environ.get("CHECKPOINT_EVERY", "100"))
PAUSE_S = float(os.environ.get("PAUSE_S", "0"))
RATE = 0.02


def main() -> None:
    step, weights = resumed()
    average = averaging(sum(one.size for one in weights))
    source = np.random.default_rng(1000 + RANK)
    while step < STEPS:
        step += 1
        points = source.uniform(-1, 1, (64, 1))
        loss, gradients = backward(weights, points, np.sin(3 * points))
        for one, gradient in zip(weights, split(average(flat(gradients)), weights), strict=True):
            one -= RATE * gradient
        if RANK == 0:
            print(json.dumps({"metric": "loss", "step": step, "value": loss}))
            if step % EVERY == 0 or step == STEPS:
                save(step, weights)
        time.sleep(PAUSE_S)


def backward(weights: Weights, x: np.ndarray, expected: np.ndarray) -> tuple[float, Weights]:
    """The mean squared error of a batch, and the gradients of the weights."""
    first, first_bias, second, second_bias, last = weights
    one = np.tanh(x @ first + first_bias)
    two = np.tanh(one @ second + second_bias)
    error = two @ last - expected
    at_two = (2 / len(x) * error) @ last.T * (1 - two**2)
    at_one = at_two @ second.T * (1 - one**2)
    last_gradient = two.T @ (2 / len(x) * error)
    gradients = [x.T @ at_one, at_one.sum(0), one.T @ at_two, at_two.sum(0), last_gradient]
    return float((error**2).mean()), gradients


def resumed() -> tuple[int, Weights]:
    """The last complete checkpoint's step and weights, else a fresh start."""
    folders = sorted(path.parent for path in CHECKPOINTS.glob("step-*/.complete"))
    if not folders:
        source = np.random.default_rng(7)
        shapes = [(1, 64), (64,), (64, 64), (64,), (64, 1)]
        print("starts from nothing")
        return 0, [source.normal(0, 1 / 8, shape) for shape in shapes]
    with np.load(folders[-1] / "weights.npz") as stored:
        weights = [stored[f"arr_{number}"] for number in range(5)]
    step = int(folders[-1].name.removeprefix("step-"))
    print(f"resumes from step {step}")
    return step, weights


def save(step: int, weights: Weights) -> None:
    directory = CHECKPOINTS / f"step-{step:05}"
    directory.mkdir(exist_ok=True)
    np.savez(directory / "weights.npz", *weights)
    (directory / ".complete").touch()


def averaging(size: int) -> Callable[[np.ndarray], np.ndarray]:
    """The function that averages gradients over all nodes."""
    if NODES == 1:
        return lambda gradient: gradient
    port = int(os.environ["GRADIENT_PORT"])
    if RANK == 0:
        with socket.create_server(("", port)) as server:
            others = [server.accept()[0] for _ in range(NODES - 1)]
        print(f"{len(others)} other nodes are connected")
        return lambda gradient: averaged(gradient, others)
    leader = connected(os.environ["TOLLGATE_LEADER_ADDR"], port)
    print("connected to the leader")

    def ask(gradient: np.ndarray) -> np.ndarray:
        leader.sendall(gradient.tobytes())
        return received(leader, size)

    return ask


def averaged(gradient: np.ndarray, others: list[socket.socket]) -> np.ndarray:
    mean = (gradient + sum(received(other, gradient.size) for other in others)) / (1 + len(others))
    for other in others:
        other.sendall(mean.tobytes())
    return np.asarray(mean)


def received(peer: socket.socket, size: int) -> np.ndarray:
    data = bytearray()
    while len(data) < size * 8:
        part = peer.recv(size * 8 - len(data))
        if not part:
            raise ConnectionError("the other node is gone")
        data += part
    return np.frombuffer(bytes(data))


def connected(host: str, port: int) -> socket.socket:
    give_up_at = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.05)


def flat(gradients: Weights) -> np.ndarray:
    return np.concatenate([one.ravel() for one in gradients])


def split(gradient: np.ndarray, weights: Weights) -> Weights:
    ends = np.cumsum([one.size for one in weights])
    return [part.reshape(one.shape) for part, one in zip(np.split(gradient, ends[:-1]), weights, strict=True)]


if __name__ == "__main__":
    main()
