"""Private members of transformers and lm-evaluation-harness that the hub overrides exist there."""

import importlib.util
import re

import pytest
from lm_eval.api.model import TemplateLM
from transformers import GenerationMixin, PreTrainedModel

pytestmark = pytest.mark.slow
# With the class of the library, and the file that overrides them and says why.
MEMBERS = {
    "_init_weights": (PreTrainedModel, "causal_lm"),
    "_is_stateful": (PreTrainedModel, "causal_lm"),
    "_supports_default_dynamic_cache": (GenerationMixin, "causal_lm"),
    "_loglikelihood_tokens": (TemplateLM, "harness"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_a_private_member_exists_and_the_file_says_why(name, repository):
    library, file = MEMBERS[name]
    assert hasattr(library, name)
    source = (repository / "txl_lightning" / "hub" / f"{file}.py").read_text()
    assert re.search(rf"# Private.*(\n.*){{1,3}}\b{name}\b|\b{name}\b.*\n.*# Private", source)


def test_the_table_has_every_private_member(repository):
    path = repository / "tests" / "test_private_members.py"
    spec = importlib.util.spec_from_file_location("private_members", path)
    others = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(others)
    paths = (repository / "txl_lightning" / "hub").glob("*.py")
    used = {name for path in paths for name in others.find_private_members(path, path.read_text())}
    # Names of classes' bodies are not found there.
    assert used == MEMBERS.keys() - {"_is_stateful"}
