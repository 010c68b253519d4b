"""What Ray Serve does to requests while replicas are added, die and are replaced.

The app of serving/ray runs on a cluster of its own, with the embedded model and its pruned copy.
serving/ray/load.py keeps requests going; a request that fails is sent again, and counted.

1. scaling: one replica of `pruned`, until a second one that the load asks for has run a while;
2. replica killed: SIGKILL to one of these two in the middle of 10,000 requests;
3. share: requests for `model` go from the dense model to the pruned one, 0, 0.5, 1;
4. checkpoint replaced: the folder behind `dense` becomes the pruned one, until all has switched.

    python -m benchmarks.ray_serve --output ray-serve.json
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.common.models import MODEL, NO_OWN, demo_texts
from benchmarks.common.output import (
    add_output_options,
    check_place,
    command_of,
    new_parser,
    print_table,
    run_command,
    working_folder,
    write,
)
from benchmarks.common.ray_cluster import (
    ENGINE,
    ROOT,
    Cluster,
    Deployments,
    check_ray,
    running_cluster,
    running_replicas,
)
from grasp_deploy.compression.compress import compress
from grasp_deploy.config.compress_config import CompressConfig, with_own
from grasp_deploy.engine.child import log_tail, running
from grasp_deploy.errors import ChildError
from grasp_deploy.files.record import new_record

KEEP, CONCURRENCY, ENDLESS = 0.6, 32, 10**9
DENSE, PRUNED, INGRESS = "LLMServer:dense", "LLMServer:pruned", "SplitIngress"
PROMPT = "import os\n"
LOST = 3  # exit code of load.py whose requests were lost; its record says how many
METRICS_SECONDS = 20.0  # replicas report their counts every ten
TWO = {
    "autoscaling_config": {
        "min_replicas": 1,
        "max_replicas": 2,
        "target_ongoing_requests": 8,
        "upscale_delay_s": 5,
        "downscale_delay_s": 600,
    }
}


class Load:
    """Requests that are going on, and what was seen of the cluster meanwhile."""

    def __init__(self, cluster: Cluster, process: subprocess.Popen[bytes]) -> None:
        self.cluster, self.process = cluster, process
        self.begun = time.monotonic()
        self.timeline: list[dict[str, Any]] = []
        self.seen: dict[str, Any] = {}

    def see(self, **values: Any) -> None:
        """Note what differs from what was seen last."""
        changed = {name: now for name, now in values.items() if self.seen.get(name) != now}
        if changed:
            self.seen |= changed
            row = {"seconds": round(time.monotonic() - self.begun, 1), **changed}
            self.timeline.append(row)
            print(row, file=sys.stderr, flush=True)

    def watch(self, is_done: Callable[[Deployments], bool]) -> Deployments:
        """Look at the replicas until something holds for them."""

        def look(deployments: Deployments) -> bool:
            if self.process.poll() not in (None, 0, LOST):
                raise ChildError(f"load.py failed: {log_tail(self.cluster.folder / 'load.log')}")
            rows = {name: row["replicas"] for name, row in deployments.items()}
            states = {name: Counter(r["state"] for r in rows[name]) for name in sorted(rows)}
            self.see(replicas={name: dict(counts) for name, counts in states.items()})
            return is_done(deployments)

        return self.cluster.wait(look)

    def go_on(self, seconds: float) -> None:
        """Keep watching for so long."""
        deadline = time.monotonic() + seconds
        self.watch(lambda _: time.monotonic() > deadline)

    def answered(self) -> int:
        """Requests answered by now, by the line that load.py prints for every hundred."""
        counts = re.findall(
            r"^(\d+) answered", (self.cluster.folder / "load.log").read_text(), re.M
        )
        return int(counts[-1]) if counts else 0

    def result(self) -> dict[str, Any]:
        """What came of the requests, and the timeline."""
        record = json.loads((self.cluster.folder / "load.json").read_text())
        return {"load": record, "timeline": self.timeline}


@contextmanager
def load(cluster: Cluster, model: str, requests: int = ENDLESS) -> Iterator[Load]:
    """Send requests; in the end no more begin, and those under way are waited for."""
    command = [sys.executable, str(ROOT / "serving" / "ray" / "load.py"), "--model", model]
    command += ["--base-url", cluster.url, "--concurrency", str(CONCURRENCY)]
    command += ["--requests", str(requests), "--output", str(cluster.folder / "load.json")]
    with running(command, os.environ, cluster.folder / "load.log") as process:
        yield Load(cluster, process)
        process.send_signal(signal.SIGINT)
        if process.wait() not in (0, LOST):
            raise ChildError(f"load.py failed: {log_tail(cluster.folder / 'load.log')}")


def complete(cluster: Cluster, model: str) -> dict[str, Any]:
    """The greedy answer to PROMPT."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": 32, "temperature": 0}
    request = urllib.request.Request(f"{cluster.url}/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def scaling(cluster: Cluster, seconds: float) -> dict[str, Any]:
    """Load one replica until a second one runs, and for some seconds more."""
    [first] = running_replicas(cluster.deployments(), PRUNED)
    with load(cluster, "pruned") as now:
        both = running_replicas(
            now.watch(lambda seen: len(running_replicas(seen, PRUNED)) == 2), PRUNED
        )
        before = now.answered()
        now.go_on(seconds)
    time.sleep(METRICS_SECONDS)
    counts, result = cluster.requests_by_replica(), now.result()
    [second] = both.keys() - {first}
    while_both = result["load"]["answered"] - before
    return {**result, "answered_while_both_ran": while_both, "by_the_second": counts[second]}


def replica_killed(cluster: Cluster, requests: int) -> dict[str, Any]:
    """Kill one of two replicas when half of the requests are answered."""
    name, victim = min(running_replicas(cluster.deployments(), PRUNED).items())
    with load(cluster, "pruned", requests) as now:
        now.watch(lambda _: now.answered() >= requests // 2)
        os.kill(victim, signal.SIGKILL)
        now.see(killed="one replica's actor", answered=now.answered())
        now.watch(lambda seen: len(running_replicas(seen, PRUNED).keys() - {name}) == 2)
        now.see(answered=now.answered())
        now.watch(lambda _: now.process.poll() is not None)
    return now.result()


def share_changed(cluster: Cluster, app: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Move the requests for `model` from the dense model to the pruned one."""
    with load(cluster, "model") as now:
        for share in (0.0, 0.5, 1.0):
            cluster.deploy(app, {INGRESS: {"user_config": {"share": share}}})
            now.see(share=share)
            now.go_on(seconds)
            now.see(twenty_answers=Counter(complete(cluster, "model")["model"] for _ in range(20)))
    return now.result()


def checkpoint_replaced(cluster: Cluster, app: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Put the pruned checkpoint behind the name `dense`, and wait until all replicas are new."""
    texts = {complete(cluster, n)["choices"][0]["text"]: n for n in ("dense", "pruned")}
    assert len(texts) == 2, "the checkpoints answer alike: no switch could be seen"
    old = {replica for n in (DENSE, PRUNED, INGRESS) for replica in ids(cluster.deployments(), n)}
    with load(cluster, "dense") as now:

        def is_new(seen: Deployments) -> bool:
            try:
                text = complete(cluster, "dense")["choices"][0]["text"]
                now.see(text_of=texts.get(text, "neither"))
            except OSError as error:
                now.see(text_of=str(error))
            replicas = [ids(seen, name) for name in (DENSE, PRUNED, INGRESS)]
            return all(new and not new & old for new in replicas)

        now.go_on(seconds)
        now.see(folder_behind_dense="pruned")
        cluster.deploy({**app, "dense": app["pruned"]})
        now.watch(is_new)
        now.go_on(seconds)
        is_new(cluster.deployments())
    return now.result()


def ids(deployments: Deployments, name: str) -> set[str]:
    """The replicas of a deployment, in every state; none while Serve takes a new app."""
    return {row["replica_id"] for row in deployments.get(name, {}).get("replicas", [])}


def quick_config(work: Path) -> CompressConfig:
    """A compression of the embedded model in seconds: what it answers does not matter here."""
    text = with_own([str(demo_texts(work)[0])], NO_OWN)
    return CompressConfig(
        model=str(MODEL), keep=KEEP, calibration=text, sequences=16, sequence_length=128, rounds=1
    )


def measure(app: dict[str, Any], requests: int, seconds: float) -> dict[str, Any]:
    """All four, one after another on one cluster."""
    with running_cluster() as cluster:
        cluster.deploy(app, {PRUNED: TWO})
        cluster.wait_for_all()
        results = {
            "scaling": scaling(cluster, seconds),
            "replica_killed": replica_killed(cluster, requests),
        }
        cluster.deploy(app)
        cluster.wait(lambda seen: len(ids(seen, PRUNED)) == 1)
        results["share_changed"] = share_changed(cluster, app, seconds)
        results["checkpoint_replaced"] = checkpoint_replaced(cluster, app, seconds)
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    add_output_options(parser, "few requests, two seconds where it would be twenty: minutes")
    options = parser.parse_args(arguments)
    check_place(options.output, "ray_serve")
    check_ray()
    requests, seconds = (400, 2.0) if options.smoke else (10_000, 20.0)
    with working_folder("ray-serve") as (work, _):
        compress(quick_config(work), work / "pruned")
        fixed = {"min_replicas": 1, "max_replicas": 1, "share": 0.0, "engine": ENGINE}
        folders = {"dense": str(MODEL), "pruned": str(work / "pruned")}
        settings = {
            "dense": "the embedded model",
            "keep": KEEP,
            "app": fixed,
            "app_while_it_scales": TWO,
            "concurrency": CONCURRENCY,
            "tokens_an_answer": 4,
            "requests_replica_killed": requests,
            "seconds_beyond": seconds,
        }
        results = measure({**folders, **fixed}, requests, seconds)
    record = new_record("ray_serve", command_of("ray_serve", arguments), settings, **results)
    record["versions"]["ray"] = version("ray")
    print_table([(name, describe(result["load"])) for name, result in results.items()])
    write(options.output, record)


def describe(found: dict[str, Any]) -> str:
    """What came of the requests, in one line."""
    return (
        f"{found['answered']:,} answered, {sum(found['retries'].values())} sent again, "
        f"{found['lost']} lost; the longest took {found['request_seconds'].get('max', 0):.1f} s"
    )


if __name__ == "__main__":
    run_command(main)
