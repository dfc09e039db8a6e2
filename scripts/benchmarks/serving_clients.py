"""The clients of serving.py, run by Locust: each sends one sentence after the other and checks its own answers."""

import json
import os
import random
from pathlib import Path

from locust import FastHttpUser, constant, task

EXPECTED = json.loads(Path(os.environ["SERVING_EXPECTED"]).read_text(encoding="utf-8"))


class Client(FastHttpUser):
    """Sends sentences without pause; its statistics are named by the outcome."""

    wait_time = constant(0)

    @task
    def translate(self) -> None:
        """Send a sentence, and compare the answer with the translation of the sentence alone."""
        sentence, expected = random.choice(EXPECTED["pairs"])
        body = {"q": sentence, "source": EXPECTED["source"], "target": EXPECTED["target"]}
        with self.client.post("/translate", json=body, catch_response=True) as response:
            answer = response.json().get("translatedText") if response.status_code == 200 else None
            if response.status_code == 200:
                response.request_meta["name"] = "equal" if answer == expected else "different"
            elif response.status_code == 503:
                response.request_meta["name"] = "busy"
            if response.status_code in (200, 503):
                response.success()
