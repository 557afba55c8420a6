"""The cost of the supervisor's assignment of replicas: `python -m bench.studies.replica_assignment`.

The same call to the same upstream, through one gateway with one worker, to a platform model and to another target, in
turn. CPU of worker and supervisor per call, kernel time included. The difference is one question with its answer, one
outcome and one end over the channel, and the switchboard's own work.
"""

import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.load import Call, run_wrk
from bench.programs.gateway import Gateway, start_gateway
from bench.programs.peers import CHAT, chat_body
from bench.programs.subjects import start_rig
from bench.usage import cpu_s

SLUG = "bench/platform"
ROUNDS = 6
SECONDS = 4
CONNECTIONS = (1, 64)
PARTS = ("worker", "supervisor")


def platform_call(gateway: Gateway, replica: str) -> Call:
    """Create a platform model with one replica, and a slug and a key for it."""
    api = gateway.api
    model = api.post("/v1/models", {"name": "bench"})["id"]
    deployment = api.post(f"/v1/models/{model}/deployments", {"name": "bench"})["id"]
    api.post(f"/v1/models/{model}/deployments/{deployment}/replicas", {"replicas": [replica]}, "PUT")
    api.post(f"/v1/models/{model}/environments/production", {"deployment_id": deployment}, "PUT")
    target = {"provider": "PLATFORM", "model_id": model, "environment_name": "production"}
    api.post("/v1/gateway/endpoints", {"slug": SLUG, "targets": [target]})
    entry = {"slug": SLUG, "rate_limits": [], "usage_limits": []}
    group = api.post("/v1/gateway/groups", {"metadata": {"external_entity_id": "platform"}, "models": [entry]})["id"]
    return replace(gateway.open, body=chat_body(SLUG), headers={"authorization": f"Bearer {api.mint(group)}"})


def measure(gateway: Gateway, calls: dict[str, Call], connections: int, scratch: Path) -> dict[str, list[float]]:
    """CPU in µs per call, by "{call} {part}", a figure per round."""
    rounds: dict[str, list[float]] = {f"{name} {part}": [] for name in calls for part in PARTS}
    for turn in range(ROUNDS):
        for name, call in calls.items():
            before = {part: cpu_s(gateway.pids(part)) for part in PARTS}
            load = run_wrk(call, connections, SECONDS, scratch)
            usage = {part: (cpu_s(gateway.pids(part)) - before[part]) * 1e6 / load.requests for part in PARTS}
            for part in PARTS:
                rounds[f"{name} {part}"].append(usage[part])
            figures = ", ".join(f"{part} {usage[part]:6.1f} µs" for part in PARTS)
            print(
                f"  {connections:3} at a time, round {turn + 1}: {name:9} {figures}, {load.rate_per_s:.0f}/s",
                flush=True,
            )
    return rounds


def main() -> None:
    """Measure and print the medians."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        scratch = Path(folder)
        rig = start_rig(stack, lambda port: Call(port, CHAT, chat_body("mock"), {}), scratch)
        gateway = start_gateway(rig.direct.port, scratch)
        stack.callback(gateway.program.stop)
        calls = {"other": gateway.open, "platform": platform_call(gateway, f"http://127.0.0.1:{rig.direct.port}")}
        run_wrk(calls["platform"], 8, 2, scratch)
        for connections in CONNECTIONS:
            differences = measure(gateway, calls, connections, scratch)
            for part in PARTS:
                other, platform = (statistics.median(differences[f"{name} {part}"]) for name in ("other", "platform"))
                rounds = zip(differences[f"platform {part}"], differences[f"other {part}"], strict=True)
                more = sorted(one - two for one, two in rounds)
                print(
                    f"{connections} at a time, {part}: {other:.1f} µs, platform {platform:.1f} µs:"
                    f" {statistics.median(more):.1f} more ({more[0]:.1f} to {more[-1]:.1f})"
                )


if __name__ == "__main__":
    main()
