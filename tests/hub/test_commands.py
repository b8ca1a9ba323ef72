"""What works for other networks works for models of transformers, or is refused in one line."""

import json
from pathlib import Path

import pytest

from tests.hub.test_huggingface import NETS
from tests.networks.test_commands import (  # noqa: F401
    net,
    run,
    sweep_with_wandb,
    test_candidates_have_the_nats_that_the_network_gives_their_text,
    test_context_length_is_measured_by_a_command,
    test_dynamic_evaluation_takes_the_steps_of_the_paper,
    test_options_of_a_transformer_xl_are_refused_before_a_step,
    test_parts_of_a_transformer_xl_are_refused_by_the_name_of_the_network,
    test_report_has_the_network_its_losses_and_its_samples,
    test_text_is_continued_by_a_command,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*cannot be verified. files of transformers have no"),
]


@pytest.fixture(scope="module", params=NETS)
def settings(request):
    family = {"model_type": request.param, "settings": NETS[request.param]}
    return {"class_path": "HuggingFace", "mem_len": 24} | family


def test_evaluate_takes_steps_and_refuses_a_cache(run, accepted, refused):  # noqa: F811
    code, line = refused("evaluate", run, "--cache_len=9")
    message = "cache_len: invalid 9; expected 0, as HuggingFaceNetwork lacks hidden and head"
    assert (code, line[: len(message)]) == (2, message)
    words = ("--split=val", "--tgt_len=20", "--adapt=auto", "--adapt_tokens=60")
    record = json.loads(accepted("evaluate", run, *words).out)
    assert "rate" in record["adapt"]["values"]
    assert not (record["adaptation"] or {}).get("cache_len")


def test_a_sweep_of_families_has_settings_in_wandb_reports_and_a_comparison(
    sweep_with_wandb,  # noqa: F811
    accepted,
):
    kinds = [{"mem_len": 24, "model_type": name, "settings": NETS[name]} for name in NETS]
    found = sweep_with_wandb([{"class_path": "HuggingFace"} | kind for kind in kinds])
    assert [logged | kind for logged, kind in zip(found, kinds, strict=True)] == found
    pages = [path.read_text() for path in Path("out").glob("*/**/report.html")]
    counts = [sum(f"model_type: {family}" in page for page in pages) for family in NETS]
    assert counts == [1, 1]
    output = accepted("compare", "out", "--by=model.net.model_type").out
    assert " against ".join(sorted(NETS)) in output
    assert "unknown: one seed" in output
