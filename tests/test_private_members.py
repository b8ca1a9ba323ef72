"""Private members of libraries that the package uses exist, and each has its line in one table."""

import ast
import inspect
import re
import sys
import warnings
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import jsonargparse
import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.core import optimizer
from lightning.pytorch.loggers import WandbLogger

PACKAGE = Path(__file__).parents[1] / "txl_lightning"
PRIVATE = re.compile(r"_[a-zA-Z]")
# Documented, of named tuples and of os.
DOCUMENTED = {"_asdict", "_exit", "_replace"}
LOOPS = "training/loops"
# Attributes of a Trainer that only its loops should change.
WRITTEN = re.compile(r"_loop\.|^loop\.|trainer\.(val_check_batch|validating|training|testing)$")
# By where the library keeps them, each with the files of the package that use it.
MEMBERS = {
    "option._typehint": "command_line",
    "formatter._get_help_string": "command_line",
    "optimizer._init_optimizers_and_lr_schedulers": LOOPS,
    "trainer._logger_connector.update_train_step_metrics": LOOPS,
    "trainer._signal_connector.register_signal_handlers": LOOPS,
    "trainer.fit_loop.epoch_loop._batches_that_stepped": LOOPS,
    "trainer.fit_loop.epoch_loop._should_check_val_fx": LOOPS,
    "wandb_logger._wandb_init": "training/callbacks/wandb",
    "compiled._orig_mod": "model/config",
    "module._apply": "networks/rotary",
    "module._forward_hooks": "model/config model/parts",
    "module._forward_pre_hooks": "model/config model/parts",
    "module._backward_hooks": "model/parts",
    "module._backward_pre_hooks": "model/parts",
    "module._modules": "model/parts",
    "fused_optimizer._step_supports_amp_scaling": "training/optimizers",
    "torch._foreach_add_": "training/lamb training/muon",
    "torch._foreach_addcmul_": "training/lamb",
    "torch._foreach_copy_": "model/adaptation model/precision",
    "torch._foreach_div": "training/lamb",
    "torch._foreach_lerp": "training/muon",
    "torch._foreach_lerp_": "model/adaptation training/lamb training/muon",
    "torch._foreach_mul_": "training/lamb training/muon",
    "torch._foreach_norm": "training/lamb",
    "torch._foreach_sqrt": "training/lamb",
    "torch._softmax_backward_data": "model/kernels/per_head",
    "torch.ops.mkldnn._is_mkldnn_bf16_supported": "model/packing",
    "torch.ops.mkldnn._linear_pointwise": "model/parts",
    "torch.ops.mkldnn._reorder_linear_weight": "model/packing",
}


@pytest.fixture(scope="module")
def libraries():
    """Return objects of the libraries themselves, not of our subclasses."""
    parser = jsonargparse.ArgumentParser()
    with warnings.catch_warnings():
        # Of parts of torch that its compiler imports.
        warnings.simplefilter("ignore", DeprecationWarning)
        compiled = torch.compile(torch.nn.Module())
    return SimpleNamespace(
        optimizer=optimizer,
        parser=parser,
        option=parser.add_argument("--size", type=list[int]),
        formatter=jsonargparse.DefaultHelpFormatter("prog"),
        jsonargparse=jsonargparse,
        trainer=Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, max_steps=1),
        wandb_logger=WandbLogger(),
        module=torch.nn.Module(),
        compiled=compiled,
        fused_optimizer=torch.optim.AdamW([torch.zeros(1, requires_grad=True)], fused=True),
        torch=torch,
    )


@pytest.mark.parametrize("member", MEMBERS)
def test_a_private_member_that_the_package_uses_exists(member, libraries):
    try:
        reduce(getattr, member.split("."), libraries)
    except AttributeError as error:
        files = ", ".join(f"txl_lightning/{name}.py" for name in MEMBERS[member].split())
        pytest.fail(f"{member} is gone ({error}); used in {files}")


def find_names(tree):
    """Yield private names in code: attributes, methods, imports, keywords, getattr's strings."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.FunctionDef(name=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.Import(names=found) | ast.ImportFrom(names=found):
                for path in (getattr(node, "module", None), *(alias.name for alias in found)):
                    yield from str(path).split(".")
            case ast.Call(
                func=ast.Name("getattr" | "setattr" | "hasattr" | "delattr"),
                args=[_, ast.Constant(value=str(name)), *_],
            ):
                yield name


def is_python(module):
    """Return False for an extension in C, which has no source to search."""
    return str(getattr(module, "__file__", "")).endswith(".py")


def read_library_sources(path):
    """Return the sources of the libraries whose classes are the bases of a file's classes."""
    relative = path.relative_to(PACKAGE.parent).with_suffix("")
    module = import_module(".".join(relative.parts))
    kinds = [kind for kind in vars(module).values() if inspect.isclass(kind)]
    bases = {base for kind in kinds if kind.__module__ == module.__name__ for base in kind.__mro__}
    outside = {base.__module__ for base in bases} - {"builtins", "typing"}
    outside = {name for name in outside if not name.startswith("txl_lightning")}
    modules = [sys.modules[name] for name in sorted(outside)]
    return "".join(inspect.getsource(each) for each in modules if is_python(each))


def find_private_members(path, source):
    """Return the private names in a file's source that are not its own."""
    tree = ast.parse(source)
    names = {name for name in find_names(tree) if PRIVATE.match(name)}
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    methods = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    stored = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }
    own = names & (methods | stored) - functions
    # A method or an attribute that a library's base class has too is the library's.
    shared = own and {name for name in own if re.search(rf"\b{name}\b", read_library_sources(path))}
    return names - DOCUMENTED - functions - (own - shared)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("trainer._results", "_results"),
        ("getattr(trainer, '_results')", "_results"),
        ("import torch._inductor", "_inductor"),
        ("from torch._inductor import config", "_inductor"),
        ("make_writer(_fs=None)", "_fs"),
        ("self._fs = None", "_fs"),
        ("def outer():\n    def _record_new_keys(self): ...", "_record_new_keys"),
    ],
)
def test_a_private_member_is_found_however_code_names_it(line, name):
    # A file whose class has Lightning's CSVLogger as its base.
    path = PACKAGE / "runs/logger.py"
    added = find_private_members(path, f"{path.read_text()}\n{line}")
    assert added - find_private_members(path, path.read_text()) == {name}


def test_a_file_s_own_private_members_are_left_out():
    path = PACKAGE / "runs/logger.py"
    own = "class Own:\n    def _count(self): self._n = 1"
    assert find_private_members(path, own) == set()


def test_the_table_lists_exactly_the_private_members_that_the_package_uses():
    used = {
        (name, path.relative_to(PACKAGE).with_suffix("").as_posix())
        for path in PACKAGE.rglob("*.py")
        # Its libraries are in another environment: tests/hub/ has their table.
        if path.parent.name != "hub"
        for name in find_private_members(path, path.read_text())
    }
    listed = {
        (name, file)
        for member, files in MEMBERS.items()
        for name in member.split(".")
        for file in files.split()
        if PRIVATE.match(name)
    }
    assert used - listed == set(), "add them to MEMBERS, with a comment why where they are used"
    assert listed - used == set(), "no longer used: remove them from MEMBERS"


def find_writes(tree):
    """Yield assignments to attributes of Lightning's loops, by what code calls these."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in (each for top in targets if top for each in ast.walk(top)):
            if isinstance(target, ast.Attribute) and WRITTEN.search(ast.unparse(target)):
                yield ast.unparse(target)


def test_only_one_file_writes_into_lightnings_loops():
    tree = ast.parse(
        "trainer.fit_loop.max_epochs, own.step = -1, 2\nself.trainer.validating = True"
    )
    assert [*find_writes(tree)] == ["trainer.fit_loop.max_epochs", "self.trainer.validating"]
    writers = [
        path for path in PACKAGE.rglob("*.py") if [*find_writes(ast.parse(path.read_text()))]
    ]
    assert writers == [PACKAGE / f"{LOOPS}.py"]


@pytest.mark.parametrize(
    "name", sorted({file for files in MEMBERS.values() for file in files.split()})
)
def test_a_file_that_uses_private_members_says_why(name):
    assert re.search(r"# .*\bPrivate\b", (PACKAGE / f"{name}.py").read_text())


@pytest.mark.parametrize("member", MEMBERS)
def test_design_gives_the_reason_for_each_private_member(member):
    page = (PACKAGE.parent / "docs" / "design.md").read_text()
    *_, private = (part for part in member.split(".") if PRIVATE.match(part))
    # The operations on all weights are one family.
    names = private, member.rpartition(".")[2], re.sub("^_foreach_.*", "_foreach_", private)
    assert any(f"`{name}`" in page for name in names)


@pytest.mark.parametrize("library", ["jsonargparse", "lightning", "torch"])
def test_a_library_whose_private_members_are_used_has_an_upper_bound(library):
    text = (PACKAGE.parent / "pyproject.toml").read_text()
    assert re.search(rf'"{library}(\[\w+\])?>=[\d.]+,<[\d.]+"', text)
