"""forebay bench with torch's own loader beside the engine: both hand out every sample."""

from __future__ import annotations

from support.bench import run_json


def test_a_torch_dataloader_hands_out_every_sample(capsys, data):
    status, result = run_json(
        capsys, data, "--ranks", 2, "--repetitions", 1, "--launcher", "processes",
        "--strategies", "torch-dataloader,forebay@shuffle",
    )  # fmt: skip
    assert status == 0, [row["error"] for row in result["rows"]]
    assert [(one["what"], one["equal"]) for one in result["verified"]] == [("epoch", True)]
