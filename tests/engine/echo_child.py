"""A child for the tests: does what it is asked to, with memory of what it was asked before."""

import os
import time
from typing import Any

from grasp_deploy.engine.child import answer_requests
from grasp_deploy.errors import InputError

asked: list[str] = []


def answer(request: dict[str, Any]) -> dict[str, Any]:
    asked.append(request["do"])
    match request["do"]:
        case "refuse":
            raise InputError("a reason, a remedy")
        case "crash":
            raise RuntimeError("something broke")
        case "die":
            os._exit(3)
        case "sleep":
            time.sleep(60)
    print("noise on stdout")
    return {"asked": asked, "process": os.getpid()}


if __name__ == "__main__":
    answer_requests(answer)
