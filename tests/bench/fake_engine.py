"""A throughput child without a model: it logs its requests, and refuses large batches."""

import json
import os
from pathlib import Path
from typing import Any

from grasp_deploy.engine.child import answer_requests
from grasp_deploy.errors import InputError

loaded: list[str] = []


def answer(request: dict[str, Any]) -> dict[str, Any]:
    if not loaded:
        loaded.append(Path(request["model"]).name)
        return {}
    if request["batch"] > int(os.environ.get("FAKE_LARGEST_BATCH", "1000000")):
        raise InputError(f"{request['batch']} prompts do not fit: take smaller batches")
    with Path(os.environ["FAKE_LOG"]).open("a") as log:
        log.write(json.dumps([loaded, request["batch"], request["seed"]]) + "\n")
    return {"seconds": 2.0, "ttft_seconds": 1.0, "tpot_seconds": 0.1}


if __name__ == "__main__":
    answer_requests(answer)
